"""The scripted answers, each with markers in it that can be found again in whatever a library makes of it."""

from dataclasses import dataclass

from sidestream.testing import Answer, FakeProvider, Received, Reply, ResponsesScript, pixel_png, sse
from sidestream.testing.replies import Event

SEARCH_ID = "ws_5ea4c4"
STAGES = ("in_progress", "searching", "completed")
FIRST_CODE, LAST_CODE = "first_words = 11", "last_words = 99"
PREVIEW = pixel_png(red=77)
PAGE = "https://cited.example/harvest"
START, END = 1013, 1042
FILE = b"year,tons\n2024,1730\n2025,1985\n"
CONTAINER, FILE_ID = "cntr_" + "7" * 40, "cfile_" + "8" * 40
HALF = "Half an answer, and th"
APPROVAL_ID = "mcpr_a9940a"
UNKNOWN, UNKNOWN_MARKER = "response.hologram.delta", "a hologram of an owl"

_CITED = ("The harvest grew. " * 70)[: END + 20]


@dataclass(frozen=True)
class Probe:
    """One scripted answer, and the hosted tool that the program declares for it."""

    name: str
    title: str
    tool: str | None
    answer: Answer
    files: tuple[tuple[str, bytes], ...] = ()

    def provider(self) -> FakeProvider:
        """A provider that gives this answer to every request."""
        fake = FakeProvider()
        fake.on("POST", "*/responses", self.answer)
        for path, data in self.files:
            fake.add_file(path, data, "text/csv")
        return fake


def _search() -> list[Event]:
    item: Event = {"id": SEARCH_ID, "type": "web_search_call", "status": "completed"}
    item["action"] = {"type": "search", "query": "harvest"}
    stages: list[Event] = [{"type": f"response.web_search_call.{stage}"} for stage in STAGES]
    return ResponsesScript().item(item, *stages).text(["It ", "grew."]).events()


def _code() -> list[Event]:
    code = [f"{FIRST_CODE}\n", "print(first_words)\n", f"{LAST_CODE}\n"]
    return ResponsesScript().code_interpreter(code, logs="11\n").text("Done.").events()


def _image() -> list[Event]:
    return ResponsesScript().image(partials=[PREVIEW, pixel_png(red=88)]).text("Here it is.").events()


def _citation() -> list[Event]:
    cited: Event = {"type": "url_citation", "url": PAGE, "title": "Harvest", "start_index": START, "end_index": END}
    return ResponsesScript().web_search("harvest").text([_CITED[:500], _CITED[500:]], annotations=[cited]).events()


def _file() -> list[Event]:
    text = "The table is in harvest.csv."
    cited: Event = {"type": "container_file_citation", "container_id": CONTAINER, "file_id": FILE_ID}
    cited |= {"filename": "harvest.csv", "start_index": 16, "end_index": 27}
    script = ResponsesScript().code_interpreter("open('harvest.csv', 'w')", container_id=CONTAINER)
    return script.text(text, annotations=[cited]).events()


def _half() -> list[Event]:
    """The events up to the last delta of a text."""
    events = ResponsesScript().text([HALF[:5], HALF[5:], "e rest."]).events()
    last = max(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return events[:last]


def _unknown() -> list[Event]:
    events = ResponsesScript().text(["It ", "grew."]).events()
    middle = next(n for n, event in enumerate(events) if event["type"] == "response.output_text.done")
    new: Event = {"type": UNKNOWN, "item_id": "holo_1", "output_index": 0, "hologram": UNKNOWN_MARKER}
    events.insert(middle, new)
    return [{**event, "sequence_number": n} for n, event in enumerate(events)]


def _approval(request: Received) -> Reply:
    if is_approved(request):
        return sse(ResponsesScript().text("Sent.").events())
    item: Event = {"id": APPROVAL_ID, "type": "mcp_approval_request", "name": "send_letter"}
    item |= {"arguments": '{"to": "Ada"}', "server_label": "desk"}
    return sse(ResponsesScript().item(item).events())


def is_approved(request: Received) -> bool:
    """True if the request has the approval of the call."""
    body = request.json
    items = body.get("input") if isinstance(body, dict) else None
    wanted = {"type": "mcp_approval_response", "approval_request_id": APPROVAL_ID, "approve": True}
    return isinstance(items, list) and any(isinstance(item, dict) and wanted.items() <= item.items() for item in items)


_FILE_PATH = f"/v1/containers/{CONTAINER}/files/{FILE_ID}"

PROBES = (
    Probe("stages", "the stages of a web search while it runs", "web_search", sse(_search())),
    Probe("code", "code as the model writes it", "code_interpreter", sse(_code())),
    Probe("previews", "previews of an image", "image_generation", sse(_image())),
    Probe("citations", "citations with their place in the text", "web_search", sse(_citation())),
    Probe(
        "file",
        "a file made in the sandbox, with the answer",
        "code_interpreter",
        sse(_file()),
        ((f"{_FILE_PATH}/content", FILE),),
    ),
    Probe("broken", "an error if the connection breaks in mid-answer", None, sse(_half(), cut="close")),
    Probe("ended", "an error if the stream ends in mid-answer", None, sse(_half())),
    Probe("approval", "approval of a hosted MCP call", "mcp", _approval),
    Probe("unknown", "events of a type that it does not know", None, sse(_unknown())),
)

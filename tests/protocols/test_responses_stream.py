"""Runs as streams of the Responses API: legal in both dialects, whatever a provider sent; OpenAI's own come out as they came."""

import json
from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.jsontext import as_object
from sidestream.parts import (
    Error,
    File,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import Dialect, ResponseHead, ResponseOutcome
from sidestream.protocols.responses.stream import EventOrderError, ResponseStream
from sidestream.replay.provider import model_exchanges, replay
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ReplayTransport
from support.places import RECORDINGS
from support.response_events import check_events, check_response
from support.streams import decode_whole

HEAD = ResponseHead(id="resp_1", model="main", created=7)
USAGE = Usage()
BOTH: tuple[Dialect, Dialect] = ("openai", "open-responses")
needs_recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings: {RECORDINGS} is not there")
dialects = pytest.mark.parametrize("dialect", BOTH)


def events_of(
    parts: list[StreamPart], dialect: Dialect = "openai", head: ResponseHead = HEAD, **options: Any
) -> list[Any]:
    encoder = ResponsesEncoder(head, dialect=dialect, **options)
    return [*encoder.begin(), *(event for part in parts for event in encoder.feed(part, 9.5))]


def step(
    *parts: StreamPart, reason: FinishReason = "stop", raw: str | None = None, number: int = 0
) -> list[StreamPart]:
    return [StepStart(number), *parts, StepFinish(number, reason, USAGE, StepOutcome(raw_reason=raw))]


def run(*parts: StreamPart, reason: FinishReason = "stop", raw: str | None = None) -> list[StreamPart]:
    return [StreamStart(()), *step(*parts, reason=reason, raw=raw), Finish(reason, USAGE, raw)]


def text(id: str, *deltas: str) -> list[StreamPart]:
    return [TextStart(id), *(TextDelta(id, delta) for delta in deltas), TextEnd(id)]


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def output_of(parts: list[StreamPart], dialect: Dialect = "openai", **options: Any) -> list[Any]:
    return check_events(events_of(parts, dialect, **options), dialect)["output"]


# The order of events


@requirement("R140")
def test_text_events_follow_specified_order():
    events = events_of(run(*text("m", "Hel", "lo.")))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert check_events(events)["completed_at"] == 9


@requirement("R140")
def test_builder_refuses_events_out_of_order():
    stream = ResponseStream(HEAD)
    with pytest.raises(EventOrderError):
        stream.add({"id": "msg_1", "type": "message"})
    stream.begin()
    with pytest.raises(EventOrderError):
        stream.begin()
    item = stream.add({"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress"})
    part = stream.add_part(item, "output_text")
    for forbidden in (
        lambda: stream.add_part(item, "output_text"),
        lambda: stream.done(item),
        lambda: stream.end(ResponseOutcome("completed")),
        lambda: stream.input_delta(item, "{}"),
    ):
        with pytest.raises(EventOrderError):
            forbidden()
    stream.delta(item, part, "Hi")
    stream.end_part(item, part)
    for forbidden in (
        lambda: stream.delta(item, part, "!"),
        lambda: stream.annotate(item, part, {}),
        lambda: stream.end_part(item, part),
    ):
        with pytest.raises(EventOrderError):
            forbidden()
    stream.done(item, status="completed")
    with pytest.raises(EventOrderError):
        stream.stage(item, "completed")
    stream.end(ResponseOutcome("completed", USAGE))
    for forbidden in (
        lambda: stream.add({"id": "x", "type": "message"}),
        lambda: stream.end(ResponseOutcome("completed")),
    ):
        with pytest.raises(EventOrderError):
            forbidden()
    check_events(stream.take())


@requirement("R140")
def test_stage_already_passed_is_left_out():
    stream = ResponseStream(HEAD)
    stream.begin()
    item = stream.add({"id": "ws_1", "type": "web_search_call", "status": "in_progress"})
    for stage in ("searching", "in_progress", "unknown", "completed"):
        stream.stage(item, stage)
    stream.done(item, status="completed", action={"type": "search", "query": "q"})
    stream.end(ResponseOutcome("completed", USAGE))
    events = stream.take()
    assert kinds(events)[3:5] == ["web_search_call.searching", "web_search_call.completed"]
    check_events(events)


@requirement("R140")
@dialects
def test_blocks_of_message_are_one_item_ended_by_other_items(dialect: Dialect):
    parts = run(
        ReasoningStart("m:0"),
        ReasoningDelta("m:0", "Hm."),
        ReasoningEnd("m:0", signature="s"),
        *text("m:1", "One"),
        *text("m:2", ", two"),
        ToolCall("w", "web_search", "web_search", True, input={"query": "three"}),
        ToolResult("w", "web_search", "web_search", [{"url": "https://a.example"}], False, True),
        *text("m:5", " three."),
    )
    output = output_of(parts, dialect)
    assert [part["text"] for part in output[1]["content"]] == ["One", ", two"]
    assert output[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert "signature" not in str(output)
    middle = ["web_search_call"] if dialect == "openai" else ["function_call", "function_call_output"]
    assert [item["type"] for item in output] == ["reasoning", "message", *middle, "message"]


@requirement("R140")
@dialects
def test_sources_become_annotations_even_if_logged_before_text(dialect: Dialect):
    url = Source("s1", "url", "https://a.example", title="A", start=0, end=3, text_id="m")
    file = Source("s2", "document", file_id="f1", title="b.pdf", text_id="m")
    early = output_of(run(url, file, *text("m", "One.")), dialect)
    late = output_of(run(*text("m", "One."), url, file), dialect)
    wanted = ["url_citation", "file_citation"] if dialect == "openai" else ["url_citation"]
    for output in (early, late):
        assert [found["type"] for found in output[0]["content"][0]["annotations"]] == wanted


@requirement("R140")
@dialects
def test_events_between_text_deltas_lose_no_text(dialect: Dialect):
    call = ToolCall("w", "web_search", "web_search", True, input={"query": "q"})
    result = ToolResult("w", "web_search", "web_search", [], False, True)
    output = output_of(
        run(TextStart("m"), TextDelta("m", "On"), call, result, TextDelta("m", "e."), TextEnd("m")), dialect
    )
    assert output[0]["content"][0]["text"] == "One."


@requirement("R140")
def test_final_text_replaces_streamed_text():
    events = events_of(run(TextStart("m"), TextDelta("m", "Helo"), TextEnd("m", text="Hello.")))
    (message,) = check_events(events, corrections=1)["output"]
    assert [part["text"] for part in message["content"]] == ["Hello."]
    assert [event["text"] for event in events if event["type"] == "response.output_text.done"] == ["Hello."]
    (message,) = output_of(run(TextStart("m"), TextDelta("m", "Hel"), TextEnd("m", text="Hello.")))
    assert [part["text"] for part in message["content"]] == ["Hello."]


# How a response ends


@requirement("R140")
@dialects
@pytest.mark.parametrize(
    ("reason", "raw", "status", "why"),
    [
        ("length", "max_output_tokens", "incomplete", "max_output_tokens"),
        ("content-filter", "content_filter", "incomplete", "content_filter"),
        ("content-filter", "refusal", "incomplete", "content_filter"),  # Without a part that says so.
        ("other", "steered", "incomplete", "steered"),
        ("tool-calls", None, "completed", None),
        ("stop", None, "completed", None),
    ],
)
def test_incomplete_response_has_reason_and_incomplete_last_item(
    reason: FinishReason, raw: str | None, status: str, why: str | None, dialect: Dialect
):
    parts = run(*text("m", "Once upon a"), reason=reason, raw=raw)
    response = check_events(events_of(parts, dialect), dialect)
    assert (response["status"], as_object(response["incomplete_details"]).get("reason")) == (status, why)
    if reason == "length":
        assert response["output"][-1]["status"] == "incomplete"
    if status == "completed" and reason == "stop":
        assert response["output"][-1]["status"] == "completed"


@requirement("R140")
@dialects
def test_mid_stream_failure_is_error_then_failed_response(dialect: Dialect):
    parts: list[StreamPart] = [
        StreamStart(()),
        StepStart(0),
        TextStart("m"),
        TextDelta("m", "Fir"),
        TextEnd("m"),
        StepFinish(0, "error", USAGE),
        Error("rate-limit", "slow down", code="rate_limit_exceeded", status=429),
        Finish("error", USAGE),
    ]
    events = events_of(parts, dialect)
    response = check_events(events, dialect)
    assert kinds(events)[-2:] == ["error", "failed"]
    assert response["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}
    nested = events[-2].get("error", events[-2])
    assert nested["message"] == "slow down"
    assert ("error" in events[-2]) == (dialect == "open-responses")


@requirement("R140")
@dialects
def test_cancelled_response_ends_open_items(dialect: Dialect):
    encoder = ResponsesEncoder(HEAD, dialect=dialect)
    events = encoder.begin()
    for part in (StepStart(0), TextStart("m"), TextDelta("m", "Onc")):
        events += encoder.feed(part)
    events += encoder.cancelled()
    response = check_events(events, dialect)
    assert response["status"] == ("cancelled" if dialect == "openai" else "incomplete")
    assert response["output"][0]["status"] == "incomplete"
    assert encoder.feed(TextDelta("m", "e")) == []


@requirement("R140")
def test_refusal_is_separate_part_kind():
    start = TextStart("m", provider_metadata={"p": {"refusal": True}})
    events = events_of(run(start, TextDelta("m", "No."), TextEnd("m"), reason="content-filter", raw="refusal"))
    assert check_events(events)["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


# Tools


@requirement("R140")
@dialects
def test_only_client_functions_are_function_calls_for_client(dialect: Dialect):
    parts = run(
        ToolInputStart("c1", "add", False),
        ToolInputDelta("c1", '{"a":'),
        ToolInputDelta("c1", "1}"),
        ToolInputEnd("c1"),
        ToolCall("c1", "add", "add", False, input={"a": 1}),
        ToolInputStart("c2", "now", False),
        ToolInputEnd("c2"),
        ToolCall("c2", "now", "now", False, input={}),
        reason="tool-calls",
    )
    parts[-1:] = [ToolResult("c2", "now", "now", "noon", False, False), Finish("approval", USAGE)]
    output = output_of(parts, dialect, functions=["add"])
    assert (output[0]["type"], output[0]["call_id"], output[0]["arguments"]) == ("function_call", "c1", '{"a":1}')
    if dialect == "openai":
        (call,) = output[1:]
        assert (call["type"], call["name"], call["output"], call["server_label"]) == (
            "mcp_call",
            "now",
            "noon",
            "server",
        )
    else:
        call, answer = output[1:]
        assert (call["name"], answer["output"], answer["call_id"]) == ("now", "noon", call["call_id"])


@requirement("R122", "R140")
@pytest.mark.parametrize("functions", [(), ["now"], None], ids=str)
def test_call_of_program_is_never_function_call_for_client(functions: list[str] | None):
    caller = {"sidestream": {"caller": {"type": "program", "caller_id": "p1"}}}
    parts = run(ToolCall("p1", "program", "program", False, input={}), reason="tool-calls")
    parts[-1:] = [
        ToolCall("p1/1", "now", "now", False, input={}, provider_metadata=caller),
        ToolResult("p1/1", "now", "now", "noon", False, False, provider_metadata=caller),
        ToolResult("p1", "program", "program", "12", False, False),
        Finish("stop", USAGE),
    ]
    (call,) = [item for item in output_of(parts, functions=functions) if item["name"] == "now"]
    assert (call["type"], call["output"]) == ("mcp_call", "noon")
    denied = {"error": "Denied", "message": "The call of now was denied."}
    parts[-3] = ToolResult("p1/1", "now", "now", denied, True, False, provider_metadata=caller)
    items = output_of(parts, functions=functions)
    assert [item["status"] for item in items if item["name"] != "now"] == ["completed"]
    assert "incomplete" not in [item["status"] for item in items]


@requirement("R140")
@dialects
def test_tools_of_every_provider_are_typed_items(dialect: Dialect):
    image = File("i", "image/png", data=b"png")
    parts = run(
        ToolInputStart("c1", "code_execution", True),
        ToolInputDelta("c1", '{"code":"print('),
        ToolInputDelta("c1", '1)"}'),
        ToolInputEnd("c1"),
        ToolCall("c1", "code_execution", "code_interpreter", True, input={"code": "print(1)"}),
        ToolResult("c1", "code_execution", "code_interpreter", {"stdout": "1\n"}, False, True),
        ToolCall("c2", "file_search", "file_search", True, input={"queries": ["q"]}),
        ToolResult("c2", "file_search", "file_search", {"results": [{"text": "found"}]}, False, True),
        ToolCall("c3", "lookup", "mcp", True, input={"id": 1}),
        ToolResult("c3", "lookup", "mcp", {"server_name": "docs", "output": "text"}, False, True),
        ToolCall("c4", "web_fetch", "web_fetch", True, input={"url": "https://a.example"}),
        ToolResult("c4", "web_fetch", "web_fetch", {"error_code": "gone"}, True, True),
        image,
    )
    events = events_of(parts, dialect)
    output = check_events(events, dialect)["output"]
    if dialect == "open-responses":
        assert [item["type"] for item in output] == ["function_call", "function_call_output"] * 5
        assert output[0]["arguments"] == '{"code":"print(1)"}'
        assert output[-1]["output"][0]["image_url"].startswith("data:image/png;base64,")
        return
    code, files, mcp, fetch, picture = output
    assert (code["code"], code["outputs"]) == ("print(1)", [{"type": "logs", "logs": "1\n"}])
    assert [event["delta"] for event in events if event["type"].endswith("_code.delta")] == ["print(", "1)"]
    assert (files["queries"], files["results"]) == (["q"], [{"text": "found"}])
    assert (mcp["server_label"], mcp["name"], mcp["arguments"]) == ("docs", "lookup", '{"id":1}')
    assert (fetch["status"], fetch["action"]) == ("failed", {"type": "open_page", "url": "https://a.example"})
    assert (picture["type"], picture["result"]) == ("image_generation_call", "cG5n")


CODE: list[StreamPart] = [
    ToolCall("c1", "code_execution", "code_interpreter", True, input={"code": "plot()"}),
    ToolResult("c1", "code_execution", "code_execution", {"stdout": "1"}, False, True),
]
PLOT = File("f1", "image/png", "plot.png", b"image", tool="code_interpreter", call_id="c1")
TABLE = File("f2", "text/csv", "a.csv", b"a,b", tool="code_interpreter", call_id="c1")


@requirement("R140")
@dialects
def test_late_code_interpreter_image_is_among_outputs(dialect: Dialect):
    first, *rest = output_of(run(*CODE, PLOT, *text("m", "Done.")), dialect)
    url = f"data:image/png;base64,{b64encode(b'image').decode()}"
    if dialect == "openai":
        assert first["outputs"] == [{"type": "logs", "logs": "1"}, {"type": "image", "url": url}]
    else:
        assert first["name"] == "code_interpreter"
        assert url in rest[0]["output"]
    assert rest[-1]["content"][0]["annotations"] == []


@requirement("R140")
@pytest.mark.parametrize(
    "parts",
    [[*CODE, TABLE, *text("m", "Done.")], [*CODE, *text("m", "Done."), TABLE], [*text("m", "Done."), *CODE, TABLE]],
    ids=["before", "after", "last"],
)
def test_file_is_annotation_of_adjacent_text(parts: list[StreamPart]):
    output = output_of(run(*parts))
    messages = [item for item in output if item["type"] == "message"]
    assert messages[0]["content"][0]["text"] == "Done."
    (cited,) = messages[-1]["content"][-1]["annotations"]
    assert (cited["type"], cited["filename"]) == ("container_file_citation", "a.csv")
    assert sum(len(part["annotations"]) for item in messages for part in item["content"]) == 1


@requirement("R140")
def test_file_between_two_texts_is_cited_once():
    *_, first, second = output_of(run(*CODE, TABLE, *text("m", "Done."), *text("n", "Bye.")))
    assert [len(item["content"][0]["annotations"]) for item in (first, second)] == [1, 0]


@requirement("R140")
def test_file_is_function_call_output_in_open_responses():
    *_, call, output = output_of(run(*CODE, *text("m", "Done."), TABLE), "open-responses")
    assert (call["type"], output["type"]) == ("function_call", "function_call_output")
    data = f"data:text/csv;base64,{b64encode(b'a,b').decode()}"
    assert output["output"] == [{"type": "input_file", "filename": "a.csv", "file_data": data}]


@requirement("R140")
def test_file_cited_by_provider_is_cited_once():
    metadata = {"p": {"container_id": "cntr_1"}}
    source = Source("s", "container_file", file_id="f2", title="a.csv", text_id="m", provider_metadata=metadata)
    parts = run(TextStart("m"), TextDelta("m", "Done."), source, TextEnd("m"), replace(TABLE, call_id=None))
    (message,) = output_of(parts)
    (cited,) = message["content"][0]["annotations"]
    assert (cited["container_id"], cited["file_id"]) == ("cntr_1", "f2")


@requirement("R140")
@dialects
def test_approval_is_separate_item_and_denied_call_is_not(dialect: Dialect):
    call = ToolCall(
        "c1", "remove", "mcp", False, input={"id": 7}, provider_metadata={"sidestream": {"server_label": "crm"}}
    )
    request = ToolApprovalRequest("a1", "c1", "remove", {"id": 7}, "crm")
    parts = run(call, reason="tool-calls")
    (item,) = output_of([*parts[:-1], request, Finish("approval", USAGE)], dialect)
    assert (item["server_label"], item["name"], item["arguments"]) == ("crm", "remove", '{"id":7}')
    assert item["type"] == ("mcp_approval_request" if dialect == "openai" else "sidestream:approval_request")
    denied = ToolResult("c1", "remove", "mcp", {"error": "Denied", "message": "no"}, True, False)
    encoder = ResponsesEncoder(HEAD, dialect=dialect)
    encoder.tools.knows(call)
    encoder.tools.asked_before(request)
    events = [*encoder.begin(), *(e for part in (denied, *run(*text("m", "Fine."))) for e in encoder.feed(part))]
    assert [found["type"] for found in check_events(events, dialect)["output"]] == ["message"]
    approved = ResponsesEncoder(HEAD, dialect=dialect)
    approved.tools.knows(call)
    approved.tools.asked_before(request)
    result = ToolResult("c1", "remove", "mcp", "done", False, False)
    events = [
        *approved.begin(),
        *approved.started("c1"),
        *(e for p in (result, Finish("stop", USAGE)) for e in approved.feed(p)),
    ]
    done = check_events(events, dialect)["output"][0]
    if dialect == "openai":
        assert done["approval_request_id"] == item["id"]


# A step that is made again


def interrupted(*again: StreamPart, said: str = "One, two, ") -> tuple[list[Any], ResponsesEncoder]:
    encoder = ResponsesEncoder(HEAD)
    events = encoder.begin()
    for part in (StreamStart(()), StepStart(0), TextStart("a"), TextDelta("a", said)):
        events += encoder.feed(part)
    events += encoder.resumed()
    for part in run(*again)[1:]:
        events += encoder.feed(part)
    return events, encoder


@requirement("R142")
@pytest.mark.parametrize(
    "again",
    [["One, two, three."], ["One", ", two, th", "ree."], ["One, two, ", "three."]],
    ids=["at once", "in other pieces", "in the same pieces"],
)
def test_repeated_step_continues_text_without_duplicates(again: list[str]):
    events, _ = interrupted(*text("b", *again))
    response = check_events(events)
    (message,) = response["output"]
    assert (message["content"][0]["text"], message["status"]) == ("One, two, three.", "completed")
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "One, two, three."


@requirement("R142")
@pytest.mark.parametrize("again", [["Two, three."], ["One, ", "four."], ["One"]])
def test_repeated_step_with_other_text_is_separate_item(again: list[str]):
    events, _ = interrupted(*text("b", *again))
    first, second = check_events(events)["output"]
    assert (first["content"][0]["text"], first["status"]) == ("One, two, ", "incomplete")
    assert (second["content"][0]["text"], second["status"]) == ("".join(again), "completed")


@requirement("R142")
def test_repeated_step_calling_tool_ends_open_items():
    call = ToolCall("w", "web_search", "web_search", True, input={"query": "q"})
    result = ToolResult("w", "web_search", "web_search", [], False, True)
    events, _ = interrupted(call, result, *text("b", "Found."))
    output = check_events(events)["output"]
    assert output[0]["status"] == "incomplete"
    assert output[-1]["content"][0]["text"] == "Found."


# Dialects

REQUEST: dict[str, Any] = {
    "tools": [
        {"type": "function", "name": "add"},
        {"type": "web_search"},
        {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example"},
    ],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "reasoning": {"effort": "minimal"},
    "service_tier": "ultrafast",
    "conversation": {"id": "conv_1"},
    "metadata": {"a": "b"},
    "store": False,
}


@requirement("R140")
def test_items_of_whole_response_keep_their_fields():
    search = {
        "type": "search",
        "query": "q",
        "queries": ["q"],
        "sources": [{"type": "url", "url": "https://a.example"}],
    }
    items: list[Any] = [
        {"type": "web_search_call", "status": "completed", "action": search},
        {"type": "code_interpreter_call", "status": "completed", "code": "1", "container_id": "c1", "outputs": []},
        {"type": "mcp_call", "status": "completed", "name": "n", "server_label": "s", "arguments": "{}", "output": "o"},
    ]
    sent = [{"id": f"item_{place}", **item} for place, item in enumerate(items)]
    output = output_of(decode_whole({"id": "resp_1", "status": "completed", "model": "m", "output": sent}))
    assert [{**item, "id": None} for item in output] == [{**item, "id": None} for item in sent]


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ({"type": "function", "name": "add", "more": 1}, {"type": "function", "name": "add"}),
        ("required", "required"),
        ({"type": "web_search"}, "auto"),
    ],
)
def test_open_responses_shows_specified_tool_choices(choice: Any, shown: Any):
    head = ResponseHead(id="resp_1", model="main", created=7, request={**REQUEST, "tool_choice": choice})
    response = head.response(ResponseOutcome("completed", USAGE, at=9.5), [], "open-responses")
    check_response(response, "open-responses")
    assert response["tool_choice"] == shown


@requirement("R140")
def test_open_responses_omits_unknown_fields():
    head = ResponseHead(id="resp_1", model="main", created=7, request=REQUEST)
    response = head.response(ResponseOutcome("completed", USAGE, at=9.5), [], "open-responses")
    check_response(response, "open-responses")
    assert response["tools"] == [
        {"type": "function", "name": "add", "description": None, "parameters": None, "strict": None}
    ]
    assert response["tool_choice"]["mode"] == "auto"
    assert response["text"]["format"]["schema"] is None
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["service_tier"] == "default"
    assert "conversation" not in response
    openai = head.response(ResponseOutcome("completed", USAGE, at=9.5), [], "openai")
    assert (len(openai["tools"]), openai["conversation"], openai["store"]) == (3, {"id": "conv_1"}, False)
    assert openai["text"]["format"]["schema"] == {"type": "object"}


# Recordings

FREE = frozenset({"obfuscation", "sequence_number"})
RESPONSE_FIELDS = ("status", "error", "incomplete_details", "output", "model", "usage")


def sent_by(exchange: Exchange) -> list[Any]:
    body = exchange.response.body
    lines = body.splitlines() if isinstance(body, str) else []
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def without_ids(events: list[Any]) -> list[Any]:
    """The events with their items named by their places."""
    ids = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    names = {id: f"item {place}" for place, id in enumerate(ids)}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items() if key not in FREE}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return names.get(value, value) if isinstance(value, str) else value

    return [renamed(event) for event in events]


def allowed(event: Any, wanted: Any) -> Any:
    """What OpenAI sends and we do not repeat, each with its reason, put as we have it."""
    if "response" in wanted:
        # What the service says of itself: when it was done, its tier, its defaults. Its usage has fewer fields.
        fields = {name: wanted["response"].get(name) for name in RESPONSE_FIELDS}
        if (usage := fields["usage"]) is not None:
            usage["input_tokens_details"].setdefault("cache_write_tokens", 0)
            fields["usage"] = {name: usage[name] for name in event["response"]["usage"]}
        if fields["error"] is not None:
            fields["error"] = {name: fields["error"][name] for name in ("code", "message")}
        fields["output"] = [
            allowed_item(*pair) for pair in zip(event["response"]["output"], fields["output"], strict=True)
        ]
        return {"type": wanted["type"], "response": fields}
    if "item" in wanted:
        return {**wanted, "item": allowed_item(event["item"], wanted["item"])}
    if wanted["type"] == "error":
        return {"type": "error", **{name: wanted["error"][name] for name in ("code", "message", "param")}}
    if wanted["type"].startswith("response.output_text.") and "annotation" not in wanted["type"]:
        return {"logprobs": [], **wanted}  # Other servers leave it out; the SDK requires it.
    if "part" in wanted and wanted["part"]["type"] == "output_text":
        return {**wanted, "part": {"logprobs": [], **wanted["part"]}}
    if wanted["type"].startswith("response.shell_call_command."):
        return {**wanted, "item_id": event["item_id"]}  # The service leaves it out.
    return wanted


def allowed_item(ours: Any, theirs: Any) -> Any:
    match theirs["type"]:
        case "reasoning":
            # A stored response needs no encrypted reasoning: our log keeps what the provider wants back.
            kept = {
                key: value for key, value in theirs.items() if key not in ("encrypted_content", "content", "status")
            }
            return {**kept, **({"encrypted_content": ours["encrypted_content"]} if "encrypted_content" in ours else {})}
        case "function_call" if ours["status"] == "in_progress":
            # The namespace is known when the call is complete.
            return {key: value for key, value in theirs.items() if key not in ("namespace", "caller")}
        case "function_call":
            return {**theirs, "status": "completed"}  # Calls of a program stay in progress at the service.
        case "program":
            return {**theirs, "fingerprint": ours["fingerprint"]}  # The service makes it anew for each event.
        case "message":
            content = [
                {"logprobs": [], **part} if part["type"] == "output_text" else part for part in theirs["content"]
            ]
            return {**theirs, "content": content}
        case _:
            return theirs


DIFFERENT = {
    "p-test_deepseek_responses_text_stream_": "raw reasoning is sent as a summary, which both dialects have",
    "v-openai-phase.1-stream": "deltas are missing in it, and one is added that has the rest",
    "v-openai-shell-container.1-stream": "its text comes whole in the item, and gets the events that lead to it",
    "v-openai-custom-tool.1-stream": "the input of a custom tool comes whole, and has a `done` of its own",
}
"""Recordings whose events do not come out one by one as they came, each with its reason."""


@requirement("R140")
@needs_recordings
async def test_openai_events_round_trip_verbatim():
    count = 0
    for path in sorted((RECORDINGS / "openai-responses").glob("*.json")):
        recording = Recording.load(path)
        for exchange, played in zip(
            model_exchanges(recording), replay(recording, ReplayTransport(recording)), strict=True
        ):
            given = sent_by(exchange)
            if not given or path.stem in DIFFERENT:
                continue
            request = {**given[0]["response"], "tools": given[0]["response"].get("tools") or []}
            head = ResponseHead(
                id="resp_1", model=request["model"], created=int(request["created_at"]), request=request
            )
            parts = [part async for part in played]
            made = events_of(parts, head=head, functions=None, include=["reasoning.encrypted_content"])
            check_events(made, typed=False)
            ours, theirs = without_ids(made), without_ids(given)
            assert kinds(ours) == kinds(theirs), path
            for event, wanted in zip(ours, theirs, strict=True):
                expected = allowed(event, wanted)
                if "response" in event:
                    event = {**event, "response": {name: event["response"][name] for name in RESPONSE_FIELDS}}
                assert event == expected, path
            count += 1
    assert count > 25


@requirement("R140")
@needs_recordings
@dialects
async def test_every_recording_of_every_provider_is_valid_stream(dialect: Dialect):
    count = 0
    for path in sorted(RECORDINGS.rglob("*.json")):
        recording = Recording.load(path)
        for played in replay(recording, ReplayTransport(recording)):
            parts = [part async for part in played]
            events = events_of(parts, dialect, functions=None)
            ends = [part.text for part in parts if isinstance(part, TextEnd) and part.text is not None]
            is_typed = "openai-responses" not in str(path)
            output = check_events(events, dialect, typed=is_typed, corrections=len(ends))["output"]
            said = "".join(
                content.get("text", content.get("refusal", ""))
                for item in output
                if item["type"] == "message"
                for content in item["content"]
            )
            streamed = "".join(part.delta for part in parts if isinstance(part, TextDelta))
            assert said == ("".join(ends) if ends else streamed), path
            calls = {part.id for part in parts if isinstance(part, ToolCall) and not part.provider_executed}
            shown = {item.get("call_id") for item in output}
            assert dialect == "open-responses" or calls <= shown, path
            count += 1
    assert count > 100

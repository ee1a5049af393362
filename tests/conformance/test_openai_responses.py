"""What OpenAI and servers that speak its Responses API really sent decodes to legal streams that lose nothing.

Facts are read from the recordings' JSON without our code, then looked for in the parts.
"""

import base64
import json
import re
from functools import cached_property
from typing import Any

from hypothesis import given, strategies as st

from conformance.recorded import RecordedAnswer, each, recorded
from requirements import requirement
from sidestream.messages.message import TextPart
from sidestream.parts import (
    TEXT_CORRECTED,
    Custom,
    Error,
    File,
    Finish,
    Raw,
    Source,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.stream.grammar import check
from support.streams import decode, decode_whole, messages, of, one, wire


class Case(RecordedAnswer):
    """One recorded answer."""

    @cached_property
    def parts(self) -> list[StreamPart]:
        return decode(self.events) if self.exchange.is_stream else decode_whole(self.exchange.response.body)

    @property
    def final(self) -> dict[str, Any]:
        """The provider's own final object."""
        return self.sent[-1]["response"] if self.exchange.is_stream else self.exchange.response.body

    def output(self, kind: str) -> list[dict[str, Any]]:
        """The final object's items of one type."""
        return [item for item in self.final["output"] if item["type"] == kind]

    @property
    def client_calls(self) -> list[ToolCall]:
        return [call for call in of(self.parts, ToolCall) if not call.provider_executed]


CASES = recorded(Case, ["openai-responses", "open-responses"], r"/responses(/resp_\w+)?$")
ANSWERED = [case for case in CASES if case.exchange.response.status < 400]
REFUSED = [case for case in CASES if case.exchange.response.status >= 400]
STREAMS = [case for case in ANSWERED if case.exchange.is_stream]
COMPLETED = [case for case in STREAMS if case.sent[-1]["type"] == "response.completed"]


def test_recordings_cover_enough_exchanges():
    assert len(COMPLETED) >= 30
    assert len(ANSWERED) - len(STREAMS) >= 50
    assert len(REFUSED) >= 3


@requirement("R2", "R5")
@each(ANSWERED)
def test_every_answer_is_legal_without_raw_parts(case: Case):
    parts = case.parts
    check(parts)
    assert of(parts, Raw) == []


@requirement("R9")
@each(COMPLETED)
def test_stream_folds_like_its_final_object(case: Case):
    assert fold(case.parts) == fold(decode_whole(case.final))


def fold(parts: list[StreamPart]) -> dict[str, Any]:
    """What is left when the stream is over, without ids of blocks: a stream may count them differently."""
    (finish,) = of(parts, Finish)
    content = [(type(part).__name__, getattr(part, "text", part)) for m in messages(parts) for part in m.parts]
    return {
        "content": [entry for entry in content if entry[0] != "ThinkingPart"],
        "thinking": sorted(str(text) for kind, text in content if kind == "ThinkingPart"),
        "sources": [(s.kind, s.url, s.file_id, s.title, s.start, s.end) for s in of(parts, Source)],
        "annotations": [end.annotations for end in of(parts, TextEnd)],
        "calls": [(c.id, c.name, c.tool, c.input, c.input_error, c.provider_executed) for c in of(parts, ToolCall)],
        "results": [
            (r.id, r.name, r.tool, r.result, r.is_error, r.provider_executed)
            for r in of(parts, ToolResult)
            if not r.preliminary
        ],
        "approvals": of(parts, ToolApprovalRequest),
        "files": [(f.id, f.mime_type, f.name, f.data, f.url, f.tool, f.call_id) for f in of(parts, File)],
        # That deltas were lost, only the stream can say.
        "custom": [part for part in of(parts, Custom) if part.kind != TEXT_CORRECTED],
        "finish": (finish.reason, finish.raw_reason, finish.usage, finish.metadata),
    }


@each(ANSWERED)
@requirement("R39")
def test_text_and_citations_match_final_object(case: Case):
    contents = [part for item in case.output("message") for part in item["content"]]
    texts = [part["text"] if part["type"] == "output_text" else part["refusal"] for part in contents]
    stored = [part.text for m in messages(case.parts) for part in m.parts if isinstance(part, TextPart)]
    assert stored == [text for text in texts if text]
    annotations = [annotation for part in contents for annotation in part.get("annotations") or []]
    assert [source.url or source.file_id for source in of(case.parts, Source)] == [
        annotation.get("url") or annotation["file_id"] for annotation in annotations
    ]
    assert [annotation for end in of(case.parts, TextEnd) for annotation in end.annotations] == annotations


@each(STREAMS)
def test_text_deltas_are_streamed_unchanged(case: Case):
    sent = [event["delta"] for event in case.sent if event["type"] == "response.output_text.delta"]
    told = iter([part.delta for part in of(case.parts, TextDelta)])
    # In order and unchanged. One recording has deltas left out; what they said comes as a further one.
    assert all(delta in told for delta in sent)


@requirement("R32")
@each(ANSWERED)
def test_function_calls_match_final_object(case: Case):
    expected = [
        (item["call_id"], item["name"], json.loads(item["arguments"] or "{}")) for item in case.output("function_call")
    ]
    found = [(c.id, c.name, c.input) for c in case.client_calls if (c.provider_metadata or {}).get("openai-responses")]
    assert found == expected
    custom = [(item["call_id"], item["name"], item["input"]) for item in case.output("custom_tool_call")]
    assert [(c.id, c.name, c.input) for c in case.client_calls if isinstance(c.input, str)] == custom


@requirement("R36", "R37")
@each(ANSWERED)
def test_tool_calls_match_final_object(case: Case):
    expected = [
        (TOOLS[item["type"]], item.get("name", TOOLS[item["type"]]))
        for item in case.final["output"]
        if item["type"] in TOOLS
    ]
    known = set(TOOLS.values())
    assert [(call.tool, call.name) for call in of(case.parts, ToolCall) if call.tool in known] == expected
    approvals = [item["id"] for item in case.output("mcp_approval_request")]
    assert [request.approval_id for request in of(case.parts, ToolApprovalRequest)] == approvals


TOOLS = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_interpreter",
    "image_generation_call": "image_generation",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcp",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer_use",
    "tool_search_call": "tool_search",
    "program": "programmatic_tool_calling",
}
"""Item type → the key of its tool."""


@requirement("R33")
@each([case for case in ANSWERED if case.output("code_interpreter_call")])
def test_executed_code_matches_streamed_json_and_call(case: Case):
    for item in case.output("code_interpreter_call"):
        (call,) = [call for call in of(case.parts, ToolCall) if call.id == item["id"]]
        assert call.input == {"container_id": item["container_id"], "code": item["code"]}
        text = "".join(getattr(part, "delta", "") for part in case.parts if getattr(part, "id", None) == item["id"])
        assert json.loads(text) == call.input


@requirement("R35")
@each([case for case in ANSWERED if case.output("image_generation_call")])
def test_images_of_final_object_become_files(case: Case):
    images = [(n, item) for n, item in enumerate(case.final["output"]) if item["type"] == "image_generation_call"]
    files = of(case.parts, File)
    assert [(file.call_id, (file.name or "").split(".")[0]) for file in files] == [
        (item["id"], f"image_{n}") for n, item in images
    ]
    for file, (_, item) in zip(files, images, strict=True):
        # Some recordings cut the data short with "...": what stands before the cut must be there.
        whole = re.match(r"[A-Za-z0-9+/]*", item["result"])
        assert whole is not None
        head = base64.b64decode(whole[0][: len(whole[0]) // 4 * 4])
        assert len(head) > 100
        assert (file.data or b"").startswith(head)


@requirement("R7", "R8", "R41")
@each(ANSWERED)
def test_usage_and_finish_reason_match_final_object(case: Case):
    finish = case.parts[-1]
    assert isinstance(finish, Finish)
    usage = case.final.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    thought = (usage.get("output_tokens_details") or {}).get("reasoning_tokens", 0)
    assert finish.usage.raw == (usage or None)
    assert finish.usage.input.total == usage.get("input_tokens", 0)
    assert finish.usage.input.cache_read == cached
    assert finish.usage.output.total == usage.get("output_tokens", 0)
    assert finish.usage.output.reasoning == thought
    expected = {"completed": "stop", "failed": "error"}.get(case.final["status"], "other")
    if case.output("mcp_approval_request"):
        expected = "approval"
    elif case.client_calls:
        expected = "tool-calls"
    assert finish.reason == expected
    assert finish.raw_reason == case.final["status"]


@requirement("R3")
@each(STREAMS)
def test_tool_events_are_unchanged_and_in_order(case: Case):
    assert [part.event for part in of(case.parts, ToolEvent)] == [event for event in case.sent if is_of_tool(event)]


def is_of_tool(event: dict[str, Any]) -> bool:
    if "item" in event:
        return event["item"]["type"] not in ("message", "reasoning", "function_call", "custom_tool_call")
    if event["type"] == "response.output_text.annotation.added":
        return event["annotation"]["type"] == "container_file_citation"
    return re.match(r"response\.(?!function_call)(?!custom_tool)\w+_(call|list_tools)\w*\.", event["type"]) is not None


@requirement("F08")
@each(STREAMS)
def test_single_bytes_give_same_parts_as_whole_body(case: Case):
    assert decode(case.events_of(1)) == case.parts


@given(st.data())
def test_arbitrary_chunks_give_same_parts(data: st.DataObject):
    case = data.draw(st.sampled_from([case for case in STREAMS if len(case.exchange.body_bytes()) < 60_000]))
    sizes = data.draw(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
    assert decode(case.events_of(sizes)) == case.parts


@each(ANSWERED)
async def test_replayed_recording_gives_same_parts(case: Case):
    replayed = await case.replayed((1000, 1, 333))
    # The request says whether the response was stored, which only private session facts and reasoning depend on.
    if (case.exchange.request.body or {}).get("store") is False:
        assert fold(replayed)["content"] == fold(case.parts)["content"]
    else:
        assert [wire_form(part) for part in replayed] == [wire_form(part) for part in case.parts]


def wire_form(part: StreamPart) -> StreamPart | Any:
    """The part without private facts of the request, which a recording without its request does not have."""
    return (type(part), {name: value for name, value in fields(part) if name not in ("provider_metadata", "outcome")})


def fields(part: StreamPart) -> list[tuple[str, Any]]:
    return [(name, getattr(part, name)) for name in part.__struct_fields__]


@requirement("F03")
@each(REFUSED)
async def test_refused_request_is_error_with_status_then_finish(case: Case):
    parts = await case.replayed()
    check(parts)
    error = one(parts, Error)
    assert (error.kind, error.status) == ("provider", case.exchange.response.status)
    stated = json.loads(wire(case.exchange.response.body))["error"]
    assert stated["message"][:80] in error.message
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "error"

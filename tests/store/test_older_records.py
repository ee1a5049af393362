"""Records that older versions wrote are read as if they were written today."""

from typing import Any

import pytest

from sidestream import jsontext
from sidestream.messages.message import ChatMessage, ToolCallPart
from sidestream.messages.provenance import forwarded_part
from sidestream.parts import File, StepFinish, StepOutcome, ToolEvent, Usage
from sidestream.store.records import MessageAdded, Row, Segment, unpack

DIGEST = "0" * 64


def read(kind: str, body: dict[str, Any], blobs: dict[str, bytes] | None = None) -> Any:
    blobs = blobs or {}
    row = Row(seq=1, time=0, run="", kind=kind, body=jsontext.dumps(body), blobs=tuple(blobs))
    return unpack(row, blobs.__getitem__).body


def test_older_step_metadata_is_read_as_outcome():
    session = {"_responses_session": {"response_id": "r"}}
    part = {
        "type": "step-finish",
        "step": 0,
        "reason": "stop",
        "usage": {},
        "provider_metadata": {
            "message_metadata": session,
            "summaries": {"file_search": [1]},
            "continue": True,
            "keep": True,
        },
    }
    outcome = StepOutcome(message_metadata=session, summaries={"file_search": [1]}, is_paused=True, is_kept=True)
    expected = StepFinish(0, "stop", Usage(), outcome=outcome)
    body = {"type": "segment", "kind": "step-finish", "parts": [part]}
    assert read("step-finish", body) == Segment("step-finish", (expected,))


def test_other_provider_metadata_is_kept():
    part = {"type": "step-finish", "step": 0, "reason": "stop", "usage": {}, "provider_metadata": {"p": {"k": 1}}}
    body = {"type": "segment", "kind": "step-finish", "parts": [part]}
    assert read("step-finish", body).parts[0].provider_metadata == {"p": {"k": 1}}


@pytest.mark.parametrize("blobs", [{}, {DIGEST: b"png"}])
def test_older_file_media_type_is_read(blobs: dict[str, bytes]):
    part: dict[str, Any] = {"type": "file", "id": "f", "media_type": "image/png"}
    part |= {"data": {"$bytes": DIGEST}} if blobs else {"url": "https://example.com/f"}
    found = read("file", {"type": "segment", "kind": "file", "parts": [part]}, blobs).parts[0]
    expected = File("f", "image/png", data=b"png") if blobs else File("f", "image/png", url="https://example.com/f")
    assert found == expected


def test_older_call_arguments_in_message_are_read():
    parts = [
        {"type": "tool-call", "id": "c", "name": "f", "arguments": {"type": "tool-call", "arguments": 1}},
        {"type": "tool-call", "id": "d", "name": "f", "arguments_text": "{"},
    ]
    body = {"type": "message", "message": {"role": "model", "parts": parts}, "opens_turn": False}
    calls = (ToolCallPart("c", "f", {"type": "tool-call", "arguments": 1}), ToolCallPart("d", "f", None, "{"))
    assert read("message", body) == MessageAdded(ChatMessage("model", calls), opens_turn=False)


CALL = "srvtoolu_1"
OLDER_NAMES: list[tuple[dict[str, Any], tuple[str, str, str | None, str | None]]] = [
    (
        {
            "tool": "bash_code_execution",
            "stage": "start",
            "event": {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "server_tool_use", "id": CALL, "name": "bash_code_execution", "input": {}},
            },
        },
        ("code_interpreter", "started", "bash_code_execution", "start"),
    ),
    (
        {
            "tool": "bash_code_execution",
            "stage": "delta",
            "event": {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"command": "ls"}'},
            },
        },
        ("code_interpreter", "delta", "bash_code_execution", "delta"),
    ),
    (
        {"tool": "bash_code_execution", "stage": "stop", "event": {"type": "content_block_stop", "index": 0}},
        ("code_interpreter", "running", "bash_code_execution", "stop"),
    ),
    (
        {
            "tool": "bash_code_execution",
            "stage": "result",
            "event": {
                "type": "content_block_start",
                "index": 1,
                "content_block": {
                    "type": "bash_code_execution_tool_result",
                    "tool_use_id": CALL,
                    "content": {"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"},
                },
            },
        },
        ("code_interpreter", "failed", "bash_code_execution", "result"),
    ),
    (
        {"tool": "google_search", "stage": "grounding", "event": {"groundingMetadata": {"webSearchQueries": ["q"]}}},
        ("web_search", "completed", "google_search", "grounding"),
    ),
    (
        {"tool": "code_execution", "stage": "interpreting", "event": {"executableCode": {"code": "1"}}},
        ("code_interpreter", "started", "code_execution", "interpreting"),
    ),
    (
        {
            "tool": "web_search",
            "stage": "searching",
            "event": {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        },
        ("web_search", "running", "web_search", "searching"),
    ),
    (
        {
            "tool": "shell",
            "stage": "done",
            "event": {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {"type": "shell_call", "id": "sh_1", "status": "completed"},
            },
        },
        ("shell", "running", "shell", "done"),
    ),
    (
        {
            "tool": "web_search",
            "stage": "done",
            "event": {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            },
        },
        ("web_search", "completed", "web_search", "done"),
    ),
    (
        {
            "tool": "mcp",
            "stage": "delta",
            "event": {"type": "response.mcp_call_arguments.delta", "output_index": 0, "item_id": "m", "delta": "{"},
        },
        ("mcp", "input", "mcp", "delta"),
    ),
    ({"tool": "f", "stage": "progress", "event": {"half": True}}, ("f", "delta", "f", "progress")),
]
"""Events as an older version logged them, and their names now."""


def test_older_tool_events_get_portable_names():
    parts = [{"type": "tool-event", **part, "call_id": CALL, "output_index": 0} for part, _ in OLDER_NAMES]
    found = read("tool-event", {"type": "segment", "kind": "tool-event", "parts": parts}).parts
    named = [(part.tool, part.stage, part.provider_tool, part.provider_stage) for part in found]
    assert named == [names for _, names in OLDER_NAMES]
    assert [part.event for part in found] == [part["event"] for part, _ in OLDER_NAMES]


def test_older_forwarded_events_get_portable_names():
    inner = {"type": "tool-event", "tool": "google_search", "stage": "grounding", "event": {}}
    part = {"type": "tool-event", "tool": "researcher", "stage": "tool-event", "event": inner, "call_id": "c"}
    (found,) = read("tool-event", {"type": "segment", "kind": "tool-event", "parts": [part]}).parts
    assert (found.tool, found.stage, found.provider_stage) == ("researcher", "delta", "tool-event")
    forwarded = forwarded_part(found)
    assert isinstance(forwarded, ToolEvent)
    assert (forwarded.tool, forwarded.stage) == ("web_search", "completed")


def test_older_hosted_calls_results_and_files_get_portable_names():
    hosted = {"id": CALL, "name": "bash_code_execution", "tool": "bash_code_execution", "provider_executed": True}
    call = {"type": "tool-call", **hosted, "input": {"command": "ls"}}
    result = {"type": "tool-result", **hosted, "result": {"stdout": "a"}, "is_error": False}
    file = {
        "type": "file",
        "id": "f",
        "mime_type": "text/csv",
        "url": "https://example.com/f",
        "tool": "code_execution",
    }
    tools = {
        part["type"]: read(part["type"], {"type": "segment", "kind": part["type"], "parts": [part]}).parts[0]
        for part in (call, result, file)
    }
    assert {part.tool for part in tools.values()} == {"code_interpreter"}
    assert (tools["tool-call"].name, tools["tool-call"].provider_tool) == (hosted["name"], hosted["tool"])
    own = {**call, "provider_executed": False}
    assert read("tool-call", {"type": "segment", "kind": "tool-call", "parts": [own]}).parts[0].tool == hosted["tool"]


@pytest.mark.parametrize(("tool", "is_hosted"), [("google_search", False), ("mcp", True), ("web_search", True)])
def test_results_of_functions_and_current_tools_keep_their_names(tool: str, is_hosted: bool):
    part = {"type": "tool-result", "id": CALL, "name": tool, "tool": tool, "result": "a", "is_error": False}
    body = {"type": "segment", "kind": "tool-result", "parts": [{**part, "provider_executed": is_hosted}]}
    assert read("tool-result", body).parts[0].tool == tool

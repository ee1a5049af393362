"""Records that older versions wrote are read as if they were written today."""

from typing import Any

import pytest

from sidestream import jsontext
from sidestream.messages.message import ChatMessage, ToolCallPart
from sidestream.store.records import MessageAdded, Row, Segment, unpack
from sidestream.stream.parts import File, StepFinish, StepOutcome, Usage

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

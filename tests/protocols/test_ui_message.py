"""Runs as chunks of the UI message stream: legal for its strictest clients, and the same however they were stored."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from protocols.stored_parts import stored
from protocols.ui_chunks import Checker, check
from requirements import requirement
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    Steer,
    StepFinish,
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
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.store.records import Record, Segment
from sidestream.tools.approvals import Question
from sidestream.turn import rounds
from sidestream.turn.rounds import denial
from support.places import RECORDINGS

FILES = sorted(RECORDINGS.rglob("*.json")) if RECORDINGS.is_dir() else []
Chunk = dict[str, Any]
STOP = Finish("stop", Usage())


def encoded(parts: Iterable[StreamPart], **settings: Any) -> list[Chunk]:
    encoder = UIMessageEncoder("m1", **settings)
    return [chunk for part in parts for chunk in encoder.feed(part)]


def step(*parts: StreamPart, number: int = 0) -> list[StreamPart]:
    return [StepStart(number), *parts, StepFinish(number, "stop", Usage())]


def run(*parts: StreamPart) -> list[StreamPart]:
    return [StreamStart(()), *step(*parts), STOP]


def message_of(chunks: Iterable[Chunk]) -> Chunk:
    folding = UIMessageFold()
    folding.feed(chunks)
    return folding.message()


def only(chunks: Iterable[Chunk], kind: str) -> Chunk:
    (found,) = [chunk for chunk in chunks if chunk["type"] == kind]
    return found


def test_step_and_run_have_duration_in_milliseconds():
    encoder = UIMessageEncoder("m1")
    times = [100.0, 101.0, 103.5, 104.0]
    chunks = [chunk for part, at in zip(run(), times, strict=True) for chunk in encoder.feed(part, at)]
    assert only(chunks, "data-step")["data"]["ms"] == 2500
    assert [chunk["data"] for chunk in chunks if chunk["type"] == "data-run"][-1]["ms"] == 4000


def test_snapshot_keeps_reason_of_approval_request():
    tool: Chunk = {"type": "tool-input-available", "toolCallId": "c1", "toolName": "pay", "input": {}}
    asked: Chunk = {"type": "tool-approval-request", "toolCallId": "c1", "approvalId": "a1", "reason": "over 100"}
    [part] = message_of([{"type": "start"}, tool, asked])["parts"]
    assert part["approval"] == {"id": "a1", "requestReason": "over 100"}


def texts(message: Chunk) -> list[tuple[str, str]]:
    return sorted((part["type"], final(part)) for part in message["parts"] if "text" in part)


def final(part: Chunk) -> str:
    """The text of a part as the page shows it."""
    return part["providerMetadata"]["sidestream"].get("text", part["text"])


def said(parts: Iterable[StreamPart]) -> list[str]:
    """The texts of a run, straight from its parts."""
    found: list[str] = []
    open_texts: dict[str, str] = {}
    for part in parts:
        if isinstance(part, TextStart):
            open_texts[part.id] = ""
        elif isinstance(part, TextDelta):
            open_texts[part.id] += part.delta
        elif isinstance(part, TextEnd):
            text = open_texts.pop(part.id)
            found.append(text if part.text is None else part.text)
    return found


@requirement("R141", "F29")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_every_recording_is_valid_live_and_from_log(path: Path):
    recording = Recording.load(path)
    for played in replay(recording, ReplayTransport(recording)):
        parts = [part async for part in played]
        live = encoded(parts)
        check(live)
        message = message_of(live)
        assert [text for kind, text in texts(message) if kind == "text"] == sorted(said(parts))
        for every in (1, 7):
            encoder, records = UIMessageEncoder("m1"), stored(parts, every)
            batches = [
                [chunk for part in record.body.parts for chunk in encoder.feed(part, record.time, record.seq)]
                for record in records
                if isinstance(record.body, Segment)
            ]
            check([chunk for batch in batches for chunk in batch])
            again = message_of(chunk for batch in batches for chunk in batch)
            assert texts(again) == texts(message)
            assert calls(again) == calls(message)
            check_tail(records, batches, again, len(records) // 2)


def calls(message: Chunk) -> dict[str, Any]:
    return {
        part["toolCallId"]: (part["type"], part["state"], part.get("input"), part.get("output"))
        for part in message["parts"]
        if "toolCallId" in part
    }


def check_tail(records: list[Record], batches: list[list[Chunk]], whole: Chunk, cut: int) -> None:
    """A reader with a snapshot and the tail has what one has who read all: open blocks are continued by name."""
    encoder, folding = UIMessageEncoder("m1"), UIMessageFold()
    folding.feed(chunk for batch in batches[:cut] for chunk in batch)
    for record in records[:cut]:
        assert isinstance(record.body, Segment)
        for part in record.body.parts:
            encoder.feed(part, record.time, record.seq)
    tail = encoder.rejoined()
    for record in records[cut:]:
        assert isinstance(record.body, Segment)
        tail += [chunk for part in record.body.parts for chunk in encoder.feed(part, record.time, record.seq)]
    # What was open is not closed here: the page joins the two by name.
    folding.message()
    folding.feed(tail)
    message = folding.message()
    joined: dict[tuple[str, str], str] = {}
    for part in message["parts"]:
        if "text" in part:
            key = (part["type"], part["providerMetadata"]["sidestream"]["block"])
            joined[key] = part["providerMetadata"]["sidestream"].get("text", joined.get(key, "") + part["text"])
    assert sorted((kind, text) for (kind, _), text in joined.items()) == texts(whole)
    assert calls(message) == calls(whole)


@requirement("R141", "F29")
def test_spans_count_utf16_units_and_citations_are_on_text():
    source = Source("s1", "url", "https://a.example", None, "A", 2, 3, "quote", "t")
    chunks = encoded(run(TextStart("t"), TextDelta("t", "\U0001f600 b"), source, source, TextEnd("t")))
    check(chunks)
    assert (
        only(chunks, "source-url")["providerMetadata"]["sidestream"] | {"start": 3, "end": 4}
        == (only(chunks, "source-url")["providerMetadata"]["sidestream"])
    )
    (citation,) = only(chunks, "text-end")["citations"]
    assert (citation["startIndex"], citation["endIndex"], citation["citedText"]) == (3, 4, "quote")


@requirement("R141")
def test_source_ahead_of_its_text_waits_for_it():
    source = Source("s1", "document", None, "file_1", None, 0, 4, None, "t")
    chunks = encoded(run(source, TextStart("t"), TextDelta("t", "text"), TextEnd("t")))
    check(chunks)
    found = only(chunks, "source-document")
    assert (found["title"], found["providerMetadata"]["sidestream"]["block"]) == ("file_1", "t1")
    assert chunks.index(found) > chunks.index(only(chunks, "text-delta"))


@requirement("R141")
@pytest.mark.parametrize(
    ("final", "shown"),
    [
        ("One two", {"t1": "One two"}),
        ("Other", {"t1": "One", "t1=": "Other"}),
        ("One", {"t1": "One"}),
        ("", {"t1": "One", "t1=": ""}),
    ],
)
def test_final_text_extends_streamed_text_or_follows_it(final: str, shown: dict[str, str]):
    chunks = encoded(run(TextStart("t"), TextDelta("t", "One"), TextEnd("t", text=final)))
    check(chunks)
    texts = {chunk["id"]: "" for chunk in chunks if chunk["type"] == "text-start"}
    for chunk in chunks:
        if chunk["type"] == "text-delta":
            texts[chunk["id"]] += chunk["delta"]
    assert texts == shown
    (part,) = [part for part in message_of(chunks)["parts"] if part["type"] == "text"]
    assert (part["text"], part["providerMetadata"]["sidestream"]["block"]) == (final, "t1")


@requirement("R141")
def test_call_keeps_id_of_its_streamed_input():
    chunks = encoded(
        run(
            ToolInputStart("tmp", "add", False),
            ToolInputDelta("tmp", "{}"),
            ToolInputEnd("tmp"),
            ToolCall("call_1", "add", "add", False, input={}),
            ToolResult("call_1", "add", "add", 3, False, False),
        )
    )
    check(chunks)
    (part,) = [part for part in message_of(chunks)["parts"] if part["type"] == "tool-add"]
    assert (part["toolCallId"], part["state"], part["output"]) == ("tmp", "output-available", 3)


CALL = ToolCall("c1", "add", "add", False, input={"a": 1})


@requirement("R141")
def test_tool_results_previews_and_errors_have_states():
    hosted = ToolCall("c2", "image_generation", "image_generation", True, input={})
    preview = ToolResult("c2", "image_generation", "image_generation", {"n": 1}, False, True, preliminary=True)
    chunks = encoded(
        run(
            CALL,
            ToolResult("c1", "add", "add", {"error": "ValueError", "message": "no"}, True, False),
            hosted,
            preview,
            ToolResult("c2", "image_generation", "image_generation", None, False, True),
            ToolCall("c3", "add", "add", False, input_error="no JSON", input_text="{"),
        )
    )
    check(chunks)
    states = {part["toolCallId"]: part for part in message_of(chunks)["parts"] if "toolCallId" in part}
    assert (states["c1"]["state"], states["c1"]["errorText"]) == ("output-error", "no")
    assert (states["c2"]["output"], states["c2"]["providerExecuted"]) == (None, True)
    assert "preliminary" not in states["c2"]
    assert (states["c3"]["input"], states["c3"]["errorText"]) == ("{", "no JSON")
    assert [chunk.get("preliminary") for chunk in chunks if chunk["type"] == "tool-output-available"] == [True, None]


@requirement("R141")
def test_call_denied_by_policy_has_automatic_approval():
    chunks = encoded(run(CALL, ToolResult("c1", "add", "add", denial("add", "Not here."), True, False)))
    check(chunks)
    (part,) = [part for part in message_of(chunks)["parts"] if part["type"] == "tool-add"]
    assert part["state"] == "output-denied"
    assert part["approval"] == {"id": "policy-c1", "isAutomatic": True, "approved": False, "reason": "Not here."}


@requirement("R141")
def test_policy_decision_on_provider_call_is_marked_automatic():
    asked = [ToolCall("c1", "times", "mcp", True, {}), ToolApprovalRequest("a1", "c1", "times", {}, "docs")]
    for is_automatic in (True, False):
        decided = rounds.decided("a1", True, is_automatic=is_automatic)
        message = message_of(encoded([StreamStart(()), *step(*asked), decided, STOP]))
        (data,) = [part["data"] for part in message["parts"] if part["type"] == "data-approval"]
        assert (data["approved"], data.get("automatic", False)) == (True, is_automatic)


def labels(chunks: Iterable[Chunk]) -> list[str]:
    return [chunk["data"]["label"] for chunk in chunks if chunk["type"] == "data-tool"]


@requirement("R141")
@pytest.mark.parametrize(("is_approved", "label"), [(True, "Asked to call times on docs"), (False, "times was denied")])
def test_decision_relabels_call(is_approved: bool, label: str):
    asked = [ToolCall("c1", "times", "mcp", True, {}), ToolApprovalRequest("a1", "c1", "times", {}, "docs")]
    encoder = UIMessageEncoder("m1")
    for part in [StreamStart(()), *step(*asked), Finish("approval", Usage())]:
        encoder.feed(part)
    assert labels(encoder.decided("a1", is_approved)) == [label]
    assert all(found == label for found in labels(encoder.feed(STOP)))


@requirement("R141")
def test_policy_denial_labels_call_as_denied():
    refused = ToolResult("c1", "add", "add", denial("add", "Not here."), True, False)
    chunks = encoded([StreamStart(()), *step(ToolCall("c1", "add", "add", False, {}), refused)])
    assert labels(chunks)[-1] == "add was denied"


@requirement("R141")
def test_cancelled_run_labels_open_calls_as_not_finished():
    encoder = UIMessageEncoder("m1")
    for part in [StreamStart(()), StepStart(0), ToolCall("c1", "web_search", "web_search", True, {"query": "rain"})]:
        encoder.feed(part)
    chunks = encoder.cancelled()
    assert labels(chunks) == ["Searching “rain”: not finished"]
    assert chunks[-1]["type"] == "abort"
    assert labels(encoder.cancelled()) == []


def test_call_names_its_grant_until_approval_is_requested():
    called = ToolCall("c1", "add", "add", False, {})
    granted = rounds.granted(Question(call_id="c1", tool="add", input={}, grant="approval_1"), "c1")
    for more, expected in (([], "approval_1"), ([ToolApprovalRequest("a1", "c1", "add", {})], None)):
        message = message_of(encoded([StreamStart(()), *step(called), granted, *more]))
        (data,) = [part["data"] for part in message["parts"] if part["type"] == "data-tool"]
        assert data.get("grant") == expected
        assert not [part for part in message["parts"] if part["type"] == "custom"]


def test_repeated_step_replaces_earlier_content():
    encoder = UIMessageEncoder("m1")
    parts = [StreamStart(()), StepStart(0), TextStart("t"), TextDelta("t", "One")]
    chunks = [chunk for part in parts for chunk in encoder.feed(part)]
    chunks += encoder.resumed()
    chunks += [
        chunk for part in run(TextStart("t"), TextDelta("t", "Two"), TextEnd("t")) for chunk in encoder.feed(part)
    ]
    check(chunks)
    assert [part["text"] for part in message_of(chunks)["parts"] if "text" in part] == ["Two"]


@requirement("R141")
@pytest.mark.parametrize("knows_it", [True, False])
def test_steering_message_is_sent_only_to_supporting_clients(knows_it: bool):
    applied = Steer("s1", "applied", "Faster.")
    parts = [StreamStart(()), *step(Steer("s1", "accepted", "Faster.")), applied, *step(number=1), STOP]
    chunks = encoded(parts, steering=knows_it)
    check(chunks)
    assert ("steering-message" in [chunk["type"] for chunk in chunks]) == knows_it
    assert [chunk["data"] for chunk in chunks if chunk["type"] == "data-steer"] == [
        {"id": "s1", "status": "accepted", "text": "Faster."},
        {"id": "s1", "status": "applied", "text": "Faster.", "step": 1},
    ]


@requirement("R141")
def test_files_are_data_urls_or_same_origin_urls():
    file = File("f1", "image/png", "a b.png", b"\x89PNG", tool="image_generation", call_id="c1")
    found = only(encoded(run(CALL, file)), "file")
    assert found["url"] == "data:image/png;base64,iVBORw=="
    address = File("f1", "image/png", "a b.png", b"sha256:" + b"0" * 64)
    blobs = {"0" * 64: "/api/blobs/0"}
    assert only(encoded(run(address), url_of=blobs.get), "file")["url"] == "/api/blobs/0?name=a%20b.png"
    looks_like_one = ToolResult("c1", "add", "add", ["sha256:" + "1" * 64, "sha256:" + "0" * 64], False, False)
    output = only(encoded(run(CALL, looks_like_one), url_of=blobs.get), "tool-output-available")["output"]
    assert output == ["sha256:" + "1" * 64, "/api/blobs/0"]


@requirement("R141")
def test_error_is_last_chunk_and_details_stay_in_message():
    error = Error("rate-limit", "wait: key sk-0123456789abcdef", status=429, retryable=True)
    parts = [StreamStart(()), StepStart(0), TextStart("t"), TextDelta("t", "Al"), error, TextEnd("t")]
    chunks = encoded([*parts, StepFinish(0, "error", Usage()), Finish("error", Usage())])
    check(chunks)
    assert chunks[-1]["type"] == "error"
    assert "sk-0123" not in str(chunks)
    notice = only(message_of(chunks)["parts"], "data-notice")
    assert (notice["data"]["error"]["status"], notice["data"]["error"]["retryable"]) == (429, True)


@requirement("R141")
def test_parts_without_chunk_type_are_data():
    parts = run(
        ResponseMetadata("r1", "gpt-x", None, "openai"),
        Raw("openai", {"type": "new"}),
        Custom("sidestream.session-fallback", {"message": "sent again"}),
        Custom("openai.compaction", {"encrypted_content": "x"}),
        ReasoningStart("r"),
        ReasoningEnd("r", signature="secret"),
        CALL,
        ToolApprovalRequest("a1", "c1", "add", {"a": 1}),
    )
    chunks = encoded([StreamStart(("careful",)), *parts[1:]], run="run_1")
    check(chunks)
    message = message_of(chunks)
    found = {part["type"]: part["data"] for part in message["parts"] if "data" in part}
    assert (
        found["data-run"] | {"run": "run_1", "model": "gpt-x", "provider": "openai", "unknown": 1} == found["data-run"]
    )
    assert [part["data"]["words"] for part in message["parts"] if part["type"] == "data-notice"] == [
        "careful",
        "sent again",
    ]
    assert found["data-approval"]["digest"] == only(chunks, "tool-approval-request")["signature"]
    assert only(chunks, "custom")["kind"] == "openai.compaction"
    assert "secret" not in str(chunks)


@requirement("R141")
def test_checker_rejects_streams_clients_reject():
    for chunks in (
        [{"type": "text-start", "id": "t"}],
        [{"type": "start", "messageId": None}],
        [{"type": "start"}, {"type": "start-step"}, {"type": "text-delta", "id": "t", "delta": ""}],
        [{"type": "start"}, {"type": "tool-output-available", "toolCallId": "c", "output": 1}],
        [{"type": "start"}, {"type": "finish", "finishReason": "approval"}],
        [{"type": "start", "providerMetadata": {}}],
    ):
        with pytest.raises(AssertionError):
            Checker().feed(chunks)

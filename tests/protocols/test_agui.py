"""Runs as AG-UI events: valid for the vendor's package, in an order that its client accepts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from requirements import requirement
from server.node_driver import driving
from sidestream import jsontext
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningDelta,
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
from sidestream.protocols.agui import DENIED, NOT_MADE, AGUIEncoder
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.turn.rounds import denial
from support.npm_packages import INSTALL_TIMEOUT_S, installed
from support.places import RECORDINGS

FILES = sorted(RECORDINGS.rglob("*.json")) if RECORDINGS.is_dir() else []
CLIENT = {"@ag-ui/client": "@ag-ui/client@1.0.0"}
STOP = Finish("stop", Usage())
CALL = ToolCall("c1", "add", "add", False, input={"a": 1})
_schema = TypeAdapter[Any](Event)

Json = dict[str, Any]


def encoded(parts: Iterable[StreamPart], **settings: Any) -> list[Json]:
    """The events of a run, each checked by the vendor's own models."""
    encoder = AGUIEncoder("t1", "r1", "m1", **settings)
    return checked(event for part in parts for event in encoder.feed(part))


def checked(events: Iterable[Json]) -> list[Json]:
    found = list(events)
    for event in found:
        known = _schema.validate_json(jsontext.dumps(event))
        assert not known.model_extra, event
    return found


def run(*parts: StreamPart, finish: Finish = STOP) -> list[StreamPart]:
    return [StreamStart(()), StepStart(0), *parts, StepFinish(0, "stop", Usage()), finish]


def of_type(events: Iterable[Json], *kinds: str) -> list[Json]:
    return [event for event in events if event["type"] in kinds]


def custom(events: Iterable[Json], name: str) -> list[Any]:
    return [event["value"] for event in events if event.get("name") == name]


async def recorded(path: Path) -> list[list[Json]]:
    recording = Recording.load(path)
    return [encoded([part async for part in played]) for played in replay(recording, ReplayTransport(recording))]


@requirement("R141")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_every_recording_is_valid_and_ends_once(path: Path):
    for events in await recorded(path):
        assert events[0]["type"] == "RUN_STARTED"
        assert [event["type"] for event in events if event["type"] in ("RUN_FINISHED", "RUN_ERROR")] == [
            events[-1]["type"]
        ]


@requirement("R141")
@pytest.mark.timeout(INSTALL_TIMEOUT_S)
async def test_npm_client_accepts_every_recording_without_warnings(recordings: Path):
    async with driving("ag_ui.mjs", installed("ag-ui", CLIENT), "http://127.0.0.1") as client:
        count = 0
        for path in FILES:
            for events in await recorded(path):
                if events[-1]["type"] == "RUN_ERROR":
                    continue
                state = await client("play", events=events)
                assert state["warnings"] == [], path
                said = "".join(event["delta"] for event in of_type(events, "TEXT_MESSAGE_CONTENT"))
                shown = "".join(message["content"] for message in state["messages"] if is_said(message))
                assert shown == said, path
                count += 1
        assert count > 200


def is_said(message: Json) -> bool:
    return message["role"] in ("assistant", "user") and isinstance(message.get("content"), str)


@requirement("R141")
def test_text_reasoning_and_calls_are_linked_events():
    events = encoded(
        run(
            ResponseMetadata("r", "gpt-x", None, "openai"),
            ReasoningStart("r"),
            ReasoningDelta("r", "Hm."),
            ReasoningEnd("r", signature="secret"),
            TextStart("t"),
            TextDelta("t", "Hi"),
            TextEnd("t"),
            ToolInputStart("c1", "add", False),
            ToolInputDelta("c1", '{"a": 1}'),
            ToolInputEnd("c1"),
            CALL,
            ToolResult("c1", "add", "add", {"sum": 1}, False, False),
            finish=Finish("stop", Usage(raw={"tokens": 3})),
        )
    )
    assert [event["type"] for event in events if event["type"] not in ("CUSTOM", "ACTIVITY_SNAPSHOT")] == [
        "RUN_STARTED",
        "STEP_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    (text,), (call,) = of_type(events, "TEXT_MESSAGE_START"), of_type(events, "TOOL_CALL_START")
    assert call["parentMessageId"] == text["messageId"]
    assert of_type(events, "TOOL_CALL_RESULT")[0]["content"] == '{"sum":1}'
    assert events[-1]["usage"][0] | {"provider": "openai", "model": "gpt-x"} == events[-1]["usage"][0]
    assert "secret" not in str(events)


@requirement("R141")
def test_stages_files_sources_and_unknown_events_are_side_events():
    hosted = ToolCall("c2", "image_generation", "image_generation", True, input={})
    preview = ToolResult("c2", "image_generation", "image_generation", {"n": 1}, False, True, preliminary=True)
    blobs = {"0" * 64: "/api/blobs/0"}
    events = encoded(
        run(
            hosted,
            preview,
            File("f1", "image/png", "a.png", b"sha256:" + b"0" * 64, tool="image_generation", call_id="c2"),
            Source("s1", "url", "https://a.example", None, "A"),
            Raw("openai", {"type": "new"}),
            Custom("openai.compaction", {"x": 1}),
        ),
        url_of=blobs.get,
    )
    assert custom(events, "sidestream.preview") == [{"toolCallId": "c2", "output": {"n": 1}}]
    (file,) = custom(events, "sidestream.file")
    assert (file["url"], file["mediaType"], file["call"]) == ("/api/blobs/0?name=a.png", "image/png", "c2")
    assert custom(events, "sidestream.source")[0]["url"] == "https://a.example"
    assert of_type(events, "RAW") == [{"type": "RAW", "event": {"type": "new"}, "source": "openai"}]
    assert custom(events, "openai.compaction") == [{"x": 1}]
    activities = of_type(events, "ACTIVITY_SNAPSHOT")
    assert len({activity["messageId"] for activity in activities}) == 1
    assert activities[-1]["content"]["toolCallId"] == "c2"
    (start,) = of_type(events, "TOOL_CALL_START")
    assert start["metadata"]["sidestream"] == {"providerExecuted": True}
    # A hosted call without a result is no call that a client must answer.
    (result,) = of_type(events, "TOOL_CALL_RESULT")
    assert (result["toolCallId"], result["content"]) == ("c2", "")


@requirement("R141")
def test_approval_is_interrupt_and_next_run_starts_over():
    encoder = AGUIEncoder("t1", "r1", "m1", approval_s=60)
    waits = run(CALL, ToolApprovalRequest("a1", "c1", "add", {"a": 1}), finish=Finish("approval", Usage()))
    first = checked(event for part in waits for event in encoder.feed(part, 1000.0))
    outcome = first[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    (interrupt,) = outcome["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"], interrupt["reason"]) == ("a1", "c1", "tool_call")
    assert interrupt["expiresAt"] == "1970-01-01T00:17:40+00:00"
    assert interrupt["metadata"]["sidestream"]["input"] == {"a": 1}
    second = checked([*encoder.resumed(), *encoder.decided("a1", False, "No.")])
    rest: list[StreamPart] = [StreamStart(()), ToolResult("c1", "add", "add", denial("add", "No."), True, False)]
    second += checked(event for part in [*rest, STOP] for event in encoder.feed(part))
    assert second[0]["type"] == "RUN_STARTED"
    (result,) = of_type(second, "TOOL_CALL_RESULT")
    assert result["content"] == f"{DENIED} No."
    assert second[-1]["outcome"] == {"type": "success"}


@requirement("R141")
def test_client_call_is_pending_and_unmade_call_has_result():
    external = ToolApprovalRequest("a1", "c1", "add", {"a": 1}, is_external=True)
    waits = encoded(run(CALL, external, finish=Finish("approval", Usage())))
    assert waits[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert not of_type(waits, "TOOL_CALL_RESULT")
    limited = encoded(run(CALL, finish=Finish("limit", Usage())))
    assert [event["content"] for event in of_type(limited, "TOOL_CALL_RESULT")] == [NOT_MADE]


@requirement("R141")
@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        (
            ToolResult("c1", "add", "add", {"error": "ValueError", "message": "no"}, True, False),
            {"isError": True},
        ),
        (
            ToolResult("c1", "add", "add", denial("add", "Not here."), True, False),
            {"isError": True, "isDenied": True},
        ),
    ],
    ids=["failed", "denied by a policy"],
)
def test_error_result_is_marked(answer: ToolResult, marks: Json):
    (result,) = of_type(encoded(run(CALL, answer)), "TOOL_CALL_RESULT")
    assert result["metadata"]["sidestream"] == marks


@requirement("R141")
def test_steering_message_is_user_message():
    steer = Steer("s1", "applied", "Faster.")
    parts = [StreamStart(()), StepStart(0), StepFinish(0, "stop", Usage()), steer, *run()[1:]]
    events = encoded(parts)
    (start,) = [event for event in of_type(events, "TEXT_MESSAGE_START") if event["role"] == "user"]
    assert start["messageId"] == "s1"
    assert custom(events, "sidestream.steer")[0]["status"] == "applied"


@requirement("R141")
def test_error_stop_and_broken_log_end_run():
    error = Error("rate-limit", "wait: key sk-0123456789abcdef", status=429)
    failed = encoded([StreamStart(()), StepStart(0), TextStart("t"), error, TextEnd("t"), Finish("error", Usage())])
    assert failed[-1]["type"] == "RUN_ERROR"
    assert "sk-0123" not in str(failed)
    for end, last in (("cancelled", {"type": "cancelled"}), ("failed", None)):
        encoder = AGUIEncoder("t1", "r1")
        for part in (StreamStart(()), StepStart(0), TextStart("t"), ToolInputStart("c1", "add", False)):
            encoder.feed(part)
        events = checked(encoder.cancelled() if end == "cancelled" else encoder.failed("the disk is full"))
        ends = [event["type"] for event in events if event["type"] not in ("CUSTOM", "ACTIVITY_SNAPSHOT")]
        assert ends[:-1] == ["TEXT_MESSAGE_END", "TOOL_CALL_END", "STEP_FINISHED"]
        assert events[-1].get("outcome") == last


@requirement("R141")
def test_repeated_step_names_messages_it_replaces():
    encoder = AGUIEncoder("t1", "r1", "m1")
    parts = [StreamStart(()), StepStart(0), TextStart("t"), TextDelta("t", "One")]
    events = [event for part in parts for event in encoder.feed(part)]
    events += encoder.resumed()
    events += [
        event for part in run(TextStart("t"), TextDelta("t", "Two"), TextEnd("t")) for event in encoder.feed(part)
    ]
    checked(events)
    first, second = (event["messageId"] for event in of_type(events, "TEXT_MESSAGE_START"))
    assert custom(events, "sidestream.reset") == [{"messageIds": [first]}]
    assert first != second
    assert len(of_type(events, "STEP_STARTED")) == len(of_type(events, "STEP_FINISHED")) == 2

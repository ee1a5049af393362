"""The log of a run says what the run said: every recording, written as records and read again, gives the same messages.

The records go through JSON and blobs, as a store would keep them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.replay.recording import Recording
from sidestream.replay.runs import replay
from sidestream.replay.transport import ReplayTransport
from sidestream.store.log import fold, stream_of
from sidestream.store.records import Body, MessageAdded, Record, Row, RunStarted, Segment, kind_of, pack, unpack
from sidestream.store.segments import SegmentFold
from sidestream.stream.grammar import check
from sidestream.stream.parts import (
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    StepFinish,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    part_type,
)

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "recordings"
FILES = sorted(path for path in FOLDER.rglob("*.json")) if FOLDER.is_dir() else []
QUESTION = ChatMessage.user("?")


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.load(request.param)


if not FILES:

    def test_there_are_recordings() -> None:
        pytest.skip(f"no recordings: {FOLDER} is not there")


async def played(recording: Recording) -> list[list[StreamPart]]:
    return [[part async for part in run] for run in replay(recording, ReplayTransport(recording))]


def stored(bodies: Iterable[Body]) -> Iterator[Record]:
    """The bodies as they come back from a store."""
    for seq, body in enumerate(bodies, 1):
        data, blobs = pack(body)
        row = Row(seq=seq, time=0.0, run="run", kind=kind_of(body), body=data, blobs=tuple(blobs))
        yield unpack(row, blobs.__getitem__)


def segments(parts: list[StreamPart]) -> list[Segment]:
    folding = SegmentFold()
    # As they come, one at a time: how parts are batched makes no difference.
    return [segment for part in parts for segment in folding.feed([part])] + folding.end()


def messages_of(parts: list[StreamPart], policy: Literal["session", "summary"]) -> list[ChatMessage]:
    folding = MessageFold(policy, is_logged=True)
    return [message for part in parts for message in folding.feed(part)]


@requirement("R82")
@pytest.mark.parametrize("policy", ["session", "summary"])
async def test_the_log_of_a_recording_gives_its_messages(
    recording: Recording, policy: Literal["session", "summary"]
) -> None:
    for parts in await played(recording):
        state = fold(stored([MessageAdded(QUESTION), RunStarted("replay:x", policy), *segments(parts)]))
        step = next((part for part in parts if isinstance(part, StepFinish)), None)
        if isinstance(parts[-1], Finish) and parts[-1].reason in ("error", "approval"):
            assert state.status in ("failed", "waiting")
            assert state.run_state is not None
        elif step is not None and step.reason == "tool-calls":
            # Replayed runs end with the calls unanswered; the log knows which.
            assert [entry.id for message in state.messages for entry in message.tool_calls]
        else:
            assert state.status == "complete"
            assert list(state.messages) == [QUESTION, *messages_of(parts, policy)]


@requirement("R82")
async def test_the_segments_of_a_recording_are_its_stream_with_the_deltas_joined(recording: Recording) -> None:
    for parts in await played(recording):
        told = stream_of(stored(segments(parts)))
        check(told)
        assert essence(told) == essence(parts)


def essence(parts: list[StreamPart]) -> object:
    """All that a stream says, without how it was cut: text by block, events by call, the rest as it is."""
    texts: dict[str, str] = {}
    events: dict[tuple[str, str | None], str] = {}
    rest: dict[str, list[StreamPart]] = {}
    for part in parts:
        match part:
            case TextDelta() | ReasoningDelta():
                texts[part.id] = texts.get(part.id, "") + part.delta
            case TextEnd(text=str(text)) | ReasoningEnd(text=str(text)):
                texts[part.id] = text
                rest.setdefault(part_type(part), []).append(part)
            case ToolEvent():
                key = (part.tool, part.call_id)
                events[key] = events.get(key, "") + grown(part)
            case ToolInputStart() | ToolInputDelta() | ToolInputEnd() | ToolResult(preliminary=True):
                pass
            case StepFinish():
                # What only a replay needs is a reference in the log; the messages above show that both forms fold alike.
                rest.setdefault(part_type(part), []).append(replace(part, outcome=None))
            case _:
                rest.setdefault(part_type(part), []).append(part)
    return texts, events, rest


def grown(part: ToolEvent) -> str:
    """The text that a delta adds; any other event as it is."""
    delta = part.event.get("delta") if isinstance(part.event, dict) and part.stage.endswith("delta") else None
    if isinstance(delta, dict):
        delta = next((value for key, value in delta.items() if key != "type"), None)
    return delta if isinstance(delta, str) else str(part)

"""The log of a run says what the run said: every recording, written as records and read again, gives the same messages.

The records go through JSON and blobs, as a store would keep them.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Literal

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    File,
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
)
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.store.log.fold import fold, joined, stream_of
from sidestream.store.log.segments import INCREMENTS, SegmentFold
from sidestream.store.records import Body, MessageAdded, Record, Row, RunStarted, Segment, kind_of, pack, unpack
from sidestream.stream.grammar import check
from support.places import RECORDINGS

FILES = sorted(path for path in RECORDINGS.rglob("*.json")) if RECORDINGS.is_dir() else []
QUESTION = ChatMessage.user("?")
POLICIES: tuple[Literal["session", "summary"], ...] = ("session", "summary")


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.load(request.param)


if not FILES:

    def test_recordings_exist() -> None:
        pytest.skip(f"no recordings: {RECORDINGS} is not there")


async def played(recording: Recording) -> list[list[StreamPart]]:
    return [[part async for part in run] for run in replay(recording, ReplayTransport(recording))]


def stored(bodies: Iterable[Body]) -> Iterator[Record]:
    """The bodies as they come back from a store."""
    for seq, body in enumerate(bodies, 1):
        data, blobs = pack(body)
        row = Row(seq=seq, time=0.0, run="run", kind=kind_of(body), body=data, blobs=tuple(blobs))
        yield unpack(row, blobs.__getitem__)


def segments(parts: list[StreamPart], every: int = 0) -> list[Segment]:
    """The segments, previews included; with `every`, what is open becomes an increment after so many parts."""
    folding = SegmentFold(previews=True)
    found: list[Segment] = []
    # As they come, one at a time: how parts are batched makes no difference.
    for number, part in enumerate(parts, 1):
        found += folding.feed([part])
        if every and number % every == 0:
            found += folding.increments()
    return found + folding.end()


def messages_of(parts: list[StreamPart], policy: Literal["session", "summary"]) -> list[ChatMessage]:
    folding = MessageFold(policy, is_logged=True)
    return [message for part in parts for message in folding.feed(part)]


@requirement("R82", "R112")
async def test_recording_log_restores_messages(recording: Recording) -> None:
    for (number, parts), policy, every in product(enumerate(await played(recording)), POLICIES, (0, 1)):
        case = f"answer {number}, policy {policy}, increments after {every} parts"
        state = fold(stored([MessageAdded(QUESTION), RunStarted("replay:x", policy), *segments(parts, every)]))
        step = next((part for part in parts if isinstance(part, StepFinish)), None)
        if isinstance(parts[-1], Finish) and parts[-1].reason in ("error", "approval"):
            assert state.status in ("failed", "waiting"), case
            assert state.run_state is not None, case
        elif step is not None and step.reason == "tool-calls":
            # Replayed runs end with the calls unanswered; the log knows which.
            assert [entry.id for message in state.messages for entry in message.tool_calls], case
        else:
            assert state.status == "complete", case
            assert list(state.messages) == [QUESTION, *messages_of(parts, policy)], case


@requirement("R82")
async def test_recording_segments_equal_stream_with_joined_deltas(recording: Recording) -> None:
    for parts in await played(recording):
        told = stream_of(stored(segments(parts)))
        check(told)
        assert essence(told) == essence(parts)


@requirement("R112")
async def test_recording_increments_equal_stream_and_are_joined(recording: Recording) -> None:
    for (number, parts), every in product(enumerate(await played(recording)), (1, 2, 7)):
        case = f"answer {number}, increments after {every} parts"
        grown = list(stored(segments(parts, every)))
        told = stream_of(grown)
        check(told)
        assert essence(told) == essence(parts), case
        texts = [part for record in grown for part in record.body.parts if isinstance(part, TextDelta)]  # type: ignore[union-attr]
        whole = [part.delta for part in parts if isinstance(part, TextDelta)]
        # No text stands twice, however the block was cut; one that its end supersedes may be shorter.
        assert len("".join(part.delta for part in texts)) <= len("".join(whole)), case
        assert not [record for record in joined(grown) if record.kind in INCREMENTS], case


@requirement("R16")
async def test_recording_log_omits_previews_and_duplicate_bytes(recording: Recording) -> None:
    for parts in await played(recording):
        previews = {text for part in parts for text in preview_texts(part)}
        files = {b64encode(part.data) for part in parts if isinstance(part, File) and part.data}
        # The image of one recording was shortened by hand, in its preview and in its result alike.
        previews -= {str(part.event["item"].get("result")) for part in parts if is_done(part)}
        for segment in SegmentFold().feed(parts):
            if segment.kind == "tool-event":
                body, _ = pack(segment)
                assert not any(text.encode() in body for text in previews)
                assert not any(text in body for text in files)


def is_done(part: StreamPart) -> bool:
    return isinstance(part, ToolEvent) and part.provider_stage == "done" and isinstance(part.event.get("item"), dict)


def preview_texts(part: StreamPart) -> list[str]:
    result = part.result if isinstance(part, ToolResult) and part.preliminary else {}
    return [text for text in result.values() if isinstance(text, str) and len(text) > 256]


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
                rest.setdefault(part.type, []).append(part)
            case ToolEvent():
                key = (part.tool, part.call_id)
                events[key] = events.get(key, "") + grown(part)
            case ToolInputStart() | ToolInputDelta() | ToolInputEnd() | ToolResult(preliminary=True):
                pass
            case StepFinish():
                # What only a replay needs is a reference in the log; the messages above show that both forms fold alike.
                rest.setdefault(part.type, []).append(replace(part, outcome=None))
            case _:
                rest.setdefault(part.type, []).append(part)
    return texts, events, rest


def grown(part: ToolEvent) -> str:
    """The text that a delta adds; any other event as it is."""
    delta = (
        part.event.get("delta") if isinstance(part.event, dict) and str(part.provider_stage).endswith("delta") else None
    )
    if isinstance(delta, dict):
        delta = next((value for key, value in delta.items() if key != "type"), None)
    return delta if isinstance(delta, str) else str(part)

"""AWS event streams: the same events come out however the bytes are cut, and damaged or hostile frames raise."""

import base64
import itertools
import json
import random
import struct
import time
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, strategies as st

from hostile.corpus import MORE_RECORDINGS
from sidestream.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
    RunError,
)
from sidestream.limits import Limits
from sidestream.replay.capture import RecordingTransport
from sidestream.replay.recording import EVENT_STREAM, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.testing import FakeProvider, MessagesScript, aws_frame, aws_frames
from sidestream.transport.calls import HttpCall
from sidestream.wire.aws_frames import EXCEPTIONS, FrameSplitter, frames_of
from sidestream.wire.failures import status_error
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy

CAP = 1 << 20
CALL = HttpCall(url="http://127.0.0.1/model/claude/invoke-with-response-stream", body=b"{}", stream=True)
RECORDED = MORE_RECORDINGS / "bedrock" / "c-bedrock-claude-invoke-stream.json"
QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
needs_recording = pytest.mark.skipif(not RECORDED.exists(), reason=f"no recordings: {RECORDED} is not there")

EVENTS = [b'{"type":"message_start"}', '{"text":"Grüße"}'.encode(), b'{"type":"message_stop"}']


def chunk(data: bytes) -> bytes:
    wrapped = {"bytes": base64.b64encode(data).decode(), "p": "abcdef"}
    return aws_frame(wrapped, event_type="chunk", content_type="application/json", message_type="event")


def failure(kind: str, message: str) -> bytes:
    return aws_frame({"message": message}, exception_type=kind, message_type="exception")


def split(chunks: Iterable[bytes], cap: int = CAP) -> tuple[list[bytes], RunError | None]:
    """All events of the chunks, and the error that ended them."""
    splitter = FrameSplitter(cap, partial(status_error, CALL))
    events: list[bytes] = []
    try:
        for piece in chunks:
            events += splitter.feed(piece)
        events += splitter.flush()
    except RunError as error:
        return events, error
    return events, None


def recorded_bytes() -> bytes:
    return Recording.load(RECORDED).exchanges[0].body_bytes()


def by_botocore(data: bytes) -> list[bytes]:
    buffer: Any = EventStreamBuffer()
    buffer.add_data(data)
    return [base64.b64decode(json.loads(message.payload)["bytes"]) for message in buffer]


@needs_recording
def test_recorded_stream_matches_botocore() -> None:
    data = recorded_bytes()
    events, error = split([data])
    assert (events, error) == (by_botocore(data), None)
    assert [json.loads(event)["type"] for event in events][-1] == "message_stop"


@needs_recording
def test_every_cut_of_recording_gives_same_events() -> None:
    data = recorded_bytes()
    whole = split([data])
    assert split(data[at : at + 1] for at in range(len(data))) == whole
    for at in range(len(data)):
        assert split([data[:at], data[at:]]) == whole


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 2000), max_size=8))
def test_events_do_not_depend_on_chunking(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(chunk, payloads))
    points = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(points)]
    assert split(pieces) == ([payload for payload in payloads if payload], None)


def test_frames_of_cuts_after_each_frame() -> None:
    frames = [chunk(event) for event in EVENTS]
    assert list(frames_of(b"".join(frames))) == frames
    assert b"".join(frames_of(b"\0\0\0\0garbage" * 9)) == b"\0\0\0\0garbage" * 9


def test_payload_without_bytes_is_passed_verbatim() -> None:
    other = aws_frame({"role": "assistant"}, event_type="messageStart", message_type="event")
    odd = aws_frame(b"not json", event_type="chunk", message_type="event")
    empty = aws_frame(b"", event_type="initial-response", message_type="event")
    assert split([other + odd + empty]) == ([b'{"role":"assistant"}', b"not json"], None)


def test_header_values_of_all_types_are_skipped() -> None:
    values = b"".join(
        bytes([1]) + b"x" + bytes([kind]) + value
        for kind, value in enumerate(
            [b"", b"", b"1", b"12", b"1234", b"12345678", b"\0\3abc", b"\0\2hi", b"12345678", b"1" * 16]
        )
    )
    assert split([_frame(values, b"data")]) == ([b"data"], None)


def _frame(headers: bytes, payload: bytes) -> bytes:
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    content = prelude + zlib.crc32(prelude).to_bytes(4) + headers + payload
    return content + zlib.crc32(content).to_bytes(4)


@pytest.mark.parametrize(
    "headers", [b"\x05ab", b"\x01x", b"\x01x\x07", b"\x01x\x07\0\x09ab", b"\x01x\x63", b"\x01x\x05abc", b"\xff"]
)
def test_malformed_headers_raise(headers: bytes) -> None:
    events, error = split([chunk(EVENTS[0]) + _frame(headers, b"data")])
    assert events == EVENTS[:1]
    assert isinstance(error, ProtocolError)
    assert error.code == "frame"


def test_every_damaged_byte_raises() -> None:
    first, second = chunk(EVENTS[0]), chunk(EVENTS[2])
    for at in range(len(second)):
        damaged = bytearray(second)
        damaged[at] ^= 0x10
        events, error = split([first, bytes(damaged)])
        assert events == EVENTS[:1]
        assert isinstance(error, ProtocolError)
        assert error.code == "frame"


def test_error_is_raised_again_after_damage() -> None:
    splitter = FrameSplitter(CAP, partial(status_error, CALL))
    assert splitter.feed(chunk(EVENTS[0]) + b"\xff" * 12) == EVENTS[:1]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            splitter.feed(chunk(EVENTS[1]))
        with pytest.raises(ProtocolError):
            splitter.flush()


@pytest.mark.parametrize("size", [0, 15, CAP + 1, 0xFFFF_FFFF])
def test_invalid_length_raises_at_prelude(size: int) -> None:
    prelude = struct.pack(">II", size, 0)
    events, error = split([prelude + zlib.crc32(prelude).to_bytes(4)])
    assert events == []
    assert isinstance(error, ProtocolError)
    assert error.code == ("frame" if size < 16 else "event-too-large")


def test_damaged_first_frame_raises_without_more_data() -> None:
    with pytest.raises(ProtocolError):
        FrameSplitter(CAP, partial(status_error, CALL)).feed(b"\xff" * 12)


def test_frame_at_cap_passes() -> None:
    frame = chunk(b"x" * 1000)
    assert split([frame], len(frame)) == ([b"x" * 1000], None)
    assert isinstance(split([frame], len(frame) - 1)[1], ProtocolError)


def test_huge_frame_in_small_pieces_is_linear_and_bounded() -> None:
    frame = chunk(b"x" * 3_000_000)
    splitter = FrameSplitter(len(frame), partial(status_error, CALL))
    tracemalloc.start()
    started = time.process_time()
    events = [event for at in range(0, len(frame), 500) for event in splitter.feed(frame[at : at + 500])]
    assert time.process_time() - started < 30
    assert tracemalloc.get_traced_memory()[1] < 5 * len(frame)
    tracemalloc.stop()
    assert events == [b"x" * 3_000_000]


def test_truncated_frame_is_partial_and_dropped() -> None:
    frame = chunk(EVENTS[0])
    for at in range(1, len(frame)):
        splitter = FrameSplitter(CAP, partial(status_error, CALL))
        assert splitter.feed(frame[:at]) == []
        assert splitter.has_partial
        assert splitter.has_begun_event
        assert splitter.flush() == []
        assert not splitter.has_partial


@pytest.mark.parametrize("seed", range(30))
def test_garbage_raises_only_run_errors(seed: int) -> None:
    luck = random.Random(seed)
    frames = bytearray(b"".join([*map(chunk, EVENTS), failure("throttlingException", "slow")]))
    for _ in range(luck.randrange(6)):
        at = luck.randrange(len(frames))
        frames[at : at + luck.randrange(3)] = luck.randbytes(luck.randrange(4))
    pieces = [bytes(frames[at : at + 7]) for at in range(0, len(frames), 7)]
    assert split(pieces)[0] == split([bytes(frames)])[0] == EVENTS[: len(split(pieces)[0])]
    split([luck.randbytes(200)])


@pytest.mark.parametrize(
    ("kind", "error_type", "is_retried"),
    [
        ("throttlingException", RateLimitedError, True),
        ("ThrottlingException", RateLimitedError, True),
        ("serviceUnavailableException", ProviderError, True),
        ("internalServerException", ProviderError, True),
        ("modelStreamErrorException", ProviderError, True),
        ("modelTimeoutException", ProviderError, True),
        ("modelNotReadyException", RateLimitedError, True),
        ("validationException", ProviderError, False),
        ("accessDeniedException", AuthenticationError, False),
        ("resourceNotFoundException", ProviderError, False),
        ("newException", ProviderError, False),
    ],
)
def test_exception_frame_raises_typed_error(kind: str, error_type: type[RunError], is_retried: bool) -> None:
    events, error = split([chunk(EVENTS[0]), failure(kind, "it failed")])
    assert events == EVENTS[:1]
    assert error is not None
    assert type(error) is error_type
    assert (error.code, error.retryable) == (kind, is_retried)
    assert "it failed" in error.message


def test_long_prompt_is_context_overflow() -> None:
    _, error = split([failure("validationException", "Input is too long for requested model.")])
    assert isinstance(error, ContextOverflowError)


def test_error_frame_raises_provider_error() -> None:
    frame = aws_frame(b"", message_type="error", error_code="InternalError", error_message="it broke")
    _, error = split([frame])
    assert isinstance(error, ProviderError)
    assert error.code == "InternalError"


def test_every_exception_of_bedrock_has_a_row() -> None:
    from botocore.loaders import Loader

    shapes = Loader().load_service_model("bedrock-runtime", "service-2")["shapes"]
    for name, member in shapes["ResponseStream"]["members"].items():
        if name != "chunk":
            assert EXCEPTIONS[name][0] == shapes[member["shape"]]["error"]["httpStatusCode"]


@pytest.fixture
async def fake() -> AsyncGenerator[FakeProvider]:
    async with FakeProvider() as server:
        yield server
        await close_session()


async def read(transport: Any, url: str) -> list[bytes]:
    response = await transport.open(HttpCall(url=url, body=b"{}", stream=True), Limits())
    found: list[bytes] = []
    while batch := await response.events():
        found += batch
    await response.aclose()
    return found


SAID = MessagesScript().text("Hello.").events()


async def test_throttled_stream_is_opened_again(fake: FakeProvider) -> None:
    fake.add(aws_frames([failure("throttlingException", "slow down")]), aws_frames(SAID, chunk_sizes=[1, 5]))
    found = await read(HttpTransport(retry=QUICK), f"{fake.base_url}/model/m/invoke-with-response-stream")
    assert list(map(json.loads, found)) == SAID
    assert len(fake.requests) == 2


async def test_exception_after_events_is_raised_once_they_are_read(fake: FakeProvider) -> None:
    fake.add(aws_frames([*SAID[:2], failure("modelStreamErrorException", "it broke")]))
    response = await HttpTransport().open(HttpCall(url=f"{fake.base_url}/x", body=b"{}", stream=True), Limits())
    found: list[bytes] = []
    while len(found) < 2:
        found += await response.events()
    with pytest.raises(ProviderError, match="it broke"):
        await response.events()
    assert list(map(json.loads, found)) == SAID[:2]


async def test_recorded_frames_are_replayed(fake: FakeProvider) -> None:
    fake.add(aws_frames(SAID))
    transport = RecordingTransport(HttpTransport())
    url = f"{fake.base_url}/model/m/invoke-with-response-stream"
    found = await read(transport, url)
    (exchange,) = transport.recording.exchanges
    assert exchange.response.content_type == EVENT_STREAM
    assert await read(ReplayTransport(transport.recording), url) == found


@needs_recording
@pytest.mark.parametrize("pace_s", [0.0, 0.0001])
async def test_frames_of_recording_are_replayed(pace_s: float) -> None:
    recording = Recording.load(RECORDED)
    transport = ReplayTransport(recording, pace_s=pace_s)
    assert await read(transport, f"http://x{recording.exchanges[0].request.path}") == by_botocore(recorded_bytes())

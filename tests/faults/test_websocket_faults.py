"""A WebSocket that misbehaves: each fault is a typed error or a documented outcome, nothing is stuck, nothing leaks."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, Limits
from sidestream.errors import (
    ConnectError,
    LimitError,
    ProtocolError,
    RunError,
    StreamTimeoutError,
    StreamTruncatedError,
)
from sidestream.limits import MIB
from sidestream.parts import Raw, TextDelta
from sidestream.providers.openai.responses.websocket import RESPONSES_WEBSOCKET
from sidestream.testing import (
    FakeProvider,
    Keepalives,
    Reply,
    no_leaks,
    responses_text,
    socket_close,
    socket_frame,
    sse,
)
from sidestream.wire.http import close_session
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.socket import stream
from sidestream.wire.socket.transport import WebSocketTransport

QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
LIMITS = Limits(first_byte_timeout_s=20, idle_timeout_s=20, max_retries=0)
SHORT = Limits(first_byte_timeout_s=2, idle_timeout_s=0.1, max_retries=0)
BINARY, PING, RESERVED = 0x2, 0x9, 0x3
EVENTS: list[Any] = responses_text(["Hel", "lo"])
HALF = next(index for index, event in enumerate(EVENTS) if event["type"] == "response.output_text.delta") + 1
"""How many events there are up to the first delta."""


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


def agent(fake: FakeProvider, limits: Limits = LIMITS, **codec: Any) -> Agent:
    transport = WebSocketTransport(replace(RESPONSES_WEBSOCKET, **codec), retry=QUICK)
    return Agent("openai-responses", api_key="key", base_url=fake.base_url, transport=transport, limits=limits)


async def failure_of(reply: Reply, limits: Limits = LIMITS) -> RunError:
    """The error of a run with this reply; its server is left alone afterwards."""
    async with FakeProvider([reply]) as fake:
        with pytest.raises(RunError) as caught:
            await agent(fake, limits).send("hi")
        await fake.wait_idle()
        return caught.value


async def text_of(reply: Reply) -> str:
    async with FakeProvider([reply]) as fake:
        result = await agent(fake).send("hi")
        await close_session()
        return result.text


def in_lane(events: list[Any]) -> list[str]:
    """The events as text, in the lane of a first request."""
    return [json.dumps({**event, "stream_id": "lane-1"}) for event in events]


# Frames


@requirement("R115")
async def test_binary_frames_are_read_like_text():
    assert await text_of(sse([socket_frame(event, BINARY) for event in in_lane(EVENTS)])) == "Hello"


async def test_message_in_several_frames_is_one_event():
    first, *rest = in_lane(EVENTS)
    pieces = [socket_frame(first[:9], is_final=False), socket_frame(first[9:], opcode=0)]
    assert await text_of(sse([*pieces, *rest])) == "Hello"


async def test_frames_split_anywhere_are_reassembled():
    assert await text_of(sse(EVENTS, chunk_sizes=1)) == "Hello"


@requirement("R180")
async def test_binary_garbage_is_error_after_answer():
    garbage = sse([*EVENTS[:HALF], socket_frame(b"\xff\xfe\x00", BINARY), *EVENTS[HALF:]])
    async with FakeProvider([garbage, sse(EVENTS)]) as fake:
        talking = agent(fake)
        with pytest.raises(ProtocolError) as caught:
            await talking.send("hi")
        assert caught.value.code == "not-json"
        assert caught.value.result is not None
        assert caught.value.result.output == "Hello"
        assert (await talking.send("again")).output == "Hello"
        await close_session()


@requirement("R115")
async def test_reserved_frame_type_is_protocol_error():
    error = await failure_of(sse([*EVENTS[:HALF], socket_frame("?", RESERVED)]))
    assert isinstance(error, ProtocolError)
    assert error.code == "websocket"


async def test_event_over_limit_is_protocol_error_before_arrival():
    limits = replace(LIMITS, max_event_bytes=10_000)
    error = await failure_of(sse([*EVENTS[:HALF], socket_frame("{", claims=2**40)]), limits)
    assert isinstance(error, ProtocolError)
    assert error.code == "event-too-large"


async def test_response_over_limit_is_limit_error():
    error = await failure_of(
        sse([*EVENTS[:HALF], *EVENTS[HALF - 1 : HALF] * 200]), replace(LIMITS, max_response_bytes=20_000)
    )
    assert isinstance(error, LimitError)
    assert error.code == "max_response_bytes"


# Lanes and numbers


@requirement("R115")
async def test_event_with_unknown_stream_id_is_dropped_and_logged_once(caplog: pytest.LogCaptureFixture):
    stray = {**EVENTS[HALF - 1], "stream_id": "nobody", "delta": "stray"}
    with caplog.at_level(logging.WARNING):
        assert await text_of(sse([*EVENTS[:HALF], stray, stray, *EVENTS[HALF:]])) == "Hello"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_events_without_stream_id_belong_to_only_response():
    assert await text_of(sse([json.dumps(event) for event in EVENTS])) == "Hello"


async def test_events_without_stream_id_are_dropped_if_ambiguous():
    gate = asyncio.Event()
    stray = json.dumps({**EVENTS[HALF - 1], "delta": "stray"})
    script = [sse([*EVENTS[:HALF], gate, *EVENTS[HALF:]]), sse([*EVENTS[:HALF], stray, *EVENTS[HALF:]])]
    async with FakeProvider(script) as fake:
        subject = agent(fake)
        first = asyncio.create_task(subject.send("one"))
        await fake.wait_for_requests(1)
        second = await subject.send("two")
        gate.set()
        assert ((await first).text, second.text) == ("Hello", "Hello")
        await close_session()


async def test_error_without_stream_id_ends_unanswered_requests():
    gate = asyncio.Event()
    error = json.dumps({"type": "error", "status": 400, "error": {"code": "bad", "message": "cannot read that"}})
    async with FakeProvider([sse([*EVENTS[:HALF], gate, *EVENTS[HALF:]]), sse([error])]) as fake:
        subject = agent(fake)
        async with subject.stream("one") as run:
            await anext(part async for part in run if isinstance(part, TextDelta))
            with pytest.raises(RunError) as caught:
                await subject.send("two")
            assert (caught.value.status, caught.value.code) == (400, "bad")
            gate.set()
            assert "".join([part.delta async for part in run if isinstance(part, TextDelta)]) == "lo"
        await close_session()


@requirement("R115")
async def test_gap_in_sequence_numbers_is_tolerated():
    deltas = [index for index, event in enumerate(EVENTS) if event["type"] == "response.output_text.delta"]
    kept = [event for index, event in enumerate(EVENTS) if index != deltas[1]]
    over_socket = await text_of(sse(kept))
    async with FakeProvider([sse(kept)]) as fake:
        over_http = await Agent("openai-responses", api_key="key", base_url=fake.base_url).send("hi")
    assert over_socket == over_http.text == "Hello"


async def test_repeated_event_is_read_once():
    parts: list[Any] = []
    async with FakeProvider([sse([*EVENTS[:HALF], EVENTS[HALF - 1], *EVENTS[HALF:]])]) as fake:
        parts = [part async for part in agent(fake).stream("hi")]
        await close_session()
    assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "Hello"
    assert [type(part) for part in parts].count(Raw) == 1


# Ends and silences


@requirement("R115")
@pytest.mark.parametrize("cut", ["close", "reset"])
async def test_connection_ending_inside_event_truncates_response(cut: Any):
    error = await failure_of(sse([*EVENTS[:HALF], socket_frame('{"type":"resp', claims=500)], cut=cut))
    assert isinstance(error, StreamTruncatedError)
    assert error.retryable


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 1012])
async def test_close_after_output_truncates_response_for_any_code(code: int):
    error = await failure_of(sse([*EVENTS[:HALF], socket_close(code)], cut="close"))
    assert isinstance(error, StreamTruncatedError)


@pytest.mark.parametrize("cut", ["close", "reset"])
async def test_connection_ending_before_output_is_connect_error(cut: Any):
    error = await failure_of(Reply(body=[], cut=cut))
    assert isinstance(error, ConnectError)
    assert error.code == "reset"


@requirement("R115")
async def test_silence_after_output_is_idle_timeout():
    error = await failure_of(sse([*EVENTS[:HALF], asyncio.Event()]), SHORT)
    assert isinstance(error, StreamTimeoutError)
    assert error.code == "idle"


async def test_silence_before_output_is_first_byte_timeout():
    error = await failure_of(Reply(gate=asyncio.Event()), SHORT)
    assert isinstance(error, StreamTimeoutError)
    assert error.code == "first-byte"


async def test_unanswered_upgrade_is_connect_timeout():
    async with FakeProvider() as fake:
        fake.on("GET", "*/responses", Reply(gate=asyncio.Event()))
        with pytest.raises(ConnectError) as caught:
            await agent(fake, replace(LIMITS, connect_timeout_s=0.1)).send("hi")
        assert caught.value.code == "connect-timeout"
        await fake.wait_idle()


@requirement("R115")
async def test_pings_do_not_prevent_idle_timeout():
    error = await failure_of(sse(EVENTS[:HALF], keepalives=Keepalives(interval_s=0)), SHORT)
    assert isinstance(error, StreamTimeoutError)
    assert error.code == "idle"


async def test_keep_alive_events_do_not_prevent_idle_timeout():
    keepalives: list[Any] = [{"type": "keepalive"}] * 100
    error = await failure_of(sse([*EVENTS[:HALF], *keepalives], pace_s=0.01, stall_after_bytes=10**9), SHORT)
    assert isinstance(error, StreamTimeoutError)


async def test_request_queued_too_long_is_first_byte_timeout():
    gate = asyncio.Event()
    async with FakeProvider([sse([*EVENTS[:HALF], gate, *EVENTS[HALF:]])]) as fake:
        transport = WebSocketTransport(replace(RESPONSES_WEBSOCKET, max_active=1), retry=QUICK)
        first, second = (
            Agent("openai-responses", api_key="key", base_url=fake.base_url, transport=transport, limits=limits)
            for limits in (LIMITS, SHORT)
        )
        async with first.stream("one") as run:
            await anext(part async for part in run if isinstance(part, TextDelta))
            with pytest.raises(StreamTimeoutError) as caught:
                await second.send("two")
            assert caught.value.code == "first-byte"
            gate.set()
            assert "".join([part.delta async for part in run if isinstance(part, TextDelta)]) == "lo"
        await close_session()


# Slow readers


@requirement("R115")
async def test_stalled_reader_fails_alone_when_too_much_is_unread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "MAX_UNREAD_BYTES", MIB)
    flood = [{**EVENTS[HALF - 1], "sequence_number": None, "delta": "x" * 100_000}] * 30
    async with FakeProvider([sse([*EVENTS[:HALF], *flood, *EVENTS[HALF:]]), sse(EVENTS)]) as fake:
        subject = agent(fake)
        async with subject.stream("slow") as slow:
            await anext(part async for part in slow if isinstance(part, TextDelta))
            assert (await subject.send("quick")).text == "Hello"
            await fake.wait_answered()
            with pytest.raises(LimitError) as caught:
                async for _ in slow:
                    pass
            assert caught.value.code == "max-unread-bytes"
        await close_session()


# Cancellation


@requirement("R115")
async def test_request_cancelled_before_first_event_closes_connection():
    async with FakeProvider([Reply(gate=asyncio.Event())]) as fake:
        sending = asyncio.create_task(agent(fake).send("hi"))
        await fake.wait_for_requests(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await fake.wait_idle()


async def test_request_cancelled_in_queue_frees_its_place():
    gate = asyncio.Event()
    async with FakeProvider([sse([*EVENTS[:HALF], gate, *EVENTS[HALF:]]), sse(EVENTS)]) as fake:
        subject = agent(fake, max_active=1)
        first = asyncio.create_task(subject.send("one"))
        await fake.wait_for_requests(1)
        waiting = [asyncio.create_task(subject.send(prompt)) for prompt in ("two", "three")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.set()
        assert (await first).text == (await waiting[1]).text == "Hello"
        assert waiting[0].cancelled()
        assert len(fake.requests) == 2
        assert fake.connections_total == 1
        await close_session()


async def test_closing_all_connections_breaks_active_responses():
    async with FakeProvider([sse([*EVENTS[:HALF], asyncio.Event()])]) as fake:
        async with agent(fake).stream("hi") as run:
            await anext(part async for part in run if isinstance(part, TextDelta))
            await close_session()
            with pytest.raises(StreamTruncatedError):
                async for _ in run:
                    pass
        await fake.wait_idle()

"""A server that keeps the connection busy but says nothing more: the idle timeout ends the run, whoever the provider is."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from conformance.suite.subjects import Subject
from conformance.suite.wires import Text
from requirements import requirement
from sidestream.errors import StreamTimeoutError
from sidestream.limits import Limits
from sidestream.parts import Error, Finish, StreamPart, TextDelta
from sidestream.run.run import Run
from sidestream.stream import grammar
from sidestream.testing import Keepalives, Reply
from sidestream.testing.replies import encode_event

COMMENTS = b": keep-alive\n\nevent: ping\n\ndata:\n\ndata: [DONE]\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
EVENTS = b"".join(
    b"data: %b\n\n" % data
    for data in (
        b'{"type":"ping"}',
        b'{"type":"keepalive","sequence_number":7}',
        b'{"type":"heartbeat"}',
        b'{"event_type":"ping"}',
        b"{}",
        b"null",
        b"[DONE]",
        b"keep-alive",
        b"still here",
        b'{"type":',
    )
)
QUICK = {"first_byte_timeout_s": 20, "idle_timeout_s": 0.15, "max_resumptions": 0}


def stalled(subject: Subject, frame: bytes) -> Reply:
    """A reply that says something, all at once, then only sends this frame."""
    reply = subject.wire.script(Text("Hello there.")).reply()
    end = next(place for place, event in enumerate(reply.body) if b"Hello" in encode_event(event))
    frames = Keepalives(frame, interval_s=0.005)
    return replace(reply, body=reply.body[: end + 1], keepalives=frames, chunk_sizes=1 << 16)


async def keep(run: Run[Any], parts: list[StreamPart]) -> None:
    """Reads to the end, and keeps the parts so far if the run fails."""
    while batch := await run.batch():
        parts += batch


@requirement("F15", "F22")
@pytest.mark.parametrize("frame", [COMMENTS, PING, EVENTS], ids=["comments", "ping", "events"])
async def test_events_without_content_do_not_reset_idle_timeout(wired: Subject, frame: bytes) -> None:
    async with asyncio.timeout(30), wired.open(stalled(wired, frame), limits=Limits(**QUICK)) as talk:
        parts: list[StreamPart] = []
        async with talk.agent.stream("hi") as run:
            with pytest.raises(StreamTimeoutError):
                await keep(run, parts)
        grammar.check(parts)
        assert talk.fake is not None
        await talk.fake.wait_idle()
    error, finish = parts[-2:]
    assert isinstance(error, Error)
    assert (error.kind, error.code, error.retryable) == ("timeout", "idle", True)
    assert isinstance(finish, Finish)
    assert finish.reason == "error"
    assert any(isinstance(part, TextDelta) for part in parts)


@requirement("F15", "F22")
async def test_fast_keep_alives_do_not_reset_idle_timeout(wired: Subject) -> None:
    flood = replace(stalled(wired, b""), keepalives=Keepalives(PING * 20, interval_s=0))
    async with asyncio.timeout(30), wired.open(flood, limits=Limits(**QUICK)) as talk:
        with pytest.raises(StreamTimeoutError) as caught:
            await talk.agent.send("hi")
    assert caught.value.code == "idle"
    assert caught.value.result is not None
    assert "Hello" in caught.value.result.output


@requirement("F15", "F22")
async def test_keep_alives_do_not_count_as_first_event(wired: Subject) -> None:
    script = wired.wire.script(Text("Hello there."))
    silent = replace(script.reply(), body=[], keepalives=Keepalives(PING, interval_s=0.005))
    limits = Limits(first_byte_timeout_s=0.15, idle_timeout_s=20, max_retries=1)
    async with asyncio.timeout(30), wired.open(silent, script.reply(), limits=limits) as talk:
        assert (await talk.agent.send("hi")).output == "Hello there."
        assert talk.fake is not None
        assert len(talk.fake.requests) == 2

"""Answers of the APIs that are streams of server-sent events, or the same as one object."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import StreamingResponse

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.jsontext import JsonObject
from sidestream.redaction import redact
from sidestream.server.runs import RunInfo, Runs
from sidestream.store.records import Segment
from sidestream.stream.parts import Error, Finish, StreamPart
from sidestream.ui.sse import HEARTBEAT, SSE_HEADERS

HEARTBEAT_S = 15.0
"""While nothing happens, a comment is sent this often: proxies close connections that are silent."""


async def parts_of(runs: Runs, info: RunInfo, *, load: bool = True) -> AsyncGenerator[StreamPart]:
    """The parts of a run from its beginning, as the log gets them, to its end."""
    try:
        async with aclosing(runs.read(info.conversation, info.start, load=load)) as records:
            async for record in records:
                if isinstance(record.body, Segment):
                    for part in record.body.parts:
                        yield part
                        if isinstance(part, Finish):
                            return
    except StoreError as error:
        yield Error("provider", f"the run could not be recorded: {redact(str(error))}", code="not_stored")


def event_stream(frames: AsyncGenerator[bytes], headers: dict[str, str] | None = None) -> StreamingResponse:
    """A response with server-sent events, and with comments while nothing happens.

    A client that leaves closes the generator; the run that it follows continues.
    """
    return StreamingResponse(_with_heartbeats(frames), headers={**SSE_HEADERS, **(headers or {})})


def frame(data: JsonObject, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = b"" if event is None else f"event: {event}\n".encode()
    return b"%bdata: %b\n\n" % (name, jsontext.dumps(data))


async def _with_heartbeats(frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    following: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            following = following or asyncio.create_task(_next(frames))
            done, _ = await asyncio.wait([following], timeout=HEARTBEAT_S)
            if not done:
                yield HEARTBEAT
                continue
            data, following = following.result(), None
            if data is None:
                return
            yield data
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        await frames.aclose()


async def _next(frames: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(frames, None)

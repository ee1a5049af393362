"""Answers of the APIs that are streams of server-sent events, or the same as one object."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import StreamingResponse

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.jsontext import JsonObject
from sidestream.redaction import redact
from sidestream.server.live import RunInfo
from sidestream.server.runs import Runs
from sidestream.store.records import RunStarted, Segment
from sidestream.stream.parts import Error, Finish, StreamPart
from sidestream.ui.sse import HEARTBEAT, SSE_HEADERS

HEARTBEAT_S = 15.0
"""While nothing happens, a comment is sent this often: proxies close connections that are silent."""
MAX_PENDING_FRAMES = 256
"""Frames that wait for one client. One that reads slowly holds back only its own stream."""


async def parts_of(runs: Runs, info: RunInfo, *, load: bool = True) -> AsyncGenerator[StreamPart]:
    """The parts of a run from its beginning, as the log gets them, to its end.

    A step of which something was yielded, and which another process has to make again, ends it with an error.
    """
    is_in_step = False
    try:
        async with aclosing(runs.read(info.conversation, info.start, load=load)) as records:
            async for record in records:
                if isinstance(record.body, RunStarted) and is_in_step:
                    message = "the run was interrupted, and its last step is made again: send the request again"
                    yield Error("provider", message, code="interrupted", retryable=True)
                    return
                if isinstance(record.body, Segment):
                    is_in_step = record.kind != "step-finish" and (is_in_step or record.kind == "step-start")
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
    return StreamingResponse(with_heartbeats(frames), headers={**SSE_HEADERS, **(headers or {})})


def frame(data: JsonObject, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = b"" if event is None else f"event: {event}\n".encode()
    return b"%bdata: %b\n\n" % (name, jsontext.dumps(data))


async def with_heartbeats(frames: AsyncGenerator[bytes], pause_s: float = HEARTBEAT_S) -> AsyncGenerator[bytes]:
    """The frames, those that come together as one; a comment whenever none has come for so long."""
    pending = _Pending(pause_s)
    pumping = asyncio.create_task(pending.fill(frames))
    try:
        while data := await pending.take():
            yield data
        await pumping  # It raises what the frames have raised.
    finally:
        pending.close()
        pumping.cancel()
        await asyncio.wait([pumping])
        await frames.aclose()


class _Pending:
    """Frames that wait to be sent. What has come together is sent together."""

    def __init__(self, pause_s: float) -> None:
        self._frames: list[bytes] = []
        self._is_over = False
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._taken_s = self._loop.time()
        self._is_silent = False
        # One timer that looks at the clock: a timeout around each wait would cost as much as the wait.
        self._timer = self._loop.call_later(pause_s, self._watch)

    async def fill(self, frames: AsyncGenerator[bytes]) -> None:
        """Takes the frames as they come, as long as the client keeps up."""
        try:
            async for data in frames:
                self._frames.append(data)
                self._has_news.set()
                if len(self._frames) >= MAX_PENDING_FRAMES:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            self._is_over = True
            self._has_news.set()

    async def take(self) -> bytes:
        """All frames that have come, at least one; a comment if nothing happens, nothing at the end."""
        while not self._frames and not self._is_over:
            if self._is_silent:
                self._is_silent = False
                return HEARTBEAT
            self._has_news.clear()
            await self._has_news.wait()
        data, self._frames = b"".join(self._frames), []
        self._taken_s, self._is_silent = self._loop.time(), False
        self._has_room.set()
        return data

    def close(self) -> None:
        """Nothing is taken any more."""
        self._timer.cancel()

    def _watch(self) -> None:
        left_s = self._taken_s + self._pause_s - self._loop.time()
        if left_s <= 0:
            self._taken_s, left_s = self._loop.time(), self._pause_s
            self._is_silent = True
            self._has_news.set()
        self._timer = self._loop.call_later(left_s, self._watch)

"""Responses that stream server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sidestream import jsontext
from sidestream.durable.log.jobs import job_in
from sidestream.errors import StoreError
from sidestream.jsontext import JsonObject
from sidestream.parts import Custom, Error, StreamPart
from sidestream.protocols.sse import HEARTBEAT, SSE_HEADERS
from sidestream.server.runs.service import RunInfo, Runs
from sidestream.store.records import RunStarted, Segment
from sidestream.text.redaction import redact
from sidestream.transport.waits import WAITING

HEARTBEAT_S = 15.0
"""Seconds without an event before a comment is sent. Proxies close idle connections."""


async def parts_of(runs: Runs, info: RunInfo, *, load: bool = True) -> AsyncGenerator[list[StreamPart]]:
    """Yield the parts of a run from its start to its end, in the batches in which the log receives them.

    Ends with an error if another process restarts a step whose parts were already yielded.
    """
    is_in_step, queued = False, None
    try:
        async with aclosing(runs.read(info.conversation, info.start - 1, load=load)) as batches:
            async for batch in batches:
                parts: list[StreamPart] = []
                for record in batch:
                    if isinstance(record.body, RunStarted) and is_in_step:
                        message = "the run was interrupted and its last step restarted; send the request again"
                        yield [*parts, Error("provider", message, code="interrupted", retryable=True)]
                        return
                    if isinstance(record.body, RunStarted):
                        parts += [] if queued is None else [queued.part(is_over=True)]
                        job = job_in(record.body.details)
                        queued = job.queue_wait(record.time) if job is not None else None
                        parts += [] if queued is None else [queued.part()]
                    if isinstance(record.body, Segment):
                        is_in_step = record.kind != "step-finish" and (is_in_step or record.kind == "step-start")
                        parts += record.body.parts
                        if record.kind == "finish":
                            yield parts
                            return
                if parts:
                    yield parts
    except StoreError as error:
        yield [Error("provider", f"the run could not be recorded: {redact(str(error))}", code="not_stored")]


def event_stream(frames: AsyncGenerator[bytes], headers: dict[str, str] | None = None) -> Response:
    """Return a response that sends server-sent events, with comments while idle.

    A client that disconnects closes the generator, but its run continues. A slow client delays only its own stream.
    """
    return EventStreamResponse(frames, {**SSE_HEADERS, **(headers or {})})


def frame(data: JsonObject, event: str | None = None) -> bytes:
    """Encode one server-sent event."""
    name = b"" if event is None else f"event: {event}\n".encode()
    return b"%bdata: %b\n\n" % (name, jsontext.dumps(data))


def wait_comment(part: StreamPart) -> bytes:
    """Encode a wait as a comment, for APIs that have no event for it. Returns no bytes for other parts."""
    if not isinstance(part, Custom) or part.kind != WAITING:
        return b""
    return b": %b %b\n\n" % (WAITING.encode(), jsontext.dumps(part.data))


class EventStreamResponse(Response):
    """A response that sends frames as they arrive. Starlette's own would cancel the clean-up of a stream repeatedly."""

    def __init__(self, frames: AsyncGenerator[bytes], headers: dict[str, str], pause_s: float = HEARTBEAT_S) -> None:
        super().__init__(None, headers=headers)
        del self.headers["content-length"]
        self._frames = frames
        self._pause_s = pause_s
        self._sending = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._sent_s = self._clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = streaming, leaving = (asyncio.create_task(self._stream(send)), asyncio.create_task(_left(receive)))
        try:
            while not (await asyncio.wait(tasks, timeout=self._pause_left_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                if self._clock() >= self._sent_s + self._pause_s and not self._sending.locked():
                    await self._send(send, HEARTBEAT)
        finally:
            streaming.cancel()
            leaving.cancel()
            await asyncio.wait(tasks)
        if not streaming.cancelled():
            streaming.result()

    @property
    def _pause_left_s(self) -> float:
        left_s = self._sent_s + self._pause_s - self._clock()
        return left_s if left_s > 0 else self._pause_s

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            async with self._sending:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in frames:
                await self._send(send, data)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sent_s = self._clock()


async def _left(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass

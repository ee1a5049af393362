"""Encoder of a run as server-sent events, for the response of any web framework.

In Starlette and FastAPI, use `StreamingResponse(sse(agent.stream(prompt)), headers=SSE_HEADERS)`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import RunError
from sidestream.jsontext import Json
from sidestream.parts import Error, StreamPart, ToolResult
from sidestream.results.results import RESPONSE_KEYS, ChatResult
from sidestream.stream.errors import part_of_error, redacted

SSE_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # keeps nginx from buffering events
}
"""Headers for a response whose body is `sse(…)`."""

HEARTBEAT: Final = b": keep-alive" + b" " * 2036 + b"\n\n"
"""A comment that clients ignore, 2 kB long to flush the buffers of proxies."""
MAX_BUFFERED_BYTES: Final = 64 * 1024
"""Maximum bytes buffered for a slow client. A single part, such as an image, may exceed it."""


async def sse(
    source: AsyncIterable[StreamPart] | AsyncIterable[ChatResult[Any]], *, heartbeat_s: float = 15.0
) -> AsyncGenerator[bytes]:
    """Encode a run as server-sent events, from the parts of `agent.stream` or the chunks of `agent.send_stream`.

    ```python
    response = StreamingResponse(sse(agent.stream("Hello")), headers=SSE_HEADERS)  # Starlette, FastAPI
    ```

    Each event has a number as its id and one JSON object as its data; the last one of a stream of parts is `finish`. A
    failed run ends with an `error` part, sent as an event of type `error` if the stream itself does not contain it.
    While the run is idle, a comment is sent every `heartbeat_s` seconds. The run pauses while the client does not read,
    and is closed when the iterator is.
    """
    feed = _Feed()
    reading = asyncio.create_task(_read(source, feed))
    try:
        while (frames := await feed.take(heartbeat_s)) is not None:
            yield frames or HEARTBEAT
    finally:
        await _stop(reading)
    reading.result()


class _Feed:
    """A buffer of frames between the run, which adds them, and the response, which takes them."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        self._number = 0
        self._is_over = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def add(self, data: str, event: str | None = None) -> None:
        """Append an event, waiting while the buffer is full."""
        await self._has_room.wait()
        self._number += 1
        name = "" if event is None else f"event: {event}\n"
        frame = f"id: {self._number}\n{name}data: {data}\n\n".encode()
        self._frames.append(frame)
        self._size += len(frame)
        if self._size >= MAX_BUFFERED_BYTES:
            self._has_room.clear()
        self._changed.set()

    def end(self) -> None:
        """Mark the feed as complete."""
        self._is_over = True
        self._changed.set()

    async def take(self, timeout_s: float) -> bytes | None:
        """Wait for frames and return them, empty bytes after the timeout, or None at the end."""
        if not self._frames and not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        self._changed.clear()
        if not self._frames:
            return None if self._is_over else b""
        frames, self._frames, self._size = b"".join(self._frames), [], 0
        if self._is_over:
            self._changed.set()
        self._has_room.set()
        return frames


async def _read(source: AsyncIterable[Any], feed: _Feed) -> None:
    """Feed the run to its end, and close it."""
    failure: Error | None = None
    try:
        async for item in source:
            if isinstance(item, ChatResult):
                chunk = _chunk_json(cast(ChatResult[Any], item))
                if chunk != "{}":
                    await feed.add(chunk)
            else:
                failure = item if isinstance(item, Error) and item.kind != "tool" else failure
                await feed.add(_public(item).to_json())
    except RunError as error:
        if failure is None:
            await feed.add(_error_json(part_of_error(error)), "error")
    except Exception:
        # Hide internal errors from the client, and raise them once it has the event.
        if failure is None:
            await feed.add(_error_json(Error("provider", "the run failed", code="internal")), "error")
        raise
    finally:
        close = getattr(source, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            feed.end()


async def _stop(reading: asyncio.Task[None]) -> None:
    """Cancel the reading task and wait until it has closed all it owns, even if cancelled repeatedly."""
    reading.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not reading.done():
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError as error:
            # Some frameworks cancel again in every iteration of the event loop until the task ends.
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _public(part: StreamPart) -> StreamPart:
    """Return the part without a tool's exception message, which is not for clients."""
    return part if not isinstance(part, ToolResult) or part.error_message is None else replace(part, error_message=None)


def _error_json(error: Error) -> str:
    return redacted(error).to_json()


class _Chunk(Struct, omit_defaults=True, kw_only=True):
    """A chunk as clients see it. Messages are left out because they hold provider data, and file bytes twice."""

    output: str = ""
    correction: str | None = None
    text_id: str | None = None
    thinking: str = ""
    partial_output: Json = None
    parts: list[Json] = []
    approvals: list[Json] = []
    metadata: dict[str, Json] = {}
    id: str | None = None
    usage: Json = None
    finish_reason: str | None = None


def _chunk_json(chunk: ChatResult[Any]) -> str:
    approvals = [
        {
            "approval_id": entry.approval_id,
            "tool": entry.tool,
            "input": entry.input,
            **({"is_external": True} if entry.is_external else {}),
        }
        for entry in chunk.approvals
    ]
    return jsontext.dumps(
        _Chunk(
            output=chunk.text,
            correction=chunk.correction,
            text_id=None if chunk.correction is None else chunk.text_id,
            thinking=chunk.thinking,
            partial_output=to_builtins(chunk.partial_output, enc_hook=str),
            parts=[jsontext.loads(_public(part).to_json()) for part in chunk.parts],
            approvals=approvals,
            metadata={key: chunk.metadata[key] for key in RESPONSE_KEYS if key in chunk.metadata},
            id=chunk.id,
            usage=None if chunk.usage is None else to_builtins(chunk.usage),
            finish_reason=chunk.finish_reason,
        )
    ).decode()

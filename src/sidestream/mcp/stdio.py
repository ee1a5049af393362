"""The transport to a child process: one JSON-RPC message per line, with a cap on its length.

The official client takes any transport; its own one holds a line of any length in memory and keeps nothing of stderr.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from sidestream.limits import MIB
from sidestream.mcp.process import ServerProcess

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 32 * MIB
"""One message of a server. A result with files may be as long; above it the connection is closed."""

_CHUNK_BYTES = 256 * 1024
_DRAIN_S = 0.5
"""How long what a process wrote before its end may take to arrive, where someone else holds its pipe open."""
_NOISE_CHARACTERS = 200


class MessageTooLongError(Exception):
    """A line went on beyond the cap."""


class LineSplitter:
    """Bytes in, whole lines out; never holds more than `max_bytes` of an unfinished line."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now. Raises MessageTooLongError."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes or any(len(line) > self._max_bytes for line in lines):
            self._rest.clear()
            raise MessageTooLongError(f"it sent a message of more than {self._max_bytes // MIB} MiB")
        return [line for line in lines if line.strip()]


class StdioTransport:
    """Starts the process when it is entered, and ends its whole tree when it is left."""

    def __init__(self, start: Callable[[], Awaitable[ServerProcess]], on_end: Callable[[str], None]) -> None:
        self._start = start
        self._on_end = on_end
        self.process: ServerProcess | None = None
        self.noise: str = ""
        """The first line on stdout that was no message."""
        self._tasks: list[asyncio.Task[None]] = []
        self._to_send: MemoryObjectReceiveStream[SessionMessage] | None = None
        self._received: MemoryObjectSendStream[SessionMessage | Exception] | None = None

    async def __aenter__(
        self,
    ) -> "tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]":
        import anyio

        self.process = process = await self._start()
        received, read_stream = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        write_stream, to_send = anyio.create_memory_object_stream["SessionMessage"](0)
        reading = asyncio.create_task(self._read(process, received), name=f"mcp-read-{process.pid}")
        watching = asyncio.create_task(self._watch(process, received, reading), name=f"mcp-watch-{process.pid}")
        writing = asyncio.create_task(self._write(process, to_send, watching), name=f"mcp-write-{process.pid}")
        self._tasks = [reading, watching, writing]
        self._to_send = to_send
        self._received = received
        return read_stream, write_stream

    def stop_sending(self) -> None:
        """Lets nobody wait any longer for a server that does not read."""
        if self._to_send is not None:
            self._to_send.close()

    async def __aexit__(self, *_: object) -> None:
        process = self.process
        assert process is not None
        try:
            # The reader goes on meanwhile: a server that is stuck in writing cannot notice its input's end.
            await process.stop()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.stop_sending()
            if self._received is not None:
                self._received.close()

    async def _read(
        self, process: ServerProcess, received: "MemoryObjectSendStream[SessionMessage | Exception]"
    ) -> None:
        import anyio

        try:
            await self._forward(process, received)
        except MessageTooLongError as error:
            self._end(str(error), received)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client has left
        # What comes after is dropped: a server that is stuck in writing could not end.
        while await process.stdout.read(_CHUNK_BYTES):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _forward(
        self, process: ServerProcess, received: "MemoryObjectSendStream[SessionMessage | Exception]"
    ) -> None:
        lines = LineSplitter(MAX_MESSAGE_BYTES)
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            for line in lines.feed(chunk):
                message = parse_line(line)
                if message is not None:
                    await received.send(message)
                elif not self.noise:
                    self.noise = line[:_NOISE_CHARACTERS].decode("utf-8", "replace")
            await asyncio.sleep(0)  # a flood must leave room for others

    async def _watch(
        self,
        process: ServerProcess,
        received: "MemoryObjectSendStream[SessionMessage | Exception]",
        reading: asyncio.Task[None],
    ) -> None:
        """Tells when the process is over, or its output, whichever comes first; the other follows soon, if at all."""
        exiting = asyncio.create_task(process.exited.wait())
        try:
            await asyncio.wait({reading, exiting}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({reading, exiting}, timeout=_DRAIN_S)
        finally:
            exiting.cancel()
        code = process.returncode
        self._end("it closed its output" if code is None else f"it exited with code {code}", received)

    def _end(self, reason: str, received: "MemoryObjectSendStream[SessionMessage | Exception]") -> None:
        self._on_end(reason)
        received.close()  # whoever waits for an answer learns of it now, when the reason is known

    async def _write(
        self,
        process: ServerProcess,
        to_send: "MemoryObjectReceiveStream[SessionMessage]",
        watching: asyncio.Task[None],
    ) -> None:
        import anyio

        try:
            async with to_send:
                async for message in to_send:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                    await process.stdin.drain()
        except anyio.ClosedResourceError:
            pass  # nothing more is to be sent
        except OSError:
            # Mostly it has ended, and how it did says more.
            await asyncio.wait({watching}, timeout=2 * _DRAIN_S)
            self._on_end("it closed its input")


def parse_line(line: bytes) -> "SessionMessage | None":
    """The message on the line, or None for noise.

    An answer with an id that is no legal message becomes an error answer, so that its caller need not wait in vain.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
    from pydantic import ValidationError

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        pass
    try:
        value: Any = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    fields = cast(dict[str, Any], value)
    request_id = fields.get("id")
    try:
        # Python reads lone surrogates; they are replaced on this way.
        text = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except (ValidationError, ValueError, RecursionError):
        if "method" in fields or isinstance(request_id, bool) or not isinstance(request_id, int | str):
            return None
    error = ErrorData(code=INTERNAL_ERROR, message="the answer was no valid JSON-RPC message")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

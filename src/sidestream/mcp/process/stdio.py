"""Stdio transport: one JSON-RPC message per line, with a limit on its length.

It replaces the official client's, which buffers lines of any length and does not capture stderr.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from sidestream.limits import MIB
from sidestream.mcp.process.process import ServerProcess

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 32 * MIB
"""Maximum size of a server's message, enough for a result with files. A longer one closes the connection."""

_CHUNK_BYTES = 256 * 1024
_DRAIN_S = 0.5
"""Seconds to wait for the last output of an exited process, if another process holds its pipe open."""
_NOISE_CHARACTERS = 200


class MessageTooLongError(Exception):
    """A line exceeded the limit."""


class LineSplitter:
    """Splits bytes into lines, buffering at most `max_bytes` of an incomplete one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the completed lines.

        Raises MessageTooLongError if a line exceeds the limit.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._buffer) + lines[0]
            self._buffer.clear()
        self._buffer += rest
        if len(self._buffer) > self._max_bytes or any(len(line) > self._max_bytes for line in lines):
            self._buffer.clear()
            raise MessageTooLongError(f"it sent a message of more than {self._max_bytes // MIB} MiB")
        return [line for line in lines if line.strip()]


class StdioTransport:
    """A transport that starts the process on enter, and stops its whole process tree on exit."""

    def __init__(self, start: Callable[[], Awaitable[ServerProcess]], on_close: Callable[[str], None]) -> None:
        self._start = start
        self._on_close = on_close
        self.process: ServerProcess | None = None
        self.noise: str = ""
        """First line on stdout that was not a message."""
        self._is_stopping = False
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
        """Unblock senders that wait for a server that does not read."""
        if self._to_send is not None:
            self._to_send.close()

    async def __aexit__(self, *_: object) -> None:
        process = self.process
        assert process is not None
        self._is_stopping = True
        try:
            # Keep reading meanwhile: a server that is blocked on writing would not notice that its input is closed.
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
            self._close(str(error), received)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client has closed its end
        # Discard further output: a server that is blocked on writing could not exit.
        is_open = True
        while is_open:
            is_open = bool(await process.stdout.read(_CHUNK_BYTES))
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
            await asyncio.sleep(0)  # a flood of output must not starve other tasks

    async def _watch(
        self,
        process: ServerProcess,
        received: "MemoryObjectSendStream[SessionMessage | Exception]",
        reading: asyncio.Task[None],
    ) -> None:
        """Close the transport when the process exits or closes its output, whichever comes first."""
        exiting = asyncio.create_task(process.exited.wait())
        try:
            await asyncio.wait({reading, exiting}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({reading, exiting}, timeout=_DRAIN_S)
        finally:
            exiting.cancel()
        code = process.returncode
        self._close("it closed its output" if code is None else f"it exited with code {code}", received)

    def _close(self, reason: str, received: "MemoryObjectSendStream[SessionMessage | Exception]") -> None:
        self._report(reason)
        received.close()  # fails pending requests, now that the reason is known

    def _report(self, reason: str) -> None:
        if not self._is_stopping:  # Effects of stopping it are not a reason.
            self._on_close(reason)

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
            pass  # `stop_sending` was called
        except OSError:
            # Usually the process has exited, and its exit code is the better reason.
            await asyncio.wait({watching}, timeout=2 * _DRAIN_S)
            self._report("it closed its input")


def parse_line(line: bytes) -> "SessionMessage | None":
    """Parse the message on a line, or return None if it is not one.

    An invalid response with a request id becomes an error response, so that its caller does not wait forever.
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
        # Python accepts lone surrogates; encoding replaces them.
        text = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except (ValidationError, ValueError, RecursionError):
        if "method" in fields or isinstance(request_id, bool) or not isinstance(request_id, int | str):
            return None
    error = ErrorData(code=INTERNAL_ERROR, message="the response was not a valid JSON-RPC message")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

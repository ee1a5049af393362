"""Sending of scripted replies over a connection, with their chunks, pauses and faults."""

import asyncio
import itertools
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

from sidestream.jsontext import dumps
from sidestream.parts import Json
from sidestream.replay.recording import EVENT_STREAM
from sidestream.replay.transport import pieces
from sidestream.testing.replies import AwaitedSteer, Reply, encode_event


class Responder:
    """Sends replies to one client, exactly as scripted."""

    def __init__(self, disconnected: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        self._disconnected = disconnected
        self._writer = writer
        self._chunked = False

    async def play(self, reply: Reply, *, has_body: bool, may_chunk: bool) -> bool:
        """Send the reply and return whether the connection can be reused."""
        if reply.gate is not None:
            await self.wait(reply.gate)
        if reply.garbage is not None:
            await self.send(reply.garbage)
            if reply.cut == "reset":
                self.reset()
            return False
        segments, content_type = _segments(reply)
        headers = {"content-type": reply.content_type or content_type}
        headers |= {name.lower(): value for name, value in reply.headers.items()}
        has_body = has_body and reply.status not in (204, 304)
        faults = (reply.cut, reply.cut_after_bytes, reply.stall_after_bytes, reply.keepalives, reply.chunk_sizes)
        if has_body and not isinstance(reply.body, list) and all(field is None for field in faults):
            headers.setdefault("content-length", str(sum(map(len, cast("list[bytes]", segments)))))
        elif has_body and may_chunk and "content-length" not in headers:
            headers["transfer-encoding"] = "chunked"
        await self.send(response_head(reply.status, headers))
        if not has_body:
            return True
        self._chunked = "transfer-encoding" in headers
        await self._send_body(reply, segments)
        cut = reply.cut or ("end" if reply.cut_after_bytes is None else "close")
        if cut == "end" and self._chunked:
            await self.send(b"0\r\n\r\n")
        if cut == "reset":
            self.reset()
        return cut == "end"

    async def _send_body(self, reply: Reply, segments: "list[bytes | asyncio.Event]") -> None:
        ends = [end for end in (reply.cut_after_bytes, reply.stall_after_bytes) if end is not None]
        left = min(ends, default=sys.maxsize)
        for segment in segments:
            if isinstance(segment, asyncio.Event):
                await self.wait(segment)
                continue
            for piece in pieces(segment[:left], reply.chunk_sizes):
                await self.send_chunk(piece, reply.pace_s)
            left -= min(len(segment), left)
            if not left:
                break
        if reply.stall_after_bytes is not None and reply.stall_after_bytes == min(ends):
            await self.disconnected()
        if (again := reply.keepalives) is not None:
            for _ in itertools.count() if again.count is None else range(again.count):
                await self.send_chunk(again.frame, again.interval_s)

    async def send_chunk(self, data: bytes, pause_s: float) -> None:
        """Write a chunk of a body and pause. Raises EOFError if the client disconnects meanwhile."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._disconnected.wait()
                raise EOFError("the client disconnected")

    async def send(self, data: bytes) -> None:
        """Write the bytes, and let a client on the same event loop read them before the next ones."""
        self._writer.write(data)
        await asyncio.sleep(0)
        await self._writer.drain()

    async def wait(self, gate: asyncio.Event) -> None:
        """Wait for a gate. Raises EOFError if the client disconnects first."""
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._disconnected)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not gate.is_set():
            raise EOFError("the client disconnected")

    async def disconnected(self) -> None:
        """Wait until the client disconnects, then raise EOFError."""
        await self._disconnected.wait()
        raise EOFError("the client disconnected")

    def reset(self) -> None:
        """Reset the connection."""
        tcp = self._writer.get_extra_info("socket")
        # With a linger time of 0, closing sends RST instead of FIN.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def _segments(reply: Reply) -> tuple[list[bytes | asyncio.Event], str]:
    """Return the bytes to send and the gates to await, in order, and the body's content type."""
    body: Json = reply.body
    if isinstance(body, bytes):
        return [body], "application/octet-stream"
    if isinstance(body, str):
        return [body.encode()], "text/plain; charset=utf-8"
    if not isinstance(body, list):
        return [dumps(body)], "application/json"
    frames = [frame for frame in cast("list[Json]", body) if not isinstance(frame, AwaitedSteer)]
    parts = [frame if isinstance(frame, asyncio.Event) else encode_event(frame) for frame in frames]
    if reply.chunk_sizes is not None:  # Chunks may span frames.
        groups = itertools.groupby(parts, key=lambda part: isinstance(part, asyncio.Event))
        parts = [part for is_gate, group in groups for part in (group if is_gate else [b"".join(cast("Any", group))])]
    return parts, EVENT_STREAM


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Encode a response's status line and headers."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

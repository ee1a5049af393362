"""Reads the HTTP requests of a fake provider's clients."""

import asyncio
from collections.abc import Mapping

_MAX_HEAD_BYTES = 256 * 1024

Head = tuple[str, str, str, dict[str, str]]
"""Method, target, version, headers."""


class RequestReader(asyncio.StreamReader):
    """A stream reader that parses HTTP/1.1 requests and reports when the client disconnects."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_MAX_HEAD_BYTES, loop)
        self.disconnected = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.disconnected.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.disconnected.set()

    async def head(self) -> Head:
        """Method, target, version, headers."""
        first = await self.readexactly(1)
        if not first.isalpha():  # A TLS hello has no line end to wait for.
            raise ValueError("not an HTTP request")
        head = (first + await self.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        method, target, version = line.split(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise ValueError(f"not HTTP/1.1: {line!r}")
        pairs = (field.partition(":") for field in fields)
        return method, target, version, {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def body(self, headers: Mapping[str, str], max_bytes: int) -> bytes:
        """The request's body, up to a number of bytes."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self.readexactly(min(int(headers.get("content-length", "0")), max_bytes))
        body = bytearray()
        while size := int((await self.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.readexactly(min(size, max_bytes - len(body)))
            if len(body) >= max_bytes:
                return bytes(body)
            await self.readuntil(b"\r\n")
        while await self.readuntil(b"\r\n") != b"\r\n":
            pass  # Trailers are ignored.
        return bytes(body)

"""HTTP requests as a server on loopback reads them."""

import asyncio
from collections.abc import Mapping

_MAX_HEAD_BYTES = 256 * 1024

Head = tuple[str, str, str, dict[str, str]]
"""Method, target, version, headers."""


class Reader(asyncio.StreamReader):
    """What a client sends: requests, and that it has left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_MAX_HEAD_BYTES, loop)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.gone.set()

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

    async def body(self, headers: Mapping[str, str], room: int) -> bytes:
        """The request's body, as far as there is room."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self.readexactly(min(int(headers.get("content-length", "0")), room))
        body = bytearray()
        while size := int((await self.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.readexactly(min(size, room - len(body)))
            if len(body) >= room:
                return bytes(body)
            await self.readuntil(b"\r\n")
        while await self.readuntil(b"\r\n") != b"\r\n":
            pass  # Trailers say nothing to us.
        return bytes(body)

"""The frames of a WebSocket, as a server reads and writes them (RFC 6455)."""

import base64
import hashlib
import struct
from asyncio import StreamReader
from typing import Final, NamedTuple

TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Message(NamedTuple):
    """What a client sent: whole, also if it came in several frames."""

    opcode: int
    data: bytes


def socket_frame(data: bytes | str, opcode: int = TEXT, *, is_final: bool = True, claims: int | None = None) -> bytes:
    """One frame of a server; `claims` is the length in its head, if it should be another than that of the data.

    With `is_final=False` more frames of the message follow.

    In the body of a `Reply`, bytes are sent unchanged, so this is how to send frames that no server should.
    """
    payload = data.encode() if isinstance(data, str) else data
    size = len(payload) if claims is None else claims
    head = bytes([opcode | (0x80 if is_final else 0)])
    if size < 126:
        return head + bytes([size]) + payload
    return head + (struct.pack("!BH", 126, size) if size < 1 << 16 else struct.pack("!BQ", 127, size)) + payload


def socket_close(code: int = 1000, reason: str = "") -> bytes:
    """The frame that closes a connection, e.g. 1012 for a server that restarts."""
    return socket_frame(struct.pack("!H", code) + reason.encode(), CLOSE)


def accept_key(key: str) -> str:
    """The header `sec-websocket-accept` for the client's key."""
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()


async def read_message(reader: StreamReader) -> Message:
    """The next message of a client, or a control frame between two of its frames. Raises EOFError at the end."""
    opcode, pieces = 0, b""
    while True:
        first, second = await reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await reader.readexactly(8))
        mask = await reader.readexactly(4) if second & 0x80 else b"\0\0\0\0"
        data = unmasked(await reader.readexactly(size), mask)
        if first & 0x0F >= CLOSE:
            return Message(first & 0x0F, data)
        opcode, pieces = opcode or first & 0x0F, pieces + data
        if first & 0x80:
            return Message(opcode, pieces)


def unmasked(data: bytes, mask: bytes) -> bytes:
    """The data of a client's frame."""
    # As one large number: byte by byte would take seconds for a message with an image.
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(data), "big")

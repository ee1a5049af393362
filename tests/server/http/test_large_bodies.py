"""Bodies and messages that never end: their bytes are bounded by owner, and nothing large is read of strangers."""

import asyncio
import base64
import logging
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from server.test_attack_surface import ANNA, BEN, BODY, Target, answers, target
from sidestream.limits import MAX_OWNER_BODY_BYTES, MAX_TOTAL_BODY_BYTES, MIB, SMALL_BODY_BYTES
from sidestream.server import uvicorn_runner
from sidestream.server.errors import RequestError
from sidestream.server.http import requests
from sidestream.server.runs.quotas import Bodies
from support.stores import BOUND_S
from support.waiting import eventually

COUNT, SIZE = 40, 20 * MIB


async def unfinished(server: Target, token: str, size: int = SIZE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose body lacks its last byte, as far as the server takes it."""
    reader, writer = await asyncio.open_connection(server.host, int(server.port))
    head = ["POST /api/chat HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {size}"]
    writer.write("\r\n".join([*head, f"Authorization: Bearer {token}", "Expect: 100-continue", "", ""]).encode())
    return reader, writer


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await reader.readuntil(b"\r\n")).split()[1])


@requirement("F46")
async def test_unfinished_bodies_are_limited_per_tenant(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), target(tmp_path, answers(3), tokens=[ANNA, BEN]) as server:
        opened = [await unfinished(server, ANNA) for _ in range(COUNT)]
        statuses = [await status_of(reader) for reader, _ in opened]
        assert statuses.count(100) == MAX_OWNER_BODY_BYTES // SIZE
        assert statuses.count(429) == COUNT - statuses.count(100)
        refused = opened[statuses.index(429)][0]
        rest = (await refused.readuntil(b"}}")).decode()
        assert '"code":"too_many_bodies"' in rest
        assert "retry-after: 5" in rest.lower()
        # Others, and whatever is small, are not concerned.
        reader, writer = await unfinished(server, BEN)
        assert await status_of(reader) == 100
        assert await server.status("POST", "/api/chat", BODY, ANNA) == 200
        for _, each in (*opened, (reader, writer)):
            each.close()
        await eventually(lambda: not server.server.bodies._held, pause_s=0)
        reader, writer = await unfinished(server, ANNA)
        assert await status_of(reader) == 100
        writer.close()


@requirement("F46")
async def test_large_body_is_not_read_without_token(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), target(tmp_path, tokens=[ANNA]) as server:
        reader, writer = await unfinished(server, "wrong")
        # Whoever reads a body says `100 Continue` first.
        assert await status_of(reader) == 401
        assert not server.server.bodies._held
        writer.close()


@requirement("F46")
async def test_trickling_body_reaches_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "MAX_BODY_S", 0.05)
    async with asyncio.timeout(BOUND_S), target(tmp_path, tokens=[ANNA]) as server:
        reader, writer = await unfinished(server, ANNA)
        assert await status_of(reader) == 100

        async def trickle() -> None:
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b" ")
                    await asyncio.sleep(0)

        trickling = asyncio.create_task(trickle())
        await reader.readuntil(b"\r\n")
        assert await status_of(reader) == 408
        trickling.cancel()
        writer.close()


def test_bodies_without_length_count_as_they_grow():
    bodies = Bodies()
    first, second = bodies.body("anna"), bodies.body("anna")
    second.reserve(SMALL_BODY_BYTES)
    first.reserve(MAX_OWNER_BODY_BYTES)
    second.reserve(SMALL_BODY_BYTES)
    with pytest.raises(RequestError) as caught:
        second.reserve(SMALL_BODY_BYTES + 1)
    assert (caught.value.status, caught.value.code) == (429, "too_many_bodies")
    others = [bodies.body(str(number)) for number in range(MAX_TOTAL_BODY_BYTES // MAX_OWNER_BODY_BYTES)]
    for body in others[:-1]:
        body.reserve(MAX_OWNER_BODY_BYTES)
    with pytest.raises(RequestError):
        others[-1].reserve(MAX_OWNER_BODY_BYTES)
    for body in (first, second, *others):
        body.close()
        body.close()
    assert not bodies._held


def frame(opcode: int, data: bytes, *, size: int | None = None) -> bytes:
    """A frame of a client, masked with zeros; with a `size`, the beginning of one that has this size."""
    length = len(data) if size is None else size
    return bytes([0x80 | opcode, 0xFF]) + struct.pack("!Q", length) + bytes(4) + data


async def socket_of(server: Target, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(server.host, int(server.port))
    key = base64.b64encode(bytes(16)).decode()
    head = ["GET /api/chat/ws HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade"]
    head += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Authorization: Bearer {token}", "", ""]
    writer.write("\r\n".join(head).encode())
    assert await status_of(reader) == 101
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@requirement("F46")
async def test_unfinished_socket_messages_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from sidestream import limits

    monkeypatch.setattr(limits, "MAX_OWNER_BODY_BYTES", 5 * MIB + 1024)
    async with asyncio.timeout(BOUND_S), target(tmp_path, answers(1), tokens=[ANNA, BEN]) as server:
        first, second, other = [await socket_of(server, token) for token in (ANNA, ANNA, BEN)]
        for _, writer in (first, second, other):
            writer.write(frame(1, b"x" * (3 * MIB), size=5 * MIB))
        reading = [asyncio.create_task(first_frame(reader)) for reader, _ in (first, second, other)]
        done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        assert refused is not reading[2]
        if refused.result():  # Else the client was still writing, and its system dropped what it had received.
            assert struct.unpack("!H", refused.result()[2:4]) == (1013,)
            assert b"too many large requests in progress" in refused.result()
        # The others are read to their end.
        for (_, writer), task in zip((first, second, other), reading, strict=True):
            if task is not refused:
                writer.write(b"x" * (2 * MIB))
                assert struct.unpack("!H", (await task)[2:4]) == (1003,)
            writer.close()


async def first_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the first frame of a server; nothing if the connection ends before it."""
    try:
        head = await reader.readexactly(2)
        return head + await reader.readexactly(head[1])
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


@requirement("F46")
async def test_unfinished_socket_message_reaches_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_runner, "MAX_BODY_S", 0.05)
    async with asyncio.timeout(BOUND_S), target(tmp_path, tokens=[ANNA]) as server:
        reader, writer = await socket_of(server, ANNA)
        writer.write(frame(1, b"x" * 2 * SMALL_BODY_BYTES, size=MIB))
        closed = await reader.read()
        assert struct.unpack("!H", closed[2:4]) == (1013,)
        writer.close()


@requirement("F46")
@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        (frame(1, b"\xff\xfe"), 1007),
        (bytes([0x01, 0x81]) + bytes(4) + b"\xe9" + bytes([0x80, 0x81]) + bytes(4) + b"x", 1007),
        (b"\xf1\x80abcd", 1002),
        (bytes(range(256)), 1002),
        (frame(1, b"", size=1 << 62), 1009),
        (frame(1, b"{"), 1003),
        (frame(2, b"x"), 1003),
    ],
)
async def test_socket_garbage_logs_one_line_at_most(
    tmp_path: Path, garbage: bytes, code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async with asyncio.timeout(BOUND_S), target(tmp_path, answers(1), tokens=[ANNA]) as server:
        errors = logging.getLogger("uvicorn.error")
        monkeypatch.setattr(errors, "propagate", True)
        errors.addHandler(caplog.handler)
        reader, writer = await socket_of(server, ANNA)
        writer.write(garbage)
        closed = await reader.readexactly(4)
        assert (closed[0], struct.unpack("!H", closed[2:4])[0]) == (0x88, code)
        writer.close()
        assert await server.status("POST", "/api/chat", BODY, ANNA) == 200
        errors.removeHandler(caplog.handler)
    lines: list[Any] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len({record.getMessage() for record in lines}) <= 1
    assert not any(record.exc_info or record.exc_text for record in lines)

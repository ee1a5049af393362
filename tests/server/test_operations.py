"""Operating a server: probes of load balancers, and clients that send their headers slowly or without an end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from requirements import requirement
from server.chat_client import paused
from server.serving import agent_of, serving
from sidestream.durable.engines.protocol import EngineStats
from sidestream.errors import StoreError
from sidestream.limits import MAX_HEADER_BYTES
from sidestream.server import create_app, uvicorn_runner
from sidestream.server.app import PROBE_S
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.serving import served
from support.stores import BOUND_S

TOKEN = "token-of-anna-0123456789"
FOREIGN_HOST = {"Host": "10.0.3.7:8787", "Authorization": ""}


@requirement("R214")
async def test_probes_need_neither_token_nor_host(tmp_path: Path):
    async with FakeProvider([]) as fake, serving({"main": agent_of(fake)}, tmp_path, tokens=[TOKEN]) as (_, client):
        for path in ("/healthz", "/readyz"):
            response = await client.get(path, headers=FOREIGN_HOST)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})
            assert response.headers["cache-control"] == "no-store"
            assert (await client.head(path, headers=FOREIGN_HOST)).status_code == 200
        assert (await client.post("/readyz", headers=FOREIGN_HOST)).status_code == 421
        assert (await client.get("/api/runs", headers=FOREIGN_HOST)).status_code == 421


@requirement("R214")
async def test_readiness_follows_engine_and_hides_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with FakeProvider([]) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        engine, asked = server.runs.execution.engine, 0

        async def stats() -> EngineStats:
            nonlocal asked
            asked += 1
            raise StoreError("no connection to db.internal")

        monkeypatch.setattr(engine, "stats", stats)
        responses = [await client.get("/readyz") for _ in range(5)]
        assert {response.status_code for response in responses} == {503}
        assert responses[0].json() == {"status": "error"}
        assert asked <= 1 + PROBE_S * 5
        assert (await client.get("/healthz")).status_code == 200


@requirement("R214")
async def test_draining_server_is_alive_but_not_ready(tmp_path: Path):
    async with FakeProvider([]) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        server.runs.execution.stop()
        ready, alive = await client.get("/readyz"), await client.get("/healthz")
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert alive.status_code == 200


@requirement("R214")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_readiness_of_mounted_app_opens_its_store(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    outer = Starlette(
        routes=[
            Mount("/ai", create_app(store=tmp_path / "talks.db")),
            Mount("/broken", create_app(store=tmp_path / "folder")),
        ]
    )
    client = TestClient(outer, base_url="http://probe.example")
    assert client.get("/ai/readyz").json() == {"status": "ok"}
    broken = client.get("/broken/readyz")
    assert (broken.status_code, broken.json()) == (503, {"status": "error"})
    assert client.get("/broken/healthz").status_code == 200


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(BOUND_S):
            yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _half_sent(url: str, data: bytes, *, first: bytes = b"") -> bytes:
    """Sends this much and no more, after a first request; what the server sent until it closed the connection."""
    async with connected(url) as (reader, writer):
        if first:
            writer.write(first)
            assert b" 200 " in await reader.readuntil(b"}")
        writer.write(data)
        return await reader.read()


async def _dripped(url: str) -> None:
    """Sends one header after another, until the server closes the connection."""
    async with connected(url) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        ending = asyncio.create_task(reader.read())
        while not (await asyncio.wait([ending], timeout=0.02))[0]:
            writer.write(b"X-Slow: 1\r\n")
        with suppress(ConnectionError):  # The server's last words may be lost: it has not read everything.
            await ending


@requirement("R214")
async def test_unfinished_headers_time_out_but_streams_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_runner, "MAX_HEADER_S", 0.3)
    gate = asyncio.Event()
    script = ResponsesScript().text(["One, ", "two."])
    async with FakeProvider([sse(paused(script, gate, "One"))]) as fake:
        app = create_app({"main": agent_of(fake)}, store=tmp_path / "talks.db")
        async with served(app) as url:
            body = b'{"id": "c1", "messages": [{"role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}'
            async with connected(url) as (reader, writer):
                writer.write(_chat(body))
                while b"One, " not in await reader.readline():
                    pass
                silent, half, second, _ = await asyncio.gather(
                    _half_sent(url, b""),
                    _half_sent(url, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"),
                    _half_sent(url, b"GET / HTTP/1.1\r\n", first=b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
                    _dripped(url),
                )
                gate.set()  # The stream is older than the timeout, and still runs.
                rest = await _until(reader, b"[DONE]")
    for answer in (silent, half, second):
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"two." in rest


@requirement("R214")
async def test_endless_headers_are_refused(tmp_path: Path):
    async with served(create_app(store=tmp_path / "talks.db")) as url, connected(url) as (reader, writer):
        ending = asyncio.create_task(reader.read())
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        sent = 0
        while not (await asyncio.wait([ending], timeout=0.01))[0]:
            writer.write(b"x" * 8192)
            sent += 8192
        with suppress(ConnectionError):
            await ending
    assert MAX_HEADER_BYTES <= sent < 100 * MAX_HEADER_BYTES


async def _until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    found = b""
    while end not in found:
        found += await reader.readline()
    return found


def _chat(body: bytes) -> bytes:
    lines = ["POST /api/chat HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

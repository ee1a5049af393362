"""What a local server must survive: foreign names, paths that lead outside, guessed ids, floods and slow readers."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from requirements import requirement
from server.chat_client import paused, user
from sidestream import Agent
from sidestream.server import Caps, create_app
from sidestream.server.console import page_files
from sidestream.server.http import requests
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.serving import OPEN, served
from support.waiting import eventually

ANNA, BEN = "token-of-anna-0123456789", "token-of-ben-0123456789"
BODY = {"id": "c1", "messages": [user("Hi.")]}
STREAMS = 300

Json = Any


class Target:
    """A server, and requests to it as bytes: no client corrects them."""

    def __init__(self, url: str, server: Any, fake: FakeProvider, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.server = server
        self.fake = fake
        self.session = session
        self.host, self.port = url.removeprefix("http://").split(":")

    async def raw(self, method: str, path: str, *headers: str, host: str | None = None, body: bytes = b"") -> int:
        """The status of the response."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host if host is None else host}",
            "Connection: close",
            *headers,
        ]
        lines += [f"Content-Length: {len(body)}"] if body else []
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        with suppress(ConnectionError):
            await writer.drain()
        status = await reader.readline()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return int(status.split()[1])

    async def status(self, method: str, path: str, body: Json = None, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            await response.read()
            return response.status


@asynccontextmanager
async def target(path: Path, replies: list[Any] | None = None, **settings: Any) -> AsyncGenerator[Target]:
    async with FakeProvider(replies or []) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
        app = create_app({"main": agent}, store=path / "talks.db", **{**OPEN, **settings})
        connector = aiohttp.TCPConnector(limit=0)
        async with served(app) as url, aiohttp.ClientSession(connector=connector) as session:
            yield Target(url, app.state.server, fake, session)


def answers(count: int) -> list[Any]:
    return [ResponsesScript().text("Hello.").reply() for _ in range(count)]


@requirement("F46", "R144")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("localhost.", 421),
        ("evil@127.0.0.1", 421),
        ("127.0.0.1@evil.example", 421),
        ("127.0.0.1.nip.io", 421),
        ("2130706433", 421),
        ("", 421),
        ("localhost", 200),
        ("localhost:9", 200),
        ("[::1]:9", 200),
        ("127.0.0.1:9", 200),
    ],
)
async def test_only_local_host_headers_are_accepted(tmp_path: Path, host: str, status: int):
    async with target(tmp_path) as server:
        assert await server.raw("GET", "/api/conversations", host=host) == status


@requirement("F46", "R144")
async def test_unsupported_methods_types_and_sizes_are_rejected(tmp_path: Path):
    async with target(tmp_path) as server:
        json_type = "Content-Type: application/json"
        assert await server.raw("OPTIONS", "/api/chat") == 405
        assert await server.raw("PUT", "/api/chat", json_type, body=b"{}") == 405
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json; q=1"):
            assert await server.raw("POST", "/api/chat", f"Content-Type: {kind}", body=b"{}") == 415
        assert await server.raw("POST", "/api/chat", body=b"{}") == 415
        assert await server.raw("POST", "/api/chat", json_type, "Content-Length: 104857600") == 413
        assert not server.fake.requests


@requirement("F46", "R144")
async def test_path_traversal_is_rejected_for_assets_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<p>page</p>")
    (folder / "assets" / "a.js").write_text("1;")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "assets" / "link.js").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(page_files.routes, "__defaults__", (folder,))
    async with target(tmp_path) as server:
        assert await server.raw("GET", "/assets/a.js") == 200
        for path in (
            "/assets/../../secret.txt",
            "/assets/..%2f..%2fsecret.txt",
            "/assets/%2e%2e/%2e%2e/secret.txt",
            "/assets/%2e%2e%2f%2e%2e%2fsecret.txt",
            "/assets/..\\..\\secret.txt",
            "/assets/..%5c..%5csecret.txt",
            "/assets//etc/passwd",
            "/assets/%2fetc%2fpasswd",
            "/assets/a.js%00.txt",
            "/assets/link.js",
            "/assets/",
            "/assets/.",
            "/assets/..",
            "/api/blobs/../../secret.txt",
            "/api/blobs/..%2f..%2fsecret.txt",
            f"/api/blobs/{'0' * 64}",
            f"/api/blobs/{'0' * 63}%00",
            "/api/blobs/%2fetc%2fpasswd",
            "/api/chat/..%2f..%2fsecret",
        ):
            assert await server.raw("GET", path) in (400, 404), path


@requirement("F46", "F42", "R144")
async def test_ids_of_other_tokens_are_not_found_by_any_endpoint(tmp_path: Path):
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="}
    message = {"id": "u1", "role": "user", "parts": [picture]}
    async with target(tmp_path, answers(2), tokens=[ANNA, BEN]) as server:
        assert await server.status("POST", "/api/chat", {"id": "c1", "message": message}, ANNA) == 200
        headers = {"Authorization": f"Bearer {ANNA}"}
        async with server.session.get(f"{server.url}/api/chat/c1", headers=headers) as response:
            chat = await response.json()
        blob, run = chat["messages"][0]["parts"][0]["url"], chat["run"]["id"]
        for method, path in (
            ("GET", "/api/chat/c1"),
            ("DELETE", "/api/chat/c1"),
            ("POST", "/api/chat/c1/stop"),
            ("GET", f"/api/runs/{run}/records"),
            ("GET", f"/api/runs/{run}/export"),
            ("GET", blob),
        ):
            assert await server.status(method, path, None, BEN) == 404, path
            assert await server.status(method, path) == 401, path
        for path in ("/api/conversations", "/api/runs"):
            async with server.session.get(server.url + path, headers={"Authorization": f"Bearer {BEN}"}) as response:
                assert [] in (await response.json()).values()
        assert await server.status("GET", blob, None, ANNA) == 200


@requirement("F46", "R144")
async def test_open_streams_are_limited_per_tenant(tmp_path: Path):
    gate = asyncio.Event()
    script = ResponsesScript().text(["One, ", "two."])
    replies = [sse(paused(script, gate, "One"))]
    async with target(tmp_path, replies, caps=Caps(max_open_streams=3)) as server:
        async with (
            server.session.post(f"{server.url}/api/chat", json=BODY) as first,
            server.session.get(f"{server.url}/api/chat/c1/stream") as second,
            server.session.get(f"{server.url}/api/chat/c1/stream") as third,
        ):
            for response in (first, second, third):
                assert response.status == 200
                await response.content.readline()
            async with server.session.get(f"{server.url}/api/chat/c1/stream") as refused:
                assert (refused.status, (await refused.json())["error"]["code"]) == (429, "too_many_streams")
                assert refused.headers["retry-after"] == "5"
            assert await server.status("POST", "/api/chat", {**BODY, "id": "c2"}) == 429
            assert await server.status("GET", "/api/chat/c1") == 200
            third.close()
            await eventually(lambda: server.server.runs.readers.count("/c1") == 2)
            async with server.session.get(f"{server.url}/api/chat/c1/stream") as admitted:
                assert admitted.status == 200
        server.fake.release(gate)
        async for _ in server.server.runs.follow("/c1"):
            pass
        assert len(server.fake.requests) == 1


@requirement("F46", "F30", "R142")
async def test_hundreds_of_subscribers_each_get_whole_run(tmp_path: Path):
    gate = asyncio.Event()
    pieces = [f"{number} " for number in range(50)]
    replies = [sse(paused(ResponsesScript().text(pieces), gate, "0 "))]
    async with target(tmp_path, replies) as server:
        async with server.session.post(f"{server.url}/api/chat", json=BODY) as first:
            await first.content.readline()

            async def read() -> str:
                async with server.session.get(f"{server.url}/api/chat/c1/stream") as response:
                    assert response.status == 200
                    return await response.text()

            reading = [asyncio.create_task(read()) for _ in range(STREAMS)]
            while server.server.runs.readers.count("/c1") < STREAMS + 1:
                await asyncio.wait(reading, timeout=0.05)
            server.fake.release(gate)
            texts = await asyncio.gather(*reading)
        assert len(set(texts)) == 1
        chunks = [json.loads(line[6:]) for line in texts[0].splitlines() if line.startswith("data: {")]
        assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta") == "".join(pieces)
        assert server.server.runs.readers.count("/c1") == 0


@requirement("R142", "F34")
async def test_concurrent_writers_of_conversation_never_interleave(tmp_path: Path):
    async with target(tmp_path, answers(2)) as server:
        bodies = [{"id": "c1", "messages": [user(text, text)]} for text in ("One?", "Two?")]
        statuses = await asyncio.gather(*(server.status("POST", "/api/chat", body) for body in bodies))
        assert sorted(statuses) in ([200, 409], [200, 200])  # The second may come after the first has ended.
        kinds = [row.kind for row in await server.server.store.read("/c1")]
        assert kinds.count("message") == statuses.count(200) == len(server.fake.requests)
        assert kinds[0] == "message"
        starts = [index for index, kind in enumerate(kinds) if kind == "message"]
        assert all(kinds[index - 1] == "finish" for index in starts[1:])


@requirement("R144")
async def test_stalled_body_times_out_and_broken_body_logs_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(requests, "BODY_TIMEOUT_S", 0.01)
    head = "Content-Type: application/json", "Content-Length: 500"
    async with target(tmp_path, answers(1)) as server:
        assert await server.raw("POST", "/api/chat", *head) == 408
        monkeypatch.undo()
        _, writer = await asyncio.open_connection(server.host, int(server.port))
        writer.write("\r\n".join(["POST /api/chat HTTP/1.1", "Host: 127.0.0.1", *head, "", '{"id": ']).encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await server.status("POST", "/api/chat", BODY) == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@requirement("R144")
async def test_slow_client_delays_neither_its_run_nor_others(tmp_path: Path):
    replies = [ResponsesScript().text(["x" * 1000] * 4000).reply(), *answers(10)]
    async with target(tmp_path, replies) as server:
        slow = socket.create_connection((server.host, int(server.port)))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(BODY).encode()
        head = f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        got = b""
        for number in range(10):
            got += await loop.sock_recv(slow, 1)
            assert await server.status("POST", "/api/chat", {**BODY, "id": f"other-{number}"}) == 200
        async with asyncio.timeout(60):
            kinds = [record.kind async for record in server.server.runs.follow("/c1")]
        assert kinds[-1] == "finish"
        assert got == b"HTTP/1.1 2"
        slow.close()

"""Safe by default: whom the server answers, and what it does with those who send too much, too little or too slowly."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from requirements import requirement
from sidestream import Agent
from sidestream.cli.main import commands
from sidestream.errors import ConfigurationError
from sidestream.server import create_app
from sidestream.server.security import CONTENT_SECURITY_POLICY, owner_name
from sidestream.server.uvicorn_runner import is_every_address, is_loopback, shown_host
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.serving import OPEN, served
from support.waiting import eventually

KEY = "key-0123456789"
ANNA, BEN = "token-of-anna-0123456789", "token-of-ben-0123456789"
PATH = "/v1/chat/completions"
BODY = {"model": "main", "messages": [{"role": "user", "content": "Hi"}]}


@asynccontextmanager
async def client_of(
    path: Path, replies: list[Any] | None = None, **settings: Any
) -> AsyncGenerator[tuple[httpx2.AsyncClient, Any]]:
    async with FakeProvider(replies or []) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=path / "talks.db", **{**OPEN, **settings})
        async with served(app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
            yield client, app.state.server


def answer(count: int = 1) -> list[Any]:
    return [ResponsesScript().text("Hello.").reply() for _ in range(count)]


@requirement("R144", "F46")
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "169.254.1.1"]
)
async def test_other_hosts_are_rejected_against_dns_rebinding(host: str, tmp_path: Path):
    async with client_of(tmp_path) as (client, _):
        for method, path in (("GET", "/"), ("POST", PATH), ("GET", "/api/conversations")):
            refused = await client.request(method, path, headers={"host": host})
            assert (refused.status_code, refused.json()["error"]["code"]) == (421, "wrong_host")


@requirement("R144", "F46")
async def test_other_origins_cannot_call_server_unless_allowed(tmp_path: Path):
    friend = "https://app.example"
    async with client_of(tmp_path, answer(3), origins=[friend]) as (client, server):
        own = str(client.base_url).rstrip("/")
        for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            refused = await client.post(PATH, json=BODY, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
        simple = {"origin": "https://evil.example", "content-type": "text/plain"}
        assert (await client.post(PATH, content=b"{}", headers=simple)).status_code == 403
        assert not server.runs.live
        assert (await client.post(PATH, json=BODY, headers={"origin": own})).status_code == 200
        allowed = await client.post(PATH, json=BODY, headers={"origin": friend})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, friend)
        preflight = await client.options(PATH, headers={"origin": friend, "access-control-request-method": "POST"})
        assert preflight.headers["access-control-allow-origin"] == friend
        assert "access-control-allow-origin" not in (await client.post(PATH, json=BODY)).headers


@requirement("R144", "F46")
@pytest.mark.parametrize("origin", ["http://[", "http://127.0.0.1:1", "//", "http://", "://127.0.0.1", "file://"])
async def test_invalid_origin_is_rejected(origin: str, tmp_path: Path):
    async with client_of(tmp_path) as (client, _):
        refused = await client.get("/api/conversations", headers={"origin": origin})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")


@requirement("R144", "F46")
async def test_allowed_origin_can_read_refusals_and_send_headers(tmp_path: Path):
    friend = {"origin": "https://app.example"}
    async with client_of(tmp_path, tokens=[ANNA], origins=["https://app.example"]) as (client, _):
        refused = await client.post(PATH, json=BODY, headers=friend)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, friend["origin"])
        wanted = "authorization,x-api-key,x-stainless-lang"
        preflight = await client.options(PATH, headers={**friend, "access-control-request-headers": wanted})
        assert preflight.headers["access-control-allow-headers"] == wanted
        assert preflight.headers["access-control-expose-headers"] == "*"


@requirement("R144", "F46")
@pytest.mark.parametrize(
    ("bound", "host"), [("::", "[::]:8787"), ("[fd00::1]", "[FD00::1]"), ("Chat.example", "chat.example:80")]
)
async def test_configured_hosts_match_equivalent_host_headers(bound: str, host: str, tmp_path: Path):
    async with client_of(tmp_path, hosts=[bound]) as (client, _):
        assert (await client.get("/api/conversations", headers={"host": host})).status_code == 200
        assert (await client.get("/api/conversations", headers={"host": "127.0.0.1"})).status_code == 421


@requirement("R144", "F46")
async def test_each_request_requires_token_when_tokens_are_set(tmp_path: Path):
    async with client_of(tmp_path, answer(3), tokens=[ANNA, BEN]) as (client, _):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {ANNA}"},
            {"authorization": f"Bearer {ANNA[:-1]}"},
            {"authorization": "Bearer \u00e9".encode("latin-1")},
            {"cookie": f"other={ANNA}"},
        ):
            refused = await client.post(PATH, json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ANNA not in refused.text
        cookie = {"cookie": f"sidestream-{client.base_url.port}={ANNA}"}
        for headers in ({"authorization": f"Bearer {ANNA}"}, {"x-api-key": BEN}, cookie):
            assert (await client.post(PATH, json=BODY, headers=headers)).status_code == 200


@requirement("R144", "F46")
async def test_web_ui_exchanges_token_in_url_for_cookie(tmp_path: Path):
    async with client_of(tmp_path, tokens=[ANNA]) as (client, _):
        assert (await client.get("/?token=wrong")).status_code == 401
        opened = await client.get(f"/c/1?leaf=2&token={ANNA}")
        assert (opened.status_code, opened.headers["location"]) == (303, "/c/1?leaf=2")
        cookie = opened.headers["set-cookie"]
        assert f"sidestream-{client.base_url.port}={ANNA}" in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        assert (await client.get(f"/api/conversations?token={ANNA}", headers={"cookie": ""})).status_code == 401


@requirement("R144", "F46")
async def test_web_ui_exchanges_token_in_fragment_for_cookie(tmp_path: Path):
    async with client_of(tmp_path, tokens=[ANNA]) as (client, _):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await client.post("/api/sign-in", headers=headers)
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        signed_in = await client.post("/api/sign-in", headers={"authorization": f"Bearer {ANNA}"})
        assert signed_in.status_code == 204
        cookie = signed_in.headers["set-cookie"]
        assert f"sidestream-{client.base_url.port}={ANNA}" in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        elsewhere = {"authorization": f"Bearer {ANNA}", "origin": "https://evil.example"}
        assert (await client.post("/api/sign-in", headers=elsewhere)).status_code == 403


@requirement("R144", "F46")
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/c/%E2%98%83", "/c/%E2%98%83"),
        ("/c/a%0d%0aX-Evil:1", "/c/a%0D%0AX-Evil%3A1"),
        ("//evil.example/", "/evil.example/"),
    ],
)
async def test_redirect_from_token_url_stays_on_server(path: str, place: str, tmp_path: Path):
    async with client_of(tmp_path, tokens=[ANNA]) as (client, _):
        opened = await client.get(f"{str(client.base_url).rstrip('/')}{path}?token={ANNA}")
        assert (opened.status_code, opened.headers["location"]) == (303, place)
        assert "x-evil" not in opened.headers
        assert "Secure" not in opened.headers["set-cookie"]
        secure = await client.get(f"/?token={ANNA}", headers={"x-forwarded-proto": "https"})
        assert "Secure" in secure.headers["set-cookie"].split("; ")


@requirement("R144", "F42")
async def test_conversations_of_one_token_are_hidden_from_others(tmp_path: Path):
    async with client_of(tmp_path, answer(), tokens=[ANNA, BEN]) as (client, server):
        await client.post(PATH, json=BODY, headers={"authorization": f"Bearer {ANNA}"})
        (info,) = await server.store.conversations()
        assert info.id.startswith(f"{owner_name(ANNA)}/")
        assert await server.store.conversations(prefix=f"{owner_name(BEN)}/") == []
        assert ANNA not in str(await server.store.read(info.id))


@requirement("R144", "F45")
async def test_every_response_has_security_headers(tmp_path: Path):
    async with client_of(tmp_path) as (client, _):
        for found in (await client.get("/"), await client.get("/v1/nothing"), await client.post(PATH, content=b"x")):
            assert found.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["referrer-policy"] == "no-referrer"
            assert found.headers["cross-origin-resource-policy"] == "same-origin"
            assert found.headers["cache-control"] in ("no-store", "no-cache")
            assert "server" not in found.headers
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@requirement("R144", "F45")
async def test_crash_response_has_security_headers(tmp_path: Path):
    def crash(request: Request) -> Response:
        raise ZeroDivisionError(KEY)

    app = create_app(store=tmp_path / "talks.db")
    app.router.routes.insert(0, Route("/crash", crash))
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        found = await client.get("/crash")
    assert found.status_code == 500
    assert KEY not in found.text
    assert found.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


@requirement("R144", "F38")
async def test_bodies_are_bounded_with_or_without_length(tmp_path: Path):
    async with client_of(tmp_path) as (client, server):
        server.settings = replace(server.settings, max_body_bytes=1000)
        large = b'{"messages": "' + b"x" * 2000 + b'"}'

        async def pieces() -> AsyncGenerator[bytes]:
            for start in range(0, len(large), 100):
                yield large[start : start + 100]

        for content in (large, pieces()):
            refused = await client.post(PATH, content=content, headers={"content-type": "application/json"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")


@requirement("R144", "F38")
async def test_truncated_body_starts_no_run_and_others_are_served(tmp_path: Path):
    async with client_of(tmp_path, answer()) as (client, server):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        )
        writer.write(head.encode() + b'{"messages": [')
        await writer.drain()
        assert (await client.post(PATH, json=BODY)).status_code == 200
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
        assert not server.runs.live
        assert len(await server.store.conversations()) == 1


@requirement("R144", "F29")
async def test_run_continues_when_client_disconnects(tmp_path: Path):
    gate = asyncio.Event()
    events = ResponsesScript().text(["One, ", "two."]).events()
    index = next(number for number, event in enumerate(events) if "One" in str(event.get("delta", "")))
    async with FakeProvider([sse([*events[: index + 1], gate, *events[index + 1 :]])]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        server = app.state.server
        async with served(app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
            async with client.stream("POST", PATH, json={**BODY, "stream": True}) as leaving:
                async for line in leaving.aiter_lines():
                    if "One" in line:
                        break
            ((conversation, _),) = server.runs.live.items()
            fake.release(gate)
            async with asyncio.timeout(30):
                records = [record async for record in server.runs.follow(conversation)]
            assert records[-1].kind == "finish"
            assert (await server.store.conversation(conversation).messages())[-1].text == "One, two."


@requirement("R144", "F38")
async def test_stalled_client_is_bounded_and_others_are_served(tmp_path: Path):
    piece = "x" * 1000
    replies = [ResponsesScript().text([piece] * 8000).reply(), *answer(3)]
    async with client_of(tmp_path, replies) as (client, server):
        slow = socket.create_connection((client.base_url.host, client.base_url.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({**BODY, "stream": True}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await asyncio.get_running_loop().run_in_executor(None, slow.sendall, head.encode() + body)
        async with asyncio.timeout(60):
            await eventually(lambda: bool(server.runs.live))
            ((conversation, _),) = server.runs.live.items()
            for _ in range(3):
                assert (await client.post(PATH, json=BODY)).status_code == 200
            whole = [record async for record in server.runs.follow(conversation)]
        assert whole[-1].kind == "finish"  # The run did not wait for its reader.
        slow.close()


@requirement("R144", "F46")
def test_public_bind_address_requires_token(tmp_path: Path):
    for host in ("0.0.0.0", "::", "192.168.1.10"):
        result = CliRunner().invoke(
            commands, ["serve", "--no-token", "--host", host, "--store", str(tmp_path / "talks.db")]
        )
        assert isinstance(result.exception, ConfigurationError)
        assert "--no-token" in str(result.exception)
    with pytest.raises(ConfigurationError, match="empty"):
        create_app(store=tmp_path / "talks.db", tokens=[""])


@requirement("R144")
def test_port_in_use_is_named(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ["serve", "--port", str(port), "--store", os.fspath(tmp_path / "talks.db"), "-m", "local"]
        result = CliRunner().invoke(commands, arguments)
        assert isinstance(result.exception, ConfigurationError)
        assert f"127.0.0.1:{port}" in str(result.exception)


@requirement("R144")
@pytest.mark.parametrize(
    ("host", "is_local", "is_every", "shown"),
    [
        ("127.0.0.1", True, False, "127.0.0.1"),
        ("localhost", True, False, "localhost"),
        ("::1", True, False, "[::1]"),
        ("[::1]", True, False, "[::1]"),
        ("0.0.0.0", False, True, "0.0.0.0"),
        ("::", False, True, "[::]"),
        ("", False, True, ""),
        ("chat.example", False, False, "chat.example"),
        ("10.0.0.1", False, False, "10.0.0.1"),
    ],
)
def test_bind_address_is_classified(host: str, is_local: bool, is_every: bool, shown: str):
    assert (is_loopback(host), is_every_address(host), shown_host(host)) == (is_local, is_every, shown)

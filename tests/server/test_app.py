"""The app: one agent, several by name, or mounted below a path of another app, with tools and auth of its own."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from requirements import requirement
from server.serving import agent_of
from sidestream.errors import ConfigurationError
from sidestream.server import create_app
from sidestream.server.security import owner_name, user_name
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript
from support.serving import served
from support.stores import BOUND_S, message

PATH = "/v1/chat/completions"


def body(model: str | None = None) -> dict[str, object]:
    named = {} if model is None else {"model": model}
    return {**named, "messages": [{"role": "user", "content": "Hi."}]}


@requirement("R140", "R144")
async def test_agent_becomes_app_in_one_line(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        app = agent_of(fake).to_web(store=tmp_path / "talks.db", tokens="token-0123456789abcdef")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            assert (await client.post(PATH, json=body())).status_code == 401
            headers = {"Authorization": "Bearer token-0123456789abcdef"}
            answer = await client.post(PATH, json=body(), headers=headers)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello."


STARTS = """
import asyncio, sys
from sidestream.server import create_app
app = create_app("openai-responses:gpt-5.6", store=sys.argv[1])
names = ("sidestream.run.driver", "sidestream.wire.http", "aiohttp")
print([name in sys.modules for name in names])
async def main():
    async with app.router.lifespan_context(app):
        print([name in sys.modules for name in names])
asyncio.run(main())
"""


@requirement("R140")
def test_server_imports_modules_of_first_run_at_start(tmp_path: Path):
    command = [sys.executable, "-c", STARTS, str(tmp_path / "talks.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == [str([False] * 3), str([True] * 3)], done.stderr


@requirement("R140")
async def test_agents_are_chosen_by_name_and_models_only_if_allowed(tmp_path: Path):
    replies = [ResponsesScript().text(text).reply() for text in ("A.", "B.")]
    async with FakeProvider(replies) as fake:
        agents = {"one": agent_of(fake, system="You are one."), "two": agent_of(fake, system="You are two.")}
        app = create_app(agents, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            for name in (None, "two"):
                assert (await client.post(PATH, json=body(name))).status_code == 200
            assert "You are one." in str(fake.requests[0].json)
            assert "You are two." in str(fake.requests[1].json)
            refused = await client.post(PATH, json=body("openai:gpt-5.6"))
            assert (refused.status_code, refused.json()["error"]["param"]) == (404, "model")


@requirement("R140")
async def test_app_can_be_mounted_below_path(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        inner = create_app(agent_of(fake), store=tmp_path / "talks.db")
        # Its own lifespan does not run when it is mounted; the outer app runs it.
        outer = Starlette(routes=[Mount("/ai", inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
        async with served(outer) as url, httpx2.AsyncClient(base_url=url) as client:
            answer = await client.post(f"/ai{PATH}", json=body())
            assert answer.json()["choices"][0]["message"]["content"] == "Hello."
            listed = (await client.get("/ai/api/conversations?all=true")).json()["conversations"]
            assert len(listed) == 1


@requirement("R140", "R142")
async def test_mounted_app_without_lifespan_opens_on_first_request(tmp_path: Path):
    path = tmp_path / "talks.db"
    old = replace(message(1, "Hi."), time=time.time() - 7200)
    store = open_store(path)
    await store.append("/old", 0, [old])
    async with FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        inner = create_app(agent_of(fake), store=path, retention_s=3600)
        outer = Starlette(routes=[Mount("/ai", inner)])
        async with asyncio.timeout(BOUND_S), served(outer) as url, httpx2.AsyncClient(base_url=url) as client:
            answers = await asyncio.gather(*(client.get("/ai/api/conversations") for _ in range(3)))
            assert [answer.status_code for answer in answers] == [200] * 3
            assert (await client.post(f"/ai{PATH}", json=body())).status_code == 200
            while await store.read("/old"):
                pass
            await inner.state.server.aclose()
    await store.aclose()


@requirement("R144", "F33")
async def test_mounted_app_reports_store_failure_until_it_opens(tmp_path: Path):
    path = tmp_path / "talks.db"
    path.write_bytes(b"no database" * 1000)
    inner = create_app("local", store=path)
    async with served(Starlette(routes=[Mount("/ai", inner)])) as url, httpx2.AsyncClient(base_url=url) as client:
        failed = await client.get("/ai/api/conversations")
        assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
        path.unlink()
        assert (await client.get("/ai/api/conversations")).status_code == 200
        await inner.state.server.aclose()


def user_by_scope(connection: HTTPConnection) -> str | None:
    return connection.scope.get("signed_in")


class SignIns:
    """What a user's own app may have around it: it knows who is signed in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cookies = HTTPConnection(scope).cookies if scope["type"] == "http" else {}
        await self._app({**scope, "signed_in": cookies.get("user")}, receive, send)


async def user_by_header(connection: HTTPConnection) -> str | None:
    name = connection.headers.get("x-user")
    if name == "banned":
        raise HTTPException(403, "banned")
    return name


@requirement("R144", "F46")
async def test_mounted_app_knows_users_of_outer_app(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        inner = create_app(agent_of(fake), store=tmp_path / "talks.db", auth=user_by_scope, mcp_file="mcp.json")
        outer = Starlette(
            routes=[Mount("/ai", inner)],
            middleware=[Middleware(SignIns)],
            lifespan=lambda _: inner.router.lifespan_context(inner),
        )
        async with served(outer) as url, httpx2.AsyncClient(base_url=url) as client:
            refused = await client.get("/ai/api/conversations")
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "not_signed_in")
            client.cookies.set("user", "anna")
            assert (await client.post(f"/ai{PATH}", json=body())).status_code == 200
            assert len((await client.get("/ai/api/conversations?all=true")).json()["conversations"]) == 1
            changed = await client.put("/ai/api/mcp/files", json={"command": "true"})
            assert (changed.status_code, changed.json()["error"]["code"]) == (403, "owner_only")
            client.cookies.set("user", "ben")
            assert (await client.get("/ai/api/conversations?all=true")).json()["conversations"] == []


@requirement("R144", "F46")
async def test_app_users_and_tokens_work_side_by_side(tmp_path: Path):
    token = "token-0123456789abcdef"
    app = create_app("local", store=tmp_path / "talks.db", auth=user_by_header, tokens=token)
    async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
        for headers, status in (
            ({}, 401),
            ({"x-user": "anna"}, 200),
            ({"x-user": ""}, 401),
            ({"x-user": "banned"}, 403),
            ({"authorization": f"Bearer {token}"}, 200),
        ):
            assert (await client.get("/api/conversations", headers=headers)).status_code == status
    assert user_name(token) != owner_name(token)


@requirement("R144")
@pytest.mark.parametrize(
    "settings",
    [
        {"approval_s": 0},
        {"retention_s": -1},
        {"tokens": [""]},
        {"tokens": ["two words"]},
        {"tokens": "pässword"},
        {"hosts": ["chat.example.com:8787"]},
        {"hosts": "https://chat.example.com"},
        {"hosts": [""]},
        {"origins": ["app.example.com"]},
        {"origins": "*"},
        {"origins": ["https://app.example.com/page"]},
    ],
)
def test_invalid_app_settings_are_rejected(tmp_path: Path, settings: dict[str, object]):
    with pytest.raises(ConfigurationError):
        create_app(store=tmp_path / "talks.db", **settings)
    with pytest.raises(ConfigurationError):
        create_app({}, store=tmp_path / "talks.db")


@requirement("R144", "F46")
async def test_mounted_app_requires_its_token(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        inner = create_app(agent_of(fake), store=tmp_path / "talks.db", tokens=["token-0123456789abcdef"])
        outer = Starlette(routes=[Mount("/ai", inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
        async with served(outer) as url, httpx2.AsyncClient(base_url=url) as client:
            assert (await client.post(f"/ai{PATH}", json=body())).status_code == 401
            assert (await client.get("/ai/api/conversations")).status_code == 401
            opened = await client.get("/ai/c/1?token=token-0123456789abcdef")
            assert (opened.status_code, opened.headers["location"]) == (303, "/ai/c/1")
            assert "Path=/ai" in opened.headers["set-cookie"]
            cookie = opened.headers["set-cookie"].partition(";")[0]
            assert (await client.get("/ai/api/conversations", headers={"cookie": cookie})).status_code == 200

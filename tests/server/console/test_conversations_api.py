"""The list of conversations: titles that users and models give, pins, and what a search shows."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.serving import ended
from sidestream import Agent
from sidestream.server import Page, create_app
from sidestream.server.server import Server
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, sse

ANNA, BEN = "token-of-anna-0123456789", "token-of-ben-01234567890"


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store of each kind."""
    return tmp_path / "talks.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@asynccontextmanager
async def serving(where: Any, **settings: Any) -> AsyncGenerator[tuple[Server, httpx2.AsyncClient]]:
    agent = Agent(ScriptedModel(lambda request: f"You said: {request.messages[-1].text}"))
    app = create_app({"main": agent}, store=where, tokens=[ANNA, BEN], **settings)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {ANNA}"}
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
    ):
        yield app.state.server, client


async def say(client: httpx2.AsyncClient, chat: str, text: str, **more: Any) -> None:
    message = {"id": f"u-{text[:40].splitlines()[0]}", "role": "user", "parts": [{"type": "text", "text": text}]}
    answer = await client.post("/api/chat", json={"id": chat, "messages": [message], **more})
    assert answer.status_code == 200, answer.text


async def listed(client: httpx2.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    return (await client.get("/api/conversations", params=query)).json()["conversations"]


async def titles(client: httpx2.AsyncClient, **query: Any) -> list[str]:
    return [row["title"] for row in await listed(client, **query)]


@requirement("R215")
async def test_name_and_pin_survive_restart_and_new_branch(where: Any):
    async with serving(where) as (_, client):
        for chat in ("a", "b", "c"):
            await say(client, chat, f"Question {chat}?")
        assert await titles(client) == ["Question c?", "Question b?", "Question a?"]
        renamed = await client.patch("/api/conversations/a", json={"title": "  My\n trip ", "pinned": True})
        assert renamed.json() == {"id": "a", "title": "My trip", "pinned": True}
    async with serving(where) as (_, client):
        assert await titles(client) == ["My trip", "Question c?", "Question b?"]
        assert [row["pinned"] for row in await listed(client)] == [True, False, False]
        # Each is on one page, the pinned one on the first.
        pages = (await client.get("/api/conversations", params={"limit": 1})).json()
        assert [row["id"] for row in pages["conversations"]] == ["a", "c"]
        assert await titles(client, limit=1, before=pages["next"]) == ["Question b?"]
        # A branch keeps the name that the user gave; without one, its own question names it.
        for chat in ("a", "b"):
            await say(client, chat, "Another question?", messageId=f"u-Question {chat}?")
        assert await titles(client) == ["My trip", "Another question?", "Question c?"]
        assert (await client.get("/api/chat/a")).json()["title"] == "My trip"
        await client.patch("/api/conversations/a", json={"title": "", "pinned": False})
        assert sorted(await titles(client)) == ["Another question?", "Question a?", "Question c?"]


@requirement("R215")
async def test_other_users_cannot_see_or_change_names_and_pins(where: Any):
    async with serving(where) as (_, client):
        await say(client, "a", "Anna's question?")
        await client.patch("/api/conversations/a", json={"title": "Anna's trip", "pinned": True})
        client.headers["Authorization"] = f"Bearer {BEN}"
        refused = await client.patch("/api/conversations/a", json={"title": "Mine", "pinned": True})
        assert (refused.status_code, await listed(client), await listed(client, search="Anna")) == (404, [], [])
        client.headers["Authorization"] = f"Bearer {ANNA}"
        assert await titles(client) == ["Anna's trip"]
        wrong = await client.patch("/api/conversations/a", json={"title": 3})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "title")
        await client.delete("/api/chat/a")
        await say(client, "a", "New?")
        assert [(row["title"], row["pinned"]) for row in await listed(client)] == [("New?", False)]


@requirement("R215")
async def test_pins_of_expired_chats_are_dropped(where: Any):
    async with serving(where) as (server, client):
        await say(client, "a", "Gone soon?")
        await client.patch("/api/conversations/a", json={"pinned": True})
        (info,) = await server.store.conversations()
        await server.store.delete(info.id)
        assert await listed(client) == []
        assert await server.store.pins(info.id.split("/")[0]) == []


@requirement("R215")
async def test_search_shows_words_around_match_and_finds_names(where: Any):
    async with serving(where) as (_, client):
        await say(client, "a", f"{'Long ago. ' * 20}The Eclipse  of 2027, {'and so on ' * 20}")
        await say(client, "b", "Trains?")
        await client.patch("/api/conversations/b", json={"title": "100% eclipse_trip"})
        both = {row["id"]: row["snippet"] for row in await listed(client, search="eclipse")}
        assert both["b"] is None
        assert both["a"] == f"…{('Long ago. ' * 20)[-56:]}The Eclipse of 2027, {('and so on ' * 20)[:50]}…"
        assert [row["id"] for row in await listed(client, search="0% ECLIPSE_t")] == ["b"]
        assert [row["id"] for row in await listed(client, search="eclipse of 2027")] == []
        assert "snippet" not in (await listed(client))[0]


MARKED = """# Plan
1. The *deadline* is **Friday as *agreed* on** in [the contract](https://a.example/c), see `due.py`.
> - ~~Monday~~ 2 * 3 * 4 and __init__ of my_own_name

```python
print('done')
```
"""


@requirement("R215")
async def test_search_snippet_is_plain_text(where: Any):
    async with serving(where) as (_, client):
        await say(client, "a", MARKED)
        (early,) = await listed(client, search="Plan")
        (late,) = await listed(client, search="my_own")
        (marked,) = await listed(client, search="**friday")
    assert early["snippet"] == "Plan The deadline is Friday as agreed on in the contract, see du…"
    assert late["snippet"] == "… the contract, see due.py. Monday 2 * 3 * 4 and __init__ of my_own_name print('done')"
    assert "**Friday" in marked["snippet"]


@requirement("R215")
async def test_model_makes_titles_only_where_operator_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-51f0a7c2d94e4b6f")
    script = [sse(ResponsesScript().text('"Trains to Stockholm."').events()), sse([b"data: broken\n\n"])]
    async with FakeProvider(script) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        page = Page(title_model="openai-responses")
        async with serving(tmp_path / "talks.db", page=page) as (server, client):
            for chat, text in (("a", "How do I get to Stockholm?"), ("b", "And back?")):
                await say(client, chat, text)
                await server.titles.made()
            assert await titles(client) == ["And back?", "Trains to Stockholm"]
            await say(client, "a", "And in the evening?")
            await server.titles.made()
        assert len(fake.requests) == 2
        assert "could not make a title" in caplog.text
    async with serving(tmp_path / "other.db") as (server, client):
        await say(client, "a", "How do I get to Stockholm?")
        await ended(server, "a")
        assert await titles(client) == ["How do I get to Stockholm?"]

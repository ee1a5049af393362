"""`POST /api/chat/{id}/evidence`, with which a user has the citations of an answer checked."""

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from requirements import requirement
from server.chat_client import chatting
from server.serving import agent_of, serving
from sidestream import WebFetch
from sidestream.server import Caps
from sidestream.testing import FakeProvider, GeminiScript, ResponsesScript
from support.citations import citing
from support.web_pages import Site, page, serve

FACTS = "<title>Facts</title><main><p>The bridge is 1,870 metres long.</p></main>"
CLAIMS = ["The bridge is 1,870 metres long.", "The bridge is 1,780 metres long."]


def answer(site: Site) -> Any:
    return citing((claim, site.url("/facts"), "Facts") for claim in CLAIMS).reply()


def states(chat: Any, message: int = 1) -> list[str | None]:
    parts = chat["messages"][message]["parts"]
    found = {part["sourceId"]: part["providerMetadata"]["sidestream"] for part in parts if part["type"] == "source-url"}
    return [metadata.get("evidence", {}).get("state") for metadata in found.values()]


@requirement("R231")
async def test_user_has_citations_checked_and_chat_keeps_result(tmp_path: Path):
    async with serve({"/facts": page(FACTS)}) as site:
        replies = [answer(site), ResponsesScript().text("Bye.").reply()]
        tools = [WebFetch(allow_hosts=[site.host])]
        async with FakeProvider(replies) as fake, chatting(fake, tmp_path, server_side_tools=tools) as client:
            await client.say("How long?")
            before = await client.chat()
            body = {"message": before["messages"][1]["id"]}
            assert (states(before), site.requests) == ([None, None], [])
            assert await client.json("POST", "/api/chat/c1/evidence", body) == {"checked": 2}
            assert states(await client.chat()) == ["quoted", "contradicted"]
            await client.say("Thanks.")
            assert states(await client.chat()) == ["quoted", "contradicted"]
            assert await client.json("POST", "/api/chat/c1/evidence", body) == {"checked": 2}
            last = await client.chat()
    assert states(last) == ["quoted", "contradicted"]
    assert [message["role"] for message in last["messages"]] == ["user", "assistant"] * 2


def grounded(site: Site, claim: str) -> Any:
    """An answer of Gemini, whose sources have the same ids in each turn."""
    chunk = {"web": {"uri": site.url("/facts"), "title": "Facts"}}
    return GeminiScript().text(claim).grounding(chunk, supports=[(0, len(claim), claim, [0])]).reply()


@requirement("R231")
async def test_check_of_earlier_turn_is_shown_on_that_turn(tmp_path: Path):
    claims = [*CLAIMS, CLAIMS[0]]
    async with serve({"/facts": page(FACTS)}) as site:
        tools = [WebFetch(allow_hosts=[site.host])]
        async with (
            FakeProvider([grounded(site, claim) for claim in claims]) as fake,
            chatting(fake, tmp_path, provider="google:m", server_side_tools=tools) as client,
        ):
            for number in range(3):
                await client.say(f"How long? {number}")
            found = list[Any]()
            for message in (1, 3, 5):
                body = {"message": (await client.chat())["messages"][message]["id"]}
                assert await client.json("POST", "/api/chat/c1/evidence", body) == {"checked": 1}
                chat = await client.chat()
                found.append([states(chat, at)[0] for at in (1, 3, 5)])
    assert found == [["quoted", None, None], ["quoted", "contradicted", None], ["quoted", "contradicted", "quoted"]]


TOKENS = ["first-token-0123456789-0123456789", "other-token-0123456789-0123456789"]


@requirement("R231")
async def test_check_of_citations_is_refused_where_closed(tmp_path: Path):
    async with (
        serve({"/facts": page(FACTS)}) as site,
        FakeProvider([answer(site)]) as fake,
        serving({"main": agent_of(fake)}, tmp_path, tokens=TOKENS, allows_tools=False) as (_, client),
    ):
        say = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "How long?"}]}
        assert (await client.post("/api/chat", json={"id": "c1", "messages": [say]})).status_code == 200
        body = {"message": (await client.get("/api/chat/c1")).json()["messages"][1]["id"]}

        async def status(chat: str, body: Any, token: str = TOKENS[0]) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return (await client.post(f"/api/chat/{chat}/evidence", json=body, headers=headers)).status_code

        assert await status("c1", body) == 403
        assert await status("c1", body, TOKENS[1]) == 404
        assert await status("c1", {"message": "msg_x"}) == 404
        assert await status("c2", body) == 404
        assert await status("c1", {"message": 1}) == 400
        models = (await client.get("/api/models")).json()["models"]
    assert [model["allows"]["checks"] for model in models if model["name"] == "main"] == [False]
    assert site.requests == []


@requirement("R231")
async def test_check_of_citations_counts_as_run(tmp_path: Path):
    async with (
        serve({"/facts": page(FACTS)}) as site,
        FakeProvider([answer(site)]) as fake,
        serving({"main": agent_of(fake)}, tmp_path, caps=Caps(requests_per_minute=2)) as (_, client),
    ):
        say = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "How long?"}]}
        await client.post("/api/chat", json={"id": "c1", "messages": [say]})
        body = {"message": (await client.get("/api/chat/c1")).json()["messages"][1]["id"]}
        found = [await client.post("/api/chat/c1/evidence", json=body) for _ in range(2)]
        after = await client.get("/api/chat/c1")
    assert [response.status_code for response in found] == [200, 429]
    assert states(after.json()) == ["unreachable", "unreachable"]  # The site has a private address.
    assert site.requests == []


@requirement("R231")
async def test_user_has_one_check_at_a_time(tmp_path: Path):
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.set()
        await answered.wait()
        return web.Response(text=FACTS, content_type="text/html")

    async with serve({"/facts": slow}) as site, FakeProvider([answer(site)]) as fake:
        tools = [WebFetch(allow_hosts=[site.host])]
        async with chatting(fake, tmp_path, server_side_tools=tools) as client:
            await client.say("How long?")
            body = {"message": (await client.chat())["messages"][1]["id"]}
            first = asyncio.ensure_future(client.json("POST", "/api/chat/c1/evidence", body))
            await asked.wait()
            await client.json("POST", "/api/chat/c1/evidence", body, status=429)
            answered.set()
            assert await first == {"checked": 2}

"""Servers before each engine: they begin runs, workers drive them, and any of the servers streams and controls them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import aiohttp

from requirements import requirement
from server.chat_client import Client, data, paused, serving, text_of, user
from server.engine_places import Place
from server.serving import working
from sidestream import Agent
from sidestream.server.app import app_of
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.stores import BOUND_S

Json = Any
Clients = tuple[Client, Client]
COUNT = ["One, ", "two, ", "three."]


def look() -> str:
    """Looks."""
    return "seen"


@asynccontextmanager
async def servers(
    place: Place, fake: FakeProvider, *, worker: dict[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[Clients]:
    """Clients of two servers that leave their runs to a worker; each of the three has a store and an engine of its own."""
    agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789", tools=[look], approval="ask")
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients: list[Client] = []
        for _ in range(2):
            given = ServerSettings(agents={"main": agent}, default="main", engine=place.engine, **settings)
            server = Server(given, open_store(place.where))
            clients.append(Client(await stack.enter_async_context(serving(app_of(server))), server, session))
        await stack.enter_async_context(working(place.where, place.engine, agent, **(worker or {})))
        yield clients[0], clients[1]


async def read_until(following: Callable[[], Awaitable[Json]], word: str) -> list[Json]:
    """The chunks of a stream up to one with this text."""
    chunks: list[Json] = []
    while (chunk := await following()) is not None:
        chunks.append(chunk)
        if word in str(chunk.get("delta", "")):
            return chunks
    raise AssertionError(chunks)


async def finished(client: Client, count: int = 1) -> Json:
    """The chat, once the log has so many ends of runs."""
    async with aclosing(client.server.store.tail("/c1")) as rows:
        async for row in rows:
            count -= row.kind == "finish"
            if not count:
                break
    return await client.chat()


@requirement("R141", "R160", "R162")
async def test_stream_continues_at_another_server(place: Place) -> None:
    gate = asyncio.Event()
    replies = [sse(paused(ResponsesScript().text(COUNT), gate, "two")), ResponsesScript().text("Four.").reply()]
    async with FakeProvider(replies) as fake, servers(place, fake) as (first, second):
        body = {"id": "c1", "messages": [user("Count.")]}
        async with first.following(body=body) as following:
            assert text_of(await read_until(following, "two")) == "One, two, "
        chat = await second.chat()
        assert chat["run"]["status"] == "running"
        (streaming,) = [part for part in chat["messages"][-1]["parts"] if part["type"] == "text"]
        (listed,) = (await second.json("GET", "/api/runs"))["runs"]
        assert (listed["id"], listed["chat"]) == (chat["run"]["id"], "c1")
        stats = await second.json("GET", "/api/engine")
        assert (stats["running"], stats["queued"], stats["here"]) == (1, 0, 0)
        path = f"/api/chat/c1/stream?after={chat['seq']}"
        async with second.following("GET", path) as following:
            fake.release(gate)
            rest: list[Json] = []
            while (chunk := await following()) is not None:
                rest.append(chunk)
        assert streaming["text"] + text_of(rest) == "One, two, three."
        assert text_of(await second.say("And?")) == "Four."
        assert not first.server.runs.live
        assert not second.server.runs.live


@requirement("R160", "R162")
async def test_approval_given_at_another_server_is_executed_by_worker(place: Place) -> None:
    replies = [ResponsesScript().function_call("look", {}, "c1").reply(), ResponsesScript().text("Done.").reply()]
    async with FakeProvider(replies) as fake, servers(place, fake) as (first, second):
        (asked,) = data(await first.say("Look."), "approval")
        assert (await second.chat())["run"]["status"] == "waiting"
        answer = {"id": "c1", "approvalId": asked["approval"], "approved": True, "digest": asked["digest"]}
        assert text_of(await second.post(answer)) == "Done."
        assert "seen" in str(fake.requests[1].json["input"])
        assert (await first.chat())["run"]["status"] == "complete"


@requirement("R160", "R162")
async def test_tool_approved_at_one_server_is_revoked_at_another(place: Place) -> None:
    gate = asyncio.Event()
    call = ResponsesScript().function_call("look", {})
    slow = sse(paused(ResponsesScript().text("Wait. ").function_call("look", {}), gate, "Wait"))
    done = ResponsesScript().text("Done.").reply()
    async with (
        FakeProvider([call.reply(), done, call.reply(), done, slow]) as fake,
        servers(place, fake) as (first, second),
    ):
        (asked,) = data(await first.say("Look."), "approval")
        answer = {"approvalId": asked["approval"], "approved": True, "digest": asked["digest"]}
        await first.post({"id": "c1", **answer, "remember": "conversation"})
        assert text_of(await second.say("Look again.")) == "Done."
        async with first.following(body={"id": "c1", "messages": [user("And again.", "u3")]}) as following:
            await read_until(following, "Wait")
            await second.json("DELETE", f"/api/chat/c1/grants/{asked['approval']}", status=204)
            fake.release(gate)
            rest: list[Json] = []
            while (chunk := await following()) is not None:
                rest.append(chunk)
        assert len(data(rest, "approval")) == 1
        assert (await second.chat())["grants"] == []


@requirement("R160", "R162")
async def test_run_is_steered_and_stopped_through_another_server(place: Place) -> None:
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, servers(place, fake) as (first, second):
        async with first.following(body={"id": "c1", "messages": [user("Count.")]}) as following:
            await read_until(following, "One")
            steered = await second.json("POST", "/api/chat/c1/steer", {"text": "Faster."})
            assert await second.json("POST", "/api/chat/c1/stop") == {"stopped": True}
            rest: list[Json] = []
            while (chunk := await following()) is not None:
                rest.append(chunk)
        assert rest[-1]["type"] == "abort"
        rows = await first.server.store.read("/c1")
        assert rows[-1].kind == "cancelled"
        assert any(steered["id"] in row.body.decode() for row in rows if row.kind == "steer")
        assert await first.json("POST", "/api/chat/c1/stop") == {"stopped": False}


@requirement("R160", "R162")
async def test_worker_denies_call_when_approval_times_out(place: Place) -> None:
    replies = [ResponsesScript().function_call("look", {}, "c1").reply(), ResponsesScript().text("Then not.").reply()]
    async with (
        FakeProvider(replies) as fake,
        servers(place, fake, worker={"approval_s": 0.05}, approval_s=0.05) as (first, second),
    ):
        await first.say("Look.")
        chat = await finished(second, 2)
        assert chat["run"]["status"] == "complete"
        assert "Then not." in str(chat["messages"][-1]["parts"])
        assert "nobody decided in time" in str(fake.requests[1].json["input"])


@requirement("R160", "R162")
async def test_scheduled_message_is_executed_at_its_time(place: Place) -> None:
    async with (
        FakeProvider([ResponsesScript().text("Good morning.").reply()]) as fake,
        servers(place, fake) as (first, second),
    ):
        at = time.time() + 0.8
        body = {"id": "c1", "messages": [user("Wake me.")]}
        headers = {"X-Sidestream-At": str(at)}
        async with first.session.post(f"{first.url}/api/chat", json=body, headers=headers) as accepted:
            assert accepted.status == 202
        assert not fake.requests
        assert (await finished(second))["run"]["status"] == "complete"
        rows = await second.server.store.read("/c1")
        assert next(row.time for row in rows if row.kind == "step-start") >= at

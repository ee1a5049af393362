"""Waits of a server's runs, in every stream while they last: retries, and queues without a worker."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from requirements import requirement
from server.serving import working
from sidestream import Agent, Context, Limiter
from sidestream.providers import ModelRequest
from sidestream.server import create_app
from sidestream.testing import FakeProvider, ModelReply, Reply, ResponsesScript, ScriptedModel, error_reply, sse
from support.serving import served
from support.stores import BOUND_S

Json = Any
KEY = "key-0123456789"


def busy(seconds: int) -> Reply:
    return error_reply(429, headers={"Retry-After": str(seconds)})


def said(text: str) -> Reply:
    return sse(ResponsesScript().text([text]).events())


@asynccontextmanager
async def server_with(
    replies: list[Reply], path: Path, *, limiter: Limiter | None = None, **settings: Any
) -> AsyncGenerator[tuple[str, aiohttp.ClientSession, Agent[Any]]]:
    async with FakeProvider(replies) as fake, aiohttp.ClientSession() as session:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, limiter=limiter)
        async with served(create_app({"main": agent}, store=path / "talks.db", **settings)) as url:
            yield url, session, agent


async def lines_of(session: aiohttp.ClientSession, url: str, body: Json) -> AsyncGenerator[str]:
    """The lines of a stream of server-sent events."""
    async with session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            yield line.decode().rstrip("\n")


async def first_wait(session: aiohttp.ClientSession, url: str, body: Json, start: str) -> Json:
    """What follows on the first line of a stream with this start."""
    async with asyncio.timeout(BOUND_S), aclosing(lines_of(session, url, body)) as lines:
        async for line in lines:
            if line.startswith(start):
                return json.loads(line.removeprefix(start.split("{")[0]))
    raise AssertionError("the stream has no wait")


def chat_of(id: str) -> Json:
    return {"id": id, "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}


AGUI = {"threadId": "t1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "hi"}], "tools": []}
AGUI |= {"context": [], "state": {}, "forwardedProps": {}}
COMMENT = ": sidestream.waiting {"
MESSAGES = [{"role": "user", "content": "hi"}]
STREAMS: list[tuple[str, Json, str]] = [
    ("/api/chat", chat_of("c1"), 'data: {"type":"data-waiting"'),
    ("/api/agui", AGUI, 'data: {"type":"CUSTOM","name":"sidestream.waiting"'),
    ("/v1/responses", {"model": "main", "input": "hi", "stream": True}, COMMENT),
    ("/v1/chat/completions", {"model": "main", "messages": MESSAGES, "stream": True}, COMMENT),
    ("/v1/messages", {"model": "main", "messages": MESSAGES, "max_tokens": 9, "stream": True}, COMMENT),
]


@requirement("R213")
@pytest.mark.parametrize(("path", "body", "start"), STREAMS, ids=[path for path, _, _ in STREAMS])
async def test_retry_is_in_every_stream_while_it_lasts(tmp_path: Path, path: str, body: Json, start: str) -> None:
    async with server_with([busy(42)], tmp_path) as (url, session, _):
        found = await first_wait(session, url + path, body, start)
        wait = found.get("data") or found.get("value") or found
        assert (wait["reason"], wait["cause"], wait["over"]) == ("retry", "429", False)
        assert 41.9 < wait["until"] - wait["since"] < 42.1


@requirement("R213")
@pytest.mark.parametrize(("path", "body", "start"), STREAMS, ids=[path for path, _, _ in STREAMS])
async def test_limiter_is_in_every_stream_while_it_lasts(tmp_path: Path, path: str, body: Json, start: str) -> None:
    async with server_with([said("Hello.")], tmp_path, limiter=Limiter(requests_per_minute=1)) as (url, session, agent):
        await agent.send("first")
        found = await first_wait(session, url + path, body, start)
        wait = found.get("data") or found.get("value") or found
        assert (wait["reason"], wait["over"]) == ("limiter", False)
        assert 50 < wait["until"] - wait["since"] <= 60


LONG = "word " * 2000


def turn_of(path: str, body: Json, number: int) -> Json:
    """The request for a turn of a long conversation, which some APIs keep and others get with each request."""
    text = f"q{number} {LONG}"
    if path == "/api/chat":
        return body | {"messages": [{"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": text}]}]}
    if path == "/api/agui":
        asked = [{"id": f"u{each}", "role": "user", "content": f"q{each} {LONG}"} for each in range(number + 1)]
        return body | {"runId": f"r{number}", "messages": asked}
    past = [{"role": ("user", "assistant")[each % 2], "content": f"m{each} {LONG}"} for each in range(2 * number)]
    return body | {"input" if path == "/v1/responses" else "messages": [*past, {"role": "user", "content": text}]}


@requirement("R213")
@pytest.mark.parametrize(("path", "body", "start"), STREAMS, ids=[path for path, _, _ in STREAMS])
async def test_compaction_is_in_every_stream(tmp_path: Path, path: str, body: Json, start: str) -> None:
    def respond(request: ModelRequest) -> ModelReply:
        return "They counted." if "summary" in (request.system or "") else "ok"

    agent = Agent(ScriptedModel(respond, context_window=10_000), context=Context(keep_turns=1))
    app = create_app({"main": agent}, store=tmp_path / "talks.db")
    async with served(app) as url, aiohttp.ClientSession() as session, asyncio.timeout(BOUND_S):
        lines: list[str] = []
        for number in range(5):
            async with aclosing(lines_of(session, url + path, turn_of(path, body, number))) as stream:
                lines += [line async for line in stream if line.startswith(start)]
    found = [line for line in lines if '"reason":"compaction"' in line]
    assert ['"over":true' in line for line in found[:2]] == [False, True]


@requirement("R213")
async def test_reloaded_chat_shows_wait_until_it_is_stopped(tmp_path: Path) -> None:
    async with server_with([busy(42), said("Hello.")], tmp_path) as (url, session, _):
        await first_wait(session, f"{url}/api/chat", chat_of("c1"), 'data: {"type":"data-waiting"')

        async def shown() -> Json:
            async with session.get(f"{url}/api/chat/c1") as response:
                parts = (await response.json())["messages"][-1]["parts"]
            return next(part["data"] for part in parts if part["type"] == "data-waiting")

        assert (await shown())["over"] is False
        async with session.post(f"{url}/api/chat/c1/stop") as response:
            assert response.status < 300
        assert (await shown())["over"] is True


async def test_vendor_sdks_read_streams_with_waits(tmp_path: Path) -> None:
    replies = [reply for _ in range(3) for reply in (busy(1), said("Hello."))]
    async with server_with(replies, tmp_path) as (url, _, _), asyncio.timeout(BOUND_S):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            async with client.responses.stream(model="main", input="hi") as events:
                assert (await events.get_final_response()).output_text == "Hello."
            chunks = await client.chat.completions.create(
                model="main", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
            assert "".join(texts) == "Hello."
        messages = anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)
        given: Any = [{"role": "user", "content": "hi"}]
        async with messages, messages.messages.stream(model="main", max_tokens=9, messages=given) as stream:
            assert await stream.get_final_text() == "Hello."


@requirement("R213")
@pytest.mark.parametrize(("path", "body", "start"), STREAMS, ids=[path for path, _, _ in STREAMS])
async def test_queue_is_reported_until_worker_comes(tmp_path: Path, path: str, body: Json, start: str) -> None:
    async with server_with([said("Hello.")], tmp_path, engine="embedded") as (url, session, agent):
        async with asyncio.timeout(BOUND_S), aclosing(lines_of(session, url + path, body)) as lines:
            wait = await anext(line async for line in lines if line.startswith(start))
            assert '"reason":"queue"' in wait
            assert '"over":false' in wait
            async with working(tmp_path / "talks.db", "embedded", agent):
                rest = [line async for line in lines]
        assert [line for line in rest if line.startswith(start) and '"over":true' in line]
        assert any("Hello." in line for line in rest)

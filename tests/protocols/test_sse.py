"""Runs as server-sent events: what is sent, how it fails, and what is left when the client leaves."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse as FastAPIStreamingResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from requirements import requirement
from sidestream import SSE_HEADERS, Agent, Chat, File, ProviderError, StreamPart, sse
from sidestream.errors import StreamTruncatedError
from sidestream.parts import Error, Finish, TextDelta, part_from_json
from sidestream.protocols.sse import HEARTBEAT, MAX_BUFFERED_BYTES
from sidestream.testing import (
    FakeProvider,
    ResponsesScript,
    ScriptedModel,
    check_stream,
    no_leaks,
    pixel_png,
    responses_text,
    sse as sse_reply,
    tool_call,
)
from sidestream.text.redaction import register_secret

BOUND_S = 30.0
Event = dict[str, str]


def events_of(data: bytes) -> list[Event]:
    """The events of a stream, by the WHATWG rules as far as they matter here."""
    frames = [frame for frame in data.decode().split("\n\n") if frame and not frame.startswith(":")]
    return [dict(line.split(": ", 1) for line in frame.split("\n")) for frame in frames]


async def sent(stream: AsyncIterator[bytes]) -> list[Event]:
    return events_of(b"".join([piece async for piece in stream]))


async def collect(stream: AsyncIterator[bytes], pieces: list[bytes]) -> None:
    async for piece in stream:
        pieces.append(piece)  # noqa: PERF401  # What came before an error is kept.


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@requirement("R111")
async def test_parts_arrive_complete_ordered_and_numbered() -> None:
    script = [tool_call("get_weather", city="Oslo"), ["It is\nsunny ☀.", File("f", "image/png", data=pixel_png())]]
    events = await sent(sse(Agent(ScriptedModel(script), tools=[get_weather]).stream("hi")))
    parts = [part_from_json(event["data"]) for event in events]
    check_stream(parts)
    assert [event["id"] for event in events] == [str(number) for number in range(1, len(events) + 1)]
    assert all(event.keys() == {"id", "data"} for event in events)
    assert [part.data for part in parts if isinstance(part, File)] == [pixel_png()]
    assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "It is\nsunny ☀."


@requirement("R111")
async def test_chunks_arrive_without_provider_data() -> None:
    script = ResponsesScript().reasoning("Hm.").web_search("news").text("Hello there")
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chunks = [json.loads(event["data"]) for event in await sent(sse(agent.send_stream("hi")))]
    assert "".join(chunk.get("output", "") for chunk in chunks) == "Hello there"
    assert "".join(chunk.get("thinking", "") for chunk in chunks) == "Hm."
    assert {part["tool"] for chunk in chunks for part in chunk.get("parts", []) if part["type"] == "tool-event"} == {
        "web_search"
    }
    assert chunks[-1]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["output"]["total"] > 0
    assert {} not in chunks
    assert "_session" not in json.dumps(chunks)


@requirement("R181")
async def test_chunk_holds_correction() -> None:
    events = [e for e in ResponsesScript().text(["One ", "two ", "three"]).events() if e.get("delta") != "two "]
    async with FakeProvider([sse_reply(events)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chunks = [json.loads(event["data"]) for event in await sent(sse(agent.send_stream("hi")))]
    (corrected,) = [chunk for chunk in chunks if "correction" in chunk]
    assert corrected["correction"] == "One two three"
    assert corrected["text_id"] == corrected["parts"][0]["id"]


@requirement("R111")
@pytest.mark.parametrize("way", ["stream", "send_stream"])
async def test_chat_turn_counts_once_last_event_was_read(way: str) -> None:
    chat = Chat(Agent(ScriptedModel(["one", "two"])))
    await sent(sse(getattr(chat, way)("hi")))
    assert [message.text for message in chat.messages] == ["hi", "one"]


@requirement("R111")
async def test_comments_keep_idle_connection_alive() -> None:
    gate = asyncio.Event()
    pieces: list[bytes] = []
    async for piece in sse(Agent(ScriptedModel([["before", gate, "after"]])).stream("hi"), heartbeat_s=0.01):
        pieces.append(piece)
        if pieces.count(HEARTBEAT) == 3:
            gate.set()
    assert pieces.count(HEARTBEAT) >= 3
    assert [json.loads(e["data"]).get("delta") for e in events_of(b"".join(pieces)) if "delta" in e["data"]] == [
        "before",
        "after",
    ]


@requirement("R111")
async def test_failed_run_sends_redacted_error_once_and_ends() -> None:
    register_secret("sk-canary-123456789")
    error = ProviderError("the key sk-canary-123456789 is bad", status=400, code="bad")
    parts = [part_from_json(e["data"]) for e in await sent(sse(Agent(ScriptedModel([["x", error]])).stream("hi")))]
    assert [part.code for part in parts if isinstance(part, Error)] == ["bad"]
    assert isinstance(parts[-1], Finish)
    events = await sent(sse(Agent(ScriptedModel([["x", error]])).send_stream("hi")))
    assert [event.get("event") for event in events][-1] == "error"
    last = part_from_json(events[-1]["data"])
    assert isinstance(last, Error)
    assert (last.code, last.status) == ("bad", 400)
    assert "canary" not in json.dumps(events) + "".join(part.to_json() for part in parts)


async def test_run_error_without_error_part_becomes_error_event() -> None:
    async def broken() -> AsyncGenerator[StreamPart]:
        yield TextDelta("t", "x")
        raise StreamTruncatedError("gone")

    events = await sent(sse(broken()))
    assert [event.get("event") for event in events] == [None, "error"]


async def test_bug_is_raised_and_client_sees_only_internal_error() -> None:
    async def broken() -> AsyncGenerator[StreamPart]:
        yield TextDelta("t", "x")
        raise ZeroDivisionError("the password is hunter2")

    pieces: list[bytes] = []

    with pytest.raises(ZeroDivisionError):
        await collect(sse(broken()), pieces)
    last = part_from_json(events_of(b"".join(pieces))[-1]["data"])
    assert isinstance(last, Error)
    assert last.code == "internal"
    assert b"hunter2" not in b"".join(pieces)


def stalled(text: str = "Hello there") -> Any:
    """A reply that stalls after its first words."""
    return sse_reply(responses_text(text)[:-3], stall_after_bytes=10**9)


@requirement("R111")
@pytest.mark.parametrize("way", ["stream", "send_stream"])
async def test_closing_iterator_closes_run_and_connection(way: str) -> None:
    async with no_leaks(), FakeProvider([stalled()]) as fake:
        stream = sse(getattr(Agent("openai-responses", base_url=fake.base_url), way)("hi"))
        while b"there" not in await anext(stream):
            pass
        await stream.aclose()
        await fake.wait_answered(BOUND_S)


@requirement("R111")
@pytest.mark.parametrize("times", [1, 50])
async def test_cancelling_reader_repeatedly_closes_run(times: int) -> None:
    async with no_leaks(), FakeProvider([stalled()]) as fake:
        begun = asyncio.Event()

        async def serve() -> None:
            async for piece in sse(Agent("openai-responses", base_url=fake.base_url).stream("hi")):
                if b"there" in piece:
                    begun.set()

        task = asyncio.create_task(serve())
        await begun.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.wait_answered(BOUND_S)


async def test_unread_iterator_sends_no_request() -> None:
    async with no_leaks():
        model = ScriptedModel(["never"])
        stream = sse(Agent(model).stream("hi"))
        await stream.aclose()
    assert model.requests == []


@requirement("R111")
async def test_run_waits_for_slow_client() -> None:
    produced = 0

    async def endless() -> AsyncGenerator[StreamPart]:
        nonlocal produced
        while True:
            produced += 1
            yield TextDelta("t", "x" * 1000)

    stream = sse(endless())
    await anext(stream)
    for _ in range(1000):
        await asyncio.sleep(0)
    ahead = produced
    assert ahead * 1000 < 2 * MAX_BUFFERED_BYTES + 4000
    for _ in range(1000):
        await asyncio.sleep(0)
    assert produced == ahead
    await anext(stream)
    await anext(stream)
    assert produced > ahead
    await stream.aclose()


# In the frameworks themselves


def starlette_app(agent: Agent[Any]) -> Any:
    async def ask(request: Request) -> StreamingResponse:
        run = agent.stream(request.query_params["prompt"])
        return StreamingResponse(sse(run, heartbeat_s=0.05), headers=SSE_HEADERS)

    return Starlette(routes=[Route("/ask", ask)])


def fastapi_app(agent: Agent[Any]) -> Any:
    app = FastAPI()

    @app.get("/ask")
    async def ask(prompt: str) -> FastAPIStreamingResponse:
        return FastAPIStreamingResponse(sse(agent.stream(prompt), heartbeat_s=0.05), headers=SSE_HEADERS)

    return app


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """A real server on loopback."""
    server = _Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(BOUND_S):
            await server.listening.wait()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@requirement("R111")
@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
async def test_frameworks_stream_to_browser(make: Any) -> None:
    agent = Agent(ScriptedModel(["Hello there"]))
    async with (
        served(make(agent)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/ask", params={"prompt": "hi"}) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        parts = [part_from_json(event["data"]) for event in events_of(await response.read())]
    check_stream(parts)


@requirement("R111")
@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
async def test_disconnected_browser_ends_run_at_provider(make: Any) -> None:
    async with no_leaks(), FakeProvider([stalled()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        async with served(make(agent)) as url, aiohttp.ClientSession() as session:
            async with session.get(f"{url}/ask", params={"prompt": "hi"}) as response:
                async for line in response.content:
                    if b"there" in line:
                        break
                response.close()
            await fake.wait_answered(BOUND_S)


def test_sse_imports_no_framework_or_network_library() -> None:
    program = (
        "import sys; from sidestream import sse, SSE_HEADERS; print({'aiohttp', 'starlette'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"

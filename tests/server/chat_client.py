"""A real server on loopback, and a client that speaks to it as a page does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from sidestream import Agent
from sidestream.server.app import app_of
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript
from support.serving import OPEN
from support.stores import BOUND_S

Json = Any


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:
    """The URL of an app that uvicorn serves."""
    server = _Uvicorn(uvicorn.Config(app, port=0, log_config=None, ws="websockets-sansio", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    try:
        await asyncio.wait_for(server.listening.wait(), BOUND_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class Client:
    """Speaks to a server as one owner."""

    def __init__(self, url: str, server: Server, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.server = server
        self.session = session

    async def json(self, method: str, path: str, body: Json = None, status: int = 200) -> Json:
        async with self.session.request(method, self.url + path, json=body) as response:
            assert response.status == status, await response.text()
            return json.loads(text) if (text := await response.text()) else None

    async def post(self, body: Json, status: int = 200) -> Json:
        """The chunks of the response; the error's body if another status is expected."""
        async with self.session.post(f"{self.url}/api/chat", json=body) as response:
            text = await response.text()
            assert response.status == status, text
            return chunks_in(text) if status == 200 else json.loads(text)["error"]

    async def say(self, text: str, chat: str = "c1", id: str | None = None, **more: Json) -> list[Json]:
        return await self.post({"id": chat, "messages": [user(text, id or f"u-{text}")], **more})

    async def stream(self, chat: str = "c1", **query: Json) -> list[Json] | None:
        async with self.session.get(f"{self.url}/api/chat/{chat}/stream", params=query) as response:
            assert response.status in (200, 204), await response.text()
            return chunks_in(await response.text()) if response.status == 200 else None

    @asynccontextmanager
    async def following(
        self, method: str = "POST", path: str = "/api/chat", body: Json = None
    ) -> AsyncGenerator[Callable[[], Any]]:
        """The chunks of a response, one by one."""
        async with self.session.request(method, self.url + path, json=body) as response:
            assert response.status == 200, await response.text()

            async def following() -> Json:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        return json.loads(line[6:])
                return None

            yield following

    async def chat(self, chat: str = "c1", **query: Json) -> Json:
        async with self.session.get(f"{self.url}/api/chat/{chat}", params=query) as response:
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def chatting(
    fake: FakeProvider, path: Path, tokens: Any = (), provider: str = "openai-responses", **agent: Any
) -> AsyncGenerator[Client]:
    """A server with one agent, and a client."""
    main = Agent(provider, base_url=fake.base_url, api_key="key-0123456789", **agent)
    settings = ServerSettings(agents={"main": main}, default="main", tokens=tuple(tokens), **OPEN)
    server = Server(settings, open_store(path / "talks.db"))
    async with asyncio.timeout(BOUND_S), serving(app_of(server)) as url, aiohttp.ClientSession() as session:
        yield Client(url, server, session)


def chunks_in(text: str) -> list[Json]:
    """The chunks of a response with the protocol's frames, and nothing but those."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]


def user(text: str, id: str = "u1") -> Json:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def text_of(chunks: list[Json]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def types(chunks: list[Json]) -> list[str]:
    return [chunk["type"] for chunk in chunks if not chunk["type"].startswith("data-")]


def data(chunks: list[Json], kind: str) -> list[Json]:
    return [chunk["data"] for chunk in chunks if chunk["type"] == f"data-{kind}"]


def paused(script: ResponsesScript, gate: asyncio.Event, marker: str) -> list[Any]:
    """The events of a response, with a gate behind the first delta that holds the marker."""
    events = script.events()
    index = next(i for i, event in enumerate(events) if marker in str(event.get("delta", "")))
    return [*events[: index + 1], gate, *events[index + 1 :]]

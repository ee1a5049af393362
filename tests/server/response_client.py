"""A real server on loopback with the `openai` SDK pointed at it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from server.chat_client import serving
from sidestream import Agent
from sidestream.server import create_app
from sidestream.testing import FakeProvider, Reply, ResponsesScript
from support.serving import OPEN
from support.stores import BOUND_S

KEY = "key-0123456789"
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Served:
    """A server, its provider, and a client."""

    def __init__(self, url: str, fake: FakeProvider, app: Any) -> None:
        self.url = url
        self.fake = fake
        self.server = app.state.server
        self.clients: list[openai.AsyncOpenAI] = []
        self.client = self.client_of("any")

    def client_of(self, token: str, **settings: Any) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0, **settings)
        self.clients.append(client)
        return client


@asynccontextmanager
async def served_agents(agents: Any, fake: FakeProvider, path: Path, **settings: Any) -> AsyncGenerator[Served]:

    app = create_app(agents, store=path / "talks.db", **{**OPEN, **settings})
    async with asyncio.timeout(BOUND_S), serving(app) as url:
        served = Served(url, fake, app)
        try:
            yield served
        finally:
            for client in served.clients:
                await client.close()


@asynccontextmanager
async def responding(
    replies: Sequence[Reply], path: Path, *, server: dict[str, Any] | None = None, **agent: Any
) -> AsyncGenerator[Served]:
    """A server with one agent, `main`."""
    async with FakeProvider(list(replies)) as fake:
        main = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, **agent)
        async with served_agents({"main": main}, fake, path, **(server or {})) as found:
            yield found


def said(*texts: str) -> list[Reply]:
    """Replies with these texts."""
    return [ResponsesScript().text(text).reply() for text in texts]


async def events_in(stream: Any) -> list[Any]:
    return [event.to_dict() async for event in stream]

"""How the tests of the server's APIs reach it: through its whole app, with a real store, without a socket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from sidestream import Agent
from sidestream.durable.jobs import Job
from sidestream.server import create_app
from sidestream.server.core import Server
from sidestream.testing import FakeProvider

KEY = "sk-canary-51f0a7c2d94e4b6f"
JOB = Job(agent="main")


def agent_of(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return Agent("openai-responses", base_url=fake.base_url, api_key=KEY, **settings)


@asynccontextmanager
async def serving(agents: Any, path: Path, **settings: Any) -> AsyncGenerator[tuple[Server, httpx2.AsyncClient]]:
    """The server of an app, and a client of the app. The client sends the first token, if there are any."""
    app = create_app(agents, store=path / "talks.db", **settings)
    tokens = settings.get("tokens", ())
    headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
    ):
        yield app.state.server, client


async def ended(server: Server, conversation: str) -> None:
    """Waits for the end of the run."""
    async for _ in server.runs.follow(conversation):
        pass

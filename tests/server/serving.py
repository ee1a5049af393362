"""How the tests of the server's APIs reach it: through its whole app, with a real store, without a socket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from sidestream import Agent
from sidestream.durable.engines import open_engine
from sidestream.durable.log.jobs import Job
from sidestream.durable.worker.service import WorkerService
from sidestream.server import create_app
from sidestream.server.server import Server
from sidestream.store import open_store
from sidestream.testing import FakeProvider
from support.serving import OPEN

KEY = "sk-canary-51f0a7c2d94e4b6f"
JOB = Job(agent="main")


def agent_of(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return Agent("openai-responses", base_url=fake.base_url, api_key=KEY, **settings)


@asynccontextmanager
async def serving(agents: Any, path: Path, **settings: Any) -> AsyncGenerator[tuple[Server, httpx2.AsyncClient]]:
    """The server of an app, and a client of the app. The client sends the first token, if there are any."""
    app = create_app(agents, store=path / "talks.db", **{**OPEN, **settings})
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


@asynccontextmanager
async def working(where: str | Path, engine_name: str, agent: Agent[Any], **settings: Any) -> AsyncGenerator[None]:
    """A worker with the agent `main`, on a store of its own that leads to the same place as that of the servers."""
    store = open_store(where)
    engine = open_engine(engine_name, store)
    service = WorkerService(store, engine, {"main": agent}, allows_models=False, drain_s=0.0, **settings)
    serving = asyncio.create_task(service.run())
    try:
        yield
    finally:
        service.stop()
        await serving
        await engine.aclose()
        await store.aclose()

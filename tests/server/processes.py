"""Servers and workers as processes of their own, on one store."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from subprocess import Popen
from typing import Any

from server.engine_places import LEASE_S
from sidestream.testing import FakeProvider
from support.children import started

SERVER = """
import sys
import uvicorn
from sidestream import Agent
from sidestream.server import create_app

base_url, where, engine = sys.argv[1:]
agent = Agent("openai-responses", base_url=base_url, api_key="key-0123456789")
app = create_app({"main": agent}, store=where, engine=engine or None)
config = uvicorn.Config(app, port=0, log_config=None, lifespan="on", ws="websockets-sansio")

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(config).run()
"""
WORKER = """
import asyncio, sys
from sidestream import Agent
from sidestream.durable.engines import open_engine
from sidestream.durable.worker.worker import Worker
from sidestream.store import open_store

async def main(base_url, where, name, lease_s):
    agent = Agent("openai-responses", base_url=base_url, api_key="key-0123456789")
    store = open_store(where)
    engine = open_engine(name, store, lease_s=float(lease_s))
    worker = Worker(store, engine, lambda _: agent)
    print("ready", flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.attend())
        group.create_task(engine.work(worker.drive, queues=["main"], slots=10))

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def server_process(fake: FakeProvider, where: str, engine: str = "") -> AsyncGenerator[str]:
    """The address of a server with the agent `main`."""
    async with process(SERVER, fake.base_url, where, engine) as (line, _):
        yield f"http://127.0.0.1:{int(line)}"


@asynccontextmanager
async def worker_process(fake: FakeProvider, where: str, engine: str) -> AsyncGenerator["Popen[Any]"]:
    """A worker for the agent `main`."""
    async with process(WORKER, fake.base_url, where, engine, str(LEASE_S)) as (_, child):
        yield child


@asynccontextmanager
async def process(program: str, *arguments: str) -> AsyncGenerator[tuple[bytes, "Popen[Any]"]]:
    """A process, and the first line that it prints."""
    with started(sys.executable, "-c", program, *arguments, stdout=-1) as child:
        assert child.stdout is not None
        line = await asyncio.to_thread(child.stdout.readline)
        assert line, "the process ended at once"
        yield line, child

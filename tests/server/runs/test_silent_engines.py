"""A server whose engine cannot be reached: it starts, can be read from, and enqueues its runs once the engine answers."""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from requirements import requirement
from server.chat_client import Client, serving, text_of, user
from server.serving import working
from sidestream import Agent
from sidestream.server.app import app_of
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript
from support.stores import BOUND_S
from support.waiting import eventually


class Gate:
    """The address of an engine's service, which cannot be reached until `open`."""

    def __init__(self, service: str, *, is_silent: bool) -> None:
        self._host, _, port = service.partition(":")
        self._port = int(port)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        if is_silent:  # Connections are accepted by the kernel, and never answered.
            self._socket.listen()
        prefix = f"test-{secrets.token_hex(6)}"
        self.engine = f"temporal://127.0.0.1:{self._socket.getsockname()[1]}?prefix={prefix}"
        self._relays: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Connect the address to the service."""
        address = self._socket.getsockname()
        self._socket.close()
        server = await asyncio.start_server(self._relay, *address)
        try:
            yield
        finally:
            server.close()
            for relay in self._relays:
                relay.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

    def close(self) -> None:
        self._socket.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relays.add(relay := cast("asyncio.Task[None]", asyncio.current_task()))
        relay.add_done_callback(self._relays.discard)
        theirs, ours = await asyncio.open_connection(self._host, self._port)
        with suppress(asyncio.CancelledError):  # asyncio.start_server logs a cancelled handler as an error.
            await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))
        writer.close()
        ours.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.close()


@pytest.fixture(params=["refused", "silent"])
def gate(request: pytest.FixtureRequest, temporal_server: str) -> Generator[Gate]:
    made = Gate(temporal_server, is_silent=request.param == "silent")
    yield made
    made.close()


@asynccontextmanager
async def before(gate: Gate, agent: Agent[str], path: Path) -> AsyncGenerator[Client]:
    """A client of a server that leaves its runs to the workers of this engine."""
    settings = ServerSettings(agents={"main": agent}, default="main", engine=gate.engine)
    server = Server(settings, open_store(path / "talks.db"))
    async with asyncio.timeout(BOUND_S), serving(app_of(server)) as url, aiohttp.ClientSession() as session:
        yield Client(url, server, session)


@requirement("R160", "R162")
async def test_server_starts_before_engine_and_enqueues_pending_runs(gate: Gate, tmp_path: Path) -> None:
    async with FakeProvider([ResponsesScript().text("At last.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
        async with before(gate, agent, tmp_path) as client:
            body = {"id": "c1", "messages": [user("Is anybody there?")]}
            reading = asyncio.create_task(client.post(body))
            async with aclosing(client.server.store.tail("/c1")) as rows:
                while (await anext(rows)).kind != "run-started":
                    pass
            (listed,) = (await client.json("GET", "/api/runs"))["runs"]
            assert (listed["chat"], listed["driver"]) == ("c1", None)
            assert (await client.chat())["run"]["status"] == "running"
            async with gate.open(), working(tmp_path / "talks.db", gate.engine, agent):
                assert text_of(await reading) == "At last."

                async def is_done() -> bool:
                    stats = await client.json("GET", "/api/engine")
                    return stats["queued"] == stats["running"] == 0

                await eventually(is_done)


@requirement("R160")
async def test_engine_state_is_503_when_engine_refuses_connections(temporal_server: str, tmp_path: Path) -> None:
    nowhere = Gate(temporal_server, is_silent=False)
    with closing(nowhere):
        async with before(nowhere, Agent("openai-responses", api_key="key-0123456789"), tmp_path) as client:
            error = (await client.json("GET", "/api/engine", status=503))["error"]
            assert error["code"] == "engine_unavailable"
            assert (await client.json("GET", "/api/runs"))["runs"] == []

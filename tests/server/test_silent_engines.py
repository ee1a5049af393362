"""A server whose engine cannot be reached: it starts, can be read from, and enqueues its runs once the engine answers."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from postgres import Server as PostgresServer
from requirements import requirement
from server.chat_client import Client, serving, text_of, user
from server.serving import working
from sidestream import Agent
from sidestream.server.app import app_of
from sidestream.server.core import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript
from stores import BOUND_S


class Database:
    """The database of an engine at another address, behind which nobody answers until `connect`."""

    def __init__(self, server: PostgresServer, url: str, folder: Path, *, is_silent: bool) -> None:
        name = f".s.PGSQL.{server.port}"
        self._real, self._path = Path(server.folder) / name, folder / name
        self.engine = f"absurd+{url.replace(server.folder, str(folder))}"
        self._silent: socket.socket | None = None
        if is_silent:  # It accepts connections, and says nothing.
            self._silent = socket.socket(socket.AF_UNIX)
            self._silent.bind(str(self._path))
            self._silent.listen()

    def connect(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)
        self._path.symlink_to(self._real)

    def close(self) -> None:
        if self._silent is not None:
            self._silent.close()


@pytest.fixture(params=["refused", "silent"])
def database(request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_url: str) -> Generator[Database]:
    with tempfile.TemporaryDirectory() as folder:  # Not below tmp_path: the name of a socket is short.
        made = Database(postgres_server, postgres_url, Path(folder), is_silent=request.param == "silent")
        yield made
        made.close()


@asynccontextmanager
async def before(database: Database, agent: Agent[str], path: Path) -> AsyncGenerator[Client]:
    """A client of a server that leaves its runs to the workers of this engine."""
    settings = ServerSettings(agents={"main": agent}, default="main", engine=database.engine)
    server = Server(settings, open_store(path / "talks.db"))
    async with asyncio.timeout(BOUND_S), serving(app_of(server)) as url, aiohttp.ClientSession() as session:
        yield Client(url, server, session)


@requirement("R160", "R162")
async def test_a_server_starts_before_its_engine_and_enqueues_what_was_begun_meanwhile(
    database: Database, tmp_path: Path
) -> None:
    async with FakeProvider([ResponsesScript().text("At last.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
        async with before(database, agent, tmp_path) as client:
            body = {"id": "c1", "messages": [user("Is anybody there?")]}
            reading = asyncio.create_task(client.post(body))
            async with aclosing(client.server.store.tail("/c1")) as rows:
                while (await anext(rows)).kind != "run-started":
                    pass
            (listed,) = (await client.json("GET", "/api/runs"))["runs"]
            assert (listed["chat"], listed["driver"]) == ("c1", None)
            assert (await client.chat())["run"]["status"] == "running"
            database.connect()
            async with working(tmp_path / "talks.db", database.engine, agent):
                assert text_of(await reading) == "At last."
            assert (await client.json("GET", "/api/engine"))["queued"] == 0


@requirement("R160")
async def test_the_state_of_an_engine_that_refuses_is_an_error_that_says_why(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    nowhere = Database(postgres_server, postgres_url, tmp_path, is_silent=False)
    async with before(nowhere, Agent("openai-responses", api_key="key-0123456789"), tmp_path) as client:
        error = (await client.json("GET", "/api/engine", status=503))["error"]
        assert error["code"] == "engine_unavailable"
        assert (await client.json("GET", "/api/runs"))["runs"] == []

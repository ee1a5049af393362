"""Fixtures: an empty store in SQLite and in PostgreSQL."""

import os
import secrets
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from postgres import Server, binaries, shared_server
from sidestream.store import Store, open_store
from stores import Opens

Execute = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A PostgreSQL server, shared by all workers."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    place = tmp_path_factory.getbasetemp()
    with shared_server(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> Generator[str]:
    """The URL of a new schema, which the store will create."""
    import psycopg

    schema = f"test_{secrets.token_hex(6)}"
    url = postgres_server.url("postgres")
    yield f"{url}&schema={schema}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of an empty store; its blobs are in the test's folder too."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if request.param == "sqlite":
        return str(tmp_path / "talks.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def opens(where: str) -> AsyncGenerator[Opens]:
    """Opens the same store repeatedly, as other programs would, and closes all of them at the end."""

    opened: list[Store] = []

    def another() -> Store:
        opened.append(open_store(where))
        return opened[-1]

    yield another
    for store in opened:
        await store.aclose()


@pytest.fixture
def store(opens: Opens) -> Store:
    """An empty store, of each kind."""
    return opens()


@pytest.fixture
def execute(where: str) -> Execute:
    """Runs SQL on another connection; `{}` is the prefix of a table's name."""

    async def run(sql: str) -> None:
        if where.startswith("postgresql"):
            import psycopg

            url, _, schema = where.partition("&schema=")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(sql.format(f"{schema}.").encode())
        else:
            with closing(sqlite3.connect(where, isolation_level=None)) as connection:
                connection.execute(sql.format(""))

    return run

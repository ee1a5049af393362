"""Fixtures: an empty store in SQLite and in PostgreSQL."""

import secrets
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidestream.store import Store, open_store
from support.s3 import environment
from support.stores import Opens

Execute = Callable[[str], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of an empty store; its blobs are in the test's folder, in the database or in a bucket (`-s3`)."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    kind, _, blobs = request.param.partition("-")
    if blobs == "s3":
        for name, value in environment(request.getfixturevalue("s3_endpoint")).items():
            monkeypatch.setenv(name, value)
        blobs = f"s3://talks/{secrets.token_hex(6)}/blobs"
    if kind == "sqlite":
        path = tmp_path / "talks.db"
        return f"sqlite:///{path}?blobs={blobs}" if blobs else str(path)
    url = request.getfixturevalue("postgres_url")
    return f"{url}&blobs={blobs}" if blobs else url


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

            url, _, schema = where.partition("&blobs=")[0].partition("&schema=")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(sql.format(f"{schema}.").encode())
        else:
            with closing(sqlite3.connect(where, isolation_level=None)) as connection:
                connection.execute(sql.format(""))

    return run

"""Stores that were written by older and newer versions."""

import asyncio
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from requirements import requirement
from sidestream.errors import FencedError, NewerSchemaError, StoreError
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.sqlite.store import SqliteStore
from support.postgres import Server, binaries
from support.stores import Opens, digest_of, row, rows

SQLITE = ("ALTER TABLE conversations ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'", "CREATE TABLE moods (name TEXT)")
POSTGRES = (
    "ALTER TABLE {schema}.conversations ADD COLUMN mood text NOT NULL DEFAULT 'good'",
    "CREATE TABLE {schema}.moods (name text)",
)
BROKEN = ("CREATE TABLE {schema}.moods (name text)", "CREATE NONSENSE")


class NewerSqlite(SqliteStore):
    migrations = (*SqliteStore.migrations, SQLITE)


class NewerPostgres(PostgresStore):
    migrations = (*PostgresStore.migrations, POSTGRES)


class NewestPostgres(PostgresStore):
    migrations = (*NewerPostgres.migrations, ("CREATE TABLE {schema}.colours (name text)",))


class BrokenSqlite(SqliteStore):
    migrations = (*SqliteStore.migrations, tuple(statement.replace("{schema}.", "") for statement in BROKEN))


class BrokenPostgres(PostgresStore):
    migrations = (*PostgresStore.migrations, BROKEN)


VERSION = len(SqliteStore.migrations)


def newer(where: str) -> SqliteStore | PostgresStore:
    return NewerPostgres(where) if where.startswith("postgresql") else NewerSqlite(where)


async def migrated(store: SqliteStore | PostgresStore) -> int:
    """What an administrator does before a new version is started; a file is copied and migrated by its first use.

    Returns the version before, or 0 for a file.
    """
    return await store.migrate(None) if isinstance(store, PostgresStore) else 0


@requirement("F35")
async def test_older_store_is_migrated_before_writing(opens: Opens, where: str, execute):
    old = opens()
    await old.append("talk", 0, [row(1, blobs=[digest_of(b"x")]), row(2)], {digest_of(b"x"): b"x"})
    await old.aclose()
    store = newer(where)
    await migrated(store)
    await store.append("talk", 2, rows(3, 3))
    assert [it.seq for it in await store.read("talk")] == [1, 2, 3]
    assert await store.check() == []
    await execute("UPDATE {}conversations SET mood = 'better'")
    await execute("INSERT INTO {}moods VALUES ('better')")
    await store.aclose()


@requirement("F35")
async def test_older_file_is_copied_before_migration_even_for_reading(tmp_path: Path):
    path = tmp_path / "talks.db"
    old = SqliteStore(path)
    await old.append("talk", 0, rows(1, 3))
    store = NewerSqlite(path)
    assert await store.read("talk") == rows(1, 3)
    await store.append("talk", 3, rows(4, 4))

    backup = path.with_name(f"talks.db.v{VERSION}-backup")
    assert backup.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (3,)
    await store.aclose()
    await old.aclose()


@requirement("F35")
async def test_newer_store_is_read_but_not_written(opens: Opens, where: str):
    current = newer(where)
    await current.append("talk", 0, rows(1, 3))
    store = opens()
    assert await store.read("talk") == rows(1, 3)
    assert [info.id for info in await store.conversations()] == ["talk"]
    assert await store.check() == []
    for attempt in (
        store.append("talk", 3, rows(4, 4)),
        store.append("new", 0, rows(1, 1)),
        store.delete("talk"),
        store.check(repair=True),
    ):
        with pytest.raises(NewerSchemaError, match="update Sidestream"):
            await attempt
    assert await current.read("talk") == rows(1, 3)
    await current.append("talk", 3, rows(4, 4))
    assert await store.read("talk") == rows(1, 4)
    await current.aclose()


@requirement("F35")
async def test_open_store_migrated_by_another_process_is_not_written(opens: Opens, where: str):
    old = opens()
    await old.append("talk", 0, rows(1, 1))
    current = newer(where)
    await migrated(current)
    await current.append("talk", 1, rows(2, 2))
    with pytest.raises(NewerSchemaError):
        await old.append("talk", 2, rows(3, 3))
    with pytest.raises(NewerSchemaError):
        await old.append("new", 0, rows(1, 1))
    assert await old.read("talk") == rows(1, 2)
    await current.aclose()


@requirement("F35")
async def test_newer_store_with_other_tables_raises_newer_schema_error(opens: Opens, where: str, execute):
    current = newer(where)
    await current.append("talk", 0, rows(1, 3))
    await execute("ALTER TABLE {}records RENAME TO entries")
    with pytest.raises(NewerSchemaError):
        await opens().read("talk")
    await current.aclose()


@requirement("F35")
async def test_failed_migration_changes_nothing(opens: Opens, where: str):
    old = opens()
    await old.append("talk", 0, rows(1, 3))
    broken = BrokenPostgres(where) if where.startswith("postgresql") else BrokenSqlite(where)
    attempt = broken.migrate(None) if isinstance(broken, PostgresStore) else broken.append("talk", 3, rows(4, 4))
    with pytest.raises(StoreError):
        await attempt
    await broken.aclose()
    await old.append("talk", 3, rows(4, 4))
    assert await old.read("talk") == rows(1, 4)
    assert await old.check() == []


@requirement("F35")
async def test_concurrent_creations_or_migrations_happen_once(opens: Opens, where: str):
    first = [opens() for _ in range(4)]
    await asyncio.gather(*(store.append(f"talk-{n}", 0, rows(1, 2)) for n, store in enumerate(first)))
    assert len(await first[0].conversations()) == 4
    later = [newer(where) for _ in range(4)]
    before = await asyncio.gather(*map(migrated, later))
    if where.startswith("postgresql"):
        assert sorted(before) == [VERSION, VERSION + 1, VERSION + 1, VERSION + 1]
    await asyncio.gather(*(store.append(f"talk-{n}", 2, rows(3, 3)) for n, store in enumerate(later)))
    for n, store in enumerate(later):
        assert await store.read(f"talk-{n}") == rows(1, 3)
        await store.aclose()


@requirement("F35")
async def test_older_schema_is_read_but_not_written_until_migrated(postgres_url: str):
    old, store = PostgresStore(postgres_url), NewerPostgres(postgres_url)
    await old.append("talk", 0, rows(1, 2))
    assert await store.read("talk") == rows(1, 2)
    for attempt in (store.append("talk", 2, rows(3, 3)), store.delete("talk"), store.execute("DELETE FROM {posts}")):
        with pytest.raises(StoreError, match="sidestream logs migrate"):
            await attempt
    await old.append("talk", 2, rows(3, 3))
    assert await store.migrate(None) == VERSION
    assert await store.migrate(None) == VERSION + 1
    await store.append("talk", 3, rows(4, 4))
    with pytest.raises(NewerSchemaError):
        await old.append("talk", 4, rows(5, 5))
    await store.aclose()
    await old.aclose()


@requirement("F35")
async def test_backup_of_older_schema_can_be_restored_with_psql(
    postgres_server: Server, postgres_url: str, tmp_path: Path
):
    old, store = PostgresStore(postgres_url, "database"), NewerPostgres(postgres_url, "database")
    schema, blob = postgres_url.partition("&schema=")[2], bytes(range(256))
    names = ["talk", "tab ü \\N 'quoted'"]
    for name in names:
        await old.append(name, 0, [*rows(1, 2), row(3, blobs=[digest_of(blob)])], {digest_of(blob): blob})
    await old.fence("talk", "token")
    await old.execute("INSERT INTO {posts} (conversation, kind, body) VALUES ('talk', 'stop', '')")
    backup = tmp_path / "backup.sql"
    await store.migrate(backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    newest = NewestPostgres(postgres_url)
    with pytest.raises(StoreError):  # Nothing is overwritten.
        await newest.migrate(backup)
    await newest.aclose()
    await old.aclose()
    await store.aclose()

    programs = binaries()
    assert programs is not None
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE".encode())
    command = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", backup, postgres_server.url("postgres")]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
    restored = PostgresStore(postgres_url, "database")
    for name in names:
        assert await restored.read(name) == [*rows(1, 2), row(3, blobs=[digest_of(blob)])]
    assert await restored.blob(digest_of(blob)) == blob
    assert await restored.check() == []
    with pytest.raises(FencedError):
        await restored.append("talk", 3, rows(4, 4), token="older")
    await restored.append("talk", 3, rows(4, 4), token="token2")
    await restored.execute("INSERT INTO {posts} (conversation, kind, body) VALUES ('talk', 'stop', '')")
    assert len(await restored.execute("SELECT id FROM {posts}")) == 2
    await restored.aclose()


@requirement("F35")
async def test_failed_backup_prevents_migration(postgres_url: str, tmp_path: Path):
    old, store = PostgresStore(postgres_url), NewerPostgres(postgres_url)
    await old.append("talk", 0, rows(1, 2))
    with pytest.raises(StoreError, match="folder"):
        await store.migrate(tmp_path / "missing" / "backup.sql")
    await old.append("talk", 2, rows(3, 3))
    await store.aclose()
    await old.aclose()

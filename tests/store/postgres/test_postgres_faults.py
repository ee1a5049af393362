"""A store in PostgreSQL when the server fails, and the secrets that it must not show."""

import asyncio
import logging
import socket
import traceback
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import psycopg
import pytest

from requirements import requirement
from sidestream.errors import BlobError, ConfigurationError, ConflictError, FencedError, StoreError
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.postgres.store import PostgresStore
from support.postgres import Server, kill_others
from support.stores import BOUND_S, digest_of, next_of, row, rows

CANARY = "c4n4ry-s3cret/pass"
QUOTED = CANARY.replace("/", "%2F")


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture
async def store(postgres_url: str) -> AsyncGenerator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    await store.aclose()


def control(server: Server) -> psycopg.Connection:
    return psycopg.connect(server.url("postgres"), autocommit=True)


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@requirement("F33")
async def test_killed_connection_is_reopened_silently(store: PostgresStore, postgres_server: Server, postgres_url: str):
    schema = postgres_url.partition("&schema=")[2]
    await store.append("talk", 0, rows(1, 1))
    assert await store.read("talk") == rows(1, 1)
    assert await asyncio.to_thread(kill_others, postgres_server, schema) == 2
    await store.append("talk", 1, rows(2, 2))
    assert await store.read("talk") == rows(1, 2)
    assert await asyncio.to_thread(kill_others, postgres_server, schema) == 2
    digest = digest_of(b"x")
    assert await store.read("talk", after=1) == rows(2, 2)
    await store.append("talk", 2, [row(3, blobs=[digest])], {digest: b"x"})
    assert len(await store.read("talk")) == 3


@requirement("F33")
async def test_schema_created_by_another_process_during_read_is_read(store: PostgresStore, postgres_url: str):
    other = PostgresStore(postgres_url)

    class Overtaken(PostgresServer):
        async def refuse_other(self, connection: Connection) -> int:
            await other.append("talk", 0, rows(1, 1))
            return await super().refuse_other(connection)

    store._server = Overtaken(postgres_url, store.migrations)
    try:
        assert await store.read("talk") == rows(1, 1)
    finally:
        await other.aclose()


@requirement("F33")
async def test_tail_continues_without_gap_when_connection_is_killed(
    store: PostgresStore, postgres_server: Server, postgres_url: str
):
    schema = postgres_url.partition("&schema=")[2]
    await store.append("talk", 0, rows(1, 1))
    async with aclosing(store.tail("talk")) as tail:
        assert await next_of(tail, 1) == rows(1, 1)
        for number in range(2, 6):
            waiting = asyncio.create_task(next_of(tail, 1))
            while await asyncio.to_thread(kill_others, postgres_server, f"LISTEN {schema}") == 0:
                assert not waiting.done()
            await store.append("talk", number - 1, rows(number, number))
            assert await waiting == rows(number, number)


@requirement("F33")
async def test_append_committed_before_connection_loss_is_no_conflict(
    store: PostgresStore, postgres_server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The server commits, then its response is lost: the retry finds its own rows."""
    await store.append("talk", 0, rows(1, 1))
    schema = postgres_url.partition("&schema=")[2]
    writing = store._connections.writing
    connection = writing._connection
    assert connection is not None
    original = connection.execute
    is_lost = False

    async def execute(query, *arguments, **options):
        nonlocal is_lost
        result = await original(query, *arguments, **options)
        if "unnest" in query and not is_lost:
            is_lost = True
            await asyncio.to_thread(kill_others, postgres_server, schema)
            await original("SELECT 1")
        return result

    monkeypatch.setattr(connection, "execute", execute)
    await store.append("talk", 1, rows(2, 3))
    assert is_lost
    assert await store.read("talk") == rows(1, 3)


@requirement("F33", "F34")
async def test_appends_sharing_transaction_succeed_or_fail_separately(
    store: PostgresStore, postgres_server: Server, postgres_url: str
):
    """Conflicts, fences, missing blobs, new conversations, bytes that are no text, and a lock of somebody else."""
    schema = postgres_url.partition("&schema=")[2]
    for name in ("good", "conflict", "fenced", "locked"):
        await store.append(name, 0, rows(1, 1))
    await store.fence("fenced", "b")
    assert store._connections.writing._connection is not None
    await store._connections.writing._connection.execute("SET lock_timeout = '50ms'")
    blob = digest_of(b"blob")
    with control(postgres_server) as connection, connection.transaction():
        connection.execute(f"SELECT FROM {schema}.conversations WHERE id = 'locked' FOR UPDATE".encode())
        outcomes = await asyncio.gather(
            store.append("first", 0, rows(1, 1)),  # It is written alone, while the others gather.
            store.append("good", 1, rows(2, 3)),
            store.append("conflict", 0, rows(1, 1)),
            store.append("fenced", 1, rows(2, 2), token="a"),
            store.append("locked", 1, rows(2, 2)),
            store.append("missing", 0, [row(1, blobs=[digest_of(b"never stored")])]),
            store.append("blob", 0, [row(1, blobs=[blob])], {blob: b"blob"}),
            store.append("nul", 0, [row(1, run="a\0b")]),
            store.append("good", 3, rows(4, 4)),
            store.append("new", 0, rows(1, 2)),
            return_exceptions=True,
        )
    found = [type(each) for each in outcomes]
    none = type(None)
    assert found == [
        *[none, none, ConflictError, FencedError, StoreError, BlobError, none, StoreError, none, none],
    ]
    assert await store.read("good") == rows(1, 4)
    assert await store.read("new") == rows(1, 2)
    assert await store.blob(blob) == b"blob"
    assert [await store.read(name) for name in ("conflict", "fenced", "locked")] == [rows(1, 1)] * 3
    assert [await store.read(name) for name in ("missing", "nul")] == [[], []]
    assert await store.check() == []


@requirement("F33")
async def test_active_appends_survive_connection_loss(store: PostgresStore, postgres_server: Server, postgres_url: str):
    schema, count = postgres_url.partition("&schema=")[2], 100
    await store.append("talk", 0, rows(1, 1))
    for seq in range(1, 6):
        appends = [asyncio.create_task(store.append(f"talk-{n}", seq - 1, rows(seq, seq))) for n in range(count)]
        await asyncio.to_thread(kill_others, postgres_server, schema)
        await asyncio.gather(*appends)
    assert [await store.read(f"talk-{n}") for n in range(count)] == [rows(1, 5)] * count


@requirement("F33")
async def test_unreachable_server_is_reported_with_its_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        store = PostgresStore(f"postgresql://someone:{QUOTED}@127.0.0.1:{unused.getsockname()[1]}/talks")
        for attempt in (
            store.append("talk", 0, rows(1, 1)),
            store.read("talk"),
            store.check(),
            anext(store.tail("talk")),
        ):
            with pytest.raises(StoreError) as caught:
                await attempt
            assert "127.0.0.1" in str(caught.value)
            assert CANARY not in text_of(caught.value)
        await store.aclose()


@requirement("F33")
@pytest.mark.parametrize(
    ("user", "password", "database", "words"),
    [
        ("sidestream_user", CANARY + "x", "postgres", "password"),
        ("sidestream_user", CANARY, "nowhere", "database"),
        ("unknown_user", CANARY, "postgres", "password"),
    ],
)
async def test_wrong_credentials_are_reported_without_password(
    postgres_server: Server, user: str, password: str, database: str, words: str, caplog: pytest.LogCaptureFixture
):
    with control(postgres_server) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = 'sidestream_user'").rowcount:
            connection.execute(f"CREATE ROLE sidestream_user LOGIN PASSWORD '{CANARY}'".encode())
    store = PostgresStore(postgres_server.tcp_url(database, user, password.replace("/", "%2F")))
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match=words) as caught:
        await store.read("talk")
    for text in (text_of(caught.value), repr(store), str(store.blobs), caplog.text):
        assert CANARY not in text
        assert QUOTED not in text
    await store.aclose()


@requirement("F33")
async def test_missing_rights_are_reported(postgres_server: Server, postgres_url: str, store: PostgresStore):
    schema = postgres_url.partition("&schema=")[2]
    await store.append("talk", 0, rows(1, 1))
    reader = f"reader_{schema}"
    with control(postgres_server) as connection:
        connection.execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'unimportant'".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {reader}".encode())
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}".encode())
    other = PostgresStore(postgres_server.tcp_url("postgres", reader, "unimportant") + f"?schema={schema}")
    assert await other.read("talk") == rows(1, 1)
    assert await other.check() == []
    with pytest.raises(StoreError, match="rights"):
        await other.append("talk", 1, rows(2, 2))
    await other.aclose()
    with control(postgres_server) as connection:
        connection.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}".encode())


@requirement("F33")
async def test_locked_conversation_raises_error(postgres_server: Server, postgres_url: str, store: PostgresStore):
    await store.append("talk", 0, rows(1, 1))
    schema = postgres_url.partition("&schema=")[2]
    assert store._connections.writing._connection is not None
    await store._connections.writing._connection.execute("SET lock_timeout = '50ms'")
    with control(postgres_server) as connection, connection.transaction():
        connection.execute(f"SELECT FROM {schema}.conversations FOR UPDATE".encode())
        with pytest.raises(StoreError, match="another process"):
            await store.append("talk", 1, rows(2, 2))
        await store.append("other", 0, rows(1, 1))
    await store.append("talk", 1, rows(2, 2))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{QUOTED}@host:noport/db",
        f"postgresql://user:{QUOTED}@host/db?nonsense=1",
        f"postgresql://user:{CANARY}@host/db",
        f"postgresql://user:12/{CANARY}@host/db",
        f"postgresql://user:{QUOTED}@[::1/db",
        f"postgresql://user:{QUOTED}@host/db?schema=No-Such;Name",
    ],
)
def test_invalid_url_is_rejected_without_being_shown(url: str):
    with pytest.raises(ConfigurationError) as caught:
        PostgresStore(url)
    assert CANARY not in text_of(caught.value)
    assert QUOTED not in text_of(caught.value)


def test_names_of_store_and_blobs_omit_password():
    for url in (f"postgresql://user:{QUOTED}@host/db", f"postgresql://host/db?user=user&password={QUOTED}"):
        store = PostgresStore(url)
        assert repr(store) == "PostgresStore('postgresql://user@host/db')"
        assert store.blobs.path.name == "host-db-sidestream"


def connections_of(server: Server, schema: str) -> list[str]:
    """The last query of each connection that used the schema."""
    with control(server) as connection:
        query = "SELECT query FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid() ORDER BY query"
        return [text for (text,) in connection.execute(query, (f"%{schema}%",)).fetchall()]


async def test_appends_and_reads_share_two_connections(
    store: PostgresStore, postgres_server: Server, postgres_url: str
):
    schema = postgres_url.partition("&schema=")[2]
    await asyncio.gather(*(store.append(f"talk-{n}", 0, rows(1, 2)) for n in range(20)))
    await asyncio.gather(*(store.read(f"talk-{n}") for n in range(20)))
    assert len(connections_of(postgres_server, schema)) == 2


@requirement("F33")
async def test_hundreds_of_tails_share_one_listening_connection(
    store: PostgresStore, postgres_server: Server, postgres_url: str
):
    """More than twice as many as the server has connections; it is killed in between."""
    schema, count = postgres_url.partition("&schema=")[2], 500
    names = [f"talk-{n}" for n in range(count)]
    async with AsyncExitStack() as stack:
        tails = [await stack.enter_async_context(aclosing(store.tail(name))) for name in names]
        topics = [await stack.enter_async_context(aclosing(store.changes("topic"))) for _ in range(20)]
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(*map(anext, topics))
        for seq in (1, 2):
            waiting = [asyncio.create_task(next_of(tail, 1)) for tail in tails]
            changed = [asyncio.create_task(anext(topic)) for topic in topics]
            await asyncio.gather(*(store.append(name, seq - 1, rows(seq, seq)) for name in names))
            assert await asyncio.gather(*waiting) == [rows(seq, seq)] * count
            await store.execute("DELETE FROM {posts}", notify="topic")
            async with asyncio.timeout(BOUND_S):
                await asyncio.gather(*changed)
            listening = [query for query in connections_of(postgres_server, schema) if query.startswith("LISTEN")]
            assert len(listening) == 1
            assert await asyncio.to_thread(kill_others, postgres_server, f"LISTEN {schema}") == 1
    async with asyncio.timeout(BOUND_S):
        while any("LISTEN" in query for query in await asyncio.to_thread(connections_of, postgres_server, schema)):
            pass


async def test_change_is_reported_once(store: PostgresStore):
    await store.append("talk", 0, rows(1, 1))
    async with aclosing(store.changes("topic")) as changes:
        async with asyncio.timeout(BOUND_S):
            await anext(changes)
            await store.execute("DELETE FROM {posts}", notify="topic")
            await anext(changes)
        another = asyncio.create_task(anext(changes))
        for seq in range(2, 22):
            await store.append("talk", seq - 1, rows(seq, seq))
        assert not another.done()
        await store.execute("DELETE FROM {posts}", notify="topic")
        async with asyncio.timeout(BOUND_S):
            await another


async def test_unused_channel_is_unsubscribed(store: PostgresStore, postgres_server: Server, postgres_url: str):
    schema = postgres_url.partition("&schema=")[2]
    await store.append("talk", 0, rows(1, 1))
    async with aclosing(store.tail("talk")) as tail:
        assert await next_of(tail, 1) == rows(1, 1)
        for _ in range(3):
            async with aclosing(store.changes("topic")) as changes:
                await anext(changes)
                assert f"LISTEN {schema}_topic" in connections_of(postgres_server, schema)
            waiting = asyncio.create_task(next_of(tail, 1))
            async with asyncio.timeout(BOUND_S):
                while f"UNLISTEN {schema}_topic" not in await asyncio.to_thread(
                    connections_of, postgres_server, schema
                ):
                    pass
            head = len(await store.read("talk"))
            await store.append("talk", head, rows(head + 1, head + 1))
            assert await waiting == rows(head + 1, head + 1)

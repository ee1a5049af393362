"""A store in PostgreSQL 15 or newer, with psycopg 3, and its check and repair."""

import asyncio
import os
import re
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, ClassVar, LiteralString

from psycopg.errors import DataCorrupted, IndexCorrupted

from sidestream.errors import StoreError
from sidestream.files.folders import data_folder
from sidestream.store.audit import Audit, audit_blob, orphan
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.database import PAGE, DatabaseStore, Migration, ended_runs_query, list_query, rows_of
from sidestream.store.ids import check_id
from sidestream.store.postgres.blob_table import BlobTable
from sidestream.store.postgres.connections import HEARTBEAT_S, LoopConnections
from sidestream.store.postgres.serial import allow_blobs
from sidestream.store.postgres.server import MIGRATIONS, Connection, PostgresServer, migrate
from sidestream.store.protocol import Append, StoreProblem
from sidestream.store.records import Row
from sidestream.store.threads import completed
from sidestream.text.redaction import Secret

_CHECKED_ROWS = 1000
_LIST = "SELECT id FROM {schema}.conversations ORDER BY id"
_HEAD = "SELECT head FROM {schema}.conversations WHERE id = %s"
_ROWS = (
    "SELECT seq, time, run, kind, body, array_to_string(blobs, ' ') FROM {schema}.records "
    f"WHERE conversation = %s AND seq > %s ORDER BY seq LIMIT {_CHECKED_ROWS}"
)
_BLOBS = (
    "SELECT digest, min(conversation) FROM {schema}.records, unnest(blobs) AS digest WHERE blobs <> '{{}}' "
    "GROUP BY digest"
)
_DELETE_ROWS = "DELETE FROM {schema}.records WHERE conversation = %s AND seq > %s"
_UPDATE_HEAD = "UPDATE {schema}.conversations SET head = %s, last = %s WHERE id = %s"
_DELETE = "DELETE FROM {schema}.conversations WHERE id = %s"


async def check(
    server: PostgresServer, connection: Connection, blobs: BlobStore, *, repair: bool
) -> list[StoreProblem]:
    """Return all problems of records, and of the blobs they refer to."""
    if not (await server.refuse_newer(connection) if repair else await server.version_of(connection)):
        return []
    try:
        found = await _check_records(server, connection, repair=repair)
        named = await (await connection.execute(server.sql(_BLOBS))).fetchall()
    except (DataCorrupted, IndexCorrupted) as error:
        message = f"{server.name}: {error}; restore the database from a backup"
        return [StoreProblem(kind="damaged", message=message)]
    for digest, conversation in named:
        problem = await asyncio.to_thread(audit_blob, blobs, digest, conversation, repair=repair)
        found += [problem] if problem else []
    return found


async def _check_records(server: PostgresServer, connection: Connection, *, repair: bool) -> list[StoreProblem]:
    found: list[StoreProblem] = []
    for (name,) in await (await connection.execute(server.sql(_LIST))).fetchall():
        # One transaction each, so that appends wait during a repair and are not seen by a check.
        async with connection.transaction():
            if not repair:
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            audit = await _audit(server, connection, name, repair=repair)
            if audit.problems and repair:
                await _truncate(server, connection, audit)
        found += audit.repaired() if repair else audit.problems
    return found


async def _audit(server: PostgresServer, connection: Connection, name: str, *, repair: bool) -> Audit:
    row = await (await connection.execute(server.sql(_HEAD + (" FOR UPDATE" if repair else "")), (name,))).fetchone()
    audit = Audit(name, row[0] if row else 0)
    last = 0
    while rows := rows_of(await (await connection.execute(server.sql(_ROWS), (name, last))).fetchall()):
        for each in rows:
            audit.feed(each)
        last = rows[-1].seq
    audit.close()
    return audit


async def _truncate(server: PostgresServer, connection: Connection, audit: Audit) -> None:
    name = audit.conversation
    await connection.execute(server.sql(_DELETE_ROWS), (name, audit.intact))
    if audit.intact:
        await connection.execute(server.sql(_UPDATE_HEAD), (audit.intact, audit.last_kind, name))
    else:
        await connection.execute(server.sql(_DELETE), (name,))


RECONNECT_DELAYS_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each attempt of `tail` to reconnect, long enough for a server to restart."""

IN_DATABASE = "database"
"""Blob location that means tables of the database instead of a folder or a bucket."""

_WORDS = {name: f"{{schema}}.{name}" for name in ("conversations", "records", "tasks", "posts")} | {
    "now": "extract(epoch FROM clock_timestamp())::float8",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
}
_MARK = re.compile(r"(?<!:):(\w+)")
_NAMES = {
    "table": "{schema}.conversations",
    "records": "{schema}.records",
    "body": "convert_from(body, 'UTF8')",
    "like": "ILIKE",
}
_FIND_RUN = (
    "SELECT conversation, seq FROM {schema}.records WHERE run = %s AND kind = 'run-started' ORDER BY seq LIMIT 1"
)
_REFERS_TO = (
    "SELECT 1 FROM {schema}.records WHERE blobs @> ARRAY[%s] AND blobs <> '{{}}' "
    "AND conversation >= %s AND conversation < %s LIMIT 1"
)
_SELECT_ROWS = (
    "SELECT seq, time, run, kind, body, array_to_string(blobs, ' ') FROM {schema}.records "
    "WHERE conversation = %s AND seq > %s ORDER BY seq"
)
_SELECT_NAMED = "SELECT DISTINCT unnest(blobs) FROM {schema}.records WHERE conversation = ANY(%s) AND blobs <> '{{}}'"
_SELECT_ORPHANS = (
    "SELECT digest FROM unnest(%s::text[]) AS digest WHERE NOT EXISTS "
    "(SELECT FROM {schema}.records WHERE blobs @> ARRAY[digest] AND blobs <> '{{}}')"
)


class PostgresStore(DatabaseStore):
    """Conversations in a schema of the database at `postgresql://user@host/database`.

    `?schema=` in the URL selects another schema. `blobs`, or `?blobs=` in the URL, sets where blobs are stored: a
    folder (by default in the platform's data folder, which several machines must share), `s3://bucket/prefix`, or
    `database` for tables of the schema.
    """

    migrations: ClassVar[tuple[Migration, ...]] = MIGRATIONS

    def __init__(self, url: str, blobs: str | os.PathLike[str] | BlobStore | None = None) -> None:
        self.url = url = Secret(url)  # in the locals of a traceback, too
        """URL, which may hold a password."""
        self._server = PostgresServer(url, self.migrations)
        chosen = blobs or self._server.options.get("blobs") or _default_folder(self._server)
        super().__init__(self._server.name, BlobTable(self._server) if chosen == IN_DATABASE else chosen)
        self._connections = LoopConnections(self._server, self.blobs)
        self._has_tables = False
        # Close the connections of a store that is dropped without being closed.
        weakref.finalize(self, self._connections.drop)
        weakref.finalize(self, self.blobs.close)

    @property
    def identity(self) -> str:
        """A name that two stores share if they hold the same conversations."""
        return f"{self._server.name}?schema={self._server.schema}"

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after a sequence number, in order."""
        check_id(conversation)
        return rows_of(await self._select(_SELECT_ROWS, (conversation, after)))

    async def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """Yield the rows after a sequence number, then each new one as it is written."""
        check_id(conversation)

        async def read() -> list[Row]:
            self._check_open()
            return await self._connections.pages.read(conversation, after)

        async with aclosing(self._watch(self._server.channel, conversation, read)) as pages:
            async for rows in pages:
                for row in rows:
                    yield row
                    after = row.seq

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """Return the problems of the store. `repair` fixes those that can be fixed."""
        self._check_open()
        chosen = self._connections.writing if repair else self._connections.reading

        async def work(connection: Connection, _: bool) -> list[StoreProblem]:
            return await check(self._server, connection, self.blobs, repair=repair)

        found = await chosen.do(work)
        for shard in await asyncio.to_thread(self.blobs.shards):
            old = await asyncio.to_thread(self.blobs.old, shard)
            if repair:
                orphans = await self._collect(old)
            else:
                orphans = [digest for (digest,) in await self._select(_SELECT_ORPHANS, (old,))]
            found += [orphan(digest, is_removed=repair) for digest in orphans]
        if repair:
            await asyncio.to_thread(self.blobs.sweep)
        return found

    async def migrate(self, backup: Path | None) -> int:
        """Migrate an older schema, after a backup in a new file, and return its previous version.

        Migration is never automatic. Until then, reads work as far as possible, and writes are refused.
        """
        self._check_open()

        async def work(connection: Connection, _: bool) -> int:
            return await migrate(self._server, connection, backup)

        # Not the connection for writing, which refuses an older schema.
        return await self._connections.reading.do(work)

    async def aclose(self) -> None:
        """Close the store after its pending writes."""
        self._is_closed = True
        await self._connections.aclose()
        await asyncio.to_thread(self.blobs.close)

    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in a separate transaction, and return its rows.

        `notify` wakes those who wait for a topic.
        """
        statement = _MARK.sub(r"%(\1)s", sql).format_map(_WORDS)
        if sql.startswith("SELECT "):
            return await self._select(statement, values or {})
        self._check_open()
        query = self._server.sql(statement)

        async def work(connection: Connection, _: bool) -> list[tuple[Any, ...]]:
            await self._server.refuse_newer(connection)
            if notify is None:  # A statement alone is a transaction: a process that stops here holds no lock.
                return await _fetched(connection, query, values or {})
            async with connection.transaction():
                found = await _fetched(connection, query, values or {})
                await connection.execute("SELECT pg_notify(%s, '')", (self._server.topic(notify),))
            return found

        return await completed(asyncio.ensure_future(self._connections.writing.do(work)))

    async def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yield at once, then whenever something in this topic may have changed, indefinitely."""

        async def read() -> list[Row]:
            self._check_open()
            return []

        async with aclosing(self._watch(self._server.topic(topic), "", read)) as pages:
            async for _ in pages:
                yield

    async def _append(self, append: Append) -> None:
        await self._connections.appends.add(append)

    async def _delete(self, conversation: str) -> list[str] | None:
        named_sql = self._server.sql("SELECT DISTINCT unnest(blobs) FROM {schema}.records WHERE conversation = %s")
        delete_sql = self._server.sql("DELETE FROM {schema}.conversations WHERE id = %s")

        async def work(connection: Connection, _: bool) -> list[str] | None:
            await self._server.refuse_newer(connection)
            named = await (await connection.execute(named_sql, (conversation,))).fetchall()
            is_deleted = (await connection.execute(delete_sql, (conversation,))).rowcount > 0
            return [digest for (digest,) in named] if is_deleted else None

        return await completed(asyncio.ensure_future(self._connections.writing.do(work)))

    async def _delete_all(self, conversations: Sequence[str], before: float) -> tuple[int, list[str]]:
        chosen = list(conversations)
        named_sql = self._server.sql(_SELECT_NAMED)
        # Skip locked rows, which are left for a later deletion, so that neither side waits long.
        delete_sql = self._server.sql(
            "DELETE FROM {schema}.conversations WHERE id IN (SELECT id FROM {schema}.conversations "
            "WHERE id = ANY(%s) AND updated < %s ORDER BY id FOR UPDATE SKIP LOCKED)"
        )

        async def work(connection: Connection, _: bool) -> tuple[int, list[str]]:
            await self._server.refuse_newer(connection)
            async with connection.transaction():
                named = await (await connection.execute(named_sql, (chosen,))).fetchall()
                deleted = (await connection.execute(delete_sql, (chosen, before))).rowcount
            return deleted, [digest for (digest,) in named]

        return await completed(asyncio.ensure_future(self._connections.writing.do(work)))

    async def _list(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return await self._select(list_query(values, "%({})s", _NAMES), values)

    async def _ended_runs(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return await self._select(ended_runs_query(values, "%({})s", _NAMES), values)

    async def _find_run(self, run: str) -> list[tuple[Any, ...]]:
        return await self._select(_FIND_RUN, (run,))

    async def _refers_to(self, digest: str, first: str, last: str) -> list[tuple[Any, ...]]:
        return await self._select(_REFERS_TO, (digest, first, last))

    async def _select(self, sql: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        self._check_open()

        async def work(connection: Connection, _: bool) -> list[tuple[Any, ...]]:
            return await self._server.select(connection, sql, values)

        return await self._connections.reading.do(work)

    async def _remove_orphans(self, candidates: Sequence[str]) -> list[str]:
        async def work(connection: Connection, _: bool) -> list[str]:
            async with connection.transaction():
                await allow_blobs(connection)
                # Lock, so that no reference is added meanwhile.
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._server.lock_key,))
                found = await connection.execute(self._server.sql(_SELECT_ORPHANS), (list(candidates),))
                orphans = [digest for (digest,) in await found.fetchall()]
                await asyncio.to_thread(self.blobs.remove, orphans)
            return orphans

        return await self._connections.writing.do(work)

    async def _put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        if isinstance(self.blobs, BlobTable) and not self._has_tables:
            await self._connections.writing.do(_nothing)  # Connecting to write creates the tables.
            self._has_tables = True
        await super()._put_blobs(blobs)

    async def _watch(
        self, channel: str, name: str, read: Callable[[], Awaitable[list[Row]]]
    ) -> AsyncGenerator[list[Row]]:
        """Yield what `read` returns, at first and after each notification for this name, reconnecting if needed."""
        listener = self._connections.listener
        failures: int | None = None  # Failures since the last success; None before the first, when an error is final.
        with listener.subscribed(channel, name) as changed:
            while True:
                try:
                    self._check_open()
                    await listener.listen(channel)
                    changed.clear()
                    # Read while the channel is live, so that nothing is missed.
                    found = await read()
                    failures = 0
                    yield found
                    if len(found) < PAGE:
                        await _wait(changed)
                    continue
                except StoreError:
                    if failures is None or failures == len(RECONNECT_DELAYS_S) or self._is_closed:
                        raise
                    failures += 1
                await asyncio.sleep(RECONNECT_DELAYS_S[failures - 1])


async def _fetched(connection: Connection, query: LiteralString, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query, values)
    return await cursor.fetchall() if cursor.description is not None else []


async def _nothing(_: Connection, __: bool) -> None:
    """Do no work, for callers that only need a connection."""


async def _wait(changed: asyncio.Event) -> None:
    """Wait until the event is set, or for the time of a heartbeat."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARTBEAT_S):
            await changed.wait()


def _default_folder(server: PostgresServer) -> Path:
    name = re.sub(r"[^\w.-]+", "-", server.name.partition("@")[2] or server.name.partition("//")[2])
    return data_folder() / "blobs" / f"{name}-{server.schema}"

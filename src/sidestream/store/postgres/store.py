"""A store in PostgreSQL 15 or newer, by psycopg 3."""

import asyncio
import os
import re
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import structs

from sidestream.errors import ConflictError, StoreError
from sidestream.folders import data_folder
from sidestream.store.audit import orphan
from sidestream.store.blobs import BlobFolder
from sidestream.store.postgres.check import check
from sidestream.store.postgres.connections import Lanes
from sidestream.store.postgres.server import MIGRATIONS, Migration, PostgresServer
from sidestream.store.protocol import ConversationInfo, StoreProblem
from sidestream.store.records import Row
from sidestream.store.summary import check_id, check_rows, summarize
from sidestream.store.threads import to_the_end

if TYPE_CHECKING:
    from sidestream.store.postgres.server import Connection

PAGE = 256
"""Rows that `tail` holds at once."""
HEARTBEAT_S = 30.0
"""After so long without news `tail` looks for itself: a connection can die without a word."""
PAUSES_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Before each try of `tail` to listen again, after its connection broke."""

_BEGIN = (
    "INSERT INTO {schema}.conversations (id, head, created, updated, title, model, last) SELECT %(id)s, %(head)s, "
    "%(created)s, %(updated)s, %(title)s, %(model)s, %(last)s FROM {schema}.version WHERE version = %(version)s "
    "ON CONFLICT DO NOTHING"
)
_GO_ON = (
    "UPDATE {schema}.conversations SET head = %(head)s, updated = %(updated)s, "
    "title = CASE title WHEN '' THEN %(title)s ELSE title END, model = coalesce(nullif(%(model)s, ''), model), "
    "last = %(last)s WHERE id = %(id)s AND head = %(after)s "
    "AND EXISTS (SELECT FROM {schema}.version WHERE version = %(version)s)"
)
# One statement, so that an append is one message to the server and one back.
_APPEND = (
    " RETURNING id), written AS (INSERT INTO {schema}.records (conversation, seq, time, run, kind, body, blobs) "
    "SELECT id, seq, time, run, kind, body, string_to_array(blobs, ' ') FROM head, unnest(%(seqs)s::bigint[], "
    "%(times)s::float8[], %(runs)s::text[], %(kinds)s::text[], %(bodies)s::bytea[], %(blobs)s::text[]) "
    "AS row (seq, time, run, kind, body, blobs)) SELECT pg_notify(%(channel)s, id) FROM head"
)
_ROWS = (
    "SELECT seq, time, run, kind, body, blobs FROM {schema}.records WHERE conversation = %s AND seq > %s "
    "ORDER BY seq LIMIT %s"
)
# All that changed at the last moment of a page belong to it, so that the next page, which begins before that moment,
# leaves nobody out.
_LIST = (
    "SELECT id, head, created, updated, title, model, last FROM {schema}.conversations WHERE updated < %(before)s "
    "AND updated >= coalesce((SELECT updated FROM {schema}.conversations WHERE updated < %(before)s "
    "ORDER BY updated DESC LIMIT 1 OFFSET %(skip)s), '-Infinity') ORDER BY updated DESC, id"
)
_UNNAMED = (
    "SELECT digest FROM unnest(%s::text[]) AS digest WHERE NOT EXISTS "
    "(SELECT FROM {schema}.records WHERE blobs @> ARRAY[digest] AND blobs <> '{{}}')"
)


class PostgresStore:
    """Conversations in a schema of a database: `postgresql://user@host/database`, `?schema=` for another schema.

    Blobs are files here too: in the folder that is given, or in the platform's data folder. Machines that share the
    database must share that folder.
    """

    migrations: ClassVar[tuple[Migration, ...]] = MIGRATIONS

    def __init__(self, url: str, blobs: str | os.PathLike[str] | BlobFolder | None = None) -> None:
        self._server = PostgresServer(url, self.migrations)
        folder = _folder(self._server) if blobs is None else blobs
        self.blobs = folder if isinstance(folder, BlobFolder) else BlobFolder(folder)
        self._lanes = Lanes(self._server)
        self._tails = 0
        self._is_closed = False
        # A store that is dropped without being closed leaves no connections.
        weakref.finalize(self, self._lanes.drop)

    def __repr__(self) -> str:
        return f"PostgresStore({self._server.name!r})"

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Adds rows, all or none; once handed over, they are written even if the caller is cancelled."""
        check_rows(conversation, after, rows)
        self._check_open()
        if not rows:
            return
        if blobs:
            await asyncio.to_thread(self.blobs.put_all, blobs)
        await to_the_end(asyncio.ensure_future(self._append(conversation, after, rows, blobs or {})))

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number, in order."""
        return await self._page(conversation, after, None)

    async def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then every new one as it comes."""
        check_id(conversation)
        failures: int | None = None  # Since it last worked; what never worked is not tried again.
        while True:
            try:
                async with self._listening() as connection:
                    while True:
                        # Read after listening, so that nothing falls between.
                        rows = await self._page(conversation, after, PAGE)
                        failures = 0
                        for row in rows:
                            yield row
                            after = row.seq
                        if len(rows) < PAGE:
                            await self._hear(connection, conversation)
            except StoreError:
                if failures is None or failures == len(PAUSES_S) or self._is_closed:
                    raise
                failures += 1
            await asyncio.sleep(PAUSES_S[failures - 1])

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest, verified."""
        return await asyncio.to_thread(self.blobs.read, digest)

    async def conversations(self, limit: int = 100, before: float | None = None) -> list[ConversationInfo]:
        """The conversations, the one that changed last first; those of the same moment stand on one page."""
        if limit < 1:
            return []
        values = {"before": float("inf") if before is None else before, "skip": limit - 1}
        fields = ConversationInfo.__struct_fields__
        found = await self._select(_LIST, values)
        return [ConversationInfo(**dict(zip(fields, values, strict=True))) for values in found]

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation; False where there was none."""
        check_id(conversation)
        self._check_open()

        async def work(connection: "Connection", _: bool) -> bool:
            await self._server.refuse_newer(connection)
            sql = self._server.sql("DELETE FROM {schema}.conversations WHERE id = %s")
            return (await connection.execute(sql, (conversation,))).rowcount > 0

        return await to_the_end(asyncio.ensure_future(self._lanes.writing.do(work)))

    async def collect(self) -> int:
        """Removes blobs that no record names, and what broken writes left; returns how many."""
        self._check_open()
        removed = await asyncio.to_thread(self.blobs.sweep)
        for shelf in await asyncio.to_thread(self.blobs.shelves):
            removed += len(await self._collect(shelf))
        return removed

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """What is wrong with the store; with `repair`, what can be mended is."""
        self._check_open()
        lane = self._lanes.writing if repair else self._lanes.reading

        async def work(connection: "Connection", _: bool) -> list[StoreProblem]:
            return await check(self._server, connection, self.blobs, repair=repair)

        found = await lane.do(work)
        for shelf in await asyncio.to_thread(self.blobs.shelves):
            if repair:
                unnamed = await self._collect(shelf)
            else:
                old = await asyncio.to_thread(self.blobs.old, shelf)
                unnamed = [digest for (digest,) in await self._select(_UNNAMED, (old,))]
            found += [orphan(digest, is_removed=repair) for digest in unnamed]
        if repair:
            await asyncio.to_thread(self.blobs.sweep)
        return found

    async def aclose(self) -> None:
        """Closes it once everything handed over is written."""
        was_closed, self._is_closed = self._is_closed, True
        if not was_closed and self._tails:

            async def wake(connection: "Connection", _: bool) -> None:
                await connection.execute("SELECT pg_notify(%s, '')", (self._server.channel,))

            # Those who listen wake up and find it closed, so it is closed before they do.
            with suppress(StoreError):
                await self._lanes.writing.do(wake)
        await self._lanes.aclose()

    async def _append(self, conversation: str, after: int, rows: Sequence[Row], blobs: Mapping[str, bytes]) -> None:
        digests = {digest for row in rows for digest in row.blobs}
        sql = self._server.sql("WITH head AS (" + (_GO_ON if after else _BEGIN) + _APPEND)
        values = self._values(conversation, after, rows, blobs)

        async def work(connection: "Connection", is_again: bool) -> None:
            if digests:
                # The lock, so that nobody collects them before the references stand.
                async with connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (self._server.lock_key,))
                    await asyncio.to_thread(self.blobs.ensure, digests, blobs)
                    is_written = (await connection.execute(sql, values)).rowcount
            else:
                is_written = (await connection.execute(sql, values)).rowcount
            if is_written:
                return
            await self._server.refuse_newer(connection)
            # The connection may have broken after the server had written them.
            if is_again and await self._is_there(connection, conversation, after, rows):
                return
            raise ConflictError(conversation)

        await self._lanes.writing.do(work)

    def _values(
        self, conversation: str, after: int, rows: Sequence[Row], blobs: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        return structs.asdict(summarize(rows, blobs)) | {
            "id": conversation,
            "after": after,
            "version": self._server.version,
            "channel": self._server.channel,
            "seqs": [row.seq for row in rows],
            "times": [row.time for row in rows],
            "runs": [row.run for row in rows],
            "kinds": [row.kind for row in rows],
            "bodies": [row.body for row in rows],
            "blobs": [" ".join(row.blobs) for row in rows],
        }

    async def _is_there(self, connection: "Connection", conversation: str, after: int, rows: Sequence[Row]) -> bool:
        found = await connection.execute(self._server.sql(_ROWS), (conversation, after, None))
        return _rows(await found.fetchall()) == list(rows)

    async def _page(self, conversation: str, after: int, limit: int | None) -> list[Row]:
        check_id(conversation)
        return _rows(await self._select(_ROWS, (conversation, after, limit)))

    async def _select(self, sql: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of a query; none where nothing was ever stored."""
        self._check_open()
        statement = self._server.sql(sql)

        async def work(connection: "Connection", _: bool) -> list[tuple[Any, ...]]:
            import psycopg.errors as refusals

            try:
                return await (await connection.execute(statement, values)).fetchall()
            except (refusals.UndefinedTable, refusals.UndefinedColumn, refusals.InvalidSchemaName):
                if not await self._server.refuse_newer(connection):
                    return []
            await self._server.bring_up_to_date(connection)
            return await (await connection.execute(statement, values)).fetchall()

        return await self._lanes.reading.do(work)

    async def _collect(self, shelf: str) -> list[str]:
        """Removes the old blobs of a shelf that no record names; returns their digests."""

        async def work(connection: "Connection", _: bool) -> list[str]:
            async with connection.transaction():
                # Nobody can begin to refer to a blob meanwhile.
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._server.lock_key,))
                old = await asyncio.to_thread(self.blobs.old, shelf)
                found = await connection.execute(self._server.sql(_UNNAMED), (old,))
                unnamed = [digest for (digest,) in await found.fetchall()]
                for digest in unnamed:
                    await asyncio.to_thread(self.blobs.remove, digest)
            return unnamed

        return await self._lanes.writing.do(work)

    @asynccontextmanager
    async def _listening(self) -> "AsyncGenerator[Connection]":
        self._check_open()
        connection = await self._server.connect()
        self._tails += 1
        try:
            with self._server.errors():
                await connection.execute(self._server.sql("LISTEN " + self._server.channel))
            yield connection
        finally:
            self._tails -= 1
            await connection.close()

    async def _hear(self, connection: "Connection", conversation: str) -> None:
        """Until there may be news of the conversation."""
        with self._server.errors():
            async with aclosing(connection.notifies(timeout=HEARTBEAT_S)) as notes:
                async for note in notes:
                    if note.payload in (conversation, ""):
                        return

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self._server.name} is closed; open it again")


def _rows(found: Sequence[tuple[Any, ...]]) -> list[Row]:
    return [
        Row(seq=seq, time=time, run=run, kind=kind, body=body, blobs=tuple(blobs))
        for seq, time, run, kind, body, blobs in found
    ]


def _folder(server: PostgresServer) -> Path:
    name = re.sub(r"[^\w.-]+", "-", server.name.partition("@")[2] or server.name.partition("//")[2])
    return data_folder() / "blobs" / f"{name}-{server.schema}"

"""Appends to a store in PostgreSQL, which are written in one transaction if they wait at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import NamedTuple

import psycopg
from msgspec import structs

from sidestream.errors import ConflictError, FencedError, StoreError
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.database import rows_of
from sidestream.store.log.summary import summarize
from sidestream.store.postgres.serial import SerialConnection, allow_blobs, is_broken
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.protocol import Append
from sidestream.store.records import Row
from sidestream.store.threads import completed

MAX_BATCH = 128
"""Maximum appends per transaction. If one fails, the others wait until each was tried alone."""
MAX_BATCH_BYTES = 1 << 20
"""Maximum bytes of records per transaction. A larger append is written alone."""

_INSERT_CONVERSATION = (
    "INSERT INTO {schema}.conversations (id, head, created, updated, title, model, last, fence) SELECT %(id)s, "
    "%(head)s, %(created)s, %(updated)s, %(title)s, %(model)s, %(last)s, coalesce(%(token)s::text, '') "
    "FROM {schema}.version WHERE version = %(version)s ON CONFLICT DO NOTHING"
)
_UPDATE_CONVERSATION = (
    "UPDATE {schema}.conversations SET head = %(head)s, updated = %(updated)s, "
    "title = CASE title WHEN '' THEN %(title)s ELSE title END, model = coalesce(nullif(%(model)s, ''), model), "
    "last = %(last)s, fence = coalesce(%(token)s::text, fence) WHERE id = %(id)s AND head = %(after)s "
    "AND (%(token)s::text IS NULL OR fence <= %(token)s) "
    "AND EXISTS (SELECT FROM {schema}.version WHERE version = %(version)s)"
)
# One statement, so that an append is one round trip.
_INSERT_RECORDS = (
    " RETURNING id), written AS (INSERT INTO {schema}.records (conversation, seq, time, run, kind, body, blobs) "
    "SELECT id, seq, time, run, kind, body, string_to_array(blobs, ' ') FROM head, unnest(%(seqs)s::bigint[], "
    "%(times)s::float8[], %(runs)s::text[], %(kinds)s::text[], %(bodies)s::bytea[], %(blobs)s::text[]) "
    "AS row (seq, time, run, kind, body, blobs)) SELECT pg_notify(%(channel)s, id) FROM head"
)
# Lock in order and without waiting. Conversations that others have locked are skipped, so that they delay no other
# append.
_APPEND_ALL = (
    "WITH input AS MATERIALIZED (SELECT * FROM unnest(%(id)s::text[], %(after)s::bigint[], %(head)s::bigint[], "
    "%(created)s::float8[], %(updated)s::float8[], %(title)s::text[], %(model)s::text[], %(last)s::text[], "
    "%(token)s::text[]) AS input (id, after, head, created, updated, title, model, last, token) "
    "WHERE EXISTS (SELECT FROM {schema}.version WHERE version = %(version)s)), "
    "known AS (SELECT input.* FROM {schema}.conversations JOIN input USING (id) "
    "WHERE conversations.head = after AND (token IS NULL OR fence <= token) "
    "ORDER BY id FOR UPDATE OF conversations SKIP LOCKED), "
    "grown AS (UPDATE {schema}.conversations SET head = known.head, updated = known.updated, "
    "title = CASE conversations.title WHEN '' THEN known.title ELSE conversations.title END, "
    "model = coalesce(nullif(known.model, ''), conversations.model), last = known.last, "
    "fence = coalesce(known.token, fence) FROM known WHERE conversations.id = known.id "
    "AND conversations.head = known.after RETURNING conversations.id), "
    "created AS (INSERT INTO {schema}.conversations (id, head, created, updated, title, model, last, fence) "
    "SELECT id, head, created, updated, title, model, last, coalesce(token, '') FROM input WHERE after = 0 ORDER BY id "
    "ON CONFLICT DO NOTHING RETURNING id), "
    "head AS (SELECT id FROM grown UNION ALL SELECT id FROM created), "
    "written AS (INSERT INTO {schema}.records (conversation, seq, time, run, kind, body, blobs) "
    "SELECT id, seq, time, run, kind, body, string_to_array(blobs, ' ') FROM unnest(%(conversations)s::text[], "
    "%(seqs)s::bigint[], %(times)s::float8[], %(runs)s::text[], %(kinds)s::text[], %(bodies)s::bytea[], "
    "%(blobs)s::text[]) AS row (id, seq, time, run, kind, body, blobs) JOIN head USING (id)) "
    "SELECT id, pg_notify(%(channel)s, id) FROM head"
)
_SELECT_ROWS = (
    "SELECT seq, time, run, kind, body, array_to_string(blobs, ' ') FROM {schema}.records "
    "WHERE conversation = %s AND seq > %s ORDER BY seq"
)
_IS_FENCED = "SELECT 1 FROM {schema}.conversations WHERE id = %s AND fence > %s"


class _Pending(NamedTuple):
    append: Append
    done: asyncio.Future[None]

    @property
    def size(self) -> int:
        return sum(len(row.body) for row in self.append.rows)

    def resolve(self, error: StoreError | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class AppendQueue:
    """The appends of one event loop. Those that arrive during a transaction share the next one.

    Each succeeds or fails by itself, because appends that a shared transaction skips are retried alone.
    """

    def __init__(self, server: PostgresServer, writing: SerialConnection, blobs: BlobStore) -> None:
        self._server = server
        self._writing = writing
        self._blobs = blobs
        self._pending: list[_Pending] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, append: Append) -> None:
        """Write the rows. The write completes even if the caller is cancelled."""
        pending = _Pending(append, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        await completed(pending.done)

    async def aclose(self) -> None:
        """Wait for the appends in progress."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _serve(self) -> None:
        batch: list[_Pending] = []
        try:
            while self._pending:
                batch = self._next_batch()
                try:
                    await self._writing.do(partial(self._write, batch))
                except StoreError as error:
                    for each in batch:
                        each.resolve(copy(error))
        finally:
            self._task = None
            # Only if the loop ends: waiting callers must not hang.
            for each in [*batch, *self._pending]:
                each.done.cancel()

    def _next_batch(self) -> list[_Pending]:
        """Take the oldest appends, one of each conversation."""
        names: set[str] = set()
        batch: list[_Pending] = []
        size = 0
        for each in self._pending:
            if each.append.conversation in names:
                continue
            size += each.size
            if batch and (size > MAX_BATCH_BYTES or len(batch) == MAX_BATCH):
                break
            names.add(each.append.conversation)
            batch.append(each)
        taken = set(map(id, batch))
        self._pending = [each for each in self._pending if id(each) not in taken]
        return batch

    async def _write(self, batch: list[_Pending], connection: Connection, is_retry: bool) -> None:
        """Resolve each append. Raises psycopg.Error if the connection is broken."""
        # After a broken connection, trying each one alone shows what was committed before.
        if len(batch) > 1 and not is_retry:
            await self._write_together(batch, connection)
        for each in batch:
            if not each.done.done():
                await self._write_alone(each, connection, is_retry=is_retry)

    async def _write_together(self, batch: list[_Pending], connection: Connection) -> None:
        """Resolve the appends that are written, and leave the others."""
        try:
            if any(row.blobs for each in batch for row in each.append.rows):
                async with self._locked(connection):
                    missing = await asyncio.to_thread(self._ensure, batch)
                    chosen = [each for each in batch if each not in missing]
                    written = await self._execute(connection, chosen)
            else:
                written = await self._execute(connection, batch)
        except psycopg.Error as error:
            if is_broken(connection, error):
                raise
            return
        for each in batch:
            if each.append.conversation in written:
                each.resolve()

    async def _execute(self, connection: Connection, batch: list[_Pending]) -> set[str]:
        """Return the conversations that were written."""
        if not batch:
            return set()
        found = await connection.execute(self._server.sql(_APPEND_ALL), self._values_of_all(batch))
        return {name for name, _ in await found.fetchall()}

    def _ensure(self, batch: list[_Pending]) -> list[_Pending]:
        """Return the appends whose blobs are missing."""
        missing: list[_Pending] = []
        for each in batch:
            try:
                self._blobs.ensure(each.append.digests(), each.append.blobs)
            except StoreError:
                missing.append(each)
        return missing

    async def _write_alone(self, pending: _Pending, connection: Connection, *, is_retry: bool) -> None:
        try:
            await self._append(pending.append, connection, is_retry=is_retry)
        except StoreError as error:
            pending.resolve(error)
        except psycopg.Error as error:
            if is_broken(connection, error):
                raise
            pending.resolve(self._server.store_error(error))
        else:
            pending.resolve()

    async def _append(self, append: Append, connection: Connection, *, is_retry: bool) -> None:
        head = _UPDATE_CONVERSATION if append.after else _INSERT_CONVERSATION
        sql, values = self._server.sql("WITH head AS (" + head + _INSERT_RECORDS), self._values(append)
        if digests := append.digests():
            async with self._locked(connection):
                await asyncio.to_thread(self._blobs.ensure, digests, append.blobs)
                is_written = (await connection.execute(sql, values)).rowcount
        else:
            is_written = (await connection.execute(sql, values)).rowcount
        if is_written:
            return
        await self._server.refuse_newer(connection)
        # The connection may have broken after the server had committed the rows.
        if is_retry and await self._has_rows(connection, append):
            return
        if append.token is not None and await self._is_fenced(connection, append):
            raise FencedError(append.conversation)
        raise ConflictError(append.conversation)

    @asynccontextmanager
    async def _locked(self, connection: Connection) -> AsyncGenerator[None]:
        """Open a transaction during which no blob is collected before its reference is written."""
        async with connection.transaction():
            await allow_blobs(connection)
            await connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (self._server.lock_key,))
            yield

    async def _has_rows(self, connection: Connection, append: Append) -> bool:
        found = await connection.execute(self._server.sql(_SELECT_ROWS), (append.conversation, append.after))
        return rows_of(await found.fetchall()) == list(append.rows)

    async def _is_fenced(self, connection: Connection, append: Append) -> bool:
        found = await connection.execute(self._server.sql(_IS_FENCED), (append.conversation, append.token))
        return found.rowcount > 0

    def _values(self, append: Append) -> Mapping[str, object]:
        return {**_summary_values(append), **self._constants, **_record_values(append.rows)}

    def _values_of_all(self, batch: list[_Pending]) -> Mapping[str, object]:
        summaries = [_summary_values(each.append) for each in batch]
        rows = [row for each in batch for row in each.append.rows]
        return {
            **{name: [values[name] for values in summaries] for name in summaries[0]},
            **self._constants,
            **_record_values(rows),
            "conversations": [each.append.conversation for each in batch for _ in each.append.rows],
        }

    @property
    def _constants(self) -> Mapping[str, object]:
        return {"version": self._server.version, "channel": self._server.channel}


def _summary_values(append: Append) -> Mapping[str, object]:
    values = {"id": append.conversation, "after": append.after, "token": append.token}
    return structs.asdict(summarize(append.rows, append.blobs)) | values


def _record_values(rows: Sequence[Row]) -> dict[str, object]:
    return {
        "seqs": [row.seq for row in rows],
        "times": [row.time for row in rows],
        "runs": [row.run for row in rows],
        "kinds": [row.kind for row in rows],
        "bodies": [row.body for row in rows],
        "blobs": [" ".join(row.blobs) for row in rows],
    }

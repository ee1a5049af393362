"""A store in a SQLite file, with one thread that writes and one that reads, and its check and repair."""

import asyncio
import os
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, ClassVar

from sidestream.errors import ConfigurationError
from sidestream.store.audit import Audit, audit_blob, orphan
from sidestream.store.blobs.folder import BlobStore, is_digest
from sidestream.store.database import PAGE, DatabaseStore, Migration, ended_runs_query, list_query
from sidestream.store.ids import check_id
from sidestream.store.protocol import Append, StoreProblem
from sidestream.store.records import Row
from sidestream.store.sqlite.file import MIGRATIONS, SqliteFile, Transaction
from sidestream.store.sqlite.rows import INSERT_REFERENCE, fetch, select_rows
from sidestream.store.sqlite.salvage import DAMAGE, list_again, salvage, unsound_rows
from sidestream.store.sqlite.threads import TOPIC, Change, Exclusive, Notifier, ReaderThread, Write, WriterThread

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""Error codes of a damaged file. Our statements are valid, so SQLITE_ERROR means that a table is no longer ours."""
_REFERENCED = "SELECT conversation, seq, blobs FROM records WHERE blobs <> ''"
_REFERENCES = "SELECT CAST(conversation AS BLOB), seq, CAST(digest AS BLOB) FROM blob_references"
"""Read as bytes, since a damaged table may hold invalid UTF-8."""


def check(file: SqliteFile, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    """Return all problems. With `repair`, no other connection may be open."""
    with file.errors():
        if repair:
            _refuse_newer(file)
        damage = _damage(file)
        if damage is None:
            return _check_content(file, blobs, repair=repair)
        if repair:
            return [salvage(file, damage), *_check_content(file, blobs, repair=True)]
        return [StoreProblem(kind="damaged", message=f"{file.path}: {damage}; a repair saves what can be read")]


def _damage(file: SqliteFile) -> str | None:
    """Return the damage that SQLite itself finds in the file, or rows with values that are not ours."""
    try:
        connection = file.open_to_read()
        if connection is None:
            return None
        with closing(connection):
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check(10)")]
        if lines != ["ok"]:
            return " ".join("; ".join(lines).split())
        with closing(file.open_raw()) as raw:
            fetch(raw, "SELECT conversation, seq, digest FROM blob_references LIMIT 1")
            unsound = unsound_rows(raw)
    except UnicodeDecodeError as error:
        return str(error)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise
        _refuse_newer(file)
        return str(error)
    return f"{unsound} rows hold unexpected values or invalid UTF-8" if unsound else None


def _refuse_newer(file: SqliteFile) -> None:
    with suppress(*DAMAGE):
        if connection := file.open_to_read():
            with closing(connection):
                file.refuse_newer(connection)


def _check_content(file: SqliteFile, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    connection = file.open_to_write() if repair else file.open_to_read()
    if connection is None:
        return []
    with closing(connection), Transaction(connection, "BEGIN IMMEDIATE" if repair else "BEGIN"):
        if repair:
            found = _repair_records(file, connection)
        else:
            found = _unlisted(connection, is_repaired=False)
            found += [problem for audit in _audits(connection) for problem in audit.problems]
        found += _check_references(file, connection, repair=repair)
        return found + _check_blobs(connection, blobs, repair=repair)


def _repair_records(file: SqliteFile, connection: sqlite3.Connection) -> list[StoreProblem]:
    unlisted = _unlisted(connection, is_repaired=True)
    if unlisted or any(audit.problems for audit in _audits(connection)):
        file.copy_to(file.beside("before-repair"))
    for problem in unlisted:
        list_again(connection, problem.conversation or "")
    broken = [audit for audit in _audits(connection) if audit.problems]
    for audit in broken:
        _truncate(connection, audit)
    return unlisted + [problem for audit in broken for problem in audit.repaired()]


def _unlisted(connection: sqlite3.Connection, *, is_repaired: bool) -> list[StoreProblem]:
    names = connection.execute("SELECT conversation FROM records EXCEPT SELECT id FROM conversations").fetchall()
    outcome = "it was listed again" if is_repaired else "a repair lists it again"
    return [
        StoreProblem(
            kind="gap",
            message=f"{name!r} has records, but is not in the list of conversations; {outcome}",
            conversation=name,
            is_repaired=is_repaired,
        )
        for (name,) in names
    ]


def _audits(connection: sqlite3.Connection) -> list[Audit]:
    found: list[Audit] = []
    for name, head in connection.execute("SELECT id, head FROM conversations ORDER BY id").fetchall():
        audit = Audit(name, head)
        for row in select_rows(connection, name, 0):
            audit.feed(row)
        audit.close()
        found.append(audit)
    return found


def _truncate(connection: sqlite3.Connection, audit: Audit) -> None:
    name = audit.conversation
    connection.execute("DELETE FROM records WHERE conversation = ? AND seq > ?", (name, audit.intact))
    if audit.intact:
        values = (audit.intact, audit.last_kind, name)
        connection.execute("UPDATE conversations SET head = ?, last = ? WHERE id = ?", values)
    else:
        connection.execute("DELETE FROM conversations WHERE id = ?", (name,))


def _check_references(file: SqliteFile, connection: sqlite3.Connection, *, repair: bool) -> list[StoreProblem]:
    """Check that each blob that a record names is referenced, since unreferenced blobs would be collected."""
    named = {(name, seq, digest) for name, seq, blobs in fetch(connection, _REFERENCED) for digest in blobs.split()}
    if {(name.encode(), seq, digest.encode()) for name, seq, digest in named} == set(fetch(connection, _REFERENCES)):
        return []
    if repair:
        connection.execute("DELETE FROM blob_references")
        connection.executemany(INSERT_REFERENCE, named)
    outcome = "they were listed again" if repair else "a repair lists them again"
    message = f"{file.path}: the blob references do not match the records; {outcome}"
    return [StoreProblem(kind="damaged", message=message, is_repaired=repair)]


def _check_blobs(connection: sqlite3.Connection, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    referenced = fetch(connection, _REFERENCED)
    # An invalid digest makes its record unreadable, which was reported.
    known = {digest: name for name, _, digests in referenced for digest in digests.split() if is_digest(digest)}
    found = [audit_blob(blobs, digest, conversation, repair=repair) for digest, conversation in known.items()]
    orphans = [digest for shard in blobs.shards() for digest in blobs.old(shard) if digest not in known]
    if repair:
        blobs.sweep()
        blobs.remove(orphans)
    return [problem for problem in found if problem] + [orphan(digest, is_removed=repair) for digest in orphans]


_WORDS = {name: name for name in ("conversations", "records", "tasks", "posts")} | {
    "now": "((julianday('now') - 2440587.5) * 86400.0)",
    "skip_locked": "",
}
_NAMES = {"table": "conversations", "records": "records", "body": "CAST(body AS TEXT)", "like": "LIKE"}
_FIND_RUN = "SELECT conversation, seq FROM records WHERE run = ? AND kind = 'run-started' ORDER BY seq LIMIT 1"
_REFERS_TO = "SELECT 1 FROM blob_references WHERE digest = ? AND conversation >= ? AND conversation < ? LIMIT 1"


class SqliteStore(DatabaseStore):
    """Conversations in one file, with their blobs in a folder beside it unless `blobs` sets another location.

    A write waits up to `busy_timeout_s` seconds for those of other processes.
    """

    migrations: ClassVar[tuple[Migration, ...]] = MIGRATIONS

    def __init__(
        self,
        path: str | os.PathLike[str],
        blobs: str | os.PathLike[str] | BlobStore | None = None,
        *,
        busy_timeout_s: float = 5.0,
    ) -> None:
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ConfigurationError(f"path must name a file, not {name!r}; a store cannot be in memory")
        # Absolute, since a program may change its working directory.
        self.path = Path(name).expanduser().absolute()
        super().__init__(str(self.path), self.path.with_name(self.path.name + ".blobs") if blobs is None else blobs)
        self._file = SqliteFile(self.path, self.migrations, busy_timeout_s)
        self.has_written = False
        """Whether this process has appended to the store."""
        self._notifier = Notifier()
        self._writer = WriterThread(self._file, self.blobs, self._notifier)
        self._reader = ReaderThread(self._file, self._notifier)
        # Stop the threads of a store that is dropped without being closed.
        for thread in (self._writer, self._reader):
            weakref.finalize(self, thread.stop).atexit = False

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after a sequence number, in order."""
        check_id(conversation)
        return await self._read(partial(ReaderThread.page, conversation=conversation, after=after))

    async def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """Yield the rows after a sequence number, then each new one as it is written."""
        check_id(conversation)
        with self._notifier.subscribed(conversation) as written:
            written.after = after
            while True:
                written.clear()
                page = partial(ReaderThread.page, conversation=conversation, after=written.after, limit=PAGE)
                rows: list[Row] = await self._read(page)
                if rows:
                    written.after = rows[-1].seq
                for row in rows:
                    yield row
                if len(rows) < PAGE:
                    await written.wait()

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """Return the problems of the store. `repair` fixes those that can be fixed.

        No other program should use the file meanwhile.
        """
        work = partial(check, self._file, self.blobs, repair=repair)
        if repair:
            return await self._write(Exclusive(work))
        self._check_open()
        return await asyncio.to_thread(work)

    async def aclose(self) -> None:
        """Close the store after its pending writes."""
        self._is_closed = True
        self._notifier.notify()
        await self._reader.aclose()
        # The last connection to close moves the whole log into the file, which a read-only one could not.
        await self._writer.aclose()
        await asyncio.to_thread(self.blobs.close)

    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in a separate transaction, and return its rows.

        `notify` wakes those who wait for a topic.
        """
        self._check_open()
        statement = sql.format_map(_WORDS)
        if sql.startswith("SELECT "):
            return await self._read(partial(ReaderThread.select, sql=statement, values=values or {}))
        found = await self._write(Change(partial(fetch, sql=statement, values=values or {})))
        if notify is not None:
            self._notifier.notify({f"{TOPIC}{notify}"})
        return found

    async def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yield at once, then whenever something in this topic may have changed, indefinitely."""
        with self._notifier.subscribed(f"{TOPIC}{topic}") as changed:
            while True:
                changed.clear()
                await self._read(ReaderThread.mark)
                yield
                await changed.wait()

    async def _append(self, append: Append) -> None:
        await self._write(append)
        self.has_written = True

    async def _list(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return await self._read(
            partial(ReaderThread.conversations, sql=list_query(values, ":{}", _NAMES), values=values)
        )

    async def _find_run(self, run: str) -> list[tuple[Any, ...]]:
        return await self._read(partial(ReaderThread.select, sql=_FIND_RUN, values=(run,)))

    async def _refers_to(self, digest: str, first: str, last: str) -> list[tuple[Any, ...]]:
        return await self._read(partial(ReaderThread.select, sql=_REFERS_TO, values=(digest, first, last)))

    async def _ended_runs(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        sql = ended_runs_query(values, ":{}", _NAMES)
        return await self._read(partial(ReaderThread.select, sql=sql, values=values))

    async def _delete(self, conversation: str) -> list[str] | None:
        return await self._write(Change(partial(_delete, conversation, inf)))

    async def _delete_all(self, conversations: Sequence[str], before: float) -> tuple[int, list[str]]:
        return await self._write(Change(partial(_delete_all, conversations, before)))

    async def _remove_orphans(self, candidates: Sequence[str]) -> list[str]:
        return await self._write(Change(partial(_remove_orphans, self.blobs, candidates)))

    async def _write(self, work: Write) -> Any:
        self._check_open()
        return await self._writer.do(work)

    async def _read(self, work: Callable[[ReaderThread], Any]) -> Any:
        self._check_open()
        return await self._reader.do(work)


def _delete(conversation: str, before: float, connection: sqlite3.Connection) -> list[str] | None:
    # SQLite would leave the content in the file until its pages are used again.
    connection.execute("PRAGMA secure_delete = ON")
    query = "SELECT DISTINCT digest FROM blob_references WHERE conversation = ?"
    named = [digest for (digest,) in connection.execute(query, (conversation,))]
    deleted = connection.execute("DELETE FROM conversations WHERE id = ? AND updated < ?", (conversation, before))
    return named if deleted.rowcount > 0 else None


def _delete_all(conversations: Sequence[str], before: float, connection: sqlite3.Connection) -> tuple[int, list[str]]:
    found = [named for each in conversations if (named := _delete(each, before, connection)) is not None]
    return len(found), sorted({digest for named in found for digest in named})


def _remove_orphans(blobs: BlobStore, candidates: Sequence[str], connection: sqlite3.Connection) -> list[str]:
    query = "SELECT 1 FROM blob_references WHERE digest = ? LIMIT 1"
    orphans = [digest for digest in candidates if not connection.execute(query, (digest,)).fetchone()]
    blobs.remove(orphans)
    return orphans

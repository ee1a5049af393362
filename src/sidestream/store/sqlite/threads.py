"""What the two threads of a SQLite store do: one writes, the other reads."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sidestream.errors import BlobError, ConflictError, NewerSchemaError, StoreError
from sidestream.store.blobs import BlobFolder
from sidestream.store.notifier import Signals
from sidestream.store.records import Row
from sidestream.store.sqlite.file import SqliteFile
from sidestream.store.summary import summarize
from sidestream.store.threads import Job

_BEGIN = (
    "INSERT INTO conversations (head, created, updated, title, model, last, id) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_GO_ON = (
    "UPDATE conversations SET head = ?, updated = ?, title = iif(title = '', ?, title), model = iif(? = '', model, ?), "
    "last = ? WHERE id = ? AND head = ?"
)
RECORD = "INSERT INTO records (conversation, seq, time, run, kind, body, blobs) VALUES (?, ?, ?, ?, ?, ?, ?)"
REFERENCE = "INSERT OR IGNORE INTO blob_references (conversation, seq, digest) VALUES (?, ?, ?)"
ROWS = "SELECT seq, time, run, kind, body, blobs FROM records WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?"

Mark = tuple[int, int]
"""Changes whenever something was committed by another connection."""


class Append(NamedTuple):
    """Rows to be written."""

    conversation: str
    after: int
    rows: Sequence[Row]
    blobs: Mapping[str, bytes]
    flush: bool = True


class Change(NamedTuple):
    """Other work for the writer, in its transaction."""

    call: Callable[[sqlite3.Connection], object]


class Alone(NamedTuple):
    """Work that needs the file for itself: the writer holds no connection meanwhile."""

    call: Callable[[], object]


class Writer:
    """The only one in this process that writes to the file."""

    def __init__(self, file: SqliteFile, blobs: BlobFolder, signals: Signals) -> None:
        self._file = file
        self._blobs = blobs
        self._signals = signals
        self._connection: sqlite3.Connection | None = None
        self._mark = (0, 0)
        self._is_flushing = True

    def serve(self, jobs: list[Job[Append | Change | Alone]]) -> None:
        """Does what waits, as far as possible in one transaction: one flush to the disk serves all."""
        together: list[Job[Any]] = []
        for job in jobs:
            if not isinstance(job.work, Alone):
                together.append(job)
                continue
            self._serve_together(together)
            together = []
            self.close()
            _answer(job, job.work.call)
        self._serve_together(together)

    def close(self) -> None:
        """Closes the connection; the next job opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _serve_together(self, jobs: list[Job[Any]]) -> None:
        if not jobs:
            return
        try:
            with self._file.errors():
                outcomes = self._commit([job.work for job in jobs])
        except BaseException as error:  # Whoever waits must get an answer.
            self.close()
            if len(jobs) > 1 and not _is_busy(error):
                # One of them may be to blame.
                for job in jobs:
                    self._serve_together([job])
                return
            for job in jobs:
                job.failed(error)
            return
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                job.failed(outcome)
            else:
                job.done(outcome)
        self._signals.wake({job.work.conversation for job in jobs if isinstance(job.work, Append)})

    def _commit(self, works: Sequence[Append | Change]) -> list[object]:
        connection = self._opened()
        is_flushed = any(isinstance(work, Change) or work.flush for work in works)
        if is_flushed is not self._is_flushing:
            self._is_flushing = is_flushed
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_flushed else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._file.refuse_newer(connection)
            outcomes = [self._do(connection, work) for work in works]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._file.open_to_write()
            self._is_flushing = True
            self._mark = self._file.mark()
        elif not self._file.is_same(self._mark):
            # SQLite would go on writing to a file that nobody can find any more.
            raise StoreError(f"{self._file.path} was moved or deleted while it was open; put it back, or begin anew")
        return self._connection

    def _do(self, connection: sqlite3.Connection, work: Append | Change) -> object:
        if isinstance(work, Change):
            return work.call(connection)
        try:
            self._append(connection, work)
        except (ConflictError, BlobError) as error:
            return error  # Nothing of it was written yet; the others can be.
        return None

    def _append(self, connection: sqlite3.Connection, work: Append) -> None:
        conversation, after, rows, blobs, _ = work
        # Within the transaction, so that nobody collects them before the references stand.
        self._blobs.ensure({digest for row in rows for digest in row.blobs}, blobs)
        news = summarize(rows, blobs)
        if after:
            values = (news.head, news.updated, news.title, news.model, news.model, news.last, conversation, after)
        else:
            values = (news.head, news.created, news.updated, news.title, news.model, news.last, conversation)
        if not connection.execute(_GO_ON if after else _BEGIN, values).rowcount:
            raise ConflictError(conversation)
        connection.executemany(
            RECORD,
            [(conversation, row.seq, row.time, row.run, row.kind, row.body, " ".join(row.blobs)) for row in rows],
        )
        if references := [(conversation, row.seq, digest) for row in rows for digest in row.blobs]:
            connection.executemany(REFERENCE, references)


class Reader:
    """Reads with a connection of its own, so that it never waits for the writer."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._openings = 0

    def serve(self, jobs: Iterable[Job[Callable[["Reader"], Any]]]) -> None:
        """Does one read after the other."""
        for job in jobs:
            try:
                with self._file.errors():
                    result = job.work(self)
            except BaseException as error:  # Whoever waits must get an answer.
                self.close()
                job.failed(error)
            else:
                job.done(result)

    def close(self) -> None:
        """Closes the connection; the next read opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def select(self, sql: str, values: Sequence[object] | Mapping[str, object]) -> list[Any]:
        """The rows of a query; none where there is no file yet."""
        connection = self._opened()
        return connection.execute(sql, values).fetchall() if connection else []

    def mark(self) -> Mark:
        """What tells whether anything has changed."""
        connection = self._opened()
        return self._openings, connection.execute("PRAGMA data_version").fetchone()[0] if connection else 0

    def page(self, conversation: str, after: int, limit: int) -> tuple[Mark, list[Row]]:
        """Rows after a number, and the mark of a moment before they were read."""
        return self.mark(), rows_of(self.select(ROWS, (conversation, after, limit)))

    def _opened(self) -> sqlite3.Connection | None:
        if self._connection is not None and not self._file.is_same(self._inode):
            self.close()
        if self._connection is None:
            self._connection = self._file.open_to_read()
            if self._connection is not None:
                self._inode = self._file.mark()
                self._openings += 1
        return self._connection


def rows_of(found: Iterable[Any]) -> list[Row]:
    """Rows out of what `ROWS` finds."""
    return [
        Row(seq=seq, time=time, run=run, kind=kind, body=body, blobs=tuple(blobs.split()) if blobs else ())
        for seq, time, run, kind, body, blobs in found
    ]


def _answer(job: Job[Any], call: Callable[[], object]) -> None:
    try:
        result = call()
    except BaseException as error:  # Whoever waits must get an answer.
        job.failed(error)
    else:
        job.done(result)


def _is_busy(error: BaseException) -> bool:
    """Whether it would go the same way again, after the same wait."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return isinstance(error, NewerSchemaError) or code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

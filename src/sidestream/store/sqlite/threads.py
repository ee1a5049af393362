"""The two threads of a SQLite store, one writing, one reading, and the coroutines that they notify."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from sidestream.errors import BlobError, ConflictError, NewerSchemaError, StoreError
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.protocol import Append
from sidestream.store.records import Row
from sidestream.store.sqlite.file import FileIdentity, SqliteFile, Transaction
from sidestream.store.sqlite.rows import (
    append_group,
    append_rows,
    can_be_grouped,
    fetch,
    select_conversations,
    select_rows,
)
from sidestream.store.threads import JobThread, QueuedCall


class Follower(asyncio.Event):
    """An event that is set whenever there may be new rows."""

    after = 0
    """Sequence number of the last row that the subscriber has."""


class Notifier:
    """Sets the events of subscribers in any event loop, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, dict[Follower, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def subscribed(self, conversation: str) -> Generator[Follower]:
        """Return an event that is set whenever rows of the conversation were written, until the block ends."""
        follower = Follower()
        with self._lock:
            self._followers.setdefault(conversation, {})[follower] = asyncio.get_running_loop()
        try:
            yield follower
        finally:
            with self._lock:
                del self._followers[conversation][follower]
                if not self._followers[conversation]:
                    del self._followers[conversation]

    @property
    def names(self) -> list[str]:
        """Names with at least one subscriber."""
        with self._lock:
            return list(self._followers)

    def notify(self, conversations: Iterable[str] | None = None) -> None:
        """Notify the subscribers of these conversations, or of all."""
        self._set(conversations, lambda name, follower: True)

    def notify_of(self, heads: Mapping[str, int]) -> bool:
        """Notify subscribers that lack the last row of their conversation, and return whether there are any."""
        return self._set(heads, lambda name, follower: follower.after < heads[name])

    def _set(self, names: Iterable[str] | None, is_meant: Callable[[str, Follower], bool]) -> bool:
        if not self._followers:  # The usual case, without the lock.
            return False
        by_loop: dict[asyncio.AbstractEventLoop, list[Follower]] = {}
        with self._lock:
            for name in list(self._followers) if names is None else names:
                for follower, loop in self._followers.get(name, {}).items():
                    if is_meant(name, follower):
                        by_loop.setdefault(loop, []).append(follower)
        for loop, followers in by_loop.items():
            with suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(_set_all, followers)
        return bool(by_loop)


def _set_all(followers: list[Follower]) -> None:
    for follower in followers:
        follower.set()


CHECKPOINT_BYTES = 16 << 20
"""Size of the write-ahead log, in bytes, at which a checkpoint begins."""
CHECKED_AFTER = 8
"""Commits between checks of the size."""


class Checkpoints:
    """Makes checkpoints in a separate thread, so that appends do not wait for the disk.

    A failed one is not reported. Once the log is larger still, the writer makes one itself and gets the error.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread: threading.Thread | None = None
        self._commits = 0

    def begin_if_due(self) -> None:
        """Start a checkpoint if the log is large and none is running.

        Call it after each commit, from one thread only.
        """
        self._commits += 1
        if self._commits % CHECKED_AFTER:
            return
        is_running = self._thread is not None and self._thread.is_alive()
        if not is_running and self._file.wal_bytes() >= CHECKPOINT_BYTES:
            self._thread = threading.Thread(target=self._make, name="sidestream-checkpoint", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait for a running checkpoint."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _make(self) -> None:
        try:
            with self._file.errors(), closing(self._file.open_to_checkpoint()) as connection:
                # Passive, so that it neither waits nor blocks others.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (StoreError, sqlite3.Error):
            pass


POLL_S = 0.1
"""Seconds between checks of the file for changes of other processes, while there are subscribers."""
BUSY_POLL_S = 0.005
"""The same while other processes write. One that executes many runs writes every 25 ms."""
BUSY_S = 0.2
"""Seconds after a change for which another one is expected soon."""
TOPIC = "\0"
"""Prefix of topic names, so that they cannot be conversation ids."""
MAX_GATHERED_S = 0.002
"""Maximum seconds for which results of reads are gathered, to wake the event loop once for all of them."""
_HEADS = "SELECT id, head FROM conversations WHERE id IN (SELECT value FROM json_each(?))"

ChangeMark = tuple[int, int]
"""A value that differs once another connection has committed something."""
T = TypeVar("T")


class Change(NamedTuple):
    """Work for the writer's transaction, other than an append."""

    call: Callable[[sqlite3.Connection], object]


class Exclusive(NamedTuple):
    """Work that needs the file to itself. The writer closes its connection before."""

    call: Callable[[], object]


Write = Append | Change | Exclusive


class _ConflictInGroupError(Exception):
    """Raised if one of several appends conflicts, without telling which."""


def _group(works: Sequence[Append | Change]) -> list[Append]:
    """Return the appends that can be written together, since their order among the others does not matter."""
    appends = [work for work in works if isinstance(work, Append)]
    if len(works) < 2 or len({append.conversation for append in appends}) < len(works):
        return []
    return list(filter(can_be_grouped, appends))


class _ConnectionThread(JobThread[T]):
    """A thread with its own connection, which its first job opens."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__()
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._identity: FileIdentity = (0, 0)

    def close(self) -> None:
        """Close the connection. The next job opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


class WriterThread(_ConnectionThread[Write]):
    """The only thread of this process that writes to the file."""

    name = "sidestream-writer"
    _is_flushing: bool
    """Whether the open connection flushes each commit."""

    def __init__(self, file: SqliteFile, blobs: BlobStore, notifier: Notifier) -> None:
        super().__init__(file)
        self._blobs = blobs
        self._notifier = notifier
        self._checkpoints = Checkpoints(file)

    def close(self) -> None:
        """Close the connection, after a running checkpoint. The next job opens a new one."""
        self._checkpoints.wait()
        super().close()

    def serve(self, jobs: list[QueuedCall[Write]]) -> None:
        """Execute pending jobs, in one transaction where possible, so that one flush to the disk serves all."""
        batch: list[QueuedCall[Any]] = []
        for job in jobs:
            if not isinstance(job.work, Exclusive):
                batch.append(job)
                continue
            self._serve_batch(batch)
            batch = []
            self.close()
            job.run(job.work.call)
        self._serve_batch(batch)

    def _serve_batch(self, jobs: list[QueuedCall[Any]]) -> None:
        if not jobs:
            return
        try:
            with self._file.errors():
                outcomes = self._commit([job.work for job in jobs])
        except BaseException as error:  # The coroutines must not wait forever.
            self.close()
            if len(jobs) > 1 and not _concerns_all(error):
                # One job may have failed the others.
                for job in jobs:
                    self._serve_batch([job])
                return
            for job in jobs:
                job.set_error(error)
            return
        try:
            self._notifier.notify({job.work.conversation for job in jobs if isinstance(job.work, Append)})
            self._checkpoints.begin_if_due()
        finally:
            QueuedCall.set_all(zip(jobs, outcomes, strict=True))

    def _commit(self, works: Sequence[Append | Change]) -> list[object]:
        connection = self._opened()
        is_flushed = any(isinstance(work, Change) or work.flush for work in works)
        if is_flushed is not self._is_flushing:
            self._is_flushing = is_flushed
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_flushed else 'NORMAL'}")
        try:
            return self._do_all(connection, works, _group(works))
        except _ConflictInGroupError:
            return self._do_all(connection, works)  # One by one, so that those without a conflict are written.

    def _do_all(
        self, connection: sqlite3.Connection, works: Sequence[Append | Change], group: Sequence[Append] = ()
    ) -> list[object]:
        with Transaction(connection):
            self._file.refuse_newer(connection)
            if group and not append_group(connection, group):
                raise _ConflictInGroupError
            grouped = {append.conversation for append in group}
            return [
                None if isinstance(work, Append) and work.conversation in grouped else self._do(connection, work)
                for work in works
            ]

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._file.open_to_write()
            self._is_flushing = True
            self._identity = self._file.identity()
        elif not self._file.is_still(self._identity):
            # SQLite would continue to write to a file that no path leads to.
            raise StoreError(
                f"{self._file.path} was moved or deleted while it was open; put it back, or start a new one"
            )
        return self._connection

    def _do(self, connection: sqlite3.Connection, work: Append | Change) -> object:
        if isinstance(work, Change):
            return work.call(connection)
        try:
            # Within the transaction, so that no blob is collected before its reference is written.
            if digests := work.digests():
                self._blobs.ensure(digests, work.blobs)
            append_rows(connection, work)
        except (ConflictError, BlobError) as error:
            return error  # Nothing of it was written; the other jobs can be committed.
        return None


class ReaderThread(_ConnectionThread[Callable[["ReaderThread"], Any]]):
    """A thread that reads on its own connection, so that it never waits for the writer.

    It also notices what other processes write.
    """

    name = "sidestream-reader"

    def __init__(self, file: SqliteFile, notifier: Notifier) -> None:
        super().__init__(file)
        self._notifier = notifier
        self._openings = 0
        self._seen: ChangeMark = (0, 0)
        self._next_poll_s = self._next_topics_s = self._busy_until_s = 0.0
        self._are_topics_due = False

    def serve(self, jobs: list[QueuedCall[Callable[["ReaderThread"], Any]]]) -> None:
        """Execute the reads one after the other."""
        outcomes: list[tuple[QueuedCall[Any], object]] = []
        began_s = time.monotonic()
        for job in jobs:
            try:
                outcomes.append((job, self._do(job.work)))
            except BaseException as error:  # The coroutine must not wait forever.
                outcomes.append((job, error))
                self.close()
            if time.monotonic() - began_s > MAX_GATHERED_S:
                QueuedCall.set_all(outcomes)
                outcomes, began_s = [], time.monotonic()
        QueuedCall.set_all(outcomes)

    def idle(self) -> float | None:
        """Poll for writes of other processes while there are subscribers, and wake those that are behind."""
        names = self._notifier.names
        if not names:
            return None
        now_s = time.monotonic()
        if now_s >= self._next_poll_s:
            try:
                if self._wake(names, now_s):
                    self._busy_until_s = now_s + BUSY_S
            except (StoreError, sqlite3.Error):
                self.close()
                self._notifier.notify()  # They read again and get the error.
            self._next_poll_s = now_s + (BUSY_POLL_S if now_s < self._busy_until_s else POLL_S)
        return max(self._next_poll_s - now_s, 0.0)

    def _wake(self, names: list[str], now_s: float) -> bool:
        """Wake subscribers after changes, and return whether one of a conversation was behind."""
        mark, seen = self.mark(), self._seen
        self._seen = mark
        self._are_topics_due |= mark != seen
        if self._are_topics_due and now_s >= self._next_topics_s:
            self._are_topics_due, self._next_topics_s = False, now_s + POLL_S
            self._notifier.notify(name for name in names if name.startswith(TOPIC))
        followed = [name for name in names if not name.startswith(TOPIC)]
        if mark == seen or not followed or self._connection is None:
            return False
        return self._notifier.notify_of(dict(fetch(self._connection, _HEADS, (json.dumps(followed),))))

    def conversations(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query for conversations, or none if the file does not exist yet."""
        connection = self._opened()
        return select_conversations(connection, sql, values) if connection else []

    def select(self, sql: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, or none if the file does not exist yet."""
        connection = self._opened()
        return fetch(connection, sql, values) if connection else []

    def mark(self) -> ChangeMark:
        """Return a value that differs once another connection has committed something."""
        connection = self._opened()
        return self._openings, connection.execute("PRAGMA data_version").fetchone()[0] if connection else 0

    def page(self, conversation: str, after: int, limit: int | None = None) -> list[Row]:
        """Return rows after a sequence number, or none if the file does not exist yet."""
        connection = self._opened()
        return select_rows(connection, conversation, after, limit) if connection else []

    def _do(self, work: Callable[["ReaderThread"], Any]) -> Any:
        with self._file.errors():
            return work(self)

    def _opened(self) -> sqlite3.Connection | None:
        if self._connection is not None and not self._file.is_still(self._identity):
            self.close()
        if self._connection is None:
            self._connection = self._file.open_to_read()
            if self._connection is not None:
                self._identity = self._file.identity()
                self._openings += 1
        return self._connection


def _concerns_all(error: BaseException) -> bool:
    """Return whether every job would fail in the same way, after the same wait."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return isinstance(error, NewerSchemaError) or code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

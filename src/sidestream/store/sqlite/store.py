"""A store in a SQLite file: the standard library's sqlite3, one thread that writes, one that reads."""

import asyncio
import os
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sidestream.errors import ConfigurationError, StoreError
from sidestream.store.blobs import BlobFolder
from sidestream.store.notifier import Signals
from sidestream.store.protocol import ConversationInfo, StoreProblem
from sidestream.store.records import Row
from sidestream.store.sqlite.check import check
from sidestream.store.sqlite.file import MIGRATIONS, Migration, SqliteFile
from sidestream.store.sqlite.threads import Alone, Append, Change, Mark, Reader, Writer
from sidestream.store.summary import check_id, check_rows
from sidestream.store.threads import Worker

POLL_S = 0.1
"""How often `tail` looks for what other processes have written."""
PAGE = 256
"""Rows that `tail` holds at once."""

# All that changed at the last moment of a page belong to it, so that the next page, which begins before that moment,
# leaves nobody out.
_LIST = (
    "SELECT id, head, created, updated, title, model, last FROM conversations WHERE updated < :before AND updated >= "
    "coalesce((SELECT updated FROM conversations WHERE updated < :before ORDER BY updated DESC LIMIT 1 OFFSET :skip), "
    "-1e999) ORDER BY updated DESC, id"
)


class SqliteStore:
    """Conversations in one file; their blobs lie in a folder beside it, unless another is given."""

    migrations: ClassVar[tuple[Migration, ...]] = MIGRATIONS

    def __init__(
        self,
        path: str | os.PathLike[str],
        blobs: str | os.PathLike[str] | BlobFolder | None = None,
        *,
        busy_timeout_s: float = 5.0,
    ) -> None:
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ConfigurationError("a store in memory would keep nothing: give the path of a file")
        # A program may change its folder; the store stays where it is.
        self.path = Path(name).expanduser().absolute()
        folder = self.path.with_name(self.path.name + ".blobs") if blobs is None else blobs
        self.blobs = folder if isinstance(folder, BlobFolder) else BlobFolder(folder)
        self._file = SqliteFile(self.path, self.migrations, busy_timeout_s)
        self._signals = Signals()
        writer = Writer(self._file, self.blobs, self._signals)
        reader = Reader(self._file)
        self._writer: Worker[Append | Change | Alone] = Worker("sidestream-writer", writer.serve, writer.close)
        self._reader: Worker[Callable[[Reader], Any]] = Worker("sidestream-reader", reader.serve, reader.close)
        self._is_closed = False
        # A store that is dropped without being closed leaves no threads.
        for worker in (self._writer, self._reader):
            weakref.finalize(self, worker.stop).atexit = False

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

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
        if not rows:
            return
        if blobs:
            await asyncio.to_thread(self.blobs.put_all, blobs)
        await self._write(Append(conversation, after, rows, blobs or {}, flush))

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number, in order."""
        check_id(conversation)
        _, rows = await self._read(partial(Reader.page, conversation=conversation, after=after, limit=-1))
        return rows

    async def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then every new one as it comes."""
        check_id(conversation)
        with self._signals.listening(conversation) as news:
            while True:
                news.clear()
                mark, rows = await self._read(partial(Reader.page, conversation=conversation, after=after, limit=PAGE))
                for row in rows:
                    yield row
                    after = row.seq
                if len(rows) < PAGE:
                    await self._wait(news, mark)

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest, verified."""
        return await asyncio.to_thread(self.blobs.read, digest)

    async def conversations(self, limit: int = 100, before: float | None = None) -> list[ConversationInfo]:
        """The conversations, the one that changed last first; those of the same moment stand on one page."""
        if limit < 1:
            return []
        values = {"before": float("inf") if before is None else before, "skip": limit - 1}
        found = await self._read(partial(Reader.select, sql=_LIST, values=values))
        fields = ConversationInfo.__struct_fields__
        return [ConversationInfo(**dict(zip(fields, values, strict=True))) for values in found]

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation; False where there was none."""
        check_id(conversation)
        return await self._write(Change(partial(_delete, conversation)))

    async def collect(self) -> int:
        """Removes blobs that no record names, and what broken writes left; returns how many."""
        removed = await asyncio.to_thread(self.blobs.sweep)
        for shelf in await asyncio.to_thread(self.blobs.shelves):
            removed += await self._write(Change(partial(_collect, self.blobs, shelf)))
        return removed

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """What is wrong with the store; with `repair`, what can be mended is. Other programs should not use it then."""
        work = partial(check, self._file, self.blobs, repair=repair)
        if repair:
            return await self._write(Alone(work))
        self._check_open()
        return await asyncio.to_thread(work)

    async def aclose(self) -> None:
        """Closes it once everything handed over is written."""
        self._is_closed = True
        self._signals.wake()
        await self._writer.aclose()
        await self._reader.aclose()

    async def _write(self, work: Append | Change | Alone) -> Any:
        self._check_open()
        return await self._writer.do(work)

    async def _read(self, work: Callable[[Reader], Any]) -> Any:
        self._check_open()
        return await self._reader.do(work)

    async def _wait(self, news: asyncio.Event, mark: Mark) -> None:
        """Until someone has written something: at once for this process, soon for others."""
        while not news.is_set():
            try:
                async with asyncio.timeout(POLL_S):
                    await news.wait()
            except TimeoutError:
                if await self._read(Reader.mark) != mark:
                    return

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self.path} is closed; open it again")


def _delete(conversation: str, connection: sqlite3.Connection) -> bool:
    return connection.execute("DELETE FROM conversations WHERE id = ?", (conversation,)).rowcount > 0


def _collect(blobs: BlobFolder, shelf: str, connection: sqlite3.Connection) -> int:
    """Within the writer's transaction: nobody can begin to refer to a blob meanwhile."""
    query = "SELECT 1 FROM blob_references WHERE digest = ? LIMIT 1"
    orphans = [digest for digest in blobs.old(shelf) if not connection.execute(query, (digest,)).fetchone()]
    for digest in orphans:
        blobs.remove(digest)
    return len(orphans)

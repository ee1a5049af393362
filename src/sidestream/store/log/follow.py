"""Following a log: what this process or another appends to a conversation, until no run is in progress there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Protocol

from sidestream.errors import StoreError
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import Append, Store
from sidestream.store.records import ENDINGS, STARTED, Record, Row, open_run, unpack
from sidestream.store.wrapped import WrappedStore

MAX_WAITING_ROWS = 1024
"""Rows that wait for one subscriber. Beyond it, it reads them from the store: a slow client costs no memory."""
MAX_BATCH = 256
"""Records that are passed on at once: a slow reader of a long log holds no more of it."""
RECHECK_S = 5.0
"""How often the reader of a run that another process drives checks that its conversation still exists."""


class Feed:
    """New rows of a conversation, for one subscriber."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._has_news = False
        self._taker: asyncio.Future[None] | None = None
        self._error: StoreError | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Add appended rows."""
        self._rows += rows
        if len(self._rows) > MAX_WAITING_ROWS:
            self._rows = []  # The numbers show the gap.
        self.wake()

    def wake(self) -> None:
        """Wake the subscriber without rows."""
        self._has_news = True
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def fail(self, error: StoreError) -> None:
        """Report that what other processes append cannot be read."""
        self._error = error
        self.wake()

    async def take(self) -> list[Row]:
        """Return the rows since the last call, once there is news. Raises StoreError if there will be none."""
        if not self._has_news:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        self._has_news = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        rows, self._rows = self._rows, []
        return rows


class _Relay:
    """Passes on what other processes append to a conversation, while it has subscribers here."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.count = 0
        """Number of subscribers."""


class PublishedStore(WrappedStore):
    """A store that passes appended rows on to subscribers, once they are safe."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.has_written = False
        """Whether this process has appended to it."""
        self._feeds: dict[str, set[Feed]] = {}
        self._relays: dict[str, _Relay] = {}
        """By conversation: however many follow it, it is read once."""

    @contextmanager
    def subscribed(self, conversation: str) -> Generator[Feed]:
        """Subscribe to new rows of a conversation until the block ends."""
        feed = Feed()
        self._feeds.setdefault(conversation, set()).add(feed)
        try:
            yield feed
        finally:
            feeds = self._feeds[conversation]
            feeds.discard(feed)
            if not feeds:
                del self._feeds[conversation]

    @asynccontextmanager
    async def relayed(self, conversation: str, after: int) -> AsyncGenerator[None]:
        """Pass on what other processes append after a number, too, until the block ends."""
        relay = self._relays.get(conversation)
        if relay is None:
            task = asyncio.create_task(self._relay(conversation, after))
            relay = self._relays[conversation] = _Relay(task)
        relay.count += 1
        try:
            yield
        finally:
            relay.count -= 1
            if not relay.count:
                del self._relays[conversation]
                relay.task.cancel()
                await asyncio.wait([relay.task])

    async def _relay(self, conversation: str, after: int) -> None:
        try:
            async with aclosing(self.inner.tail(conversation, after)) as rows:
                async for row in rows:
                    for feed in self._feeds.get(conversation, ()):
                        feed.add([row])
        except StoreError as error:
            for feed in self._feeds.get(conversation, ()):
                feed.fail(error)

    def wake(self, conversation: str) -> None:
        """Wake the subscribers of a conversation: its run has ended, or was not stored."""
        for feed in self._feeds.get(conversation, ()):
            feed.wake()

    def wake_all(self) -> None:
        """Wake all subscribers: the server closes."""
        for conversation in self._feeds:
            self.wake(conversation)

    async def record(self, row: Row, *, load: bool) -> Record:
        """Return the record of a row; with `load`, with the content of its blobs."""
        if not load or not row.blobs:
            return unpack(row)
        found = {digest: await self.inner.blob(digest) for digest in row.blobs}
        return unpack(row, found.__getitem__)

    def conversation(self, id: str) -> Conversation:
        """Return one conversation."""
        return Conversation(self, id)

    async def write(self, append: Append) -> None:
        """Append rows, and pass them on."""
        await super().write(append)
        self.has_written = True
        for feed in self._feeds.get(append.conversation, ()):
            feed.add(append.rows)


class LocalRun(Protocol):
    """A run that this process executes."""

    @property
    def store_error(self) -> StoreError | None:
        """Why the run is not recorded, if so."""
        ...


class Following:
    """One subscriber of a conversation, until no run is in progress there.

    `local_run_in` returns the run of a conversation that this process executes: its rows need no relay.
    """

    def __init__(
        self,
        store: PublishedStore,
        conversation: str,
        after: int,
        local_run_in: Callable[[str], LocalRun | None] = lambda _: None,
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._conversation = conversation
        self._after = after
        self._local_run_in = local_run_in
        self._is_closing = is_closing
        self._is_open: bool | None = None
        """Whether a run is in progress, as the records so far say; None before they have said it."""

    async def records(self, *, load: bool) -> AsyncGenerator[Record]:
        """Yield the records after the number. Raises StoreError if the log cannot be written."""
        async with aclosing(self.batches(load=load)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def batches(self, *, load: bool) -> AsyncGenerator[list[Record]]:
        """Yield the same in batches: records together that have come together."""
        with self._store.subscribed(self._conversation) as feed:
            while True:
                local = self._local_run_in(self._conversation)
                # What is appended here from now on is in the feed.
                for rows in _batches(await self._unread(local), load=load):
                    yield [await self._store.record(row, load=load) for row in rows]
                if local is None and (not self._is_open or self._is_closing()):
                    return
                async with AsyncExitStack() as stack:
                    if local is None:
                        await stack.enter_async_context(self._store.relayed(self._conversation, self._after))
                    has_gap = False
                    while not has_gap and self._continues(local):
                        news = await self._news(feed, is_local=local is not None)
                        if news is None:
                            return
                        next_ones = self._next_ones(news)
                        has_gap = self._after < max((row.seq for row in news), default=0)
                        for rows in _batches(next_ones, load=load):
                            yield [await self._store.record(row, load=load) for row in rows]
                        if local is not None and local.store_error is not None:
                            raise local.store_error

    def _continues(self, local: LocalRun | None) -> bool:
        if local is not None:
            return self._local_run_in(self._conversation) is local
        return bool(self._is_open) and not self._is_closing()

    def _next_ones(self, news: list[Row]) -> list[Row]:
        """Return those of the rows that follow the last one without a gap."""
        rows: list[Row] = []
        for row in news:
            if row.seq == self._after + 1:
                self._note([row])
                rows.append(row)
            elif row.seq > self._after:
                break
        return rows

    async def _unread(self, local: LocalRun | None) -> list[Row]:
        after = self._after
        rows = await self._store.read(self._conversation, after)
        self._note(rows)
        if self._is_open is None and local is None and after:
            # What is before the reader's number says whether more is to come. Some may have come since.
            whole = await self._store.read(self._conversation)
            self._is_open = open_run(whole) is not None
            rows = [row for row in whole if row.seq > after]
            self._note(rows)
        return rows

    def _note(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._after = row.seq
            if row.kind == STARTED or row.kind in ENDINGS:
                self._is_open = row.kind == STARTED

    async def _news(self, feed: Feed, *, is_local: bool) -> list[Row] | None:
        """Wait for the next rows; return None if the conversation was deleted."""
        if is_local:
            return await feed.take()
        try:
            async with asyncio.timeout(RECHECK_S):
                return await feed.take()
        except TimeoutError:
            exists = await self._store.read(self._conversation, max(self._after - 1, 0))
            return [] if exists or not self._after else None


def _batches(rows: list[Row], *, load: bool) -> list[list[Row]]:
    """Split rows into batches of at most `MAX_BATCH`. One whose blobs are loaded may be large, and ends its batch."""
    if len(rows) <= MAX_BATCH and not (load and any(row.blobs for row in rows)):
        return [rows] if rows else []
    batches: list[list[Row]] = [[]]
    for row in rows:
        batches[-1].append(row)
        if len(batches[-1]) == MAX_BATCH or (load and row.blobs):
            batches.append([])
    return [batch for batch in batches if batch]


def follow(store: Store, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
    """Yield the records of a conversation after a number, as they are written, until no run is in progress there.

    With `load`, records have the content of their blobs. Raises StoreError.
    """
    published = store if isinstance(store, PublishedStore) else PublishedStore(store)
    return Following(published, conversation, after).records(load=load)

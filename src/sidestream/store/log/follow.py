"""Subscriptions to a conversation's log, which end once no run is in progress there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Protocol

from sidestream.errors import StoreError
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import Append, Store
from sidestream.store.records import ENDINGS, STARTED, Record, Row, content_of, open_run, unpack
from sidestream.store.wrapped import WrappedStore

MAX_WAITING_ROWS = 1024
"""Maximum rows queued for one subscriber. Beyond it, a slow client reads them from the store and costs no memory."""
MAX_BATCH = 256
"""Maximum records passed on at once, which limits what a slow subscriber of a long log holds."""
RECHECK_S = 5.0
"""Seconds between checks that the conversation still exists, while another process executes the run."""


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
            self._rows = []  # The sequence numbers show the gap.
        self.wake()

    def wake(self) -> None:
        """Wake the subscriber without rows."""
        self._has_news = True
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def fail(self, error: StoreError) -> None:
        """Report that appends of other processes cannot be read."""
        self._error = error
        self.wake()

    async def take(self) -> list[Row]:
        """Wait for news, and return the rows since the last call. Raises StoreError if there will be none."""
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
    """A task that passes on what other processes append to a conversation, while it has subscribers here."""

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
        """Relays, by conversation. All subscribers of a conversation share one."""

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
        """Pass on appends of other processes after a sequence number, too, until the block ends."""
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
        """Wake the subscribers of a conversation because its run has ended or was not stored."""
        for feed in self._feeds.get(conversation, ()):
            feed.wake()

    def wake_all(self) -> None:
        """Wake all subscribers because the server closes."""
        for conversation in self._feeds:
            self.wake(conversation)

    async def record(self, row: Row, *, load: bool) -> Record:
        """Decode the record of a row, including the content of its blobs with `load`."""
        digests = content_of(row) if load else ()
        if not digests:
            return unpack(row)
        found = {digest: await self.inner.blob(digest) for digest in digests}
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
        """Reason why the run is not recorded, or None."""
        ...


class Following:
    """One subscription to a conversation, which ends once no run is in progress there.

    `local_run_in` returns the run of a conversation that this process executes, whose rows need no relay.
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
        """Whether a run is in progress according to the records so far. None means that they do not tell yet."""

    async def records(self, *, load: bool) -> AsyncGenerator[Record]:
        """Yield the records after the sequence number. Raises StoreError if the log cannot be written."""
        async with aclosing(self.batches(load=load)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def batches(self, *, load: bool) -> AsyncGenerator[list[Record]]:
        """Yield the same in batches of records that arrived together."""
        with self._store.subscribed(self._conversation) as feed:
            while True:
                local = self._local_run_in(self._conversation)
                # From now on, local appends are in the feed.
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
        """Return the rows that follow the last one without a gap."""
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
            # The records before the subscriber's position tell whether a run is in progress. More may have arrived
            # since.
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
        """Wait for the next rows, or return None if the conversation was deleted."""
        if is_local:
            return await feed.take()
        try:
            async with asyncio.timeout(RECHECK_S):
                return await feed.take()
        except TimeoutError:
            exists = await self._store.read(self._conversation, max(self._after - 1, 0))
            return [] if exists or not self._after else None


def _batches(rows: list[Row], *, load: bool) -> list[list[Row]]:
    """Split rows into batches of at most `MAX_BATCH`. A row whose blobs are loaded may be large, and ends its batch."""
    if len(rows) <= MAX_BATCH and not (load and any(row.blobs for row in rows)):
        return [rows] if rows else []
    batches: list[list[Row]] = [[]]
    for row in rows:
        batches[-1].append(row)
        if len(batches[-1]) == MAX_BATCH or (load and row.blobs):
            batches.append([])
    return [batch for batch in batches if batch]


def follow(store: Store, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
    """Yield the records of a conversation after a sequence number until no run is in progress there.

    New records are yielded as they are written. With `load`, records have the content of their blobs. Raises StoreError
    if the log cannot be read or written.
    """
    published = store if isinstance(store, PublishedStore) else PublishedStore(store)
    return Following(published, conversation, after).records(load=load)

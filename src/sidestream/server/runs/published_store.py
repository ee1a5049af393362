"""The store of a server: what is appended, here or elsewhere, is passed on to those who follow the conversation."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager

from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import Task, TaskHeldError
from sidestream.durable.log.open_runs import open_run
from sidestream.errors import StoreError
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import Append, Store
from sidestream.store.records import Record, Row, unpack
from sidestream.store.wrapped import WrappedStore

MAX_WAITING_ROWS = 1024
"""Rows that wait for one follower. Beyond it, the follower reads them from the store: a slow client costs no memory."""


class Feed:
    """New rows of a conversation, for one follower."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._has_news = False
        self._taker: asyncio.Future[None] | None = None
        self._error: StoreError | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Rows were appended."""
        self._rows += rows
        if len(self._rows) > MAX_WAITING_ROWS:
            self._rows = []  # The numbers show the gap.
        self.wake()

    def wake(self) -> None:
        """Something else has changed."""
        self._has_news = True
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def fail(self, error: StoreError) -> None:
        """What others append cannot be read."""
        self._error = error
        self.wake()

    async def take(self) -> list[Row]:
        """The rows since the last time, once there is news. Raises StoreError if there will be none."""
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
    """Passes on what other processes append to a conversation, while somebody here waits for it."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.count = 0
        """How many wait."""


class PublishedStore(WrappedStore):
    """A store whose appends are also passed on to followers, after they are safe."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._feeds: dict[str, set[Feed]] = {}
        self._relays: dict[str, _Relay] = {}
        """By conversation: however many follow it, it is read once."""

    @contextmanager
    def subscribed(self, conversation: str) -> Generator[Feed]:
        """New rows of a conversation, until the block ends."""
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
        """What other processes append after a number is passed on, too, until the block ends."""
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
        """Wakes the followers of a conversation: its run has ended, or was not stored."""
        for feed in self._feeds.get(conversation, ()):
            feed.wake()

    def wake_all(self) -> None:
        """Wakes all followers: the server closes."""
        for conversation in self._feeds:
            self.wake(conversation)

    async def record(self, row: Row, *, load: bool) -> Record:
        """The record of a row; with `load`, with the content of its blobs."""
        if not load or not row.blobs:
            return unpack(row)
        found = {digest: await self.inner.blob(digest) for digest in row.blobs}
        return unpack(row, found.__getitem__)

    def conversation(self, id: str) -> Conversation:
        """One conversation."""
        return Conversation(self, id)

    async def write(self, append: Append) -> None:
        """Append rows, and pass them on."""
        await super().write(append)
        for feed in self._feeds.get(append.conversation, ()):
            feed.add(append.rows)


LEFT_AFTER_S = 3600.0
"""One that has ended, and has not changed for so long, has no client any more."""


async def delete_left(store: PublishedStore, engine: EmbeddedEngine | None) -> None:
    """Deletes those that no process drives any more, as the engine says, or that ended long ago. Raises StoreError."""
    for id, updated in await store.unstored():
        rows = await store.read(id)
        if open_run(rows) is not None:
            if engine is None:
                continue
            try:
                claim = await engine.claim(Task(conversation=id, position=rows[-1].seq))
            except TaskHeldError:
                continue  # Another server's, whose client waits for it.
            await store.delete(id)
            engine.forget(claim)
        elif updated < time.time() - LEFT_AFTER_S:
            await store.delete(id)

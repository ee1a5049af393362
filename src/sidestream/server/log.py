"""The store of a server: what is appended is passed on to those who follow the conversation in this process."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager

from sidestream.store.conversation import Conversation
from sidestream.store.protocol import ConversationInfo, Store, StoreProblem
from sidestream.store.records import Record, Row, unpack

MAX_WAITING_ROWS = 1024
"""Rows that wait for one follower. Beyond it, the follower reads them from the store: a slow client costs no memory."""


class Feed:
    """New rows of a conversation, for one follower."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._has_news = asyncio.Event()

    def add(self, rows: Sequence[Row]) -> None:
        """Rows were appended."""
        self._rows += rows
        if len(self._rows) > MAX_WAITING_ROWS:
            self._rows = []  # The numbers show the gap.
        self._has_news.set()

    def wake(self) -> None:
        """Something else has changed."""
        self._has_news.set()

    async def take(self) -> list[Row]:
        """The rows since the last time, once there is news."""
        await self._has_news.wait()
        self._has_news.clear()
        rows, self._rows = self._rows, []
        return rows


class PublishedStore:
    """A store whose appends are also passed on to followers, after they are safe."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._feeds: dict[str, set[Feed]] = {}

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

    def wake(self, conversation: str) -> None:
        """Wakes the followers of a conversation: its run has ended, or was not stored."""
        for feed in self._feeds.get(conversation, ()):
            feed.wake()

    async def record(self, row: Row, *, load: bool) -> Record:
        """The record of a row; with `load`, with the content of its blobs."""
        if not load or not row.blobs:
            return unpack(row)
        found = {digest: await self.inner.blob(digest) for digest in row.blobs}
        return unpack(row, found.__getitem__)

    def conversation(self, id: str) -> Conversation:
        """One conversation."""
        return Conversation(self, id)

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Appends rows, and passes them on."""
        await self.inner.append(conversation, after, rows, blobs, flush=flush)
        for feed in self._feeds.get(conversation, ()):
            feed.add(rows)

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number."""
        return await self.inner.read(conversation, after)

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then each new one."""
        return self.inner.tail(conversation, after)

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest."""
        return await self.inner.blob(digest)

    async def conversations(
        self, limit: int = 100, before: float | None = None, *, prefix: str = "", search: str = ""
    ) -> list[ConversationInfo]:
        """The conversations, last changed first."""
        return await self.inner.conversations(limit, before, prefix=prefix, search=search)

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """The conversation of a run, and the number of its first record."""
        return await self.inner.find_run(run)

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """The `finish` records that are younger than this."""
        return await self.inner.ended_runs(since, prefix=prefix)

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Whether a conversation whose id begins with `prefix` names this blob."""
        return await self.inner.refers_to(digest, prefix=prefix)

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation, and the blobs that only it named."""
        return await self.inner.delete(conversation)

    async def collect(self) -> int:
        """Removes blobs that no record names."""
        return await self.inner.collect()

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """The problems of the store."""
        return await self.inner.check(repair=repair)

    async def aclose(self) -> None:
        """Closes the store."""
        await self.inner.aclose()

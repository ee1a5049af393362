"""Follows the log of a conversation while a run is in progress there, whichever process drives it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Protocol

from sidestream.durable.log.open_runs import open_run
from sidestream.errors import StoreError
from sidestream.server.runs.published_store import Feed, PublishedStore
from sidestream.store.records import ENDINGS, STARTED, Record, Row

MAX_BATCH = 256
"""Records that are passed on at once: a slow reader of a long log holds no more of it."""
RECHECK_S = 5.0
"""How often the reader of a run that another process drives checks that its conversation still exists."""


class Driver(Protocol):
    """Drives a run in this process."""

    @property
    def store_error(self) -> StoreError | None:
        """Why the run is not recorded, if so."""
        ...


class Following:
    """One reader of a conversation."""

    def __init__(
        self,
        store: PublishedStore,
        conversation: str,
        after: int,
        driver_of: Callable[[str], Driver | None],
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._conversation = conversation
        self._after = after
        self._driver_of = driver_of
        self._is_closing = is_closing
        self._is_open: bool | None = None
        """Whether a run is in progress, as the records so far say; None before they have said it."""

    async def records(self, *, load: bool) -> AsyncGenerator[Record]:
        """The records after the number, until no run is in progress. Raises StoreError if the log cannot be written."""
        async with aclosing(self.batches(load=load)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def batches(self, *, load: bool) -> AsyncGenerator[list[Record]]:
        """The same, with the records together that have come together."""
        with self._store.subscribed(self._conversation) as feed:
            while True:
                driver = self._driver_of(self._conversation)
                # What is appended here from now on is in the feed.
                for rows in _batches(await self._unread(), load=load):
                    yield [await self._store.record(row, load=load) for row in rows]
                if driver is None and (not self._is_open or self._is_closing()):
                    return
                async with AsyncExitStack() as stack:
                    if driver is None:
                        await stack.enter_async_context(self._store.relayed(self._conversation, self._after))
                    has_gap = False
                    while not has_gap and self._continues(driver):
                        news = await self._news(feed, is_local=driver is not None)
                        if news is None:
                            return
                        next_ones = self._next_ones(news)
                        has_gap = self._after < max((row.seq for row in news), default=0)
                        for rows in _batches(next_ones, load=load):
                            yield [await self._store.record(row, load=load) for row in rows]
                        if driver is not None and driver.store_error is not None:
                            raise driver.store_error

    def _continues(self, driver: Driver | None) -> bool:
        if driver is not None:
            return self._driver_of(self._conversation) is driver
        return bool(self._is_open) and not self._is_closing()

    def _next_ones(self, news: list[Row]) -> list[Row]:
        """Those of the rows that follow the last one without a gap."""
        rows: list[Row] = []
        for row in news:
            if row.seq == self._after + 1:
                self._note([row])
                rows.append(row)
            elif row.seq > self._after:
                break
        return rows

    async def _unread(self) -> list[Row]:
        rows = await self._store.read(self._conversation, self._after)
        self._note(rows)
        if self._is_open is None:
            # The reader has read all; what is before its number says whether more is to come.
            self._is_open = open_run(await self._store.read(self._conversation)) is not None
        return rows

    def _note(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._after = row.seq
            if row.kind == STARTED or row.kind in ENDINGS:
                self._is_open = row.kind == STARTED

    async def _news(self, feed: Feed, *, is_local: bool) -> list[Row] | None:
        """The next rows; None if the conversation was deleted."""
        if is_local:
            return await feed.take()
        try:
            async with asyncio.timeout(RECHECK_S):
                return await feed.take()
        except TimeoutError:
            exists = await self._store.read(self._conversation, max(self._after - 1, 0))
            return [] if exists or not self._after else None


def _batches(rows: list[Row], *, load: bool) -> list[list[Row]]:
    """The rows in batches of at most `MAX_BATCH`. One whose blobs are loaded may be large, and ends its batch."""
    if len(rows) <= MAX_BATCH and not (load and any(row.blobs for row in rows)):
        return [rows] if rows else []
    batches: list[list[Row]] = [[]]
    for row in rows:
        batches[-1].append(row)
        if len(batches[-1]) == MAX_BATCH or (load and row.blobs):
            batches.append([])
    return [batch for batch in batches if batch]

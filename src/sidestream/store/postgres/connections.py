"""Connections to PostgreSQL, at most three for each event loop: one writes, one reads, one listens."""

import asyncio
import threading
from copy import copy
from functools import partial
from typing import NamedTuple

from sidestream.errors import StoreError
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.database import PAGE, rows_of
from sidestream.store.postgres.appends import AppendQueue
from sidestream.store.postgres.listener import Listener
from sidestream.store.postgres.serial import SerialConnection
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.records import Row

MAX_BATCH = 64
"""Conversations in one query: what it returns is in memory at once."""
_SELECT_PAGES = (
    "SELECT number, seq, time, run, kind, body, array_to_string(blobs, ' ') FROM unnest(%s::text[], %s::bigint[]) "
    "WITH ORDINALITY AS asked (name, after, number), LATERAL (SELECT * FROM {schema}.records WHERE "
    f"conversation = name AND seq > after ORDER BY seq LIMIT {PAGE}) AS page ORDER BY number, seq"
)


class _Request(NamedTuple):
    conversation: str
    after: int
    rows: asyncio.Future[list[Row]]


class PageQueue:
    """The reads of those who follow conversations, of one event loop."""

    def __init__(self, server: PostgresServer, reading: SerialConnection) -> None:
        self._server = server
        self._reading = reading
        self._pending: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, conversation: str, after: int) -> list[Row]:
        """The rows after a number, at most `PAGE`."""
        request = _Request(conversation, after, asyncio.get_running_loop().create_future())
        self._pending.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return await request.rows

    async def _serve(self) -> None:
        batch: list[_Request] = []
        try:
            while self._pending:
                batch = [request for request in self._pending[:MAX_BATCH] if not request.rows.done()]
                del self._pending[:MAX_BATCH]
                try:
                    found = await self._reading.do(partial(self._select, batch))
                except StoreError as error:
                    for request in batch:
                        if not request.rows.done():
                            request.rows.set_exception(copy(error))
                    continue
                for request, rows in zip(batch, found, strict=True):
                    if not request.rows.done():
                        request.rows.set_result(rows)
        finally:
            self._task = None
            for request in [*batch, *self._pending]:
                request.rows.cancel()

    async def _select(self, batch: list[_Request], connection: Connection, _: bool) -> list[list[Row]]:
        pages: list[list[Row]] = [[] for _ in batch]
        asked = [request.conversation for request in batch], [request.after for request in batch]
        for number, *columns in await self._server.select(connection, _SELECT_PAGES, asked):
            pages[number - 1] += rows_of([tuple(columns)])
        return pages


class _OfLoop(NamedTuple):
    writing: SerialConnection
    reading: SerialConnection
    listener: Listener
    appends: AppendQueue
    pages: PageQueue

    def drop(self) -> None:
        self.writing.drop()
        self.reading.drop()
        self.listener.stop()


class LoopConnections:
    """The connections of every event loop that uses a store."""

    def __init__(self, server: PostgresServer, blobs: BlobStore) -> None:
        self._server = server
        self._blobs = blobs
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    @property
    def writing(self) -> SerialConnection:
        """The connection of the running loop for writing; it creates the schema first."""
        return self._of_this_loop().writing

    @property
    def reading(self) -> SerialConnection:
        """The connection of the running loop for reading."""
        return self._of_this_loop().reading

    @property
    def appends(self) -> AppendQueue:
        """The appends of the running loop."""
        return self._of_this_loop().appends

    @property
    def pages(self) -> PageQueue:
        """The reads of those of the running loop who follow conversations."""
        return self._of_this_loop().pages

    @property
    def listener(self) -> Listener:
        """What wakes those of the running loop who wait for changes."""
        return self._of_this_loop().listener

    async def aclose(self) -> None:
        """Closes all connections; those of the running loop after the work in progress."""
        if (own := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            own.listener.stop()
            await own.appends.aclose()
            await own.writing.aclose()
            await own.reading.aclose()
        self.drop()

    def drop(self) -> None:
        """Closes all connections at once."""
        with self._lock:
            connections = list(self._by_loop.values())
            self._by_loop.clear()
        for each in connections:
            each.drop()

    def _of_this_loop(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                for closed in [other for other in self._by_loop if other.is_closed()]:
                    self._by_loop.pop(closed).drop()
                writing, reading = SerialConnection(self._server, self._server.create), SerialConnection(self._server)
                appends = AppendQueue(self._server, writing, self._blobs)
                self._by_loop[loop] = _OfLoop(
                    writing, reading, Listener(self._server), appends, PageQueue(self._server, reading)
                )
            return self._by_loop[loop]

"""The next rows of conversations that are followed: those who ask at the same time share one query."""

import asyncio
from copy import copy
from functools import partial
from typing import NamedTuple

from sidestream.errors import StoreError
from sidestream.store.database import PAGE, rows_of
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

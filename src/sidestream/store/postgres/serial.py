"""A PostgreSQL connection that many coroutines share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

from sidestream.store.postgres.server import Connection, PostgresServer

T = TypeVar("T")
IDLE_S = 5
"""Seconds that a transaction may wait for its next statement, so that a stopped process or an unreachable machine does
not hold its locks. Less than a worker's lease."""
BLOBS_S = 60
"""The same while blobs are written, perhaps to another server."""


class SerialConnection:
    """A connection that does one piece of work at a time, and reconnects if it breaks."""

    def __init__(self, server: PostgresServer, prepare: Callable[[Connection], Awaitable[None]] | None = None) -> None:
        self._server = server
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def do(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        """Run the work and return its result.

        If the connection turns out to be broken, the work is retried with True, at most twice, since a connection that
        broke while idle may break once more in use.
        """
        async with self._lock:
            with self._server.errors():
                return await self._do(work)

    async def aclose(self) -> None:
        """Close the connection after the work in progress."""
        async with self._lock:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once, from any thread, even if its loop is closed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()

    async def _do(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        is_new = self._connection is None
        for is_retry in (False, True):
            try:
                return await work(await self._opened(), is_retry)
            except psycopg.Error as error:
                if is_new or not is_broken(self._connection, error):
                    raise
            self.drop()
        return await work(await self._opened(), True)

    async def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = await self._server.connect()
            try:
                if self._prepare is not None:
                    await self._prepare(connection)
                await _limit_idling(connection, IDLE_S)
            except BaseException:
                connection.pgconn.finish()
                raise
            self._connection = connection
        return self._connection


def is_broken(connection: Connection | psycopg.Connection[Any] | None, error: psycopg.Error) -> bool:
    """Return whether the connection is closed, or the server announced that it closes it.

    Without a connection, the error is that of a new one before its first use.
    """
    if error.sqlstate is not None and error.sqlstate.startswith(("57P", "08")):
        return True
    return connection.closed if connection is not None else error.sqlstate is None


async def allow_blobs(connection: Connection) -> None:
    """Allow this transaction the time that blobs need."""
    await _limit_idling(connection, BLOBS_S, is_local=True)


async def _limit_idling(connection: Connection, seconds: int, *, is_local: bool = False) -> None:
    query = "SELECT set_config('idle_in_transaction_session_timeout', %s, %s)"
    await connection.execute(query, (f"{seconds}s", is_local))

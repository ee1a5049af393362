"""Connections to PostgreSQL, two for each event loop: one writes, the other reads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sidestream.store.postgres.server import Connection, PostgresServer

T = TypeVar("T")


class Lane:
    """One connection, which serves one at a time and is made anew after it broke."""

    def __init__(self, server: "PostgresServer", prepare: "Callable[[Connection], Awaitable[None]] | None" = None):
        self._server = server
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def do(self, work: "Callable[[Connection, bool], Awaitable[T]]") -> T:
        """The result of the work. On a connection that turns out broken it is done once more, and is told so."""
        async with self._lock:
            with self._server.errors():
                return await self._tried(work)

    async def aclose(self) -> None:
        """Closes the connection once the work under way is done."""
        async with self._lock:
            self.drop()

    def drop(self) -> None:
        """Closes the connection at once; good in any thread, whether or not its loop still runs."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()

    async def _tried(self, work: "Callable[[Connection, bool], Awaitable[T]]") -> T:
        import psycopg

        is_new = self._connection is None
        try:
            return await work(await self._opened(), False)
        except psycopg.Error:
            if is_new or self._connection is None or not self._connection.closed:
                raise
        self.drop()
        return await work(await self._opened(), True)

    async def _opened(self) -> "Connection":
        if self._connection is None or self._connection.closed:
            connection = await self._server.connect()
            try:
                if self._prepare is not None:
                    await self._prepare(connection)
            except BaseException:
                connection.pgconn.finish()
                raise
            self._connection = connection
        return self._connection


class Lanes:
    """The lanes of every event loop that uses a store."""

    def __init__(self, server: "PostgresServer") -> None:
        self._server = server
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Lane, Lane]] = {}

    @property
    def writing(self) -> Lane:
        """The lane of this loop for writing; its first connection brings the schema up to date."""
        return self._here()[0]

    @property
    def reading(self) -> Lane:
        """The lane of this loop for reading."""
        return self._here()[1]

    async def aclose(self) -> None:
        """Closes all connections; those of this loop once their work is done."""
        for lane in self._by_loop.pop(asyncio.get_running_loop(), ()):
            await lane.aclose()
        self.drop()

    def drop(self) -> None:
        """Closes all connections at once."""
        with self._lock:
            lanes = [lane for both in self._by_loop.values() for lane in both]
            self._by_loop.clear()
        for lane in lanes:
            lane.drop()

    def _here(self) -> tuple[Lane, Lane]:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                for other in [other for other in self._by_loop if other.is_closed()]:
                    for lane in self._by_loop.pop(other):
                        lane.drop()
                writing = Lane(self._server, self._server.bring_up_to_date)
                self._by_loop[loop] = (writing, Lane(self._server))
            return self._by_loop[loop]

"""Connections to PostgreSQL, at most three for each event loop: one writes, one reads, one listens."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import psycopg

from sidestream.store.postgres.listener import Listener
from sidestream.store.postgres.server import Connection, PostgresServer

T = TypeVar("T")


class SerialConnection:
    """A connection that does one piece of work at a time, and reconnects if it breaks."""

    def __init__(self, server: PostgresServer, prepare: Callable[[Connection], Awaitable[None]] | None = None) -> None:
        self._server = server
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def do(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        """The result of the work. If the connection turns out to be broken, the work is retried once, with True."""
        async with self._lock:
            with self._server.errors():
                return await self._do(work)

    async def aclose(self) -> None:
        """Closes the connection after the work in progress."""
        async with self._lock:
            self.drop()

    def drop(self) -> None:
        """Closes the connection at once, from any thread, even if its loop is closed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()

    async def _do(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        is_new = self._connection is None
        try:
            return await work(await self._opened(), False)
        except psycopg.Error:
            if is_new or self._connection is None or not self._connection.closed:
                raise
        self.drop()
        return await work(await self._opened(), True)

    async def _opened(self) -> Connection:
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


class _OfLoop(NamedTuple):
    writing: SerialConnection
    reading: SerialConnection
    listener: Listener

    def drop(self) -> None:
        self.writing.drop()
        self.reading.drop()
        self.listener.stop()


class LoopConnections:
    """The connections of every event loop that uses a store."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    @property
    def writing(self) -> SerialConnection:
        """The connection of the running loop for writing; it migrates the schema first."""
        return self._of_this_loop().writing

    @property
    def reading(self) -> SerialConnection:
        """The connection of the running loop for reading."""
        return self._of_this_loop().reading

    @property
    def listener(self) -> Listener:
        """What wakes those of the running loop who wait for changes."""
        return self._of_this_loop().listener

    async def aclose(self) -> None:
        """Closes all connections; those of the running loop after the work in progress."""
        if (own := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            own.listener.stop()
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
                writing = SerialConnection(self._server, self._server.migrate)
                self._by_loop[loop] = _OfLoop(writing, SerialConnection(self._server), Listener(self._server))
            return self._by_loop[loop]

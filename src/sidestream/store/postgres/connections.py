"""Connections to PostgreSQL, at most three for each event loop: one writes, one reads, one listens."""

import asyncio
import threading
from typing import NamedTuple

from sidestream.store.blobs.folder import BlobStore
from sidestream.store.postgres.appends import AppendQueue
from sidestream.store.postgres.listener import Listener
from sidestream.store.postgres.pages import PageQueue
from sidestream.store.postgres.serial import SerialConnection
from sidestream.store.postgres.server import PostgresServer


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

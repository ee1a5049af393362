"""The tasks in the database, each operation as one piece of work on a connection."""

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from psycopg.errors import UndefinedTable

from sidestream.durable.absurd import claims, tasks
from sidestream.durable.absurd.claims import Held
from sidestream.durable.absurd.schema import AbsurdServer
from sidestream.durable.protocol import EngineStats, Outcome, Task
from sidestream.store.postgres.serial import SerialConnection
from sidestream.store.postgres.server import Connection
from sidestream.store.threads import completed

T = TypeVar("T")


class AbsurdDatabase:
    """The database behind a URL. Work that has started completes even if the caller is cancelled."""

    def __init__(self, url: str, lease_s: int) -> None:
        self.server = AbsurdServer(url)
        self.lease_s = lease_s
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[SerialConnection, SerialConnection]] = {}
        self._worker = f"{platform.node()}:{os.getpid()}"

    async def create_queues(self, queues: Collection[str]) -> None:
        """Creates those that are missing, and the schemas."""
        await self._do(lambda connection, _: tasks.create_queues(self.server, connection, queues))

    async def enqueue(self, task: Task) -> None:
        """There is something to drive. Does nothing if the engine has this task already."""

        async def work(connection: Connection, _: bool) -> None:
            try:
                await tasks.enqueue(self.server, connection, task)
            except UndefinedTable:
                await tasks.create_queues(self.server, connection, [task.queue])
                await tasks.enqueue(self.server, connection, task)

        await self._do(work)

    async def wake(self, conversation: str, position: int) -> None:
        """A conversation that waits at this position, or is about to, is driven on."""
        await self._do(lambda connection, _: tasks.wake(self.server, connection, conversation, position))

    async def cancel(self, conversation: str) -> None:
        """Nothing of the conversation is driven any more; who drives it loses the claim."""
        await self._do(lambda connection, _: tasks.cancel(self.server, connection, conversation))

    async def stats(self) -> EngineStats:
        """How many tasks there are, in all queues of the namespace."""
        return await self._do(lambda connection, _: tasks.stats(self.server, connection))

    async def claim(self, queue: str, count: int) -> list[Held]:
        """Claims tasks of a queue, at most so many."""
        return await self._do(
            lambda connection, _: claims.claim(
                self.server, connection, queue, worker=self._worker, lease_s=self.lease_s, count=count
            )
        )

    async def next_due_s(self, queues: Collection[str]) -> float:
        """In how many seconds something may be claimed."""
        return await self._do(lambda connection, _: claims.next_due_s(self.server, connection, queues))

    async def renew(self, held: Held) -> None:
        """Renews the lease of a claim. Raises LeaseLostError."""
        await self._do(
            lambda connection, _: claims.renew(self.server, connection, held, self.lease_s), is_heartbeat=True
        )

    async def report(self, held: Held, outcome: Outcome) -> None:
        """Ends a claim. Raises LeaseLostError if it had ended before."""
        await self._do(lambda connection, _: claims.report(self.server, connection, held, outcome))

    async def fail(self, held: Held, error: Exception) -> float | None:
        """Ends a claim after an error; returns in how many seconds the task is driven again, None for never."""
        return await self._do(lambda connection, _: claims.fail(self.server, connection, held, error))

    async def remove_old(self, queues: Collection[str]) -> None:
        """Removes tasks that were over long ago."""
        await self._do(lambda connection, _: tasks.remove_old(self.server, connection, queues))

    async def aclose(self) -> None:
        """Closes the connections; those of the running loop after the work in progress."""
        for connection in self._by_loop.pop(asyncio.get_running_loop(), ()):
            await connection.aclose()
        self.drop()

    def drop(self) -> None:
        """Closes all connections at once."""
        while self._by_loop:
            for connection in self._by_loop.popitem()[1]:
                connection.drop()

    async def _do(self, work: Callable[[Connection, bool], Awaitable[T]], *, is_heartbeat: bool = False) -> T:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for closed in [other for other in self._by_loop if other.is_closed()]:
                for connection in self._by_loop.pop(closed):
                    connection.drop()
            # One for heartbeats, which must not wait for claims.
            self._by_loop[loop] = (SerialConnection(self.server, self.server.create), SerialConnection(self.server))
        return await completed(asyncio.ensure_future(self._by_loop[loop][is_heartbeat].do(work)))

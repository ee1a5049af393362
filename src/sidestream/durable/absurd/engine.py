"""The engine: tasks are in PostgreSQL, and workers hear of new ones at once."""

import weakref
from collections.abc import Collection

from sidestream.durable.absurd.database import AbsurdDatabase
from sidestream.durable.absurd.loop import WorkLoop
from sidestream.durable.protocol import Drive, EngineStats, Task
from sidestream.errors import ConfigurationError
from sidestream.redaction import Secret

LEASE_S = 15


class AbsurdEngine:
    """Absurd in a database: `postgresql://user@host/database`, `?schema=` for another namespace.

    Absurd's schema, and ours beside it, are created at the first use.
    """

    def __init__(self, url: str, *, lease_s: int = LEASE_S) -> None:
        if lease_s < 1:
            raise ConfigurationError("a lease of Absurd is at least one second, in whole seconds")
        self._database = AbsurdDatabase(Secret(url), lease_s)
        # An engine that is dropped without being closed leaves no connections.
        weakref.finalize(self, self._database.connections.drop)

    def __repr__(self) -> str:
        return f"AbsurdEngine({self._database.server.name!r})"

    async def enqueue(self, task: Task) -> None:
        """There is something to drive. Does nothing if the engine has this task already."""
        await self._database.enqueue(task)

    async def wake(self, conversation: str, position: int) -> None:
        """A conversation that waits at this position, or is about to, is driven on."""
        await self._database.wake(conversation, position)

    async def cancel(self, conversation: str) -> None:
        """Nothing of the conversation is driven any more; who drives it loses the claim."""
        await self._database.cancel(conversation)

    async def work(self, drive: Drive, *, queues: Collection[str], slots: int) -> None:
        """Drives tasks of these queues, at most so many at once, until it is cancelled.

        Raises what goes wrong at first; later it waits for a database that is gone, and continues.
        """
        await self._database.create_queues(queues)
        await WorkLoop(self._database, drive, queues, slots).run()

    async def stats(self) -> EngineStats:
        """How many tasks there are, in all queues of the namespace."""
        return await self._database.stats()

    async def aclose(self) -> None:
        """Closes the connections. Tasks stay in the database."""
        await self._database.connections.aclose()

"""The engine: tasks are in PostgreSQL, and workers hear of new ones at once."""

import asyncio
import math
import weakref
from collections.abc import Collection

from sidestream.durable.absurd.database import AbsurdDatabase
from sidestream.durable.absurd.loop import WorkLoop
from sidestream.durable.protocol import Drive, EngineStats, Task
from sidestream.errors import ConfigurationError
from sidestream.redaction import Secret
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.protocol import Store
from sidestream.store.wrapped import WrappedStore

LEASE_S = 15.0


class AbsurdEngine:
    """Absurd for the runs of a store: in the store's own PostgreSQL, or in the database of a URL.

    Absurd's schema, and ours beside it, are created at the first use. A lease is in whole seconds.
    """

    def __init__(self, store: Store, url: str | None = None, *, lease_s: float = LEASE_S) -> None:
        url = _url_of(store) if url is None else Secret(url)
        self._database = AbsurdDatabase(url, max(math.ceil(lease_s), 1))
        # An engine that is dropped without being closed leaves no connections.
        weakref.finalize(self, self._database.drop)

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

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Drives tasks of these queues, at most so many at once, until it is cancelled, or has stopped.

        Waits for a database that is gone, but raises EngineError if it cannot begin within half a minute, and
        ConfigurationError at once if the database lacks Absurd's schema and cannot get it.
        """
        await WorkLoop(self._database, drive, queues=queues, slots=slots, stopping=stopping).run()

    async def stats(self) -> EngineStats:
        """How many tasks there are, in all queues of the namespace."""
        return await self._database.stats()

    async def aclose(self) -> None:
        """Closes the connections. Tasks stay in the database."""
        await self._database.aclose()


def _url_of(store: Store) -> Secret:
    while isinstance(store, WrappedStore):
        store = store.inner
    if not isinstance(store, PostgresStore):
        raise ConfigurationError(
            "Absurd needs PostgreSQL: use a store at postgresql://host/database, or the engine "
            "absurd+postgresql://host/database"
        )
    return store.url

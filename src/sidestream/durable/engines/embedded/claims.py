"""Claims that this process holds, and their heartbeats."""

import asyncio
from collections.abc import Awaitable, Callable

from sidestream.durable.engines.embedded.table import Granted, TaskTable
from sidestream.durable.engines.protocol import LeaseLostError, Task

BEATS_TOGETHER = 0.05
"""Heartbeats within this part of a lease are one statement."""


class Heartbeats:
    """Sends the heartbeats of many claims together."""

    def __init__(self, table: TaskTable, lease_s: float) -> None:
        self._table = table
        self._gather_s = lease_s * BEATS_TOGETHER
        self._conversations: set[str] = set()
        """Those whose leases the next statement renews."""
        self._next: asyncio.Task[set[tuple[str, str]]] | None = None

    async def beat(self, granted: Granted) -> None:
        """Renews a lease, with those of other claims of this moment. Raises LeaseLostError."""
        conversation = granted.task.conversation
        self._conversations.add(conversation)
        if self._next is None:
            self._next = asyncio.create_task(self._send())
            self._next.add_done_callback(_noticed)
        if (conversation, granted.token) not in await asyncio.shield(self._next):
            raise LeaseLostError(f"the conversation {conversation!r} was given to another worker, or cancelled")

    async def aclose(self) -> None:
        """Sends no more."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])

    async def _send(self) -> set[tuple[str, str]]:
        try:
            await asyncio.sleep(self._gather_s)
        finally:
            conversations, self._conversations, self._next = self._conversations, set(), None
        return await self._table.beat(sorted(conversations))


def _noticed(task: "asyncio.Task[set[tuple[str, str]]]") -> None:
    """Whoever waited for it may be gone."""
    if not task.cancelled():
        task.exception()


class EmbeddedClaim:
    """A task that this process drives."""

    def __init__(self, granted: Granted, lease_s: float, beat: Callable[[Granted], Awaitable[None]]) -> None:
        self.granted = granted
        self._lease_s = lease_s
        self._beat = beat

    @property
    def task(self) -> Task:
        """What is to be driven."""
        return self.granted.task

    @property
    def token(self) -> str:
        """Greater than that of every earlier claim on the conversation."""
        return self.granted.token

    @property
    def is_takeover(self) -> bool:
        """True if another worker had this task before, and did not report how far it came."""
        return self.granted.is_takeover

    @property
    def lease_s(self) -> float:
        """How long the claim holds without a heartbeat."""
        return self._lease_s

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError."""
        await self._beat(self.granted)

"""An engine on the store's own tables: claims by compare-and-swap, leases by counters that move."""

import asyncio
import math
from collections.abc import Collection, Generator
from contextlib import contextmanager

from sidestream.durable.engines.embedded.table import Granted, Held, TaskTable
from sidestream.durable.engines.embedded.work import EmbeddedClaim, Heartbeats, Work, described, is_dead, new_owner
from sidestream.durable.engines.protocol import Drive, EngineError, EngineStats, Outcome, Task, TaskHeldError
from sidestream.errors import StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.text.redaction import redact

LEASE_S = 15.0

_log = get_logger(__name__)


class EmbeddedEngineError(EngineError, StoreError):
    """The store, in which the tasks are, has failed."""


@contextmanager
def _errors() -> Generator[None]:
    """Raises EngineError for what the store raises."""
    try:
        yield
    except StoreError as error:
        raise EmbeddedEngineError(str(error), retryable=error.retryable) from error


class EmbeddedEngine:
    """Tasks in the database of the store. Every process that has it open can enqueue them, and work.

    A worker that is silent for `lease_s` loses its claims; one whose process has ended on the same machine, at once.
    """

    def __init__(self, store: SharedStore, *, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._store = store
        self._table = TaskTable(store, new_owner(), lease_s)
        self._heartbeats = Heartbeats(self._table, lease_s)
        self._claims: set[tuple[str, str]] = set()
        """Conversation and token of those that are driven here."""

    async def enqueue(self, task: Task) -> None:
        """There is something to drive. Does nothing if it is known already."""
        with _errors():
            await self._table.enqueue(task)

    async def wake(self, conversation: str, position: int) -> None:
        """A conversation that waits at this position, or is about to, is driven on."""
        with _errors():
            await self._table.wake(conversation, position)

    async def cancel(self, conversation: str) -> None:
        """Nothing of the conversation is driven any more."""
        with _errors():
            await self._table.cancel(conversation)

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Drives tasks of these queues, at most so many at once, until it is cancelled.

        Once `stopping` is set, nothing more is claimed; it returns when the tasks in progress have ended.
        """
        stopping = stopping or asyncio.Event()
        await Work(self, self._store, self._table, drive, queues=queues, slots=slots, stopping=stopping).run()

    async def stats(self) -> EngineStats:
        """How many tasks there are."""
        with _errors():
            return await self._table.stats()

    async def drivers(self, conversations: Collection[str]) -> dict[str, str]:
        """Conversation → the process that drives it, in words."""
        holders = await self._table.holders(conversations)
        return {conversation: described(worker) for conversation, worker in holders.items()}

    async def aclose(self) -> None:
        """Ends the heartbeats. The store stays open."""
        await self._heartbeats.aclose()

    async def claim(self, task: Task, *, silent_s: float = math.inf) -> EmbeddedClaim:
        """A claim for a process that drives a run itself; `release` ends it.

        Raises TaskHeldError if another worker drives the conversation. One that is dead does not, nor one that has been
        silent for longer than `silent_s` and its lease, by the database's clock.
        """
        with _errors():
            granted = await self._table.claim_idle(task)
            if isinstance(granted, Held) and (
                is_dead(granted.worker) or granted.age_s > max(silent_s, granted.lease_s)
            ):
                granted = next(iter(await self._table.claim_silent([granted])), None)
        if not isinstance(granted, Granted):
            raise TaskHeldError(f"another worker drives the conversation {task.conversation!r}")
        return self.claimed(granted)

    async def release(self, claim: EmbeddedClaim, outcome: Outcome | None = None) -> None:
        """Ends a claim, with how far its run came; without that, another worker drives the rest at once."""
        try:
            given = outcome or Outcome(position=claim.task.position, is_handed_over=True)
            await self._table.release(claim.granted, given)
        except StoreError as error:  # Once its lease is over, another worker finds out how far the run came.
            _log.warning("conversation %s: not released: %s", claim.task.conversation, redact(str(error)))
        finally:
            self.forget(claim)

    def claimed(self, granted: Granted) -> EmbeddedClaim:
        """The claim on a task that the table has granted."""
        self._claims.add((granted.task.conversation, granted.token))
        return EmbeddedClaim(granted, self.lease_s, self._heartbeats.beat)

    def forget(self, claim: EmbeddedClaim) -> None:
        """The claim is over."""
        self._claims.discard((claim.task.conversation, claim.token))

    def is_driven_here(self, held: Held) -> bool:
        """Whether the claim is one of this engine, and not over."""
        return (held.conversation, held.token) in self._claims

"""An engine on the store's own tables. Claims use compare-and-swap; heartbeat counters keep the leases."""

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
    """The store that holds the tasks has failed."""


@contextmanager
def _errors() -> Generator[None]:
    """Convert store errors to engine errors."""
    try:
        yield
    except StoreError as error:
        raise EmbeddedEngineError(str(error), retryable=error.retryable) from error


class EmbeddedEngine:
    """An engine whose tasks are in the store's database. Every process with the store open can enqueue and work.

    A worker that is unresponsive for `lease_s` seconds loses its claims. One whose process has ended on the same
    machine loses them at once.
    """

    def __init__(self, store: SharedStore, *, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._store = store
        self._table = TaskTable(store, new_owner(), lease_s)
        self._heartbeats = Heartbeats(self._table, lease_s)
        self._claims: set[tuple[str, str]] = set()
        """Conversation and token of the claims that this engine holds."""

    async def enqueue(self, task: Task) -> None:
        """Enqueue a task. Does nothing if it is already enqueued."""
        with _errors():
            await self._table.enqueue(task)

    async def wake(self, conversation: str, position: int) -> None:
        """Continue a conversation that waits at this position, or is about to."""
        with _errors():
            await self._table.wake(conversation, position)

    async def cancel(self, conversation: str) -> None:
        """Cancel a conversation's task."""
        with _errors():
            await self._table.cancel(conversation)

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Execute tasks of these queues, at most `slots` at once, until cancelled.

        Once `stopping` is set, it claims no more tasks and returns when those in progress have ended.
        """
        stopping = stopping or asyncio.Event()
        await Work(self, self._store, self._table, drive, queues=queues, slots=slots, stopping=stopping).run()

    async def stats(self) -> EngineStats:
        """Return the engine's statistics."""
        with _errors():
            return await self._table.stats()

    async def drivers(self, conversations: Collection[str]) -> dict[str, str]:
        """Return descriptions of the processes that execute these conversations, by conversation id."""
        holders = await self._table.holders(conversations)
        return {conversation: described(worker) for conversation, worker in holders.items()}

    async def aclose(self) -> None:
        """Stop the heartbeats. The store stays open."""
        await self._heartbeats.aclose()

    async def claim(self, task: Task, *, silent_s: float = math.inf) -> EmbeddedClaim:
        """Claim a task for a process that executes the run itself, until `release`.

        Raises TaskHeldError if another worker holds the conversation. Dead workers do not count, nor do workers that
        have been unresponsive for longer than both `silent_s` and their lease, by the database's clock.
        """
        with _errors():
            granted = await self._table.claim_idle(task)
            if isinstance(granted, Held) and (
                is_dead(granted.worker) or granted.age_s > max(silent_s, granted.lease_s)
            ):
                granted = next(iter(await self._table.claim_silent([granted])), None)
        if not isinstance(granted, Granted):
            raise TaskHeldError(f"another worker is executing conversation {task.conversation!r}")
        return self.claimed(granted)

    async def release(self, claim: EmbeddedClaim, outcome: Outcome | None = None) -> None:
        """Release a claim with its outcome. Without one, another worker executes the rest at once."""
        try:
            given = outcome or Outcome(position=claim.task.position, is_handed_over=True)
            await self._table.release(claim.granted, given)
        except StoreError as error:  # After the lease expires, another worker finds out how far the run came.
            _log.warning(
                "conversation %s: could not release the claim: %s", claim.task.conversation, redact(str(error))
            )
        finally:
            self.forget(claim)

    def claimed(self, granted: Granted) -> EmbeddedClaim:
        """Return the claim on a task that the table has granted."""
        self._claims.add((granted.task.conversation, granted.token))
        return EmbeddedClaim(granted, self.lease_s, self._heartbeats.beat)

    def forget(self, claim: EmbeddedClaim) -> None:
        """Forget a claim that has ended."""
        self._claims.discard((claim.task.conversation, claim.token))

    def is_driven_here(self, held: Held) -> bool:
        """Return whether this engine holds the claim."""
        return (held.conversation, held.token) in self._claims

"""Who executes the runs of a server: the workers of its engine, the one of this process among them."""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import MODELS, Engine, Outcome, Task, TaskHeldError
from sidestream.durable.log.approval_deadlines import OnExpiry, expires_at
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.queues import queue_of
from sidestream.durable.log.reconciler_leases import GONE_S
from sidestream.durable.worker.reconciler import Reconciler
from sidestream.durable.worker.service import WorkerLoop
from sidestream.durable.worker.worker import Worker
from sidestream.errors import SidestreamError, StoreError
from sidestream.logs import get_logger
from sidestream.store.ids import ConversationId
from sidestream.store.log.follow import PublishedStore
from sidestream.store.log.writer import LogDetail
from sidestream.store.records import open_run
from sidestream.text.redaction import redact
from sidestream.tools.approvals import PendingApproval

SLOTS = 100
"""Runs of other processes, or of timers, that this one executes at the same time."""

ENQUEUE_S = 2.0
"""How long a request waits for the engine to take its run."""

LEFT_AFTER_S = 3600.0
"""Age after which an unstored conversation without a run in progress has no client any more."""

RECENT_S = 86_400.0
"""Runs whose log has not changed for longer are not counted as running: no quota waits for them."""

RETRY_S = 1.0
"""How long the worker of this process waits after a failure."""

_log = get_logger(__name__)


class Execution:
    """The engine of a server, and the worker of the server's process.

    Without an `engine`, it is the embedded one, and the worker executes its tasks: what requests begin, and runs of
    other servers that have died, if it knows their agent: one of `agents`, or a model string. With `only`, it executes
    only runs of these names. With an `engine`, workers in other processes execute its tasks.
    """

    def __init__(
        self,
        store: PublishedStore,
        engine: Engine | None,
        agent_of: Callable[[str], Agent[Any]],
        agents: Collection[str],
        *,
        only: Collection[str] | None,
        detail: LogDetail,
        approval_s: float | None,
        on_expiry: OnExpiry,
    ) -> None:
        self.is_worker = engine is None
        """Whether this process executes the engine's tasks."""
        self.engine: Engine = engine or EmbeddedEngine(store)
        self.claims = self.engine if isinstance(self.engine, EmbeddedEngine) else None
        """The engine, if it gives claims on runs that begin here."""
        self.worker = Worker(store, self.engine, agent_of, detail=detail, approval_s=approval_s, on_expiry=on_expiry)
        self._store = store
        self._agents = agents if only is None or engine is not None else only
        self._queues = [*agents, MODELS] if self._agents is agents else [*self._agents]
        self._expires_after_s = approval_s if on_expiry != "wait" else None
        self._reconciler = Reconciler(
            store,
            self.engine,
            self._own_queue_of if self.is_worker else self.queue_of,
            self._queues,
            is_driven=self.worker.driving.__contains__,
            is_skipped=self._is_skipped,
            end=self._end if self.is_worker else None,
        )
        self._loop = WorkerLoop(
            self.engine,
            self.worker,
            self._reconciler,
            lambda: {"runs": len(self.worker.driving)},
            queues=self._queues if self.is_worker else (),
            slots=SLOTS,
        )
        self._working: asyncio.Task[None] | None = None
        self._enqueuing: set[asyncio.Task[None]] = set()

    def queue_of(self, job: Job) -> str:
        """Return the queue of a run."""
        return queue_of(job.agent, self._agents)

    async def open(self) -> None:
        """Begin to work, and to enqueue abandoned runs. Does not wait for the engine: the log can be read without."""
        # With workers in other processes, an unstored run without a claim is queued.
        await delete_left(self._store, self.claims if self.is_worker else None)
        if self.is_worker:
            with suppress(StoreError):  # The log can be read, even if it cannot be written.
                await self._reconciler.announce()
        self._reconciler.miss()
        self._working = asyncio.create_task(self._work())

    async def enqueue(self, task: Task) -> None:
        """Have a run executed. If the engine does not answer soon, the run is enqueued later: the log has it."""
        enqueuing = asyncio.create_task(self._enqueue(task))
        self._enqueuing.add(enqueuing)
        enqueuing.add_done_callback(self._enqueuing.discard)
        await asyncio.wait([enqueuing], timeout=ENQUEUE_S)

    async def _enqueue(self, task: Task) -> None:
        try:
            await self.engine.enqueue(task)
        except SidestreamError as error:
            _log.warning("conversation %s is not enqueued yet: %s", task.conversation, redact(str(error)))
            self._reconciler.miss()

    async def forget(self, conversation: str) -> None:
        """Remove the task of a conversation that is about to be deleted, and its timers."""
        try:
            await self.engine.cancel(conversation)
        except SidestreamError as error:
            _log.warning("conversation %s: its task is not removed: %s", conversation, redact(str(error)))

    async def running(self, owner: str) -> list[str]:
        """Return the owner's conversations in which a run is in progress, whichever process executes it."""
        found = await self._store.open_conversations(prefix=f"{owner}/", since=time.time() - RECENT_S)
        return [id for id, _, _ in found]

    async def drivers(self, conversations: Collection[str]) -> dict[str, str]:
        """Return the process that executes each conversation, where the engine says so."""
        return await self.claims.drivers(conversations) if self.claims is not None else {}

    async def expires_at(self, conversation: str, pending: Collection[PendingApproval]) -> float | None:
        """Return when pending approvals expire; None if nothing happens then."""
        if self._expires_after_s is None:
            return None
        return expires_at(await self._store.read(conversation), tuple(pending), self._expires_after_s)

    def stop(self) -> None:
        """Stop claiming runs, and hand off what the worker executes."""
        if not self._loop.is_stopping:
            self._loop.stop()

    async def aclose(self) -> None:
        """Stop working, once all runs are handed off."""
        self.stop()
        if self._working is not None:
            await asyncio.wait([self._working])
        enqueuing = [*self._enqueuing]
        for task in enqueuing:
            task.cancel()
        if enqueuing:
            await asyncio.wait(enqueuing)
        with suppress(SidestreamError):
            await self.engine.aclose()

    async def _work(self) -> None:
        while not self._loop.is_stopping:
            try:
                await self._loop.run()
            except SidestreamError as error:
                _log.warning("tasks are not executed: %s", redact(str(error)))
                await asyncio.sleep(RETRY_S)

    async def _end(self, conversation: str, position: int) -> None:
        """End a run whose agent no process knows any more: executing it fails, with the reason."""
        assert self.claims is not None
        task = Task(conversation=conversation, position=position, queue=self._queues[0])
        try:
            claim = await self.claims.claim(task, silent_s=GONE_S)
        except TaskHeldError:
            return
        outcome: Outcome | None = None
        try:
            outcome = await self.worker.drive(claim)
        except Exception as error:  # The next pass tries again; other runs do not wait for that.
            _log.warning("conversation %s is not ended: %s", conversation, redact(f"{type(error).__name__}: {error}"))
        finally:
            await self.claims.release(claim, outcome)

    def _own_queue_of(self, job: Job) -> str | None:
        """Return the queue of a run; None if this process does not know its agent."""
        queue = self.queue_of(job)
        return queue if queue in self._queues else None

    def _is_skipped(self, conversation: str) -> bool:
        # What is not stored is not resumed either: no request can address it any more.
        return self.is_worker and ConversationId.parse(conversation).is_unstored


async def delete_left(store: PublishedStore, engine: EmbeddedEngine | None) -> None:
    """Delete unstored conversations that no process executes, as the engine says, or that ended long ago.

    Raises StoreError.
    """
    for id, updated in await store.unstored():
        rows = await store.read(id)
        if open_run(rows) is not None:
            if engine is None:
                continue
            try:
                claim = await engine.claim(Task(conversation=id, position=rows[-1].seq))
            except TaskHeldError:
                continue  # Another server's, whose client waits for it.
            await store.delete(id)
            engine.forget(claim)
        elif updated < time.time() - LEFT_AFTER_S:
            await store.delete(id)

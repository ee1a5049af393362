"""The engine that executes a server's runs, and the worker in the server's process."""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import MODELS, Engine, Outcome, Task, TaskHeldError
from sidestream.durable.log.approval_deadlines import OnExpiry, expires_at
from sidestream.durable.log.jobs import Job, queue_of
from sidestream.durable.worker.reconciler import GONE_S, Reconciler
from sidestream.durable.worker.service import WorkerLoop, health_of
from sidestream.durable.worker.worker import Worker
from sidestream.errors import SidestreamError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.store.ids import ConversationId
from sidestream.store.log.follow import PublishedStore
from sidestream.store.log.writer import LogDetail
from sidestream.store.records import open_run
from sidestream.text.redaction import redact
from sidestream.tools.approvals import PendingApproval

SLOTS = 100
"""Maximum runs claimed from the engine's queue, from other processes or timers, that this process executes at once."""

ENQUEUE_S = 2.0
"""Seconds that a request waits for the engine to accept its run."""

LEFT_AFTER_S = 3600.0
"""Age in seconds after which an unstored conversation without a run in progress is considered abandoned."""

RECENT_S = 86_400.0
"""Age in seconds of the last change after which a run no longer counts towards quotas."""

RETRY_S = 1.0
"""Seconds that this process's worker waits after a failure."""

_log = get_logger(__name__)


class Execution:
    """The engine of a server, and the worker in the server's process.

    Without an `engine`, the embedded one is used and the worker executes its tasks. These are the runs that requests
    start, and runs of dead servers whose agent it knows: one of `agents`, or a model string. With `only`, it executes
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
        answer_s: float | None,
    ) -> None:
        self.is_worker = engine is None
        """Whether this process executes the engine's tasks."""
        self.engine: Engine = engine or EmbeddedEngine(store)
        self.claims = self.engine if isinstance(self.engine, EmbeddedEngine) else None
        """The engine, if it grants claims on runs that start in this process."""
        self.worker = Worker(
            store,
            self.engine,
            agent_of,
            detail=detail,
            approval_s=approval_s,
            on_expiry=on_expiry,
            answer_s=answer_s,
        )
        self._store = store
        self._agents = agents if only is None or engine is not None else only
        self._queues = [*agents, MODELS] if self._agents is agents else [*self._agents]
        self._expires_after_s = approval_s if on_expiry != "wait" else None
        self._answer_s = answer_s
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
        """Start the worker and enqueue abandoned runs.

        Does not wait for the engine, as the log can be read without it.
        """
        # With workers in other processes, an unstored run without a claim is queued.
        await delete_left(self._store, self.claims if self.is_worker else None)
        if self.is_worker:
            with suppress(StoreError):  # The log can be read even if it cannot be written.
                await self._reconciler.announce()
        self._reconciler.miss()
        self._working = asyncio.create_task(self._work())

    async def enqueue(self, task: Task) -> None:
        """Enqueue a run. If the engine does not answer soon, the run is enqueued later from the log."""
        enqueuing = asyncio.create_task(self._enqueue(task))
        self._enqueuing.add(enqueuing)
        enqueuing.add_done_callback(self._enqueuing.discard)
        await asyncio.wait([enqueuing], timeout=ENQUEUE_S)

    async def _enqueue(self, task: Task) -> None:
        try:
            await self.engine.enqueue(task)
        except SidestreamError as error:
            _log.warning(
                "conversation %s: could not be enqueued, will be retried: %s", task.conversation, redact(str(error))
            )
            self._reconciler.miss()

    async def forget(self, conversation: str) -> None:
        """Remove the task and timers of a conversation that is about to be deleted."""
        try:
            await self.engine.cancel(conversation)
        except SidestreamError as error:
            _log.warning("conversation %s: could not remove its task: %s", conversation, redact(str(error)))

    async def running(self, owner: str) -> list[str]:
        """Return the tenant's conversations with a run in progress, in any process."""
        found = await self._store.open_conversations(prefix=f"{owner}/", since=time.time() - RECENT_S)
        return [id for id, _, _ in found]

    async def drivers(self, conversations: Collection[str]) -> dict[str, str]:
        """Return the worker process of each conversation, as far as the engine knows it."""
        return await self.claims.drivers(conversations) if self.claims is not None else {}

    async def expires_at(self, conversation: str, pending: Collection[PendingApproval]) -> float | None:
        """Return when pending calls expire, or None if they do not."""
        rows = await self._store.read(conversation)
        return expires_at(rows, tuple(pending), self._expires_after_s, self._answer_s)

    async def health(self) -> JsonObject:
        """Return the status of this process as a worker reports its own."""
        return await health_of(self.engine, self._reconciler, is_stopping=self._loop.is_stopping)

    def stop(self) -> None:
        """Stop claiming runs and hand off those that the worker executes."""
        if not self._loop.is_stopping:
            self._loop.stop()

    async def aclose(self) -> None:
        """Wait until all runs are handed off, and close the engine. Call `stop` before."""
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
                _log.warning("worker failed, restarting: %s", redact(str(error)))
                await asyncio.sleep(RETRY_S)

    async def _end(self, conversation: str, position: int) -> None:
        """End a run whose agent is no longer known to any process. Executing it fails with the reason."""
        assert self.claims is not None
        task = Task(conversation=conversation, position=position, queue=self._queues[0])
        try:
            claim = await self.claims.claim(task, silent_s=GONE_S)
        except TaskHeldError:
            return
        outcome: Outcome | None = None
        try:
            outcome = await self.worker.drive(claim)
        except Exception as error:  # The next reconciliation retries; other runs must not wait for it.
            _log.warning(
                "conversation %s: could not be ended: %s", conversation, redact(f"{type(error).__name__}: {error}")
            )
        finally:
            await self.claims.release(claim, outcome)

    def _own_queue_of(self, job: Job) -> str | None:
        """Return the queue of a run, or None if this process does not know its agent."""
        queue = self.queue_of(job)
        return queue if queue in self._queues else None

    def _is_skipped(self, conversation: str) -> bool:
        # Unstored runs are not resumed, because no request can address them.
        return self.is_worker and ConversationId.parse(conversation).is_unstored


async def delete_left(store: PublishedStore, engine: EmbeddedEngine | None) -> None:
    """Delete unstored conversations that no process executes, according to the engine, or that ended long ago.

    Raises StoreError if the store cannot be read or written.
    """
    for id, updated in await store.unstored():
        rows = await store.read(id)
        if open_run(rows) is not None:
            if engine is None:
                continue
            try:
                claim = await engine.claim(Task(conversation=id, position=rows[-1].seq))
            except TaskHeldError:
                continue  # It belongs to another server, whose client waits for it.
            await store.delete(id)
            engine.forget(claim)
        elif updated < time.time() - LEFT_AFTER_S:
            await store.delete(id)

"""Who drives the runs of a server: this process, each under a claim, or workers elsewhere."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import MODELS, Claim, Engine, Outcome, Task, TaskHeldError
from sidestream.durable.log.approval_deadlines import OnExpiry, expires_at
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.queues import queue_of
from sidestream.durable.log.reconciler_leases import GONE_S
from sidestream.durable.worker.reconciler import Reconciler
from sidestream.durable.worker.service import report
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
"""Runs of other processes, or of timers, that this one drives at the same time."""

ENQUEUE_S = 2.0
"""How long a request waits for the engine that is to drive its run."""

LEFT_AFTER_S = 3600.0
"""One that has ended, and has not changed for so long, has no client any more."""

RECENT_S = 86_400.0
"""Runs whose log has not changed for longer are not counted as running: no cap waits for them."""

_log = get_logger(__name__)


class Driving:
    """The engine of a server, and what the server does for it.

    Without an engine, the server drives its runs itself, and takes over those of other servers that have died, if it
    knows their agent: one of `agents`, or a model string. With `only`, it drives only runs of these names.
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
        self.is_here = engine is None
        """True if this process drives what its requests start."""
        self.engine: Engine = engine or EmbeddedEngine(store)
        self.claims = self.engine if isinstance(self.engine, EmbeddedEngine) else None
        """The engine, if it gives claims to processes that drive a run themselves."""
        self.worker = Worker(store, self.engine, agent_of, detail=detail, approval_s=approval_s, on_expiry=on_expiry)
        self._store = store
        self._agents = agents if only is None or engine is not None else only
        self._queues = [*agents, MODELS] if self._agents is agents else [*self._agents]
        self._expires_after_s = approval_s if on_expiry != "wait" else None
        self._reconciler = Reconciler(
            store,
            self.engine,
            self._queue_here if self.is_here else self.queue_of,
            self._queues,
            is_driven=self.worker.driving.__contains__,
            is_skipped=self._is_skipped,
            end=self._end if self.is_here else None,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._enqueuing: set[asyncio.Task[None]] = set()

    def queue_of(self, job: Job) -> str:
        """The queue of a run."""
        return queue_of(job.agent, self._agents)

    async def open(self) -> None:
        """Begins to work, and to enqueue what other processes left. Waits for no engine: the log can be read."""
        # Where workers are elsewhere, one that nobody has claimed is queued.
        await delete_left(self._store, self.claims if self.is_here else None)
        if self.is_here:
            with suppress(StoreError):  # The log can be read, even if it cannot be written.
                await self._reconciler.announce()
        self._reconciler.miss()
        self._run(self._reconciler.run())
        self._run(self.worker.attend())
        self._run(report(self.engine, lambda: {"runs": len(self.worker.driving)}))
        if self.is_here:
            self._run(self._work())

    async def enqueue(self, task: Task) -> None:
        """Has a run driven. If the engine does not answer soon, the run is enqueued later: the log has it."""
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
        """The conversation is about to be deleted: nothing of it is driven any more. Timers are removed."""
        try:
            await self.engine.cancel(conversation)
        except SidestreamError as error:
            _log.warning("conversation %s: its task is not removed: %s", conversation, redact(str(error)))

    async def running(self, owner: str) -> list[str]:
        """The owner's conversations in which a run is in progress, wherever it is driven."""
        found = await self._store.open_conversations(prefix=f"{owner}/", since=time.time() - RECENT_S)
        return [id for id, _, _ in found]

    async def drivers(self, conversations: Collection[str]) -> dict[str, str]:
        """Conversation → the process that drives it, where the engine says so."""
        return await self.claims.drivers(conversations) if self.claims is not None else {}

    async def expires_at(self, conversation: str, pending: Collection[PendingApproval]) -> float | None:
        """Until when pending approvals wait; None if nothing happens when they expire."""
        if self._expires_after_s is None:
            return None
        return expires_at(await self._store.read(conversation), tuple(pending), self._expires_after_s)

    async def aclose(self) -> None:
        """Hands over what is driven here for the engine, and stops working."""
        await self.worker.drain()
        tasks = [*self._tasks, *self._enqueuing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(SidestreamError):
            await self.engine.aclose()

    async def _work(self) -> None:
        while True:
            try:
                await self.engine.work(self._drive, queues=self._queues, slots=SLOTS)
            except StoreError as error:
                _log.warning("runs of other processes are not taken over: %s", redact(str(error)))
            await asyncio.sleep(1.0)

    async def _drive(self, claim: Claim) -> Outcome:
        try:
            return await self.worker.drive(claim)
        finally:
            self._store.wake(claim.task.conversation)

    async def _end(self, conversation: str, position: int) -> None:
        """Ends a run whose agent no process knows any more: to drive it fails, with the reason."""
        assert self.claims is not None
        task = Task(conversation=conversation, position=position, queue=self._queues[0])
        try:
            claim = await self.claims.claim(task, silent_s=GONE_S)
        except TaskHeldError:
            return
        outcome: Outcome | None = None
        try:
            outcome = await self._drive(claim)
        except Exception as error:  # The next pass tries again; other runs do not wait for that.
            _log.warning("conversation %s is not ended: %s", conversation, redact(f"{type(error).__name__}: {error}"))
        finally:
            await self.claims.release(claim, outcome)

    def _queue_here(self, job: Job) -> str | None:
        """The queue of a run; None if this process does not know its agent."""
        queue = self.queue_of(job)
        return queue if queue in self._queues else None

    def _is_skipped(self, conversation: str) -> bool:
        # What is not stored is not resumed either: no request can address it any more.
        return self.is_here and ConversationId.parse(conversation).is_unstored

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))


async def delete_left(store: PublishedStore, engine: EmbeddedEngine | None) -> None:
    """Deletes those that no process drives any more, as the engine says, or that ended long ago. Raises StoreError."""
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

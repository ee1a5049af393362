"""Dispatches runs: this process writes a run's first records, and a worker executes it.

If this process has a worker, that worker gets the run without the engine's queue. The run still has an engine claim, so
another worker continues it if this process dies.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.settings import CallSettings
from sidestream.durable.beginning import Beginning, Begun
from sidestream.durable.engines.embedded.engine import EmbeddedEngine
from sidestream.durable.engines.embedded.run_claims import ClaimedStore, RunClaim
from sidestream.durable.engines.protocol import Outcome, Task
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.run_control import is_over
from sidestream.durable.worker.worker import Worker
from sidestream.errors import ConfigurationError, ConflictError, SidestreamError, StoreError
from sidestream.messages.message import ChatMessage
from sidestream.run.run import Run
from sidestream.run.settings import StreamErrors
from sidestream.store.log.writer import LogDetail
from sidestream.store.protocol import SharedStore

CLOSING_S = 5.0
"""Seconds to hand off runs when a dispatcher closes."""


class DispatchedRun:
    """A run that this process starts, until it is enqueued or this process's worker has released it."""

    def __init__(self, beginning: Beginning, claim: RunClaim | None) -> None:
        self.beginning = beginning
        self.claim = claim
        """Claim of this process's worker. None means that the run is enqueued."""
        self.error: SidestreamError | None = None
        """Error because of which this process's worker did not finish the run."""
        self.task: asyncio.Task[None] | None = None
        self.start: int | None = None
        """Sequence number of the run's first record, once it is in the log."""
        self.begun = asyncio.Event()
        """Set once the run's first record is in the log, or the run could not start."""

    @property
    def chat(self) -> Chat[Any]:
        """The run's chat."""
        return self.beginning.chat

    @property
    def job(self) -> Job:
        """The run's job."""
        return self.beginning.job

    @property
    def run(self) -> Run[Any] | None:
        """The run, or None until it is created."""
        return self.beginning.run

    @property
    def store_error(self) -> StoreError | None:
        """The store error because of which the run is not recorded, if any."""
        return self.chat.store_error

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or waits, so that its claim is about to be released."""
        return self.run is not None and is_over(self.run)

    @property
    def run_id(self) -> str | None:
        """The run's id, or None until the run is created."""
        return self.run.turn.state.run_id if self.run is not None else None

    @property
    def cost(self) -> float:
        """Known cost of the run so far, in US dollars."""
        return (self.run.turn.state.usage.cost or 0.0) if self.run is not None else 0.0

    async def take(self) -> None:
        """Claim the conversation for this process's worker. Raises ConflictError if another worker holds it."""
        if self.claim is not None and self.chat.head:
            await self.claim.take(self.chat.head)

    def note_start(self, seq: int) -> None:
        """Note the sequence number of the run's first record."""
        self.start = seq
        self.begun.set()


class Dispatcher:
    """Starts runs and has them executed by this process's `worker`, or by any worker through `enqueue`.

    With `is_worker`, this process executes the runs that it starts. Otherwise it executes only runs whose settings are
    not stored, and only if the engine gives it `claims`. `ended` is called with each run that leaves this process.
    """

    def __init__(
        self,
        store: SharedStore,
        queue_of: Callable[[Job], str],
        enqueue: Callable[[Task], Awaitable[None]],
        *,
        worker: Worker | None = None,
        claims: EmbeddedEngine | None = None,
        is_worker: bool = False,
        detail: LogDetail | None = None,
        errors: StreamErrors = "raise",
        ended: Callable[[DispatchedRun], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._queue_of = queue_of
        self._enqueue = enqueue
        self._worker = worker
        self._claims = claims
        self._is_worker = is_worker
        self._detail = detail
        self._errors: StreamErrors = errors
        self._ended = ended
        self._runs: dict[str, DispatchedRun] = {}
        self._blocked: set[str] = set()
        """Conversations in which runs may not start at the moment."""
        self._is_closing = False

    @property
    def runs(self) -> Mapping[str, DispatchedRun]:
        """Runs being started or executed in this process, by conversation id."""
        return self._runs

    @contextmanager
    def blocked(self, conversations: Collection[str]) -> Generator[None]:
        """Prevent runs from starting in these conversations until the block ends."""
        self._blocked |= set(conversations)
        try:
            yield
        finally:
            self._blocked -= set(conversations)

    @asynccontextmanager
    async def reserved(
        self,
        agent: Agent[Any],
        conversation: str,
        job: Job,
        *,
        messages: Iterable[ChatMessage] = (),
        call: CallSettings | None = None,
        at: float | None = None,
        is_new: bool = False,
    ) -> AsyncGenerator[DispatchedRun]:
        """Reserve a conversation for a run until `dispatch` takes it or the block ends.

        `is_new` means that the conversation cannot exist yet. Raises ConflictError if this process has a run in
        progress there.
        """
        claim = self._claim(conversation, job, call, at)
        while (last := self._runs.get(conversation)) is not None and last.is_over and last.task is not None:
            await asyncio.wait([last.task])
        if last is not None or conversation in self._blocked or self._is_closing:
            raise ConflictError(conversation)
        store = ClaimedStore(self._store, claim, is_new=is_new) if claim is not None else self._store
        beginning = Beginning(
            agent,
            job,
            conversation,
            store=store,
            messages=messages,
            detail=self._detail,
            is_offered=claim is not None,
            errors=self._errors,
            call=call,
        )
        dispatched = self._runs[conversation] = DispatchedRun(beginning, claim)
        if isinstance(store, ClaimedStore):
            store.started = dispatched.note_start
        try:
            yield dispatched
        finally:
            if dispatched.task is None:
                if claim is not None:
                    await claim.release(Outcome(position=beginning.after))
                self._release(dispatched)

    async def dispatch(self, dispatched: DispatchedRun) -> Begun:
        """Have a started or resumed run executed, and return once its first record is in the log.

        Raises StoreError if the record cannot be written.
        """
        beginning = dispatched.beginning
        if dispatched.claim is None:
            begun = await beginning.record()
            if begun.is_live:
                conversation, queue = beginning.chat.id, self._queue_of(beginning.job)
                task = Task(conversation=conversation, position=begun.position, queue=queue, at=beginning.at)
                await self._enqueue(task)
            return begun
        dispatched.task = asyncio.create_task(self._execute(dispatched))
        await dispatched.begun.wait()
        if dispatched.start is None:
            raise dispatched.error or dispatched.store_error or ConflictError(beginning.chat.id)
        start = dispatched.start
        return Begun(id=dispatched.run_id or "", start=start, position=start, is_live=True)

    async def begun(self, conversation: str) -> None:
        """Wait until a run that this process is starting is in the log.

        A request to stop a run may overtake the request that starts it.
        """
        if (dispatched := self._runs.get(conversation)) is not None:
            await dispatched.begun.wait()

    async def aclose(self) -> None:
        """Hand off this process's runs to other workers."""
        self._is_closing = True
        if self._worker is not None:
            await self._worker.drain()
        tasks = [dispatched.task for dispatched in self._runs.values() if dispatched.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING_S)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _claim(self, conversation: str, job: Job, call: CallSettings | None, at: float | None) -> RunClaim | None:
        """Return the claim with which this process executes a run, or None if the run is enqueued."""
        is_stored = job.is_resumable and not call
        if is_stored and (not self._is_worker or (at is not None and at > time.time())):
            return None
        if self._claims is None:
            raise ConfigurationError("the run's settings are not stored, so other workers cannot execute it")
        return RunClaim(self._claims, conversation, self._queue_of(job))

    async def _execute(self, dispatched: DispatchedRun) -> None:
        assert self._worker is not None
        assert dispatched.claim is not None
        try:
            dispatched.error = await self._worker.offer(dispatched.claim, dispatched.beginning)
        finally:
            self._release(dispatched)

    def _release(self, dispatched: DispatchedRun) -> None:
        del self._runs[dispatched.chat.id]
        dispatched.begun.set()
        self._ended(dispatched)

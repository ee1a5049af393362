"""One way to execute a run: this process records its beginning, and the engine has a worker execute it.

The worker of this process, if it has one, gets a run that was begun here without the engine's queue. It runs under a
claim of the engine all the same, so that another worker continues it if this process dies.
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
"""How long runs have to be handed off when a dispatcher closes."""


class DispatchedRun:
    """A run that this process begins, until a queue has it, or the worker of this process has released it."""

    def __init__(self, beginning: Beginning, claim: RunClaim | None) -> None:
        self.beginning = beginning
        self.claim = claim
        """Claim of the worker of this process. None means that the run is enqueued."""
        self.error: SidestreamError | None = None
        """Why the worker of this process did not finish it."""
        self.task: asyncio.Task[None] | None = None
        self.start: int | None = None
        """Sequence number of the record with which it began, once the log has it."""
        self.begun = asyncio.Event()
        """Set once the log has the run's beginning, or the run could not begin."""

    @property
    def chat(self) -> Chat[Any]:
        """The chat of the run."""
        return self.beginning.chat

    @property
    def job(self) -> Job:
        """The job of the run."""
        return self.beginning.job

    @property
    def run(self) -> Run[Any] | None:
        """The run, once it is made."""
        return self.beginning.run

    @property
    def store_error(self) -> StoreError | None:
        """Why the run is not recorded, if so."""
        return self.chat.store_error

    @property
    def is_over(self) -> bool:
        """Whether the run has finished, or waits: its claim is about to be released."""
        return self.run is not None and is_over(self.run)

    @property
    def run_id(self) -> str | None:
        """The id of the run, once it is made."""
        return self.run.turn.state.run_id if self.run is not None else None

    @property
    def cost(self) -> float:
        """Cost of the run so far, in US dollars, as far as prices are known."""
        return (self.run.turn.state.usage.cost or 0.0) if self.run is not None else 0.0

    async def take(self) -> None:
        """Claim the conversation for the worker of this process. Raises ConflictError if another worker has it."""
        if self.claim is not None and self.chat.head:
            await self.claim.take(self.chat.head)

    def note_start(self, seq: int) -> None:
        """Note that the log has the record with which the run began."""
        self.start = seq
        self.begun.set()


class Dispatcher:
    """Begins runs, and has them executed: by `worker`, the worker of this process, or by any, with `enqueue`.

    With `is_worker`, runs that begin here are executed here. Without, only those are whose settings are not stored, if
    the engine gives this process `claims`. `ended` is called with each run that no longer belongs to this process.
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
        """Conversations in which no run may begin now."""
        self._is_closing = False

    @property
    def runs(self) -> Mapping[str, DispatchedRun]:
        """Runs that begin or are executed here, by conversation id."""
        return self._runs

    @contextmanager
    def blocked(self, conversations: Collection[str]) -> Generator[None]:
        """Let no run begin in these conversations until the block ends."""
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
        """Reserve a conversation for a run, until `dispatch` has its beginning, or the block ends.

        `is_new` means that the conversation cannot exist yet. Raises ConflictError if a run is in progress here.
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
        """Have a run executed that was started or resumed; return once the log has its beginning. Raises StoreError."""
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
        """Wait for a run that is about to begin here: a request to stop it may overtake the one that starts it."""
        if (dispatched := self._runs.get(conversation)) is not None:
            await dispatched.begun.wait()

    async def aclose(self) -> None:
        """Hand the runs of this process off to other workers."""
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
        """Return the claim with which this process executes a run; None if the run is enqueued."""
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

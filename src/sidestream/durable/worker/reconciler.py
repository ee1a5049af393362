"""Repairs what was lost between the log and the engine: runs in progress of which the engine does not know.

A process can die after it has written how a run begins, or a decision, and before the engine is notified. Enqueuing
is idempotent, so every run that is in progress by its log can be enqueued again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from sidestream.durable.engines.protocol import Engine, EngineError, Task
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of
from sidestream.durable.log.queues import queue_of
from sidestream.durable.log.reconciler_leases import Passes
from sidestream.errors import NewerSchemaError, SidestreamError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.store.records import ENDINGS, STARTED, Row, open_run
from sidestream.text.redaction import redact

INTERVAL_S = 30.0
"""Between two passes, whichever process makes them."""
RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Between attempts to enqueue what an engine that does not answer has missed; the last one repeats."""
SETTLING_S = 10.0
"""Runs whose log has changed so recently are left alone: whoever writes it is there."""
MAX_RUNS = 1000
"""After so many runs a pass ends, and the next one continues there."""
PAGE = 500
"""Conversations that are listed at a time."""

_log = get_logger(__name__)


class Reconciler:
    """Enqueues runs that are in progress by their log, periodically.

    `queue_of` gives the queue of a job, which is one of `queues`, or None if this process does not know its agent;
    conversations that `is_driven` names are driven by this process. `end`, if given, ends the run of a conversation
    whose agent no process knows any more: nobody would ever drive it.
    """

    def __init__(
        self,
        store: SharedStore,
        engine: Engine,
        queue_of: Callable[[Job], str | None],
        queues: Collection[str],
        *,
        is_driven: Callable[[str], bool] = lambda _: False,
        is_skipped: Callable[[str], bool] = lambda _: False,
        end: Callable[[str, int], Awaitable[None]] | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._store = store
        self._engine = engine
        self._queue_of = queue_of
        self._passes = Passes(store, queues)
        self._is_driven = is_driven
        self._is_skipped = is_skipped
        self._end = end
        self._interval_s = interval_s
        self._idle: dict[str, tuple[int, Job | None]] = {}
        """Conversations that are not to be driven here although their last record says so: its number, and the job if
        its agent is not known here."""
        self._since = 0.0
        """Where the next pass begins: conversations that have changed later."""
        self._seen: set[str] = set()
        """Conversations that were listed since the passes began with the oldest."""
        self.refusal: NewerSchemaError | None = None
        """Why this process can write nothing, and so drive nothing: a newer version has changed the store."""
        self._missed = asyncio.Event()
        """Set if the engine may not know of runs that have just begun."""

    def miss(self) -> None:
        """The engine could not be reached, or nothing is known yet: all runs are enqueued as soon as it answers."""
        self._missed.set()

    async def announce(self) -> None:
        """Others see from now on that there is a process with these queues. Raises StoreError."""
        await self._passes.begin(self._interval_s / 2)

    async def reconcile(self, settling_s: float = 0.0) -> int:
        """Enqueues the runs in progress whose log has not changed for so long; returns how many. Raises StoreError."""
        before, count = time.time() - settling_s, 0
        if self._end is not None:
            await self._passes.look()
        while count < MAX_RUNS:
            page = await self._store.open_conversations(since=self._since, before=before, limit=PAGE)
            for id, head, _ in page:
                if not self._is_skipped(id) and not self._is_driven(id):
                    count += await self._attend(id, head)
            if len(page) < PAGE:
                self._since = 0.0
                self._idle, self._seen = {id: it for id, it in self._idle.items() if id in self._seen}, set()
                break
            self._since = page[-1][2]
        return count

    async def _attend(self, conversation: str, head: int) -> bool:
        """Enqueues the run of a conversation; False if it is not to be driven here."""
        self._seen.add(conversation)
        known = self._idle.get(conversation)
        if (known is None or known[0] != head) and await self._enqueue(conversation, head):
            return True
        if self._end is not None and self._is_lost(self._idle[conversation][1]):
            await self._end(conversation, head)
        return False

    async def run(self) -> None:
        """Reconciles until it is cancelled, in turn with other processes that know the same agents."""
        while True:
            if self._missed.is_set():
                await self._catch_up()
            try:
                await self.take_turn()
            except SidestreamError as error:
                _log.warning("runs cannot be reconciled: %s", redact(str(error)))
                self.refusal = error if isinstance(error, NewerSchemaError) else None
                if isinstance(error, EngineError):
                    self.miss()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s * random.uniform(0.9, 1.1)):
                    await self._missed.wait()

    async def _catch_up(self) -> None:
        """Enqueues what the engine has missed, as soon as it answers."""
        failures = 0
        while True:
            self._missed.clear()
            try:
                while await self.reconcile() >= MAX_RUNS:
                    pass
                break
            except SidestreamError as error:
                if not failures:
                    _log.warning("runs are not enqueued yet: %s", redact(str(error)))
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
        if failures:
            _log.warning("the engine answers again: runs are enqueued")

    async def take_turn(self) -> bool:
        """Reconciles if the last pass was long enough ago; False if it was not. Raises StoreError."""
        # A pass reads all conversations: of the processes with the same queues, one makes it. Half an interval: nothing
        # is wrong with a pass too many.
        if not await self._passes.begin(self._interval_s / 2):
            return False
        await self.reconcile(SETTLING_S)
        return True

    async def _enqueue(self, conversation: str, head: int) -> bool:
        """Enqueues the run of a conversation; False if there is none, or its agent is not known here."""
        rows = await self._store.read(conversation)
        try:
            # Without a job it is a program's, which may still be there, or nothing is in progress.
            job = job_of(open_run(rows))
            position, at = _begun_at(rows)
        except StoreError as error:  # A damaged log must not keep the others from being driven.
            _log.warning("conversation %s is not resumed: %s", conversation, redact(str(error)))
            self._idle[conversation] = (head, None)
            return False
        queue = self._queue_of(job) if job is not None else None
        if queue is None:
            self._idle[conversation] = (head, job)
            return False
        await self._engine.enqueue(Task(conversation=conversation, position=position, queue=queue, at=at))
        return True

    def _is_lost(self, job: Job | None) -> bool:
        """True if no process knows the agent of a run any more. What nobody has driven yet waits for a first worker."""
        if job is None or job.attempt == 0:
            return False
        return self._passes.is_gone(job.agent) and self._passes.is_gone(queue_of(job.agent))


def _begun_at(rows: Sequence[Row]) -> tuple[int, float | None]:
    """The position at which the run was enqueued, and its time: that of the last record before it was driven."""
    following: Row | None = None
    for row in reversed(rows):
        if row.kind == STARTED:
            job = job_of(row)
            if job is not None and job.attempt == 0:
                return (following.seq - 1, None) if following is not None else (rows[-1].seq, job.at)
            following = row
        elif row.kind in ENDINGS:
            break
    return rows[-1].seq, None

"""Repairs what was lost between the log and the engine: runs in progress of which the engine does not know.

A process can die after it has written how a run begins, or a decision, and before the engine is notified. Enqueuing
is idempotent, so every run that is in progress by its log can be enqueued again.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from sidestream.durable.jobs import Job
from sidestream.durable.open_runs import ENDINGS, STARTED, job_of, open_conversations, open_run
from sidestream.durable.protocol import Engine, EngineError, Task
from sidestream.errors import SidestreamError
from sidestream.logs import get_logger
from sidestream.redaction import redact
from sidestream.store.protocol import SharedStore
from sidestream.store.records import Row

INTERVAL_S = 30.0
"""Between two passes, whichever process makes them."""
RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Between attempts to enqueue what an engine that does not answer has missed; the last one repeats."""
SETTLING_S = 10.0
"""Runs whose log has changed so recently are left alone: whoever writes it is there."""
MAX_RUNS = 1000
"""Runs that one pass enqueues, those first that have waited longest."""

# A pass reads all conversations: of the processes with the same queues, one makes it. That is written where posts are,
# to no conversation.
_LAST = "FROM {posts} WHERE conversation = '' AND kind = :kind"
_BEGIN = f"UPDATE {{posts}} SET body = :now WHERE id IN (SELECT id {_LAST}) AND body <= :before RETURNING id"
_BEGIN_FIRST = (
    "INSERT INTO {posts} (conversation, kind, body) SELECT '', :kind, :now "
    f"WHERE NOT EXISTS (SELECT 1 {_LAST}) RETURNING id"
)
_log = get_logger(__name__)


class Reconciler:
    """Enqueues runs that are in progress by their log, periodically.

    `queue_of` gives the queue of a job, which is one of `queues`, or None if this process does not know its agent;
    conversations that `is_driven` names are driven by this process.
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
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._store = store
        self._engine = engine
        self._queue_of = queue_of
        self._kind = "pass " + " ".join(sorted(queues))
        self._is_driven = is_driven
        self._is_skipped = is_skipped
        self._interval_s = interval_s
        self._idle: dict[str, int] = {}
        """Conversations that are not to be driven although their last record says so, with the number of that."""
        self._missed = asyncio.Event()
        """Set if the engine may not know of runs that have just begun."""

    def miss(self) -> None:
        """The engine could not be reached, or nothing is known yet: all runs are enqueued as soon as it answers."""
        self._missed.set()

    async def reconcile(self, settling_s: float = 0.0) -> int:
        """Enqueues the runs in progress whose log has not changed for so long; returns how many. Raises StoreError."""
        found = await open_conversations(self._store, before=time.time() - settling_s, limit=MAX_RUNS)
        self._idle = {id: head for id, head in found if self._idle.get(id) == head}
        count = 0
        for id, head in found:
            if id in self._idle or self._is_skipped(id) or self._is_driven(id):
                continue
            task = self._task(id, await self._store.read(id))
            if task is None:
                self._idle[id] = head
                continue
            await self._engine.enqueue(task)
            count += 1
        return count

    async def run(self) -> None:
        """Reconciles until it is cancelled, in turn with other processes that know the same agents."""
        while True:
            if self._missed.is_set():
                await self._catch_up()
            try:
                await self.take_turn()
            except SidestreamError as error:
                _log.warning("runs cannot be reconciled: %s", redact(str(error)))
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
                await self.reconcile()
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
        if not await self._is_due():
            return False
        await self.reconcile(SETTLING_S)
        return True

    async def _is_due(self) -> bool:
        now = time.time()
        # Half an interval: the clocks of processes differ a little, and nothing is wrong with a pass too many.
        times = {"now": _sortable(now), "before": _sortable(now - self._interval_s / 2)}
        if await self._store.execute(_BEGIN, {"kind": self._kind, **times}):
            return True
        return bool(await self._store.execute(_BEGIN_FIRST, {"kind": self._kind, "now": times["now"]}))

    def _task(self, conversation: str, rows: Sequence[Row]) -> Task | None:
        job = job_of(open_run(rows))
        # Without a job it is a program's, which may still be there, or nothing is in progress.
        queue = self._queue_of(job) if job is not None else None
        if queue is None:
            return None
        position, at = _begun_at(rows)
        return Task(conversation=conversation, position=position, queue=queue, at=at)


def _sortable(time_s: float) -> bytes:
    return b"%017.3f" % time_s


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

"""Enqueues runs that are in progress according to the log but unknown to the engine.

A process can die after writing a run's first records or a decision, but before notifying the engine. Enqueuing is
idempotent, so every run that is in progress according to its log can be enqueued again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from sidestream.durable.engines.protocol import Engine, EngineError, Task
from sidestream.durable.log.jobs import Job, queue_of
from sidestream.durable.log.open_runs import job_of
from sidestream.errors import NewerSchemaError, SidestreamError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.store.records import ENDINGS, STARTED, Row, open_run
from sidestream.text.redaction import redact

INTERVAL_S = 30.0
"""Seconds between two passes, whichever process makes them."""
RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to enqueue runs while the engine does not respond; the last one repeats."""
SETTLING_S = 10.0
"""Seconds since the last log entry below which a run is skipped, since its worker is alive."""
MAX_RUNS = 1000
"""Maximum runs per pass; the next pass continues from there."""
PAGE = 500
"""Conversations per query."""
GONE_S = 600.0
"""Seconds without a pass after which a queue counts as no longer served by any process."""

_log = get_logger(__name__)


class Reconciler:
    """Periodically enqueues runs that are in progress according to their log.

    `queue_of` returns the queue of a job, one of `queues`, or None if this process does not know its agent. `is_driven`
    tells which conversations this process executes. `end`, if given, ends the run of a conversation whose agent no
    process serves, since no worker would ever execute it.
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
        """Conversations in progress that this process cannot enqueue: the sequence number of their last record, and the
        job if its agent is unknown here."""
        self._since = 0.0
        """Start of the next pass, in seconds since 1970. Conversations changed before it are skipped."""
        self._seen: set[str] = set()
        """Conversations listed since a pass last started with the oldest."""
        self.refusal: NewerSchemaError | None = None
        """Error that keeps this process from writing, because a newer version has migrated the store."""
        self._missed = asyncio.Event()
        """Set if the engine may have missed runs that have just started."""

    def miss(self) -> None:
        """Request that all runs are enqueued as soon as the engine responds, because it may have missed some."""
        self._missed.set()

    async def announce(self) -> None:
        """Announce to other processes that these queues are served. Raises StoreError if the store fails."""
        await self._passes.begin(self._interval_s / 2)

    async def reconcile(self, settling_s: float = 0.0) -> int:
        """Enqueue the runs in progress whose log has not changed for `settling_s` seconds, and return how many.

        Raises StoreError if the store fails.
        """
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
        """Enqueue the run of a conversation, or end it if no process serves its agent.

        Returns whether the run was enqueued.
        """
        self._seen.add(conversation)
        known = self._idle.get(conversation)
        if (known is None or known[0] != head) and await self._enqueue(conversation, head):
            return True
        if self._end is not None and self._is_lost(self._idle[conversation][1]):
            await self._end(conversation, head)
        return False

    async def run(self) -> None:
        """Reconcile until cancelled, taking turns with other processes that serve the same agents."""
        while True:
            if self._missed.is_set():
                await self._catch_up()
            try:
                await self.take_turn()
            except SidestreamError as error:
                _log.warning("cannot reconcile runs: %s", redact(str(error)))
                self.refusal = error if isinstance(error, NewerSchemaError) else None
                if isinstance(error, EngineError):
                    self.miss()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s * random.uniform(0.9, 1.1)):
                    await self._missed.wait()

    async def _catch_up(self) -> None:
        """Enqueue the runs that the engine has missed, as soon as it responds."""
        failures = 0
        while True:
            self._missed.clear()
            try:
                while await self.reconcile() >= MAX_RUNS:
                    pass
                break
            except SidestreamError as error:
                if not failures:
                    _log.warning("cannot enqueue runs yet: %s", redact(str(error)))
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
        if failures:
            _log.warning("recovered: missed runs are enqueued")

    async def take_turn(self) -> bool:
        """Reconcile unless the last pass is too recent, and return whether it did. Raises StoreError if that fails."""
        # A pass reads all conversations, so only one of the processes with the same queues makes it. Half an interval
        # suffices: an extra pass is harmless.
        if not await self._passes.begin(self._interval_s / 2):
            return False
        await self.reconcile(SETTLING_S)
        return True

    async def _enqueue(self, conversation: str, head: int) -> bool:
        """Enqueue the run of a conversation, or return False if there is none or its agent is unknown here."""
        rows = await self._store.read(conversation)
        try:
            # Without a job, no run is in progress, or it belongs to a program that may still be executing it.
            job = job_of(open_run(rows))
            position, at = _begun_at(rows)
        except StoreError as error:  # A damaged log must not block the others.
            _log.warning("conversation %s: not resumed: %s", conversation, redact(str(error)))
            self._idle[conversation] = (head, None)
            return False
        queue = self._queue_of(job) if job is not None else None
        if queue is None:
            self._idle[conversation] = (head, job)
            return False
        await self._engine.enqueue(Task(conversation=conversation, position=position, queue=queue, at=at))
        return True

    def _is_lost(self, job: Job | None) -> bool:
        """Return whether no process serves the agent of a run any longer.

        A run that has never been executed is not lost: it waits for its first worker.
        """
        if job is None or job.attempt == 0:
            return False
        return self._passes.is_gone(job.agent) and self._passes.is_gone(queue_of(job.agent))


def _begun_at(rows: Sequence[Row]) -> tuple[int, float | None]:
    """Return the position at which the run was enqueued, and its start time.

    The position is that of the last record before a worker took the run.
    """
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


class Passes:
    """Leases by which processes that share queues take turns, with the last pass of each set of queues."""

    def __init__(self, store: SharedStore, queues: Collection[str]) -> None:
        self._store = store
        self._name = " ".join(sorted(queues))
        self._seen: dict[str, tuple[bytes, float]] = {}
        """Last pass of each set of queues, and the monotonic time at which this process first saw it."""

    async def begin(self, interval_s: float) -> bool:
        """Return whether this process makes the next pass. False if the last was under `interval_s` seconds ago."""
        return await self._store.take_lease(self._name, interval_s)

    async def look(self) -> None:
        """Read the last passes from the store."""
        now_s = time.monotonic()
        seen: dict[str, tuple[bytes, float]] = {}
        for name, last in (await self._store.leases()).items():
            before, since_s = self._seen.get(name, (b"", now_s))
            seen[name] = (last, since_s if before == last else now_s)
        self._seen = seen

    def is_gone(self, queue: str) -> bool:
        """Return whether no process has served the queue for `GONE_S` seconds, or none ever has."""
        # A name may hold spaces.
        times = [since_s for name, (_, since_s) in self._seen.items() if f" {queue} " in f" {name} "]
        return all(time.monotonic() - since_s > GONE_S for since_s in times)

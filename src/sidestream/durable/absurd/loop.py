"""The loop of a worker: claims tasks as they come, drives them, and reports how far they came."""

import asyncio
import math
import random
from collections.abc import Collection
from contextlib import aclosing, suppress

from sidestream.durable.absurd.claims import Held
from sidestream.durable.absurd.database import AbsurdDatabase
from sidestream.durable.outages import Outage
from sidestream.durable.protocol import Drive, EngineError, LeaseLostError, Outcome, Task
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.logs import get_logger
from sidestream.redaction import redact

POLL_S = 5.0
"""Tasks are looked for at least this often: a notification can be lost with its connection."""
MIN_POLL_S = 0.02
"""Between two looks at a task that is due, but that somebody else is about to get."""
HANDED_OVER_S = 1.0
"""After it has handed a task over, a worker leaves tasks to others for this long."""
MAX_BACKOFF_S = 5.0
"""Between two attempts to reach a database that is gone."""
START_S = 30.0
"""How long a worker waits for a database that does not let it begin."""
CLEANUP_S = 3600.0
_log = get_logger(__name__)


class AbsurdClaim:
    """A claim, as the one who drives sees it."""

    def __init__(self, database: AbsurdDatabase, held: Held, began: float) -> None:
        self._database = database
        self._beaten = began
        """When the last heartbeat that was heard began, by the loop's clock."""
        self.held = held
        self.is_lost = False

    @property
    def task(self) -> Task:
        """What is to be driven."""
        return self.held.task

    @property
    def token(self) -> str:
        """Greater than that of every earlier claim on this conversation."""
        return self.held.token

    @property
    def is_takeover(self) -> bool:
        """True if a worker had this task before, and did not report how far it came."""
        return self.held.is_takeover

    @property
    def lease_s(self) -> float:
        """How long the claim holds without a heartbeat."""
        return float(self._database.lease_s)

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError."""
        began = _now()
        await self._database.renew(self.held)
        self._beaten = began

    @property
    def is_overdue(self) -> bool:
        """True for a lease after its end: others have the time of another lease to take the task over."""
        return 0 <= _now() - self._beaten - self.lease_s < self.lease_s


class WorkLoop:
    """Drives tasks of some queues until it is cancelled."""

    def __init__(
        self,
        database: AbsurdDatabase,
        drive: Drive,
        *,
        queues: Collection[str],
        slots: int,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._database = database
        self._server = database.server
        self._drive = drive
        if slots < 1 or not queues:
            raise ConfigurationError("a worker needs a queue, and at least one slot")
        self._queues = sorted(set(queues))
        self._slots = slots
        self._stopping = stopping or asyncio.Event()
        self._driven: dict[str, tuple[AbsurdClaim, asyncio.Task[None]]] = {}
        """By conversation."""
        self._count = 0
        self._bell = asyncio.Event()
        """Something may be due, or a slot is free."""
        self._paused_until = 0.0
        self._claiming = Outage("tasks cannot be claimed")

    async def run(self) -> None:
        """Works until it is cancelled; then cancels what it drives, and gives the claims back.

        Once it is stopping, it returns when what it drives has ended.
        """
        await self._begin()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(each) for each in (self._listen(), self._clean(), self._ring_to_stop())]
            failures = dues = 0
            while not self._stopping.is_set():
                self._bell.clear()
                try:
                    claimed = await self._claim(group)
                    due_s = math.inf if self._free <= 0 else await self._database.next_due_s(self._queues)
                except SidestreamError as error:
                    failures += 1
                    self._claiming.failed(error)
                    await asyncio.sleep(_backoff_s(failures))
                    continue
                failures = 0
                self._claiming.worked()
                # What is due although nothing could be claimed is locked by somebody else.
                dues = dues + 1 if due_s <= 0 and not claimed else 0
                await self._wait(max(due_s, MIN_POLL_S * 2 ** min(dues, 8) if dues else 0.0))
            for each in beside:
                each.cancel()

    async def _begin(self) -> None:
        """Creates the queues, once the database answers."""
        failures, ends = 0, _now() + START_S
        while not self._stopping.is_set():
            try:
                await self._database.create_queues(self._queues)
                break
            except EngineError as error:
                if not error.retryable or _now() > ends:
                    raise
                failures += 1
                self._claiming.failed(error)
            await asyncio.sleep(_backoff_s(failures))

    @property
    def _free(self) -> int:
        return self._slots - self._count

    @property
    def _leaves_tasks_to_others(self) -> bool:
        """True for one that is about to stop, or whose heartbeats do not arrive."""
        return _now() < self._paused_until or any(claim.is_overdue for claim, _ in self._driven.values())

    async def _claim(self, group: asyncio.TaskGroup) -> int:
        """Claims tasks for the free slots, and starts to drive them; returns how many."""
        claimed = 0
        # Each queue comes first in its turn.
        self._queues.append(self._queues.pop(0))
        for queue in self._queues:
            if self._free <= 0 or self._stopping.is_set() or self._leaves_tasks_to_others:
                break
            began = _now()
            claiming = asyncio.ensure_future(self._database.claim(queue, self._free))
            try:
                found = await asyncio.shield(claiming)
            except asyncio.CancelledError:
                with suppress(SidestreamError):
                    for held in await claiming:
                        await self._release(held)
                raise
            for held in found:
                self._start(group, AbsurdClaim(self._database, held, began))
            claimed += len(found)
        return claimed

    def _start(self, group: asyncio.TaskGroup, claim: AbsurdClaim) -> None:
        conversation = claim.task.conversation
        before = self._driven.get(conversation)
        if before is not None:
            # The lease had ended, and this worker did not notice.
            before[0].is_lost = True
            before[1].cancel()
        self._count += 1
        task = group.create_task(self._carry_out(claim, before[1] if before else None))
        self._driven[conversation] = (claim, task)

    async def _carry_out(self, claim: AbsurdClaim, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            outcome = await self._drive(claim)
            if outcome.is_handed_over:
                self._paused_until = _now() + HANDED_OVER_S
            await self._report(claim, outcome)
        except asyncio.CancelledError:
            if not claim.is_lost:
                await self._release(claim.held)
                raise
        except Exception as error:  # Whatever it is: the task needs another attempt, and this worker continues.
            await self._fail(claim, error)
        finally:
            self._count -= 1
            if self._driven.get(claim.task.conversation, (None,))[0] is claim:
                del self._driven[claim.task.conversation]
            self._bell.set()

    async def _report(self, claim: AbsurdClaim, outcome: Outcome) -> None:
        """Reports until the database has it, or the lease must have ended."""
        ends = _now() + claim.lease_s
        failures = 0
        while True:
            try:
                return await self._database.report(claim.held, outcome)
            except LeaseLostError as error:
                return _log.info("conversation %s: %s", claim.task.conversation, error)
            except SidestreamError as error:
                failures += 1
                _log.warning("conversation %s: no report: %s", claim.task.conversation, redact(str(error)))
            if _now() > ends:
                return None
            await asyncio.sleep(_backoff_s(failures))

    async def _fail(self, claim: AbsurdClaim, error: Exception) -> None:
        conversation, reason = claim.task.conversation, redact(str(error)) or type(error).__name__
        try:
            delay_s = await self._database.fail(claim.held, error)
        except LeaseLostError:
            _log.info("conversation %s: %s", conversation, reason)
        except SidestreamError as problem:
            _log.warning("conversation %s: %s; no report: %s", conversation, reason, redact(str(problem)))
        else:
            following = "given up" if delay_s is None else f"next attempt in {delay_s:.1f} s"
            # A bug is reported with its traceback.
            cause = None if isinstance(error, SidestreamError) else error
            _log.warning("conversation %s: %s; %s", conversation, reason, following, exc_info=cause)

    async def _release(self, held: Held) -> None:
        """Gives a claim back: the task is due for another worker at once."""
        with suppress(SidestreamError):  # The lease will end by itself.
            await self._database.report(held, Outcome(position=held.task.position, is_handed_over=True))

    async def _wait(self, seconds: float) -> None:
        """Until the bell, or for this long."""
        if self._stopping.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, POLL_S)):
                await self._bell.wait()

    async def _listen(self) -> None:
        """Rings the bell at every notification; reconnects when it must."""
        failures, listening = 0, Outage("new tasks are not noticed at once")
        while True:
            try:
                connection = await self._server.connect()
                try:
                    with self._server.errors():
                        await connection.execute(self._server.sql("LISTEN " + self._server.due))
                        failures = 0
                        listening.worked()
                        self._bell.set()  # What came before is looked for.
                        while True:
                            async with aclosing(connection.notifies(timeout=POLL_S)) as notes:
                                async for note in notes:
                                    if note.payload in self._queues:
                                        self._bell.set()
                            await connection.execute("SELECT 1")  # Fails if the connection is dead.
                finally:
                    await connection.close()
            except SidestreamError as error:
                failures += 1
                listening.failed(error)
            await asyncio.sleep(_backoff_s(failures))

    async def _ring_to_stop(self) -> None:
        await self._stopping.wait()
        self._bell.set()

    async def _clean(self) -> None:
        while True:
            try:
                await self._database.remove_old(self._queues)
            except SidestreamError as error:
                _log.warning("old tasks cannot be removed: %s", redact(str(error)))
            await asyncio.sleep(CLEANUP_S * random.uniform(0.5, 1.5))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _backoff_s(failures: int) -> float:
    return min(0.1 * 2 ** min(failures, 10), MAX_BACKOFF_S) * random.uniform(0.5, 1.0)

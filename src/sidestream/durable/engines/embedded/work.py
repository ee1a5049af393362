"""The loop of an embedded worker, which claims due and abandoned tasks, renews their leases and executes them."""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Protocol

from sidestream.durable.engines.embedded.table import TOPIC, Granted, Held, TaskTable
from sidestream.durable.engines.protocol import Drive, LeaseLostError, Outcome, Task
from sidestream.durable.outages import Outage
from sidestream.errors import ConfigurationError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.text.redaction import redact

BEATS_TOGETHER = 0.05
"""Fraction of a lease within which heartbeats are sent in one statement."""


class Heartbeats:
    """Sends the heartbeats of many claims together."""

    def __init__(self, table: TaskTable, lease_s: float) -> None:
        self._table = table
        self._gather_s = lease_s * BEATS_TOGETHER
        self._conversations: set[str] = set()
        """Conversations whose leases the next statement renews."""
        self._next: asyncio.Task[set[tuple[str, str]]] | None = None

    async def beat(self, granted: Granted) -> None:
        """Renew a lease together with other claims'. Raises LeaseLostError if the claim is lost."""
        conversation = granted.task.conversation
        self._conversations.add(conversation)
        if self._next is None:
            self._next = asyncio.create_task(self._send())
            self._next.add_done_callback(_noticed)
        if (conversation, granted.token) not in await asyncio.shield(self._next):
            raise LeaseLostError(f"conversation {conversation!r} was assigned to another worker or cancelled")

    async def aclose(self) -> None:
        """Stop sending heartbeats."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])

    async def _send(self) -> set[tuple[str, str]]:
        try:
            await asyncio.sleep(self._gather_s)
        finally:
            conversations, self._conversations, self._next = self._conversations, set(), None
        return await self._table.beat(sorted(conversations))


def _noticed(task: "asyncio.Task[set[tuple[str, str]]]") -> None:
    """Retrieve the exception of a task whose waiters may have been cancelled."""
    if not task.cancelled():
        task.exception()


class EmbeddedClaim:
    """The claim on a task that this process executes."""

    def __init__(self, granted: Granted, lease_s: float, beat: Callable[[Granted], Awaitable[None]]) -> None:
        self.granted = granted
        self._lease_s = lease_s
        self._beat = beat

    @property
    def task(self) -> Task:
        """The task to execute."""
        return self.granted.task

    @property
    def token(self) -> str:
        """Token of this claim, greater than that of every earlier claim on the conversation."""
        return self.granted.token

    @property
    def is_takeover(self) -> bool:
        """Whether an earlier worker had this task and did not report how far it came."""
        return self.granted.is_takeover

    @property
    def lease_s(self) -> float:
        """Seconds that the claim is valid without a heartbeat."""
        return self._lease_s

    async def heartbeat(self) -> None:
        """Renew the lease. Raises LeaseLostError if the claim is lost."""
        await self._beat(self.granted)


SEEN_OF_LEASE = 0.5
"""Fraction of a lease that must pass by this process's clock after the lease has expired by the database's clock.

It is longer than the time between two heartbeats, so that live workers lose nothing if the database's clock jumps.
"""


class LeaseWatch:
    """Detects unresponsive workers by comparing successive readings of the table.

    A claim is unresponsive if its counter has not changed between two readings that are a lease apart by this process's
    clock. Half a lease is enough if the lease has also expired by the database's clock, so that a new worker need not
    wait for a whole one. Time in which the database did not respond does not count, since no worker could renew a lease
    then.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        """Counter of each claim, and the monotonic time at which it was first seen at this value."""

    def silent(self, held: Sequence[Held], asked_s: float, answered_s: float) -> list[Held]:
        """Return the claims that were unresponsive for their lease. Both times are monotonic."""
        seen: dict[tuple[str, str], tuple[int, float]] = {}
        found: list[Held] = []
        for claim in held:
            key = (claim.conversation, claim.token)
            beats, since_s = self._seen.get(key, (-1, 0.0))
            seen[key] = (beats, since_s) if beats == claim.beats else (claim.beats, answered_s)
            lease_s = claim.lease_s * (SEEN_OF_LEASE if claim.age_s >= claim.lease_s else 1.0)
            if beats == claim.beats and asked_s - since_s >= lease_s:
                found.append(claim)
        self._seen = seen
        return found

    def reset(self) -> None:
        """Restart every lease because the database did not respond."""
        self._seen.clear()


_PROC = Path("/proc")


def new_owner() -> str:
    """Return a unique worker name, `machine:process:start:random`."""
    pid = os.getpid()
    return f"{_machine() or '-'}:{pid}:{_started(pid) or '-'}:{secrets.token_hex(6)}"


def is_dead(owner: str) -> bool:
    """Return whether the worker's process ran on this machine and has ended. False if that cannot be determined."""
    machine, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if not pid.isdecimal() or not started.isdecimal() or machine != _machine():
        return False
    return _started(int(pid)) != started


def described(owner: str) -> str:
    """Describe the process of a worker for users."""
    machine, _, rest = owner.partition(":")
    where = "this machine" if machine == _machine() else "another machine"
    return f"process {rest.partition(':')[0]} on {where}"


def _machine() -> str | None:
    """Return an id of this machine's current boot and process namespace, or None if they are unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return when the process started, in ticks since boot, or None if it has ended, reaped or not."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The program's name, in parentheses, may contain any character.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


SCANS_PER_LEASE = 4
"""Scans of other workers' claims per lease. They make a failover happen well within two leases."""
CLAIMS_AT_ONCE = 10
"""Maximum claims per statement, low enough to leave other workers their share."""
CONTENDED_S = 0.05
"""Seconds to wait if other workers have claimed, or are about to claim, all candidates."""
RETRY_S = 1.0
"""Seconds to wait after the store has failed."""

_log = get_logger(__name__)


class Claimant(Protocol):
    """The part of the engine that `Work` uses to create and end claims."""

    lease_s: float

    def claimed(self, granted: Granted) -> EmbeddedClaim: ...

    async def release(self, claim: EmbeddedClaim, outcome: Outcome | None = None) -> None: ...

    def forget(self, claim: EmbeddedClaim) -> None: ...

    def is_driven_here(self, held: Held) -> bool: ...


class Work:
    """Executes tasks of some queues, at most `slots` at once."""

    def __init__(
        self,
        engine: Claimant,
        store: SharedStore,
        table: TaskTable,
        drive: Drive,
        *,
        queues: Collection[str],
        slots: int,
        stopping: asyncio.Event,
    ) -> None:
        if slots < 1 or not queues:
            raise ConfigurationError(f"queues must not be empty, and slots must be at least 1, not {slots}")
        self._engine = engine
        self._store = store
        self._table = table
        self._drive = drive
        self._queues = sorted(set(queues))
        self._slots = slots
        self._stopping = stopping
        self._driving = 0
        self._changed = asyncio.Event()
        self._leases = LeaseWatch()
        self._scan_s = engine.lease_s / SCANS_PER_LEASE
        self._next_scan_s = time.monotonic()
        self._claiming = Outage("cannot claim tasks")
        self._left: dict[str, float] = {}
        """Conversations that this worker handed off, and the monotonic time until which it leaves them to others."""

    async def run(self) -> None:
        """Work until cancelled or stopped."""
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(self._watch()), group.create_task(self._notice_stopping())]
            while not self._stopping.is_set():
                self._changed.clear()
                try:
                    wait_s = await self._round(group)
                    self._claiming.worked()
                except StoreError as error:
                    self._claiming.failed(error)
                    self._leases.reset()
                    wait_s = RETRY_S
                    self._changed.clear()
                await self._wait(wait_s)
            while self._driving:
                self._changed.clear()
                await self._changed.wait()
            for task in watching:
                task.cancel()

    async def _wait(self, seconds: float) -> None:
        """Wait for a change, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _notice_stopping(self) -> None:
        await self._stopping.wait()
        self._changed.set()

    async def _watch(self) -> None:
        """Watch for tasks that are added or woken."""
        noticing = Outage("cannot watch for new tasks")
        while True:
            try:
                async with aclosing(self._store.changes(TOPIC)) as changes:
                    async for _ in changes:
                        noticing.worked()
                        self._changed.set()
            except StoreError as error:
                noticing.failed(error)
                await asyncio.sleep(RETRY_S)

    async def _round(self, group: asyncio.TaskGroup) -> float:
        """Claim available tasks, and return the seconds to wait if nothing changes."""
        if time.monotonic() >= self._next_scan_s:
            await self._take_over(group, await self._scan())
            self._next_scan_s = time.monotonic() + self._scan_s
        wait_s = self._next_scan_s - time.monotonic()
        if self._is_free and not await self._claim_due(group):
            return min(wait_s, CONTENDED_S)
        if self._is_free:
            wait_s = min(wait_s, await self._table.next_due_s(self._queues))
        return max(wait_s, 0.0)

    @property
    def _is_free(self) -> bool:
        return self._driving < self._slots and not self._stopping.is_set()

    async def _scan(self) -> list[Held]:
        """Return the claims that dead and unresponsive workers hold."""
        asked_s = time.monotonic()
        held = await self._table.held(self._queues)
        answered_s = time.monotonic()
        if answered_s - asked_s > self._engine.lease_s:
            self._leases.reset()  # A store this slow delays heartbeats, too.
        others = [claim for claim in held if not self._engine.is_driven_here(claim)]
        silent = self._leases.silent(others, asked_s, answered_s)
        dead = {worker for worker in {claim.worker for claim in others} if is_dead(worker)}
        return silent + [claim for claim in others if claim.worker in dead and claim not in silent]

    async def _take_over(self, group: asyncio.TaskGroup, silent: list[Held]) -> None:
        while self._is_free and silent:
            count = min(self._slots - self._driving, CLAIMS_AT_ONCE)
            some, silent = silent[:count], silent[count:]
            for granted in await self._table.claim_silent(some):
                _log.info("conversation %s: claimed from an unresponsive worker", granted.task.conversation)
                self._start(group, granted)

    async def _claim_due(self, group: asyncio.TaskGroup) -> bool:
        """Claim due tasks, and return False if other workers have claimed or locked all of them."""
        now_s = time.monotonic()
        self._left = {conversation: until_s for conversation, until_s in self._left.items() if until_s > now_s}
        free = min(self._slots - self._driving, CLAIMS_AT_ONCE)
        found = await self._table.due(self._queues, free + len(self._left))
        candidates = [it for it in found if it.conversation not in self._left][:free]
        if not candidates or self._stopping.is_set():
            return True
        claimed = await self._table.claim_due(candidates)
        for granted in claimed:
            self._start(group, granted)
        if claimed and (len(claimed) < len(candidates) or len(candidates) == free):
            self._changed.set()  # There may be more.
        return bool(claimed)

    def _start(self, group: asyncio.TaskGroup, granted: Granted) -> None:
        self._driving += 1
        group.create_task(self._driven(self._engine.claimed(granted)))

    async def _driven(self, claim: EmbeddedClaim) -> None:
        conversation = claim.task.conversation
        try:
            outcome = await self._drive(claim)
        except LeaseLostError as error:
            _log.info("conversation %s: %s", conversation, redact(str(error)))
        except asyncio.CancelledError:
            await self._engine.release(claim)
            raise
        except Exception as error:
            _log.warning(
                "conversation %s: execution failed: %s", conversation, redact(f"{type(error).__name__}: {error}")
            )
            await self._failed(claim)
        else:
            if outcome.is_handed_over:
                self._left[conversation] = time.monotonic() + self._engine.lease_s
            await self._engine.release(claim, outcome)
        finally:
            self._engine.forget(claim)
            self._driving -= 1
            self._changed.set()

    async def _failed(self, claim: EmbeddedClaim) -> None:
        try:
            if not await self._table.fail(claim.granted):
                _log.error(
                    "conversation %s: too many failures; enqueue it again once the cause is fixed",
                    claim.task.conversation,
                )
        except StoreError as error:  # The lease will expire.
            _log.warning(
                "conversation %s: could not release the claim: %s", claim.task.conversation, redact(str(error))
            )

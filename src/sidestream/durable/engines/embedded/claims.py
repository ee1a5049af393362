"""Claims that this process holds, and their heartbeats."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sidestream.durable.engines.embedded.table import Granted, Held, TaskTable
from sidestream.durable.engines.protocol import LeaseLostError, Task

BEATS_TOGETHER = 0.05
"""Heartbeats within this part of a lease are one statement."""


class Heartbeats:
    """Sends the heartbeats of many claims together."""

    def __init__(self, table: TaskTable, lease_s: float) -> None:
        self._table = table
        self._gather_s = lease_s * BEATS_TOGETHER
        self._conversations: set[str] = set()
        """Those whose leases the next statement renews."""
        self._next: asyncio.Task[set[tuple[str, str]]] | None = None

    async def beat(self, granted: Granted) -> None:
        """Renews a lease, with those of other claims of this moment. Raises LeaseLostError."""
        conversation = granted.task.conversation
        self._conversations.add(conversation)
        if self._next is None:
            self._next = asyncio.create_task(self._send())
            self._next.add_done_callback(_noticed)
        if (conversation, granted.token) not in await asyncio.shield(self._next):
            raise LeaseLostError(f"the conversation {conversation!r} was given to another worker, or cancelled")

    async def aclose(self) -> None:
        """Sends no more."""
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
    """Whoever waited for it may be gone."""
    if not task.cancelled():
        task.exception()


class EmbeddedClaim:
    """A task that this process drives."""

    def __init__(self, granted: Granted, lease_s: float, beat: Callable[[Granted], Awaitable[None]]) -> None:
        self.granted = granted
        self._lease_s = lease_s
        self._beat = beat

    @property
    def task(self) -> Task:
        """What is to be driven."""
        return self.granted.task

    @property
    def token(self) -> str:
        """Greater than that of every earlier claim on the conversation."""
        return self.granted.token

    @property
    def is_takeover(self) -> bool:
        """True if another worker had this task before, and did not report how far it came."""
        return self.granted.is_takeover

    @property
    def lease_s(self) -> float:
        """How long the claim holds without a heartbeat."""
        return self._lease_s

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError."""
        await self._beat(self.granted)


SEEN_OF_LEASE = 0.5
"""How much of a lease must have been seen here, if the database says that it is over: more than lies between two
heartbeats of a live worker, so that a clock that was set forward takes nothing from anybody."""


class LeaseWatch:
    """Compares what the table shows now with what it showed before.

    A claim is silent if its counter stands still between two readings that are a lease apart by this process's clock.
    Half a lease is enough if the lease is over by the database's clock, too: a worker that has just started need not
    wait a whole one. Time in which the database did not answer does not count, since nobody could renew a lease then.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        """The counter of each claim, and when it was first seen at this value."""

    def silent(self, held: Sequence[Held], asked_s: float, answered_s: float) -> list[Held]:
        """Those of the claims that were silent for their lease. Both times are monotonic."""
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
        """The database did not answer: every lease starts over."""
        self._seen.clear()


_PROC = Path("/proc")


def new_owner() -> str:
    """A name that no other worker has: `machine:process:start:random`."""
    pid = os.getpid()
    return f"{_machine() or '-'}:{pid}:{_started(pid) or '-'}:{secrets.token_hex(6)}"


def is_dead(owner: str) -> bool:
    """True if the worker's process was on this machine and is no more. False if nobody here can know."""
    machine, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if not pid.isdecimal() or not started.isdecimal() or machine != _machine():
        return False
    return _started(int(pid)) != started


def described(owner: str) -> str:
    """The process of a worker, in words."""
    machine, _, rest = owner.partition(":")
    where = "this machine" if machine == _machine() else "another machine"
    return f"process {rest.partition(':')[0]} on {where}"


def _machine() -> str | None:
    """This start of this machine, and the namespace in which its processes have their numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process began, in ticks since the machine's start; None if it has ended, reaped or not."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]

"""Shared by the tests of engines: engines by name, conversations to drive, and drives that a test controls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from sidestream.durable.engines.protocol import Claim, Engine, EngineStats, LeaseLostError, Outcome
from sidestream.store.protocol import SharedStore
from support.stores import BOUND_S, rows
from support.waiting import eventually

LEASE_S = 1.0
"""Short, so that a test can wait for its end, and the shortest that every engine can have."""
SLACK_S = 3.0
"""What a busy machine may add to a takeover. `make chaos` measures without it."""
PATIENT_S = 4.0
"""The lease of those whose claims must not be lost, however slow the machine is for a second or two."""
QUEUE = "models"


class Fleet(Struct, frozen=True):
    """A store, and engines on it as several processes would have them."""

    store: SharedStore
    another: Callable[..., Engine]
    """Makes an engine, with `lease_s` as the lease of what it enqueues and claims, if that is given."""
    where: str
    """The location of the store, for another process."""
    engine: str = "embedded"
    """The engine, as `open_engine` names it."""
    process_lease_s: float = 2.0
    """The lease of workers in processes of their own. On a busy machine these are silent for a second now and then."""
    lease_s: float = LEASE_S
    """The lease of workers that are silent."""


class Driven:
    """Drives claims as a test says: each is noted, kept alive, and ends with what `end` gives."""

    def __init__(self, *, beats: bool = True) -> None:
        self.claims: list[Claim] = []
        self.lost: list[Claim] = []
        self.cancelled: list[Claim] = []
        self.beaten: list[Claim] = []
        """Each claim once per heartbeat."""
        self.most_at_once = 0
        self._beats = beats
        self._at_once = 0
        self._changed = asyncio.Condition()
        self._outcomes: asyncio.Queue[Outcome | Exception] = asyncio.Queue()

    async def __call__(self, claim: Claim) -> Outcome:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        beating = asyncio.create_task(self._beat(claim))
        ending = asyncio.create_task(self._outcomes.get())
        await self._note(self.claims, claim)
        try:
            await asyncio.wait([beating, ending], return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                await self._note(self.lost, claim)
                beating.result()
            outcome = ending.result()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        except asyncio.CancelledError:
            await self._note(self.cancelled, claim)
            raise
        finally:
            self._at_once -= 1
            beating.cancel()
            ending.cancel()
            await asyncio.wait([beating, ending])

    def end(self, outcome: Outcome | Exception) -> None:
        """One claim, the one that waits longest, ends like this."""
        self._outcomes.put_nowait(outcome)

    async def claimed(self, count: int = 1) -> list[Claim]:
        """Waits until so many claims were given to this worker."""
        return await self._wait(self.claims, count)

    async def lost_claims(self, count: int = 1) -> list[Claim]:
        """Waits until so many of them were lost."""
        return await self._wait(self.lost, count)

    async def heartbeats(self, count: int) -> list[Claim]:
        """Waits until there were so many heartbeats."""
        return await self._wait(self.beaten, count)

    async def _wait(self, noted: list[Claim], count: int) -> list[Claim]:
        async with asyncio.timeout(BOUND_S), self._changed:
            await self._changed.wait_for(lambda: len(noted) >= count)
        return noted

    async def _note(self, where: list[Claim], claim: Claim) -> None:
        async with self._changed:
            where.append(claim)
            self._changed.notify_all()

    async def _beat(self, claim: Claim) -> None:
        while self._beats:
            await asyncio.sleep(claim.lease_s / 4)
            await claim.heartbeat()
            await self._note(self.beaten, claim)
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def working(
    engine: Engine, drive: Callable[[Claim], Awaitable[Outcome]], *queues: str, slots: int = 4
) -> AsyncGenerator[None]:
    """A worker that is cancelled at the end of the block."""
    task = asyncio.create_task(engine.work(drive, queues=queues or [QUEUE], slots=slots))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            async with asyncio.timeout(BOUND_S):
                await task


async def talk(store: SharedStore, id: str = "talk", records: int = 1) -> int:
    """A conversation with this many records; returns the number of its last."""
    await store.append(id, 0, rows(1, records))
    return records


async def until_stats(engine: Engine, **expected: int) -> EngineStats:
    """Waits until the engine's figures are these."""

    async def check() -> EngineStats | None:
        stats = await engine.stats()
        return stats if all(getattr(stats, name) == value for name, value in expected.items()) else None

    return await eventually(check)


__all__ = [
    "BOUND_S",
    "LEASE_S",
    "PATIENT_S",
    "QUEUE",
    "SLACK_S",
    "Driven",
    "Fleet",
    "LeaseLostError",
    "talk",
    "until_stats",
    "working",
]

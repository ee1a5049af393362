"""The loop of a worker: claims what is due or was left, and drives it."""

import asyncio
import time
from collections.abc import Collection
from contextlib import aclosing, suppress
from typing import Protocol

from sidestream.durable.engines.embedded.claims import EmbeddedClaim, LeaseWatch, is_dead
from sidestream.durable.engines.embedded.table import TOPIC, Granted, Held, TaskTable
from sidestream.durable.engines.protocol import Drive, LeaseLostError, Outcome
from sidestream.durable.outages import Outage
from sidestream.errors import ConfigurationError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.text.redaction import redact

SCANS_PER_LEASE = 4
"""How often a worker looks at the claims of others, so that a silent one is taken over well within two leases."""
CLAIMS_AT_ONCE = 10
"""Few enough that other workers have their share of what is due at the same time."""
CONTENDED_S = 0.05
"""How long it waits if others claimed, or are about to claim, all that it saw."""
RETRY_S = 1.0
"""How long it waits after the store has failed."""

_log = get_logger(__name__)


class Claimant(Protocol):
    """What this needs of the engine: it grants claims, and ends them."""

    lease_s: float

    def claimed(self, granted: Granted) -> EmbeddedClaim: ...

    async def release(self, claim: EmbeddedClaim, outcome: Outcome | None = None) -> None: ...

    def forget(self, claim: EmbeddedClaim) -> None: ...

    def is_driven_here(self, held: Held) -> bool: ...


class Work:
    """Drives tasks of some queues, at most so many at once."""

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
            raise ConfigurationError("a worker needs a queue, and at least one slot")
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
        self._claiming = Outage("tasks cannot be claimed")
        self._left: dict[str, float] = {}
        """Conversations that were handed over here, and until when they are left to other workers."""

    async def run(self) -> None:
        """Works until it is cancelled, or has stopped."""
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
        """Until something changes, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _notice_stopping(self) -> None:
        await self._stopping.wait()
        self._changed.set()

    async def _watch(self) -> None:
        """Notices when tasks are added, or woken."""
        noticing = Outage("new tasks are not noticed at once")
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
        """Claims what can be claimed; returns how long to wait if nothing changes."""
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
        """The claims that their workers have left."""
        asked_s = time.monotonic()
        held = await self._table.held(self._queues)
        answered_s = time.monotonic()
        if answered_s - asked_s > self._engine.lease_s:
            self._leases.reset()  # So slow a store delays heartbeats, too.
        others = [claim for claim in held if not self._engine.is_driven_here(claim)]
        silent = self._leases.silent(others, asked_s, answered_s)
        dead = {worker for worker in {claim.worker for claim in others} if is_dead(worker)}
        return silent + [claim for claim in others if claim.worker in dead and claim not in silent]

    async def _take_over(self, group: asyncio.TaskGroup, silent: list[Held]) -> None:
        while self._is_free and silent:
            count = min(self._slots - self._driving, CLAIMS_AT_ONCE)
            some, silent = silent[:count], silent[count:]
            for granted in await self._table.claim_silent(some):
                _log.info("conversation %s: taken over", granted.task.conversation)
                self._start(group, granted)

    async def _claim_due(self, group: asyncio.TaskGroup) -> bool:
        """Claims what is due. False if others have, or hold, all of it."""
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
            _log.warning("conversation %s: not driven: %s", conversation, redact(f"{type(error).__name__}: {error}"))
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
                    "conversation %s: given up; enqueue it again once the cause is gone", claim.task.conversation
                )
        except StoreError as error:  # The lease ends by itself.
            _log.warning("conversation %s: not released: %s", claim.task.conversation, redact(str(error)))

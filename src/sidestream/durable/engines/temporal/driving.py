"""Takes tasks from the queues of a worker, as many as it has slots for, and has them driven."""

import asyncio
import time
from collections.abc import Collection

from temporalio.client import Client

from sidestream.durable.engines.protocol import Drive, LeaseLostError
from sidestream.durable.engines.temporal.claims import TemporalClaim
from sidestream.durable.engines.temporal.queue import Queue
from sidestream.durable.engines.temporal.workflow import activity_queue
from sidestream.errors import SidestreamError
from sidestream.logs import get_logger
from sidestream.text.redaction import redact

MIN_POLL_S = 2.2
"""The service refuses polls below 2 s, and answers a second before their time is over."""
MAX_POLL_S = 60.0
POLL_PER_LEASE = 0.35
"""A worker that hangs still has its polls at the service, which would give it tasks, and it before others. They end
before its claims do."""
PAUSE_S = 1.0
"""For so long a worker that has handed something over takes nothing: it is about to stop, and others are not."""
_log = get_logger(__name__)


class Driving:
    """The tasks of one `work`.

    The SDK's own activity worker keeps a poll open for a minute, also when its process hangs, and has slots per queue.
    """

    def __init__(
        self, client: Client, drive: Drive, *, prefix: str, queues: Collection[str], slots: int, lease_s: float
    ) -> None:
        self._client = client
        self._drive = drive
        self._queues = [activity_queue(prefix, queue) for queue in queues]
        self._poll_s = min(max(MIN_POLL_S, lease_s * POLL_PER_LEASE), MAX_POLL_S)
        self._conversations: set[str] = set()
        """The conversations that are driven here."""
        self.reported: set[str] = set()
        """The conversations whose claims have ended here, since it is stopping."""
        self._is_stopping = False
        self._stopping: asyncio.Event | None = None
        self._taking: list[asyncio.Task[None]] = []
        self._slots = asyncio.Semaphore(slots)
        self._paused_until = 0.0

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Until it is cancelled, and what is driven with it; or until that has ended, once it is stopping."""
        async with asyncio.TaskGroup() as group:
            self._taking = [
                group.create_task(self._take(Queue(self._client, name, self._poll_s), group)) for name in self._queues
            ]
            if stopping is not None:
                self._stopping = stopping
                await stopping.wait()
                self._stop()

    async def _take(self, queue: Queue, group: asyncio.TaskGroup) -> None:
        """One poll at a time, so there is at most one task for each further queue that has no slot."""
        while True:
            await self._ready()
            claim = await queue.claim()
            if claim is None:
                continue
            if claim.task.conversation in self._conversations:
                self._pause()  # This worker was silent for too long, and may still be: others first.
            has_slot = not self._slots.locked()
            if has_slot:
                await self._slots.acquire()  # At once, so that the next poll sees it taken.
            group.create_task(self._keep(claim, has_slot=has_slot))

    async def _ready(self) -> None:
        """Until there is a slot, and nothing was handed over lately."""
        await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
        async with self._slots:
            pass

    async def _keep(self, claim: TemporalClaim, *, has_slot: bool) -> None:
        conversation = claim.task.conversation
        try:
            if not has_slot:
                has_slot = await self._slot_within(claim.lease_s / 3)
            if not has_slot or self._is_paused:
                await claim.give_back()
                return
            await self._driven(claim)
        except LeaseLostError as error:
            _log.info("conversation %s: %s", conversation, error)
        except SidestreamError as error:  # The report: another worker sees in the log that nothing is left to drive.
            _log.warning("conversation %s: not reported: %s", conversation, redact(str(error)))
        finally:
            if self._is_stopping:
                self.reported.add(conversation)
            if has_slot:
                self._slots.release()

    async def _driven(self, claim: TemporalClaim) -> None:
        self._conversations.add(claim.task.conversation)
        try:
            outcome = await self._drive(claim)
        except asyncio.CancelledError:
            await self._taken()
            await claim.give_back()
            raise
        except LeaseLostError as error:  # If only the log says so, the claim still holds here.
            await claim.fail(error)
            raise
        except Exception as error:
            _log.warning("conversation %s: given to another: %s", claim.task.conversation, redact(str(error)))
            await claim.fail(error)
            return
        finally:
            self._conversations.discard(claim.task.conversation)
        if outcome.is_handed_over:
            self._pause()
            if self._stopping is not None and self._stopping.is_set():
                await self._taken()
        await claim.report(outcome)

    def _stop(self) -> None:
        self._is_stopping = True
        for task in self._taking:
            if not task.cancelling():  # A second time would interrupt how it ends its poll.
                task.cancel()

    async def _taken(self) -> None:
        """Ends the polls: one that is open would get back what is given to others next, and may lose it."""
        self._stop()
        await asyncio.wait(self._taking)

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + PAUSE_S

    async def _slot_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError:
            return False
        return True

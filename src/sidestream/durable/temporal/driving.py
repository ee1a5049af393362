"""Takes tasks from the queues of a worker, as many as it has slots for, and has them driven."""

import asyncio
import time
from collections.abc import Collection
from datetime import timedelta

from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest, PollActivityTaskQueueResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sidestream.durable.protocol import Drive as DriveFunction, LeaseLostError
from sidestream.durable.temporal.claims import TemporalClaim
from sidestream.durable.temporal.workflow import Drive, activity_queue
from sidestream.errors import SidestreamError
from sidestream.logs import get_logger
from sidestream.redaction import redact

MIN_POLL_S = 3.0
"""The service refuses polls below 2 s, and answers a second before their time is over."""
MAX_POLL_S = 60.0
POLL_PER_LEASE = 0.7
"""A worker that hangs still has its polls at the service, which would give it tasks. They end before its leases do."""
PAUSE_S = 1.0
"""For so long a worker that has handed something over takes nothing: it is about to stop, and others are not."""
RETRY_S = 1.0
_log = get_logger(__name__)


class Driving:
    """The tasks of one `work`.

    The SDK's own activity worker keeps a poll open for a minute, also when its process hangs, and has slots per queue.
    """

    def __init__(
        self, client: Client, drive: DriveFunction, *, prefix: str, queues: Collection[str], slots: int, lease_s: float
    ) -> None:
        self._client = client
        self._drive = drive
        self._prefix = prefix
        self._queues = queues
        self._poll_s = min(max(MIN_POLL_S, lease_s * POLL_PER_LEASE), MAX_POLL_S)
        self._slots = asyncio.Semaphore(slots)
        self._paused_until = 0.0

    async def run(self) -> None:
        """Until it is cancelled. What is driven then is cancelled, and released."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(self._take(queue, group))

    async def _take(self, queue: str, group: asyncio.TaskGroup) -> None:
        """One poll at a time: so many, that there is one more task than slots for each further queue, at most."""
        while True:
            await self._ready()
            claim = await self._claim(queue)
            if claim is None:
                continue
            has_slot = not self._slots.locked()
            if has_slot:
                await self._slots.acquire()  # At once, so that the next poll sees it taken.
            group.create_task(self._keep(claim, has_slot=has_slot))

    async def _ready(self) -> None:
        """Until there is a slot, and nothing was handed over lately."""
        await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
        async with self._slots:
            pass

    async def _claim(self, queue: str) -> TemporalClaim | None:
        request = PollActivityTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=activity_queue(self._prefix, queue)),
            identity=self._client.identity,
        )
        try:
            answer = await self._client.workflow_service.poll_activity_task_queue(
                request, timeout=timedelta(seconds=self._poll_s)
            )
            return await self._accepted(answer) if answer.task_token else None
        except RPCError as error:
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                _log.warning("Temporal gives no tasks: %s", redact(error.message))
                await asyncio.sleep(RETRY_S)
            return None

    async def _accepted(self, answer: PollActivityTaskQueueResponse) -> TemporalClaim | None:
        converter, beats = self._client.data_converter, answer.heartbeat_details.payloads
        try:
            (drive,) = await converter.decode(answer.input.payloads, [Drive])
            (last,) = await converter.decode(beats, [str]) if beats else [""]
        except Exception as error:  # From a version that this one does not understand: left to a worker that does.
            _log.warning("a task of Temporal cannot be read: %s", redact(str(error)))
            return None
        return TemporalClaim(self._client, answer, drive, last)

    async def _keep(self, claim: TemporalClaim, *, has_slot: bool) -> None:
        conversation = claim.task.conversation
        try:
            if not has_slot:
                has_slot = await self._slot_within(claim.lease_s / 3)
            if not has_slot or time.monotonic() < self._paused_until:
                await claim.give_back()
                return
            await self._driven(claim)
        except LeaseLostError as error:
            _log.info("conversation %s: %s", conversation, error)
        except SidestreamError as error:  # The report: another worker sees in the log that nothing is left to drive.
            _log.warning("conversation %s: not reported: %s", conversation, redact(str(error)))
        finally:
            if has_slot:
                self._slots.release()

    async def _driven(self, claim: TemporalClaim) -> None:
        try:
            outcome = await self._drive(claim)
        except asyncio.CancelledError:
            await claim.release()
            raise
        except LeaseLostError as error:  # If only the log says so, the claim still holds here.
            await claim.fail(error)
            raise
        except Exception as error:
            _log.warning("conversation %s: given to another: %s", claim.task.conversation, redact(str(error)))
            await claim.fail(error)
            return
        if outcome.is_handed_over:
            self._paused_until = time.monotonic() + PAUSE_S
        await claim.report(outcome)

    async def _slot_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError:
            return False
        return True

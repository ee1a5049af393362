"""Polls Temporal's task queues, claims an activity attempt for each task, and executes it."""

import asyncio
import random
import time
import uuid
from collections.abc import Collection
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    ShutdownWorkerRequest,
)
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from sidestream.durable.engines.protocol import Drive, EngineError, LeaseLostError, Outcome, Task
from sidestream.durable.engines.temporal.address import ANSWER_S, forget_frames
from sidestream.durable.engines.temporal.workflow import Drive as DriveInput, Driven, activity_queue
from sidestream.durable.log.jobs import token_after, token_at
from sidestream.durable.outages import Outage
from sidestream.errors import SidestreamError
from sidestream.logs import get_logger
from sidestream.text.redaction import redact

FAILED_S = 0.5
"""Seconds until a failed task is given to another worker; doubled with each attempt, up to a lease."""


class TemporalClaim:
    """The right to execute a conversation's run. The server measures the lease from the last heartbeat."""

    def __init__(self, client: Client, answer: PollActivityTaskQueueResponse, drive: DriveInput, last: str) -> None:
        """Create the claim from a poll's response and the token in an earlier attempt's last heartbeat."""
        self.task = Task(conversation=drive.conversation, position=drive.position, queue=drive.queue)
        self.token = _token(answer, max(drive.token, last))
        self.is_takeover = answer.attempt > 1 or drive.is_takeover
        self.lease_s = answer.heartbeat_timeout.ToTimedelta().total_seconds()
        self._attempt = answer.attempt
        self._activity = client.get_async_activity_handle(task_token=answer.task_token)

    async def heartbeat(self) -> None:
        """Renew the lease. Raises LeaseLostError if the claim is lost, EngineError if the service does not respond."""
        try:
            async with asyncio.timeout(self.lease_s / 2):
                await self._activity.heartbeat(self.token)
        except AsyncActivityCancelledError:
            raise self._lost() from None
        except TimeoutError:
            raise EngineError("Temporal did not answer in time") from None
        except RPCError as error:
            forget_frames(error)
            if error.status == RPCStatusCode.NOT_FOUND:
                raise self._lost() from None
            raise EngineError(f"Temporal: {redact(error.message)}") from None

    async def report(self, outcome: Outcome) -> None:
        """Report the outcome, which ends the claim."""
        await self._end(
            Driven(
                position=outcome.position,
                token=self.token,
                is_waiting=outcome.is_waiting,
                until=outcome.until,
                is_handed_over=outcome.is_handed_over,
            )
        )

    async def give_back(self) -> None:
        """Release the claim without a report, so that another worker executes the task at once."""
        position, was_lost = self.task.position, self.is_takeover
        await self._end(Driven(position=position, token=self.token, is_handed_over=True, is_takeover=was_lost))

    async def fail(self, error: BaseException) -> None:
        """Report a failure, so that another worker executes the task after a delay that grows with each attempt."""
        wait_s = min(self.lease_s, FAILED_S * 2 ** min(self._attempt - 1, 20))
        # Leave out the traceback, which Temporal would store.
        failure = ApplicationError(
            redact(str(error)), type=type(error).__name__, next_retry_delay=timedelta(seconds=wait_s)
        )
        await self._end(failure)

    async def _end(self, report: Driven | ApplicationError) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                if isinstance(report, Driven):
                    await self._activity.complete(report)
                else:
                    await self._activity.fail(report, last_heartbeat_details=[self.token])
        except TimeoutError:
            raise EngineError("Temporal did not answer in time") from None
        except RPCError as error:
            forget_frames(error)
            if error.status == RPCStatusCode.NOT_FOUND:
                raise self._lost() from None
            raise EngineError(f"Temporal: {redact(error.message)}") from None

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(f"the claim on conversation {self.task.conversation!r} was lost")


def _token(answer: PollActivityTaskQueueResponse, previous: str) -> str:
    started_s = answer.started_time.ToNanoseconds() / 1e9
    token = token_at(started_s, answer.attempt)
    return token if token > previous else token_after(previous, started_s)


RETRY_S = 1.0
STOP_S = 0.3
"""Seconds the service has to end a poll. If it does not, a task in the unread response waits for a lease."""


class Queue:
    """A task queue that yields one claim at a time.

    Cancelling a poll also ends it at the service, so that no task gets lost in it.
    """

    def __init__(self, client: Client, name: str, poll_s: float) -> None:
        self._client = client
        self._name = name
        self._poll_s = poll_s
        self._key = uuid.uuid4().hex
        self._polling = Outage(f"cannot poll Temporal's task queue {name}")
        self._groups: dict[str, float] = {}
        """Weights of the queue's poller groups, by group id, as the service reports them."""

    async def claim(self) -> TemporalClaim | None:
        """Wait for the next claim, or return None if the poll timed out or failed."""
        polling = asyncio.create_task(self._poll())
        try:
            answer = await asyncio.shield(polling)
        except asyncio.CancelledError:
            await self._end(polling)
            raise
        except RPCError as error:
            forget_frames(error)
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                self._polling.failed(error)
                await asyncio.sleep(RETRY_S)
            return None
        self._polling.worked()
        self._groups = {group.id: group.weight for group in answer.poller_group_infos}
        return await self._accepted(answer) if answer.task_token else None

    async def _poll(self) -> PollActivityTaskQueueResponse:
        groups = self._groups
        request = PollActivityTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=self._name),
            identity=self._client.identity,
            worker_instance_key=self._key,
            poller_group_id=random.choices([*groups], [*groups.values()])[0] if any(groups.values()) else "",
        )
        service = self._client.workflow_service
        return await service.poll_activity_task_queue(request, timeout=timedelta(seconds=self._poll_s))

    async def _end(self, polling: asyncio.Task[PollActivityTaskQueueResponse]) -> None:
        """End a poll, and release the task that it has returned, if any."""
        request = ShutdownWorkerRequest(
            namespace=self._client.namespace,
            identity=self._client.identity,
            worker_instance_key=self._key,
            task_queue=self._name,
            task_queue_types=[TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY],
            reason="the worker stops",
        )
        try:
            async with asyncio.timeout(STOP_S):
                try:
                    await self._client.workflow_service.shutdown_worker(request)
                except RPCError as error:  # Older services do not support it.
                    forget_frames(error)
                answer = await polling
            if answer.task_token and (claim := await self._accepted(answer)) is not None:
                await claim.give_back()
        except (TimeoutError, RPCError, EngineError, LeaseLostError) as error:
            if isinstance(error, RPCError):
                forget_frames(error)
            polling.cancel()
            await asyncio.wait([polling])

    async def _accepted(self, answer: PollActivityTaskQueueResponse) -> TemporalClaim | None:
        converter, beats = self._client.data_converter, answer.heartbeat_details.payloads
        try:
            (drive,) = await converter.decode(answer.input.payloads, [DriveInput])
            (last,) = await converter.decode(beats, [str]) if beats else [""]
        except Exception as error:  # Another version enqueued it; leave it to a worker that understands it.
            _log.warning("cannot read a task from Temporal: %s", redact(str(error)))
            return None
        return TemporalClaim(self._client, answer, drive, last)


MIN_POLL_S = 2.2
"""Minimum poll in seconds. The service rejects polls below 2 s, and responds a second before they time out."""
MAX_POLL_S = 60.0
POLL_PER_LEASE = 0.35
"""Fraction of a lease that a poll takes. The service would give tasks to the open polls of a hanging worker, so they
end before its claims do."""
PAUSE_S = 1.0
"""Seconds for which a worker claims nothing after handing off a task, since it is probably about to stop."""
_log = get_logger(__name__)


class ActiveTasks:
    """The tasks of one call to `work`.

    Replaces the SDK's activity worker, which keeps a poll open for a minute even if its process hangs, and has separate
    slots for each queue.
    """

    def __init__(
        self, client: Client, drive: Drive, *, prefix: str, queues: Collection[str], slots: int, lease_s: float
    ) -> None:
        self._client = client
        self._drive = drive
        self._queues = [activity_queue(prefix, queue) for queue in queues]
        self._poll_s = min(max(MIN_POLL_S, lease_s * POLL_PER_LEASE), MAX_POLL_S)
        self._conversations: set[str] = set()
        """Conversations being executed."""
        self.reported: set[str] = set()
        """Conversations whose claims have ended since this worker began to stop."""
        self._is_stopping = False
        self._stopping: asyncio.Event | None = None
        self._taking: list[asyncio.Task[None]] = []
        self._slots = asyncio.Semaphore(slots)
        self._paused_until = 0.0

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Execute tasks until cancelled, or until `stopping` is set and the tasks in progress have ended.

        Cancelling it also cancels the tasks in progress.
        """
        async with asyncio.TaskGroup() as group:
            self._taking = [
                group.create_task(self._take(Queue(self._client, name, self._poll_s), group)) for name in self._queues
            ]
            if stopping is not None:
                self._stopping = stopping
                await stopping.wait()
                self._stop()

    async def _take(self, queue: Queue, group: asyncio.TaskGroup) -> None:
        """Claim tasks of a queue, one poll at a time, so that each queue has at most one task without a slot."""
        while True:
            await self._ready()
            claim = await queue.claim()
            if claim is None:
                continue
            if claim.task.conversation in self._conversations:
                self._pause()  # This worker was unresponsive for too long, and may still be; let others go first.
            has_slot = not self._slots.locked()
            if has_slot:
                await self._slots.acquire()  # Acquire it here, so that the next poll sees it taken.
            group.create_task(self._keep(claim, has_slot=has_slot))

    async def _ready(self) -> None:
        """Wait until a slot is free and any pause has ended."""
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
        except SidestreamError as error:  # The report failed; another worker will read the outcome from the log.
            _log.warning("conversation %s: could not report outcome: %s", conversation, redact(str(error)))
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
        except LeaseLostError as error:  # If only the log's fence rejected it, Temporal still holds the claim.
            await claim.fail(error)
            raise
        except Exception as error:
            _log.warning("conversation %s: execution failed: %s", claim.task.conversation, redact(str(error)))
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
            if not task.cancelling():  # A second cancellation would interrupt the end of its poll.
                task.cancel()

    async def _taken(self) -> None:
        """End the polls. An open poll would get back the task that is about to be released, and might lose it."""
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

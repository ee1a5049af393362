"""A task queue of Temporal, as a worker polls it."""

import asyncio
import random
import uuid
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    ShutdownWorkerRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sidestream.durable.engines.protocol import EngineError, LeaseLostError
from sidestream.durable.engines.temporal.address import forget_frames
from sidestream.durable.engines.temporal.claims import TemporalClaim
from sidestream.durable.engines.temporal.workflow import Drive
from sidestream.durable.worker.outages import Outage
from sidestream.logs import get_logger
from sidestream.text.redaction import redact

RETRY_S = 1.0
STOP_S = 0.3
"""How long the service may take to end a poll. One that cannot: a task in the answer that is not read waits a lease."""
_log = get_logger(__name__)


class Queue:
    """Gives one claim at a time. A poll that is cancelled ends at the service, too, so that no task gets lost in it."""

    def __init__(self, client: Client, name: str, poll_s: float) -> None:
        self._client = client
        self._name = name
        self._poll_s = poll_s
        self._key = uuid.uuid4().hex
        self._polling = Outage(f"Temporal gives no tasks of {name}")
        self._groups: dict[str, float] = {}
        """Parts of the queue that the service wants to have polled, with their weights."""

    async def claim(self) -> TemporalClaim | None:
        """The next claim; None if there was nothing for a while, or the service did not answer."""
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
        """Ends a poll, and gives back what it has brought."""
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
                except RPCError as error:  # An older service does not know it.
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
            (drive,) = await converter.decode(answer.input.payloads, [Drive])
            (last,) = await converter.decode(beats, [str]) if beats else [""]
        except Exception as error:  # From a version that this one does not understand: left to a worker that does.
            _log.warning("a task of Temporal cannot be read: %s", redact(str(error)))
            return None
        return TemporalClaim(self._client, answer, drive, last)

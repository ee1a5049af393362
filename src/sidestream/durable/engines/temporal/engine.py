"""The Temporal engine, and its statistics of queued, running and waiting conversations."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from msgspec.structs import replace
from temporalio.api.enums.v1 import PendingActivityState, WorkflowExecutionStatus as WorkflowStatus
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sidestream import __version__
from sidestream.durable.engines.protocol import Drive, EngineError, EngineStats, Task
from sidestream.durable.engines.temporal.address import ANSWER_S, connect, forget_frames, parse_address
from sidestream.durable.engines.temporal.driving import ActiveTasks
from sidestream.durable.engines.temporal.workflow import (
    CONVERSATION,
    ENQUEUE,
    SILENT_OF_LEASE,
    WAKE,
    ConversationWorkflow,
    Due,
    State,
)
from sidestream.durable.outages import Outage
from sidestream.logs import get_logger
from sidestream.store.protocol import SharedStore
from sidestream.text.redaction import redact

MAX_DESCRIBED = 500
"""Maximum workflows to inspect. The statistics of the others are extrapolated."""
AT_ONCE = 20


async def figures(client: Client, prefix: str) -> EngineStats:
    """Return the statistics of the open workflows with this prefix."""
    ids_begin = f"{prefix}:".replace("'", "''")
    query = f"WorkflowType = '{CONVERSATION}' AND ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH '{ids_begin}'"
    ids = [found.id async for found in client.list_workflows(query, limit=MAX_DESCRIBED)]
    # Count only if the list was cut off: the index lags behind, so the count may differ from the list.
    total = len(ids) if len(ids) < MAX_DESCRIBED else (await client.count_workflows(query)).count
    slots = asyncio.Semaphore(AT_ONCE)

    async def described(id: str) -> DescribeWorkflowExecutionResponse | None:
        """Describe a workflow, or return None if it has ended since it was listed."""
        async with slots:
            try:
                found = (await client.get_workflow_handle(id).describe()).raw_description
            except RPCError as error:
                forget_frames(error)
                if error.status == RPCStatusCode.NOT_FOUND:
                    return None
                raise
        is_open = found.workflow_execution_info.status == WorkflowStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        return found if is_open else None

    found = [workflow for workflow in await asyncio.gather(*map(described, ids)) if workflow is not None]
    return _stats(found, max(total, len(ids)) / len(ids) if ids else 1.0)


def _stats(found: list[DescribeWorkflowExecutionResponse], share: float) -> EngineStats:
    """Return the statistics of all workflows, of which these are one in `share`."""
    now = datetime.now(UTC).timestamp()
    activities = [activity for workflow in found for activity in workflow.pending_activities]
    is_queued = [activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED for activity in activities]
    queued = [activity for activity, queues in zip(activities, is_queued, strict=True) if queues]
    running = [activity for activity, queues in zip(activities, is_queued, strict=True) if not queues]
    idle = [workflow for workflow in found if not workflow.pending_activities]
    undecided = [workflow for workflow in idle if workflow.HasField("pending_workflow_task")]
    return EngineStats(
        queued=round((len(queued) + len(undecided)) * share),
        running=round(len(running) * share),
        waiting=round((len(idle) - len(undecided)) * share),
        oldest_queued_s=max((now - _seconds(activity.scheduled_time) for activity in queued), default=0.0),
        oldest_lease_s=max((now - _heard(activity) for activity in running), default=0.0),
        takeovers=round(sum(max(activity.attempt - 1, 0) for activity in activities) * share),
    )


def _heard(activity: PendingActivityInfo) -> float:
    return max(_seconds(activity.last_heartbeat_time), _seconds(activity.last_started_time))


def _seconds(time: Timestamp) -> float:
    return time.ToNanoseconds() / 1e9


RETRY_S = 1.0
MAX_RETRY_S = 30.0
MIN_DECISION_S, MAX_DECISION_S = 2.0, 10.0
"""Bounds, in seconds, of the time after which another worker takes over a workflow's next decision."""
SETTLE_S = 2.0
OVER_S = 60.0
"""Seconds for which finished conversations are remembered."""
SANDBOX = SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules("sidestream", "msgspec"))
_log = get_logger(__name__)


class TemporalEngine:
    """An engine with a Temporal workflow for each conversation that has tasks. Its activity is a worker's claim."""

    def __init__(self, _store: SharedStore | None, url: str, *, lease_s: float | None = None) -> None:
        """Create the engine at `temporal://host:port/namespace`, which connects on first use and works with any store.

        `lease_s` overrides the lease in the URL. Raises ConfigurationError if the URL is invalid.
        """
        address = parse_address(url)
        self._address = address if lease_s is None else replace(address, lease_s=lease_s)
        self._connected: Client | None = None
        self._connecting = asyncio.Lock()
        self._deciding = asyncio.Lock()

    async def enqueue(self, task: Task) -> None:
        """Enqueue a task by starting the conversation's workflow or signalling the running one."""
        due = Due(task.position, task.queue, task.at)
        address = self._address
        async with self._answering() as client:
            if await self._is_over(client, task):
                return
            await client.start_workflow(
                CONVERSATION,
                State(task.conversation, address.prefix, address.lease_s, due),
                id=self._id(task.conversation),
                task_queue=address.prefix,
                task_timeout=timedelta(seconds=_decision_s(address.lease_s)),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                start_signal=ENQUEUE,
                start_signal_args=[due],
            )

    async def wake(self, conversation: str, position: int) -> None:
        """Signal the workflow, if there is one, to continue at this position."""
        async with self._answering(is_missing_fine=True) as client:
            await client.get_workflow_handle(self._id(conversation)).signal(WAKE, position)

    async def cancel(self, conversation: str) -> None:
        """Terminate the workflow. It needs no worker and acts at once, so that a later task starts a new workflow."""
        async with self._answering(is_missing_fine=True) as client:
            await client.get_workflow_handle(self._id(conversation)).terminate(reason="cancelled")

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Execute tasks of these queues, and run the workflows of all conversations, until cancelled."""
        client = await self._reached()
        driving = ActiveTasks(
            client, drive, prefix=self._address.prefix, queues=queues, slots=slots, lease_s=self._address.lease_s
        )
        async with asyncio.TaskGroup() as group:
            deciding = group.create_task(self._decide(client))
            try:
                await driving.run(stopping)
            finally:
                await self._settle(client, driving.reported)
            deciding.cancel()

    async def stats(self) -> EngineStats:
        """Return the engine's statistics, which are estimates if there are more than `MAX_DESCRIBED` workflows."""
        async with self._answering() as client:
            return await figures(client, self._address.prefix)

    async def aclose(self) -> None:
        """Drop the connection, which closes with its last user."""
        self._connected = None

    async def _is_over(self, client: Client, task: Task) -> bool:
        """Return whether a workflow that finished in the last `OVER_S` seconds got past this task.

        Older ones do not count, since a deleted conversation may be created again.
        """
        id = self._id(task.conversation)
        try:
            last = await client.get_workflow_handle(id).describe()
            if last.status != WorkflowExecutionStatus.COMPLETED or last.close_time is None:
                return False
            if time.time() - last.close_time.timestamp() > OVER_S:
                return False
            return task.position <= await client.get_workflow_handle(id, run_id=last.run_id, result_type=int).result()
        except RPCError as error:
            forget_frames(error)
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return False

    async def _decide(self, client: Client) -> None:
        """Run workflows. Each client may have only one worker that does."""
        async with self._deciding:
            while True:
                try:
                    await self._workflows(client).run()
                except Exception as error:
                    _log.warning("cannot run workflows: %s", redact(str(error)))
                await asyncio.sleep(RETRY_S)

    def _workflows(self, client: Client) -> Worker:
        # A cache would give each worker its own queue, in which tasks would stay if the worker dies.
        return Worker(
            client,
            task_queue=self._address.prefix,
            workflows=[ConversationWorkflow],
            workflow_runner=SANDBOX,
            build_id=f"sidestream-{__version__}",
            max_cached_workflows=0,
            max_concurrent_workflow_tasks=20,
            workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
        )

    async def _settle(self, client: Client, conversations: Collection[str]) -> None:
        """Wait until the workflows of the last reports have been advanced.

        The service may already have asked this worker to do so, and would wait for its response.
        """
        try:
            async with asyncio.timeout(SETTLE_S):
                for conversation in conversations:
                    workflow = client.get_workflow_handle(self._id(conversation))
                    # Temporal offers no notification.
                    while (await workflow.describe()).raw_description.HasField("pending_workflow_task"):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        except RPCError as error:
            forget_frames(error)

    async def _client(self) -> Client:
        async with self._connecting:
            if self._connected is None:
                self._connected = await connect(self._address)
            return self._connected

    async def _reached(self) -> Client:
        """Return the client, as soon as the service responds."""
        wait_s, reaching = RETRY_S, Outage("cannot claim tasks")
        while True:
            try:
                client = await self._client()
                reaching.worked()
                return client
            except EngineError as error:
                reaching.failed(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, MAX_RETRY_S)

    @asynccontextmanager
    async def _answering(self, *, is_missing_fine: bool = False) -> AsyncGenerator[Client]:
        """Yield a client for one request, and convert its errors to EngineError."""
        client = await self._client()
        try:
            async with asyncio.timeout(ANSWER_S):
                yield client
        except TimeoutError:
            raise EngineError("Temporal did not answer in time") from None
        except RPCError as error:
            forget_frames(error)
            has_namespace = "namespace" not in error.message.lower()
            if is_missing_fine and error.status == RPCStatusCode.NOT_FOUND and has_namespace:
                return
            advice = "" if has_namespace else f" (create it: temporal operator namespace create -n {client.namespace})"
            raise EngineError(f"Temporal: {redact(error.message)}{advice}") from None

    def _id(self, conversation: str) -> str:
        return f"{self._address.prefix}:{conversation}"


def _decision_s(lease_s: float) -> float:
    return min(max(MIN_DECISION_S, lease_s * SILENT_OF_LEASE), MAX_DECISION_S)

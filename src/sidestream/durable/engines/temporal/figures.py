"""How many conversations are queued, driven and waiting, from what Temporal lists."""

import asyncio
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import PendingActivityState, WorkflowExecutionStatus
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sidestream.durable.engines.protocol import EngineStats
from sidestream.durable.engines.temporal.address import forget_frames
from sidestream.durable.engines.temporal.workflow import CONVERSATION

MAX_DESCRIBED = 500
"""Workflows that are looked at; the others are assumed to be like them."""
AT_ONCE = 20


async def figures(client: Client, prefix: str) -> EngineStats:
    """The figures of the open workflows whose ids begin with the prefix."""
    ids_begin = f"{prefix}:".replace("'", "''")
    query = f"WorkflowType = '{CONVERSATION}' AND ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH '{ids_begin}'"
    ids = [found.id async for found in client.list_workflows(query, limit=MAX_DESCRIBED)]
    # Only what was cut off is estimated: the index lags behind, and a count may know other workflows than the list.
    total = len(ids) if len(ids) < MAX_DESCRIBED else (await client.count_workflows(query)).count
    slots = asyncio.Semaphore(AT_ONCE)

    async def described(id: str) -> DescribeWorkflowExecutionResponse | None:
        """None for a workflow that has ended since it was listed."""
        async with slots:
            try:
                found = (await client.get_workflow_handle(id).describe()).raw_description
            except RPCError as error:
                forget_frames(error)
                if error.status == RPCStatusCode.NOT_FOUND:
                    return None
                raise
        is_open = found.workflow_execution_info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        return found if is_open else None

    found = [workflow for workflow in await asyncio.gather(*map(described, ids)) if workflow is not None]
    return _stats(found, max(total, len(ids)) / len(ids) if ids else 1.0)


def _stats(found: list[DescribeWorkflowExecutionResponse], share: float) -> EngineStats:
    """The figures of all workflows, of which these are one in `share`."""
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

"""Tasks (SEP-2663): a server answers a call with the id of work that continues even if the connection is lost.

Imported on connecting to a server, since it uses the official client's models.
"""

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, ErrorData, InputRequest, InputResponses, Request, RequestParams, Result

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]


class TaskCreated(Result):
    """Response to `tools/call` if the server turns the call into a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: TaskStatus = "working"
    status_message: str | None = None
    poll_interval_ms: float | None = None


class ServerTask(Result):
    """Response to `tasks/get`."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    poll_interval_ms: float | None = None
    result: dict[str, Any] | None = None
    error: ErrorData | None = None
    input_requests: dict[str, InputRequest] | None = None


class TaskParams(RequestParams):
    """Parameters that name a task."""

    task_id: str


class UpdateParams(TaskParams):
    """Parameters that name a task and answer its questions."""

    input_responses: InputResponses


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """Request for a task's status."""

    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    """Request that answers a task's questions."""

    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    """Request to cancel a task."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


async def _unresolved(task: TaskCreated, context: ClaimContext) -> NoReturn:
    """Raise AssertionError.

    Never called, since calls are made through the session, which returns the task itself.
    """
    raise AssertionError(task.result_type)


class TasksExtension(ClientExtension):
    """Declares to the server that calls may become tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the result type that this extension handles."""
        return (ResultClaim(result_type="task", model=TaskCreated, resolve=_unresolved),)


def result_of(task: ServerTask) -> CallToolResult:
    """Return the result of a completed task.

    Raises ValidationError if it is invalid.
    """
    return CallToolResult.model_validate(task.result or {}, by_name=False)

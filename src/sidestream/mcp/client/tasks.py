"""Tasks: a server answers a call with the id of work that continues, whatever becomes of the connection (SEP-2663).

Imported when a server is connected to: the models are those of the official client.
"""

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, ErrorData, InputRequest, InputResponses, Request, RequestParams, Result

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]


class TaskCreated(Result):
    """The answer to `tools/call` if the server makes a task of it."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: TaskStatus = "working"
    status_message: str | None = None
    poll_interval_ms: float | None = None


class ServerTask(Result):
    """The answer to `tasks/get`."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    poll_interval_ms: float | None = None
    result: dict[str, Any] | None = None
    error: ErrorData | None = None
    input_requests: dict[str, InputRequest] | None = None


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str


class UpdateParams(TaskParams):
    """Names a task, with answers to what it asked."""

    input_responses: InputResponses


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """Asks how a task stands."""

    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    """Answers the questions of a task."""

    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    """Stops a task."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


async def _unresolved(task: TaskCreated, context: ClaimContext) -> NoReturn:
    """Calls are made through the session, which returns the task as it is."""
    raise AssertionError(task.result_type)


class TasksExtension(ClientExtension):
    """Declares to the server that calls may become tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """The result that only this extension knows."""
        return (ResultClaim(result_type="task", model=TaskCreated, resolve=_unresolved),)


def result_of(task: ServerTask) -> CallToolResult:
    """The result of a completed task. Raises ValidationError if it is none."""
    return CallToolResult.model_validate(task.result or {}, by_name=False)

"""An MCP server that asks users, and whose calls become tasks; each task is a file, which tests read and write.

python -I patient.py FOLDER [PORT]
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    RequestParams,
)
from pydantic import BaseModel

FOLDER = Path(sys.argv[1])
SEAT = {
    "type": "object",
    "properties": {
        "row": {"type": "integer", "title": "Row"},
        "side": {"type": "string", "enum": ["aisle", "window"], "default": "aisle"},
    },
    "required": ["row", "side"],
}


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


class Tasks(Extension):
    identifier = "io.modelcontextprotocol/tasks"

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        if params.name != "bake":
            return await call_next(ctx)
        task = {"taskId": uuid.uuid4().hex, "status": "working", "pollIntervalMs": 50, "arguments": params.arguments}
        task["key"] = (params.meta or {}).get("sidestream/idempotencyKey")
        write(task)
        return {"resultType": "task", **described(task), "createdAt": "2026-11-16T00:00:00Z", "ttlMs": None}

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self.get),
            MethodBinding("tasks/update", UpdateParams, self.update),
            MethodBinding("tasks/cancel", TaskParams, self.cancel),
        ]

    async def get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        return {"resultType": "complete", **described(read(params.task_id))}

    async def update(self, ctx: Any, params: UpdateParams) -> dict[str, Any]:
        task = read(params.task_id)
        task["answers"] = task.get("answers", {}) | params.input_responses
        write(task | {"status": "working", "inputRequests": None})
        return {"resultType": "complete"}

    async def cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        write(read(params.task_id) | {"status": "cancelled"})
        return {"resultType": "complete"}


def described(task: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in task.items() if value is not None and name not in ("answers", "arguments", "key")
    }


def read(task_id: str) -> dict[str, Any]:
    try:
        return json.loads((FOLDER / f"{task_id}.json").read_text("utf-8"))
    except FileNotFoundError:
        raise MCPError(-32602, "unknown task") from None


def write(task: dict[str, Any]) -> None:
    file = FOLDER / f"{task['taskId']}.json"
    file.with_suffix(".new").write_text(json.dumps(task), "utf-8")
    file.with_suffix(".new").rename(file)


# Without a key, a server that is started again refuses its own state.
server = MCPServer("patient", extensions=[Tasks()], request_state_security=RequestStateSecurity(keys=["k" * 32]))


class Booking(BaseModel):
    flight: str
    seat: dict[str, Any] | None
    is_paid: bool


@server.tool()
async def book(flight: str, ctx: Context) -> Booking | InputRequiredResult:
    """Asks for a seat, and for a payment."""
    if ctx.input_responses is None:
        with (FOLDER / "calls").open("a") as log:
            log.write(f"{flight}\n")
        seat = ElicitRequest(params=ElicitRequestFormParams(message="Which seat?", requested_schema=SEAT))
        pay = ElicitRequest(params=ElicitRequestURLParams(message="Please pay", url="https://pay.test/1"))
        return InputRequiredResult(input_requests={"seat": seat, "pay": pay}, request_state=f"state of {flight}")
    assert ctx.request_state == f"state of {flight}"
    answers: dict[str, Any] = {**ctx.input_responses}
    return Booking(flight=flight, seat=answers["seat"].content, is_paid=answers["pay"].action == "accept")


@server.tool()
async def insist(ctx: Context) -> str | InputRequiredResult:
    """Asks for ever."""
    schema = {"type": "object", "properties": {}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="Sure?", requested_schema=schema))
    return InputRequiredResult(input_requests={"again": question})


@server.tool()
async def bake(what: str) -> str:
    """Becomes a task."""
    raise AssertionError(what)


if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()

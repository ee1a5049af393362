"""An agent as a tool of another."""

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from sidestream.approvals import Policy
from sidestream.jsontext import as_object
from sidestream.parts import Finish
from sidestream.tool_schema import InvalidArgumentsError, Schema
from sidestream.tools import Tool, ToolContext, ToolOutcome
from sidestream.turn_state import Suspended, Wait

if TYPE_CHECKING:
    from sidestream.agent import Agent

_SCHEMA: Schema = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, and all that it takes to know."}},
    "required": ["task"],
    "additionalProperties": False,
}


def agent_tool(
    agent: "Agent[Any]", name: str, description: str, *, approval: Policy | None, timeout_s: float | None
) -> Tool:
    """A tool whose calls are runs of the agent."""

    async def call(context: ToolContext, task: str) -> ToolOutcome:
        return await _call(agent, context, task)

    return Tool(
        name=name,
        description=description,
        parameters=_SCHEMA,
        strict=True,
        approval=approval,
        timeout_s=timeout_s,
        function=call,
        bind=lambda arguments, context: {"context": context, "task": _task(arguments)},
    )


async def _call(agent: "Agent[Any]", context: ToolContext, task: str) -> ToolOutcome:
    run = agent.run_as_tool(context, task)
    reason = "error"
    async with run:
        async for part in run:
            context.forward(part)
            reason = part.reason if isinstance(part, Finish) else reason
    if run.error is not None:
        return ToolOutcome.failure(type(run.error).__name__, run.error.message)
    if isinstance(run.turn.command, Wait):
        return ToolOutcome(None, suspended=Suspended(run.state.to_json(), run.state.approvals))
    if reason != "stop":
        return ToolOutcome.failure("Unfinished", f"The agent stopped before its answer was complete: {reason}.")
    answer = next((m.text for m in reversed(run.turn.state.messages) if m.role == "model"), "")
    return ToolOutcome(answer if agent.output_type is None else to_builtins(run.output, enc_hook=str))


def _task(arguments: object) -> str:
    task = as_object(arguments).get("task")
    if not isinstance(task, str):
        raise InvalidArgumentsError("task: a text is required")
    return task

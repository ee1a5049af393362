"""Agents as tools of other agents."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import to_builtins

from sidestream.jsontext import JsonObject, as_object
from sidestream.messages.message import ChatMessage
from sidestream.messages.provenance import Provenance, written
from sidestream.parts import Finish
from sidestream.run.run import Run
from sidestream.text.urls import urls_in
from sidestream.tools.approvals import Policy
from sidestream.tools.arguments import InvalidArgumentsError
from sidestream.tools.grants import pin_of
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset
from sidestream.turn.state import AwaitDecision, suspended_run

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, and all that it takes to know."}},
    "required": ["task"],
    "additionalProperties": False,
}


def agent_tool(
    start: Callable[[ToolContext, str], Run[Any]],
    name: str,
    description: str,
    *,
    approval: Policy | None,
    timeout_s: float | None,
    on_interruption: InterruptionPolicy,
    tools: Iterable[Tool | ServerSideTool | Toolset],
) -> Tool:
    """Create a tool whose calls are runs of an agent.

    `start` starts the run of a call, or resumes a suspended one. `tools` are the agent's own; a remembered approval is
    for an agent with these.
    """
    can = [tool.label if isinstance(tool, Toolset) else tool.pin for tool in tools]

    async def call(context: ToolContext, task: str) -> ToolOutcome:
        return await _outcome(start(context, task), context)

    return Tool(
        name=name,
        description=description,
        parameters=_SCHEMA,
        strict=True,
        approval=approval,
        timeout_s=timeout_s,
        on_interruption=on_interruption,
        pin=pin_of(name, description, can),
        function=call,
        bind=lambda arguments, context: {"context": context, "task": _task(arguments)},
    )


async def _outcome(run: Run[Any], context: ToolContext) -> ToolOutcome:
    reason = "error"
    async with run:
        async for part in run:
            context.forward(part)
            reason = part.reason if isinstance(part, Finish) else reason
    if run.error is not None:
        return ToolOutcome.failure(type(run.error).__name__, run.error.message)
    if isinstance(run.turn.command, AwaitDecision):
        return ToolOutcome(None, suspended=suspended_run(run.state))
    if reason != "stop":
        return ToolOutcome.failure("Unfinished", f"The agent stopped before its answer was complete: {reason}.")
    answer = next((m.text for m in reversed(run.turn.state.messages) if m.role == "model"), "")
    return ToolOutcome(to_builtins(run.output, enc_hook=str) if run.is_typed else answer)


def task_message(task: str, context: ToolContext) -> ChatMessage:
    """Create the first message of a subagent's run from its task.

    A model wrote the task, so only those of its URLs count that the calling run knows.
    """
    from sidestream.portable.fetch.policy import KnownAddresses

    known = KnownAddresses(context.history)
    urls = tuple(url for url in urls_in(task) if known.verdict(url, 0) == "known")
    return written(task, Provenance(context.sources, urls))


def _task(arguments: object) -> str:
    task = as_object(arguments).get("task")
    if not isinstance(task, str):
        raise InvalidArgumentsError("task: a text is required")
    return task

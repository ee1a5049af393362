"""Calls that a tool makes of the run's other tools: programs that a model wrote. Policies and limits hold for them."""

import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from sidestream.run.settings import RunSettings
from sidestream.stream.parts import Json, StreamPart, ToolCall
from sidestream.tools.approvals import ASKING, Question, Ruling, Suspended, pending
from sidestream.tools.grants import covering
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.turn.machine import Turn
from sidestream.turn.rounds import denial, granted, tool_result, unknown_tool


class Nested(Struct):
    """What the calls of all programs of a run have in common."""

    made: int = 0
    sources: tuple[str, ...] = ()
    """Open-world tools whose results a program has seen."""


class NestedCalls:
    """The calls of one program."""

    def __init__(
        self,
        turn: Turn,
        settings: RunSettings,
        call: ToolCall,
        nested: Nested,
        forward: Callable[[StreamPart], None],
        key: str,
    ) -> None:
        self._turn = turn
        self._settings = settings
        self._call = call
        self._nested = nested
        self._forward = forward
        self._key = key
        """The idempotency key of the program's own call. Those of its calls begin with it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that a program may call."""
        return tuple(name for name, tool in self._settings.toolbox.tools.items() if self._is_callable(name, tool))

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> ToolOutcome:
        """Calls a tool, or returns a suspended outcome with the approval that it needs. Raises CancelledError only.

        `is_approved` is a person's decision on exactly this call.
        """
        tool = self._settings.toolbox.tools.get(name)
        if tool is None or not self._is_callable(name, tool):
            return ToolOutcome(unknown_tool(name, self.names), is_error=True)
        limits = self._settings.limits
        self._nested.made += 1
        if self._turn.state.tool_calls_made + self._nested.made > limits.max_tool_calls:
            return ToolOutcome.failure(
                "LimitError", f"The run may make {limits.max_tool_calls} calls; no more is made."
            )
        question: Question | None = None
        verdict: Ruling | None = None
        if is_approved is None:
            question = self._question(call_id, name, arguments, tool)
            verdict = await self._settings.verdict_on(question)
            if verdict in ASKING:
                approval = pending(question, self._turn.state.run_id, f"approval_{os.urandom(16).hex()}")
                return ToolOutcome(None, suspended=Suspended("", (approval,)))
            is_approved = verdict != "deny"
        if not is_approved:
            return ToolOutcome(denial(name), is_error=True)
        made = ToolCall(call_id, name, tool.key or name, False, arguments)
        self._forward(made)
        if question is not None and verdict == "granted":
            self._forward(granted(question, call_id))
        outcome = await tool.run(arguments, self._context(call_id, name), limits)
        if outcome.suspended is not None:
            outcome = ToolOutcome.failure("Unsupported", f"{name} must wait for a person, and a program cannot.")
        self.seen(name)
        self._nested.sources += () if outcome.source is None else (outcome.source,)
        self._forward(tool_result(made, outcome.result, is_error=outcome.is_error, facts=tool, source=outcome.source))
        return outcome

    def seen(self, name: str) -> None:
        """A program has the result of this tool, perhaps from an earlier attempt."""
        tool = self._settings.toolbox.tools.get(name)
        if tool is not None and tool.is_open_world:
            self._nested.sources += (f"{tool.server_label or 'the tool'} {name}",)

    @property
    def _sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._turn.state.sources, *self._nested.sources)))

    def _is_callable(self, name: str, tool: Tool) -> bool:
        return name != self._call.name and not tool.is_external

    def _question(self, call_id: str, name: str, arguments: Json, tool: Tool) -> Question:
        question = Question(
            call_id=call_id,
            tool=name,
            input=arguments,
            server_label=tool.server_label,
            sources=self._sources,
            pin=tool.pin,
        )
        return replace(question, grant=covering(question, self._turn.state.grants))

    def _context(self, call_id: str, name: str) -> ToolContext:
        settings = self._settings
        return ToolContext(
            call_id=call_id,
            name=name,
            forward=self._forward,
            deps=settings.deps,
            run_id=self._turn.state.run_id,
            idempotency_key=f"{self._key}{call_id.removeprefix(self._call.id)}",
            emit=self._forward,
            history=tuple(self._turn.state.messages),
            conversation=settings.conversation,
            store=settings.hooks.store,
            sources=self._sources,
        )

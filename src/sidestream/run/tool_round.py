"""Runs the client tools of a round."""

import asyncio
import os
from collections.abc import Callable

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.messages.message import Numbers
from sidestream.results.passages import last_number, numbered
from sidestream.run.emitter import Emitter
from sidestream.run.nested_calls import Nested, NestedCalls
from sidestream.run.settings import RunSettings
from sidestream.run.staging import Staging
from sidestream.stream.parts import File, Json, StreamPart, ToolCall, ToolEvent
from sidestream.tools.approvals import Suspended
from sidestream.tools.results import limited
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.turn.machine import Turn
from sidestream.turn.rounds import arguments_of, function_of, unknown_tool


class ToolRound:
    """The tools of one run: the calls of a round run in one task, which this owns."""

    def __init__(
        self, turn: Turn, settings: RunSettings, emit: Callable[[list[StreamPart]], None], staging: Staging
    ) -> None:
        self._turn = turn
        self._staging = staging
        self._settings = settings
        self._emit_to_run = emit
        self._working: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._nested = Nested()
        self._is_left = False

    async def advance(self, calls: tuple[ToolCall, ...]) -> None:
        """Runs the calls, or continues them; returns when parts are ready. Raises StopAsyncIteration once closed."""
        wake, working = self._wake, self._working
        if working is None:
            wake.clear()
            working = self._working = asyncio.create_task(self._work(calls))
            working.add_done_callback(lambda _: wake.set())
        await wake.wait()
        wake.clear()
        if working.cancelled():
            raise StopAsyncIteration  # Another task has closed the run.
        if working.done():
            self._working = None
            working.result()

    def wake(self) -> None:
        """Lets `advance` return: parts are ready that come from elsewhere."""
        self._wake.set()

    async def aclose(self, *, is_left: bool) -> None:
        """Stops the tools that run. Safe to call twice. `is_left`: whoever resumes the run continues its calls."""
        self._is_left = is_left
        working, self._working = self._working, None
        if working is not None and not working.done():
            working.cancel()
            await asyncio.wait([working])

    async def _work(self, calls: tuple[ToolCall, ...]) -> None:
        gate = asyncio.Semaphore(self._settings.limits.max_parallel_tools)
        if len(calls) == 1:
            await self._run_tool(calls[0], gate)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._run_tool(call, gate))
        except BaseExceptionGroup as failed:
            # Tools raise nothing; the log may, and its errors are the same for one call and for many.
            raise failed.exceptions[0] from None

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore) -> None:
        if (output := self._turn.state.outputs.get(call.id)) is not None:
            result = limited(output.value, self._settings.limits.max_tool_result_bytes)
            self._emit(self._turn.tool_done(call.id, result, output.is_error))
            return

        def progress(value: Json) -> None:
            self._emit(self._turn.tool_reported([ToolEvent(call.tool, "progress", value, call_id=call.id)]))

        async def checkpoint(state: str) -> None:
            await self._checkpoint(call, Suspended(state))

        settings = self._settings
        attempt = self._turn.state.attempts.get(call.id)
        key = attempt.key if attempt is not None and attempt.key else os.urandom(16).hex()
        context = ToolContext(
            call_id=call.id,
            name=call.name,
            progress=progress,
            forward=lambda part: self._forward(call, part),
            suspended=self._turn.state.suspended.get(call.id),
            deps=settings.deps,
            run_id=self._turn.state.run_id,
            idempotency_key=key,
            attempt=1 if attempt is None else attempt.number,
            checkpoint=checkpoint,
            is_left=lambda: self._is_left,
            emit=Emitter(call, lambda part: self._emit(self._turn.tool_reported([part])), self._staging),
            history=tuple(self._turn.state.messages),
            deferred=lambda: settings.toolbox.deferred,
            conversation=settings.conversation,
            store=settings.hooks.store,
            sources=self._turn.state.sources,
            tools=NestedCalls(self._turn, settings, call, self._nested, lambda part: self._forward(call, part), key),
        )
        async with gate:
            # What ran decides what the result is, whatever the toolset offers under this name by then.
            tool = settings.toolbox.tools.get(function_of(call))
            outcome = await self._observed(call, tool, context)
        if outcome.suspended is not None:
            if self._settings.recorder is not None:
                self._settings.recorder.tool_suspended(call.id, outcome.suspended)
            self._emit(self._turn.tool_suspended(call.id, outcome.suspended))
        else:
            outcome, cites = self._numbered(tool, outcome)
            stages = self._staging.ended(call, outcome.result, is_error=outcome.is_error)
            self._emit(self._turn.tool_reported(stages) if stages else [])
            done = self._turn.tool_done(call.id, outcome.result, outcome.is_error, cites, source=outcome.source)
            self._emit(done)

    def _numbered(self, tool: Tool | None, outcome: ToolOutcome) -> tuple[ToolOutcome, Numbers | None]:
        """The outcome with numbers for the passages that the model may cite, and the first and last of them."""
        if tool is None or not tool.has_passages or outcome.is_error:
            return outcome, None
        state = self._turn.state
        pending = state.fold.results if state.fold else ()
        first = last_number([*(part for message in state.messages for part in message.parts), *pending]) + 1
        result, free = numbered(outcome.result, first)
        return replace(outcome, result=result), (first, free - 1) if free > first else None

    async def _checkpoint(self, call: ToolCall, suspended: Suspended) -> None:
        self._turn.tool_saved(call.id, suspended)
        recorder = self._settings.recorder
        if recorder is not None:
            recorder.tool_suspended(call.id, suspended)
            notice = await recorder.commit()
            self._emit([notice] if notice is not None else [])

    async def _observed(self, call: ToolCall, tool: Tool | None, context: ToolContext) -> ToolOutcome:
        listener = self._settings.hooks.listener
        if listener is None:
            return await self._outcome(call, tool, context)
        with listener.tool(call, tool) as ended:
            outcome = await self._outcome(call, tool, context)
            ended(outcome)
            return outcome

    async def _outcome(self, call: ToolCall, tool: Tool | None, context: ToolContext) -> ToolOutcome:
        settings = self._settings
        name = function_of(call)
        if tool is None:
            # A toolset may have removed it since the request was sent.
            return ToolOutcome(unknown_tool(name, settings.toolbox.tools), is_error=True)
        # Once it runs, it runs again only as it declared: after a crash, and also when the run is left and resumed.
        key = context.idempotency_key
        self._turn.tool_started(call.id, key, tool.on_interruption)
        if settings.recorder is not None:
            settings.recorder.tool_started(call, key, tool.on_interruption)
            notice = await settings.recorder.commit()
            self._emit([notice] if notice is not None else [])
        stages = self._staging.running(call, tool)
        self._emit(self._turn.tool_reported(stages) if stages else [])
        if call.action is not None:
            # Most programs have no function for a provider's own calls.
            from sidestream.tools.client_calls import answer_call

            return await answer_call(tool, name, arguments_of(call), context, settings.limits)
        # A tool whose input is plain text takes it as its argument `input`.
        arguments = {"input": call.input} if isinstance(call.input, str) else call.input
        return await tool.run(arguments, context, settings.limits)

    def _forward(self, call: ToolCall, part: StreamPart) -> None:
        """Emits a part of an agent that runs as a tool: as an event under its name; files as files."""
        if isinstance(part, File):
            forwarded: StreamPart = replace(part, id=f"{call.id}:{part.id}", tool=call.tool, call_id=call.id)
        else:
            forwarded = ToolEvent(call.tool, part.type, jsontext.loads(part.to_json()), call_id=call.id)
        self._emit(self._turn.tool_reported([forwarded]))

    def _emit(self, parts: list[StreamPart]) -> None:
        if parts:
            self._emit_to_run(parts)
            self._wake.set()

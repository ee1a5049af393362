"""Execution of a round's client tools, the parts they emit, and calls that programs make."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import Blocked, ToolRaisedError
from sidestream.evidence.verdict import UNCHECKED
from sidestream.jsontext import JsonObject, as_object
from sidestream.messages.message import Numbers
from sidestream.parts import (
    Custom,
    File,
    Json,
    Source,
    StreamPart,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.results.passages import last_number, numbered
from sidestream.run.preparation import Interruption
from sidestream.run.settings import Interceptor, RunSettings
from sidestream.run.staging import Staging
from sidestream.run.system import RunContext
from sidestream.run.waiting import SubagentWaits
from sidestream.stream.errors import part_of_error
from sidestream.tools.approvals import ASKING, Question, Ruling, Suspended, pending
from sidestream.tools.context import Emitted
from sidestream.tools.grants import covering
from sidestream.tools.results import limited
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.turn.machine import Turn
from sidestream.turn.rounds import arguments_of, denial, function_of, granted, of_server, tool_result, unknown_tool


class Nested(Struct):
    """State that all programs of a run share."""

    made: int = 0
    sources: tuple[str, ...] = ()
    """Open-world tools whose results a program has seen."""
    blocked: Blocked | None = None
    """Decision of a hook that the run must end."""
    failure: ToolRaisedError | None = None
    """Bug of a tool with which the run must end."""
    waits: SubagentWaits = field(default_factory=SubagentWaits)

    def forwarded(self, call: ToolCall, part: StreamPart) -> list[StreamPart]:
        """Return a subagent's part as an event of its tool's call, or a file as a file of it.

        A wait of the subagent is also one of the run.
        """
        if isinstance(part, File):
            return [replace(part, id=f"{call.id}:{part.id}", tool=call.tool, call_id=call.id)]
        event = jsontext.loads(part.to_json())
        nested = ToolEvent(call.tool, "delta", event, call_id=call.id, provider_stage=part.type)
        return [nested, *self.waits.reported(call.id, part)]


class NestedCalls:
    """The tool calls of one program."""

    def __init__(
        self,
        turn: Turn,
        settings: RunSettings,
        call: ToolCall,
        nested: Nested,
        report: Callable[[list[StreamPart]], None],
        staging: Staging,
        key: str,
    ) -> None:
        self._turn = turn
        self._settings = settings
        self._call = call
        self._nested = nested
        self._report = report
        self._staging = staging
        self._answers = dict(turn.state.programs.get(call.id, {}))
        """Results of earlier attempts at the program."""
        self._key = key
        """Idempotency key of the program's own call, which is the prefix of its calls' keys."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that a program may call."""
        return tuple(name for name, tool in self._settings.toolbox.tools.items() if self._is_callable(name, tool))

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> ToolOutcome:
        """Call a tool, or return a suspended outcome with the approval that it needs. Raises only CancelledError.

        `is_approved` is the approver's decision on exactly this call.
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
        made = self._made(call_id, name, tool, arguments)
        if not is_approved:
            outcome = ToolOutcome(denial(name), is_error=True)
            self._report([made, self._result(made, outcome, tool)])
            return outcome
        is_granted = question is not None and verdict == "granted"
        self._report([*self._staging.called(made, tool), made])
        self._report([granted(question, call_id)] if question is not None and is_granted else [])
        await self._commit()
        self._report(self._staging.running(made, tool))
        outcome = await self._intercepted(made, tool)
        # The program ends first, then the run.
        self._nested.failure = self._nested.failure or self._settings.failure_of(outcome)
        self._seen(name)
        self._nested.sources += () if outcome.source is None else (outcome.source,)
        stages = self._staging.ended(made, outcome.result, is_error=outcome.is_error)
        self._report([*stages, self._result(made, outcome, tool)])
        return outcome

    def _result(self, call: ToolCall, outcome: ToolOutcome, tool: Tool) -> ToolResult:
        """Return the part with the outcome of a call."""
        result = tool_result(
            call, outcome.result, is_error=outcome.is_error, facts=tool, source=outcome.source, error=outcome.error
        )
        return replace(result, provider_metadata=self._called_by(result.provider_metadata))

    async def _intercepted(self, call: ToolCall, tool: Tool) -> ToolOutcome:
        interceptor = self._settings.hooks.interceptor
        if interceptor is None:
            return await self._observed(call, tool)
        observed = partial(self._observed, tool=tool)
        try:
            return await intercepted(interceptor, self._settings, self._turn, call, observed, self._report)
        except Blocked as blocked:  # The program ends first, then the run.
            self._nested.blocked = blocked
            return ToolOutcome.failure("Blocked", blocked.reason)

    async def _commit(self) -> None:
        """Have the log store what the program has made of its calls so far, so that a later attempt repeats none."""
        recorder = self._settings.hooks.recorder
        notice = None if recorder is None else await recorder.commit()
        self._report([] if notice is None else [notice])

    async def _observed(self, call: ToolCall, tool: Tool) -> ToolOutcome:
        listener = self._settings.hooks.listener
        if listener is None:
            return await self._outcome(call, tool)
        with listener.tool(call, tool) as ended:
            outcome = await self._outcome(call, tool)
            ended(outcome)
            return outcome

    async def _outcome(self, call: ToolCall, tool: Tool) -> ToolOutcome:
        outcome = await tool.run(call.input, self._context(call), self._settings.limits)
        self._report(self._nested.waits.ended(call.id))
        if outcome.suspended is None:
            return outcome
        return ToolOutcome.failure("Unsupported", f"{call.name} must wait for a person, and a program cannot.")

    def _made(self, call_id: str, name: str, tool: Tool, arguments: Json) -> ToolCall:
        call = of_server(ToolCall(call_id, name, tool.key or name, False, arguments), {name: tool})
        assert isinstance(call, ToolCall)
        return replace(call, provider_metadata=self._called_by(call.provider_metadata))

    def _called_by(self, metadata: JsonObject | None) -> JsonObject:
        """Return a part's metadata with the program that made the call, in the format of hosted ones."""
        marks = as_object((metadata or {}).get("sidestream"))
        return {"sidestream": {**marks, "caller": {"type": "program", "caller_id": self._call.id}}}

    def answer(self, call_id: str, name: str) -> ToolOutcome | None:
        """Return the outcome of a call that an earlier attempt at the program made, or None."""
        known = self._answers.get(call_id)
        if known is None:
            return None
        self._seen(name)
        return ToolOutcome(known.result, is_error=known.is_error)

    def _seen(self, name: str) -> None:
        """Record that a program has the result of this tool."""
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

    def _context(self, call: ToolCall) -> ToolContext:
        settings = self._settings
        return ToolContext(
            call_id=call.id,
            name=call.name,
            progress=lambda value: self._report([progress(call, value)]),
            forward=lambda part: self._report(self._nested.forwarded(call, part)),
            deps=settings.deps,
            run_id=self._turn.state.run_id,
            idempotency_key=f"{self._key}{call.id.removeprefix(self._call.id)}",
            emit=Emitter(call, lambda part: self._report([part]), self._staging),
            history=tuple(self._turn.state.messages),
            conversation=settings.conversation,
            store=settings.hooks.store,
            sources=self._sources,
        )


INPUT_REPLACED: Final = "sidestream.input-replaced"
"""Kind of the custom part that reports that a hook let a call run with another input."""


async def intercepted(
    interceptor: Interceptor,
    settings: RunSettings,
    turn: Turn,
    call: ToolCall,
    run: Callable[[ToolCall], Awaitable[ToolOutcome]],
    report: Callable[[list[StreamPart]], None],
) -> ToolOutcome:
    """Run a call with the program's hooks before and after it. Raises `Blocked` if one of them blocks the run."""

    def context() -> RunContext[Any]:
        return settings.run_context(turn)

    asked, call = call, await interceptor.before_tool(call, context)
    if call is not asked:
        message = f"A hook let {call.name} run with another input."
        report([Custom(INPUT_REPLACED, {"message": message, "call_id": call.id, "input": call.input})])
    outcome = await run(call)
    if outcome.suspended is not None:
        return outcome
    result = tool_result(call, outcome.result, is_error=outcome.is_error)
    seen = await interceptor.after_tool(call, result, context)
    return outcome if seen is result else replace(outcome, result=seen.result, is_error=seen.is_error)


class Emitter:
    """Emits the parts of one call, adding the call's id and tool to each."""

    def __init__(self, call: ToolCall, report: Callable[[StreamPart], None], staging: Staging) -> None:
        self._call = call
        self._report = report
        self._staging = staging
        self._count = 0

    def __call__(self, part: Emitted) -> None:
        """Emit the part, unless it repeats a lifecycle event that every call to such a tool has."""
        stages = self._staging.stages_of(self._call)
        if stages is not None and isinstance(part, ToolEvent):
            event = as_object(part.event)
            if stages.is_repeated(event):
                return
            event = stages.placed(event)
            part = replace(part, event=event, output_index=event.get("output_index"))
        self._report(self._of_call(part))

    def _of_call(self, part: Emitted) -> StreamPart:
        call = self._call
        match part:
            case ToolEvent():
                word = part.provider_stage or part.stage
                return replace(part, tool=call.tool, call_id=call.id, provider_tool=None, provider_stage=word)
            case File():
                file = replace(part, id=part.id or self._new_id("file"), tool=call.tool, call_id=call.id)
                self._staging.made(file)
                return file
            case Source():
                # Only the run can tell: it compares answers with what its own sources found.
                return replace(part, id=part.id or self._new_id("source"), evidence=UNCHECKED)
            case Custom():
                return part
            case ToolResult():
                return replace(part, id=call.id, name=call.name, tool=call.tool, provider_executed=False)

    def _new_id(self, kind: str) -> str:
        self._count += 1
        return f"{self._call.id}:{kind}-{self._count}"


def progress(call: ToolCall, value: Json) -> StreamPart:
    """Return the event with which a call reports its progress."""
    return ToolEvent(call.tool, "delta", value, call_id=call.id, provider_stage="progress")


_OPEN = nullcontext()
"""The gate of a call that is alone."""


class ToolRound:
    """The tools of one run. The calls of a round run in one task, which this owns unless it is the run's."""

    def __init__(
        self, turn: Turn, settings: RunSettings, emit: Callable[[list[StreamPart]], None], staging: Staging
    ) -> None:
        self._turn = turn
        self._staging = staging
        self._settings = settings
        self._recorder = settings.hooks.recorder
        self._emit_to_run = emit
        self._working: asyncio.Task[None] | None = None
        self._caller: asyncio.Task[Any] | None = None
        """Task of the run, while it runs calls itself."""
        self._stopped: asyncio.Future[None] | None = None
        """Set once these calls have stopped, for `aclose`."""
        self._wake = asyncio.Event()
        self._nested = Nested()
        self._is_left = False
        self._ending: Callable[[], list[StreamPart]] | None = None
        """Ends the run after a call that must end it, once the other calls have stopped."""

    async def advance(self, calls: tuple[ToolCall, ...], interruption: Interruption | None) -> None:
        """Run or continue the calls, and return when parts are ready.

        `interruption` means that they need not be ready before the calls have ended. Raises StopAsyncIteration once
        closed, or ToolRaisedError if a call has ended the run.
        """
        wake, working = self._wake, self._working
        if working is None and interruption is not None and self._are_silent(calls):
            with interruption:
                await self._run(calls)
            return
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
            if self._ending is not None:
                self._emit(self._ending())
            working.result()

    def _are_silent(self, calls: tuple[ToolCall, ...]) -> bool:
        """Return whether the calls emit nothing before their results."""
        tools = self._settings.toolbox.tools
        for call in calls:
            tool = tools.get(function_of(call))
            if tool is None or not tool.is_silent:
                return False
        return True

    async def _run(self, calls: tuple[ToolCall, ...]) -> None:
        """Run the calls in the current task."""
        self._caller = asyncio.current_task()
        try:
            await self._work(calls)
        except Exception:
            if self._ending is not None:
                self._emit(self._ending())
            raise
        finally:
            self._caller = None
            if self._stopped is not None:
                self._stopped.set_result(None)
                self._stopped = None

    def wake(self) -> None:
        """Make `advance` return, since parts from another source are ready."""
        self._wake.set()

    async def aclose(self, *, is_left: bool) -> None:
        """Stop the running tools.

        Safe to call twice. `is_left` means that their calls continue when the run is resumed.
        """
        self._is_left = is_left
        working, self._working = self._working, None
        if working is not None and not working.done():
            working.cancel()
            await asyncio.wait([working])
        if self._caller is not None and self._caller is not asyncio.current_task():
            # The run has interrupted it.
            self._stopped = self._stopped or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._stopped])

    async def _work(self, calls: tuple[ToolCall, ...]) -> None:
        if len(calls) == 1:
            await self._run_tool(calls[0], _OPEN)
            return
        gate = asyncio.Semaphore(self._settings.limits.max_parallel_tools)
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._run_tool(call, gate))
        except BaseExceptionGroup as failed:
            # Tools raise nothing; the log may, and its errors are the same for one call and for many.
            raise failed.exceptions[0] from None

    async def _run_tool(self, call: ToolCall, gate: AbstractAsyncContextManager[None]) -> None:
        if (output := self._turn.state.outputs.get(call.id)) is not None:
            result = limited(output.value, self._settings.limits.max_tool_result_bytes)
            self._emit(self._turn.tool_done(call.id, result, output.is_error))
            return

        def report(parts: list[StreamPart]) -> None:
            self._emit(self._turn.tool_reported(parts))

        async def checkpoint(state: str) -> None:
            await self._checkpoint(call, Suspended(state))

        settings, state = self._settings, self._turn.state
        attempt = state.attempts.get(call.id)
        key = attempt.key if attempt is not None and attempt.key else os.urandom(16).hex()
        async with gate:
            # Look it up now: the tool that ran decides about the result, whatever the toolset offers later.
            tool = settings.toolbox.tools.get(function_of(call))
            if tool is not None and tool.is_silent:
                # Its function does not see the context.
                context = ToolContext(
                    call_id=call.id,
                    name=call.name,
                    progress=lambda value: report([progress(call, value)]),
                    idempotency_key=key,
                )
            else:
                context = ToolContext(
                    call_id=call.id,
                    name=call.name,
                    progress=lambda value: report([progress(call, value)]),
                    forward=lambda part: report(self._nested.forwarded(call, part)),
                    suspended=state.suspended.get(call.id),
                    deps=settings.deps,
                    run_id=state.run_id,
                    idempotency_key=key,
                    attempt=1 if attempt is None else attempt.number,
                    checkpoint=checkpoint,
                    is_left=lambda: self._is_left,
                    emit=Emitter(call, lambda part: report([part]), self._staging),
                    history=tuple(state.messages),
                    deferred=lambda: settings.toolbox.deferred,
                    conversation=settings.conversation,
                    store=settings.hooks.store,
                    sources=state.sources,
                    tools=NestedCalls(self._turn, settings, call, self._nested, report, self._staging, key),
                )
            if settings.hooks.interceptor is not None:
                observed = partial(self._observed, tool=tool, context=context)
                outcome = await intercepted(settings.hooks.interceptor, settings, self._turn, call, observed, report)
            elif settings.hooks.listener is not None:
                outcome = await self._observed(call, tool, context)
            else:
                outcome = await self._outcome(call, tool, context)
        if ended := self._nested.waits.ended(call.id):
            report(ended)
        if self._nested.blocked is not None:
            raise self._nested.blocked
        if outcome.suspended is not None and self._nested.failure is not None:
            outcome = ToolOutcome.failure("Cancelled", "The run ends, since a tool that the program called has a bug.")
        if outcome.suspended is not None:
            if self._recorder is not None:
                self._recorder.tool_suspended(call.id, outcome.suspended)
            self._emit(self._turn.tool_suspended(call.id, outcome.suspended))
        else:
            outcome, cites = self._numbered(tool, outcome)
            if stages := self._staging.ended(call, outcome.result, is_error=outcome.is_error):
                self._emit(self._turn.tool_reported(stages))
            failure = settings.failure_of(outcome) or self._nested.failure
            done = partial(
                self._turn.tool_done,
                call.id,
                outcome.result,
                outcome.is_error,
                cites,
                source=outcome.source,
                error=outcome.error,
                failure=None if failure is None else part_of_error(failure),
            )
            if failure is not None:
                self._ending = self._ending or done
                raise failure
            self._emit(done())

    def _numbered(self, tool: Tool | None, outcome: ToolOutcome) -> tuple[ToolOutcome, Numbers | None]:
        """Assign numbers to the passages that the model may cite.

        Returns the outcome, and the first and last number.
        """
        if tool is None or not tool.has_passages or outcome.is_error:
            return outcome, None
        state = self._turn.state
        pending = state.fold.results if state.fold else ()
        first = last_number([*(part for message in state.messages for part in message.parts), *pending]) + 1
        result, free = numbered(outcome.result, first)
        return replace(outcome, result=result), (first, free - 1) if free > first else None

    async def _checkpoint(self, call: ToolCall, suspended: Suspended) -> None:
        self._turn.tool_saved(call.id, suspended)
        recorder = self._recorder
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
        # Once started, it is repeated only as it declared, after a crash and also when the run is left and resumed.
        key = context.idempotency_key
        self._turn.tool_started(call.id, key, tool.on_interruption)
        if self._recorder is not None:
            self._recorder.tool_started(call, key, tool.on_interruption)
            notice = await self._recorder.commit()
            self._emit([notice] if notice is not None else [])
        if stages := self._staging.running(call, tool):
            self._emit(self._turn.tool_reported(stages))
        if call.action is not None:
            # Most programs have no function for a provider's own calls.
            from sidestream.tools.client_calls import answer_call

            return await answer_call(tool, name, arguments_of(call), context, settings.limits)
        # A tool whose input is plain text takes it as its argument `input`.
        arguments = {"input": call.input} if isinstance(call.input, str) else call.input
        return await tool.run(arguments, context, settings.limits)

    def _emit(self, parts: list[StreamPart]) -> None:
        if parts:
            self._emit_to_run(parts)
            self._wake.set()

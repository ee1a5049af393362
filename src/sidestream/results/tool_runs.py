"""Tool runs, one record per hosted or local tool call, as a pure fold of the part stream.

User interfaces show tool calls from these records, which have the same fields for every provider.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.messages.provenance import forwarded_part
from sidestream.parts import (
    Custom,
    File,
    Finish,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamPart,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.results import tool_facts
from sidestream.results.tool_code import CodeFold, code_fields, code_in, output_text
from sidestream.results.tool_text import ToolText, logs_in
from sidestream.results.typed_results import RUNS_CODE, SEARCHES, TYPES, FoundHit, TypedResult, hits_in
from sidestream.text.reprs import ShortRepr
from sidestream.tools.grants import CALL_GRANTED

CallStage = Literal["started", "running", "completed", "failed"]
"""Stages that change a call. Each call passes them in this order, and each of them once."""
ToolStatus = Literal["started", "running", "waiting", "completed", "failed", "unfinished"]
"""The call's last stage, unless it is `waiting` for an approval or a result from outside, or `unfinished` because the
run ended before the call did."""

_ENDED = frozenset({"completed", "failed", "unfinished"})
_PATH: tuple[CallStage, ...] = ("started", "running")
"""Stages before the last one."""
_RANKS = {"started": 0, "running": 1, "completed": 2, "failed": 2}


class ToolStage(ShortRepr, Struct, frozen=True, eq=False, omit_defaults=True):
    """A change of a call's stage, the same for every provider and for tools that run locally."""

    tool: str
    """Portable name of the tool."""
    stage: CallStage
    call_id: str
    """Id of the call's `ToolRun`."""
    event: Any = None
    """Provider's event that reported the stage, verbatim. None means that no event did."""
    provider_tool: str | None = None
    provider_stage: str | None = None
    """Provider's name of the stage, if it reported it."""
    at: float | None = None
    """Seconds since the run began."""

    def __eq__(self, other: object) -> bool:
        # Two runs of one recording are equal, although their clocks differ.
        return isinstance(other, ToolStage) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.tool, self.stage, self.call_id))

    def _facts(self) -> tuple[Any, ...]:
        return self.tool, self.stage, self.call_id, self.provider_tool, self.provider_stage


class ToolRun(ShortRepr, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one tool call."""

    id: str
    """First id of the call. With `step`, it identifies the record in later chunks."""
    call_id: str
    """Id of the call and its result."""
    tool: str
    """Portable name of the tool, or the function's own name."""
    name: str
    provider_tool: str | None = None
    """Provider's name of the tool."""
    provider_executed: bool = True
    step: int = 0
    status: ToolStatus = "started"
    stages: tuple[ToolStage, ...] = ()
    input: Any = None
    queries: tuple[str, ...] = ()
    code: str | None = None
    """Code, set with the call; `chunk.code` has it while it is written."""
    result_count: int | None = None
    """Number of pages, passages or tools found."""
    file_count: int | None = None
    """Number of files that the passages found are from."""
    snippet: str = ""
    """Beginning of the first result, at most 200 characters."""
    files: tuple[File, ...] = ()
    previews: int = 0
    server: str | None = None
    """Label of the call's MCP server."""
    caller: str | None = None
    """Id of the call whose program made this one. None means that the model made it."""
    grant: str | None = None
    """Id of the remembered approval that allowed the call, where the policy would have asked."""
    exit_code: int | None = None
    logs: str = ""
    """What code or commands printed."""
    results: tuple[FoundHit, ...] = ()
    """Pages, passages or tools found."""
    result: Any = None
    """Provider's own JSON of the result, or what a function returned."""
    error: str | None = None
    is_over: bool = False
    """Whether nothing more follows except downloaded files. Only the last chunk with the record has it set."""

    @property
    def has_ended(self) -> bool:
        """Whether the status is final. Files in the result may follow."""
        return self.status in _ENDED

    @property
    def typed(self) -> TypedResult:
        """The result in the class of its tool, such as `WebSearchResult`, with the same fields for every provider."""
        kind = TYPES.get(self.tool, TypedResult)
        return kind(**{name: getattr(self, name) for name in kind.__struct_fields__})

    @property
    def seconds(self) -> float | None:
        """The duration from the first to the last stage, or None without a clock."""
        times = [stage.at for stage in self.stages if stage.at is not None]
        return times[-1] - times[0] if times else None

    @property
    def key(self) -> tuple[int, str]:
        """The step and id, which identify the call in its run. Providers may reuse an id in a later step."""
        return self.step, self.id


_SILENT = frozenset({"input", "delta"})
"""Stages that change no record."""

NESTED = frozenset({"tool-call", "tool-result"})
"""Stages of the events that bring the calls of a program, or those of a subagent."""

_CITED = "annotation"
"""Provider's stage of a tool whose file is cited in text. The tool may have run in an earlier step."""

_GROUNDED = frozenset({"web_search", "x_search", "google_maps", "web_fetch", "file_search"})
"""Tools whose results may arrive with the text."""


class ToolRunFold:
    """A fold of parts to tool runs. Each part returns the records that it changed."""

    def __init__(self, step: int = 0) -> None:
        self._runs: dict[tuple[int, str], ToolRun] = {}
        self._newest: dict[str, tuple[int, str]] = {}
        self._last: dict[tuple[int, str], tuple[int, str]] = {}
        """Keys of the last calls, by step and tool."""
        self._touched: dict[tuple[int, str], int] = {}
        """Steps in which records last changed, by key."""
        self._ending: dict[tuple[int, str], None] = {}
        """Keys of records with a final status for which more may arrive."""
        self._answered: dict[tuple[int, str], int] = {}
        """Steps in which results arrived, by key of the call."""
        self._called: set[tuple[int, str]] = set()
        """Keys of records whose call is complete."""
        self._asked: set[tuple[int, str]] = set()
        """Keys of records that waited for an approval."""
        self._brought: dict[tuple[int, str], ToolEvent] = {}
        """Events that ended a call whose result has not arrived yet, by key."""
        self._changes: list[ToolStage] = []
        self._begun_step: int | None = None
        self._step = step
        self._ended: tuple[int, str] | None = None
        self._at: float | None = None

    @property
    def step(self) -> int:
        """The current step."""
        return self._step

    def run_of(self, call_id: str) -> ToolRun | None:
        """Return the newest record of a call, or None if the call is unknown."""
        key = self._newest.get(call_id)
        return None if key is None else self._runs.get(key)

    @property
    def runs(self) -> tuple[ToolRun, ...]:
        """The records, in the order of their first parts."""
        return tuple(self._runs.values())

    def take_up(self, calls: Iterable[tuple[int, ToolCall]], waiting: Container[str]) -> None:
        """Add the calls that the turn made before its run was resumed, each with its step."""
        step = self._step
        for self._step, call in calls:
            for run in self.call(call):
                if call.id in waiting:
                    self._asked.add(run.key)
                    self._changed(run, status="waiting")
        self._step = step
        self._changes.clear()

    def taken(self) -> tuple[ToolStage, ...]:
        """Return the changes of stage since the last call, in order."""
        if not self._changes:
            return ()
        changes, self._changes = tuple(self._changes), []
        return changes

    def is_silent(self, part: ToolEvent) -> bool:
        """Return whether the event is a delta of a known call, which changes no record."""
        is_delta = part.stage in _SILENT and part.call_id in self._newest
        return is_delta and part.provider_stage not in NESTED

    def feed(self, part: StreamPart, at: float | None = None) -> tuple[ToolRun, ...]:
        """Return the records that a part changes. It arrived `at` seconds after the run began."""
        handler = _HANDLERS.get(type(part))
        if handler is None:
            return ()
        self._at = at
        return handler(self, part)

    def begin_step(self, part: StepStart) -> tuple[ToolRun, ...]:
        if part.step == self._begun_step:
            self._forget(part.step)
        self._step = self._begun_step = part.step
        return ()

    def _forget(self, step: int) -> None:
        """Drop the calls and results of a step that the log repeats."""
        for key in [key for key in self._runs if key[0] == step]:
            run = self._runs.pop(key)
            if self._newest.get(run.call_id) == key:
                del self._newest[run.call_id]
            for known in (self._touched, self._ending, self._answered, self._brought):
                known.pop(key, None)
            self._called.discard(key)
            self._asked.discard(key)
        self._last = {at: key for at, key in self._last.items() if at[0] != step}
        for key in [key for key, at in self._answered.items() if at == step]:
            del self._answered[key]
            if (run := self._runs.get(key)) is not None:
                self._runs[key] = replace(run, stages=run.stages[: len(_PATH)], status="running", is_over=False)

    def begin_block(self, part: TextStart | ReasoningStart | ToolInputStart) -> tuple[ToolRun, ...]:
        ending = self._ending
        return self._over([key for key in ending if self._runs[key].tool not in _GROUNDED]) if ending else ()

    def end_step(self, part: StepFinish) -> tuple[ToolRun, ...]:
        return self._over([*self._ending]) if self._ending else ()

    def begin_input(self, part: ToolInputStart) -> tuple[ToolRun, ...]:
        run = self._new(part.id, part.name, part.tool or part.name, part.provider_executed)
        return *self.begin_block(part), *self._changed(run, "started")

    def end_input(self, part: ToolInputEnd) -> tuple[ToolRun, ...]:
        self._ended = self._newest.get(part.id)
        return ()

    def call(self, part: ToolCall) -> tuple[ToolRun, ...]:
        run = self._call_of(part)
        self._called.add(run.key)
        server, server_tool, caller = tool_facts.origin_in(part.provider_metadata)
        return self._changed(
            run,
            "running" if part.input_error is None else "failed",
            tool=part.tool,
            name=server_tool or part.name,
            provider_tool=part.provider_tool or run.provider_tool,
            provider_executed=part.provider_executed,
            input=part.input if part.input_error is None else part.input_text,
            queries=tool_facts.queries_in(part.input) or run.queries,
            code=code_in(part.input, code_fields(part)),
            server=server or run.server,
            caller=caller,
            error=part.input_error,
        )

    def event(self, part: ToolEvent) -> tuple[ToolRun, ...]:
        nested = _nested(part) if part.provider_stage in NESTED else None
        if nested is not None:
            return self.call(nested) if isinstance(nested, ToolCall) else self.result(nested)
        run = self._of_event(part)
        if run.is_over or (part.provider_stage == _CITED and run.key not in self._runs):
            return ()
        if part.stage in _SILENT:
            return () if run.key in self._runs else self._changed(run, "started", provider_tool=part.provider_tool)
        count = tool_facts.count_in(part.event)
        stage, error = self._stage_after(part, run)
        return self._changed(
            run,
            stage,
            part if stage == part.stage else None,
            error=error,
            tool=part.tool,
            name=part.tool if run.name == run.call_id else run.name,
            provider_tool=part.provider_tool,
            queries=run.queries or tool_facts.queries_in(part.event),
            result_count=run.result_count if count is None else count,
            snippet=run.snippet or _found(part),
            results=run.results or (hits_in(part.event) if part.tool in SEARCHES else ()),
            server=run.server or tool_facts.server_in(part.event),
        )

    def approval(self, part: ToolApprovalRequest) -> tuple[ToolRun, ...]:
        run = self.run_of(part.id) or self._new(part.id, part.name, part.name, provider_executed=False)
        given = part.input if run.input is None else run.input
        server = part.server_label or run.server
        self._asked.add(run.key)
        return self._changed(run, "started", status="waiting", input=given, server=server, grant=None)

    def granted(self, part: Custom) -> tuple[ToolRun, ...]:
        data = jsontext.as_object(part.data)
        run = self.run_of(str(data.get("call_id"))) if part.kind == CALL_GRANTED else None
        return () if run is None else self._changed(run, grant=jsontext.text_in(data, "grant"))

    def result(self, part: ToolResult) -> tuple[ToolRun, ...]:
        run = self.run_of(part.id) or self._new(part.id, part.name, part.tool, part.provider_executed)
        key = run.key
        if key in self._answered:
            return ()  # A repeated step repeats the result.
        if part.preliminary:
            return self._changed(run, "started", previews=run.previews + 1)
        self._answered[key] = self._step
        self._called.add(key)
        count = tool_facts.count_in(part.result)
        return self._changed(
            run,
            "failed" if part.is_error else "completed",
            self._brought.pop(key, None),
            result_count=run.result_count if count is None else count,
            file_count=tool_facts.file_count_in(part.result),
            snippet=_snippet(part) or run.snippet,
            # A local function's own result may have such a field.
            server=(tool_facts.server_in(part.result) if part.provider_executed else None) or run.server,
            exit_code=tool_facts.exit_code_in(part.result),
            logs=output_text(part.result) if part.tool in RUNS_CODE else "",
            results=(hits_in(part.result) if part.tool in SEARCHES else ()) or run.results,
            result=part.result,
            error=tool_facts.error_in(part.result) if part.is_error else None,
            # Files of local tools come before the result.
            is_over=not part.provider_executed,
        )

    def file(self, part: File) -> tuple[ToolRun, ...]:
        run = self.run_of(part.call_id or "")
        # A page found by a search is a result, not a file.
        if run is None or part.data is None:
            return ()
        changed = self._changed(run, files=(*run.files, part))
        return () if run.is_over else changed

    def finish(self, part: Finish) -> tuple[ToolRun, ...]:
        """Mark calls without a result as unfinished, unless the run waits or they only ever reported events."""
        ended: list[ToolRun] = []
        for run in self.runs:
            is_kept = run.status == "waiting" or (run.provider_executed and self._is_called(run))
            if run.is_over or (part.reason == "approval" and is_kept and not run.has_ended):
                continue  # A waiting run will be resumed, with its open calls.
            if not run.has_ended and run.input is None and part.reason != "error":
                last = self._brought.pop(run.key, None)
                failure = tool_facts.failure_in(last.event) if last is not None and last.stage == "failed" else None
                ended += self._changed(run, "failed" if failure else "completed", last, is_over=True, error=failure)
            else:
                status = run.status if run.has_ended else "unfinished"
                ended += self._changed(run, status=status, is_over=True)
        return tuple(ended)

    def _new(self, call_id: str, name: str, tool: str, provider_executed: bool) -> ToolRun:
        """Return the record of a new call, reusing one that an event or an approval request created."""
        known = self._runs.get((self._step, call_id))
        if known is None or self._is_called(known):
            earlier = self.run_of(call_id)
            is_approved = provider_executed and earlier is not None and self._is_approved(earlier)
            known = earlier if is_approved else None
        if known is None:
            return self._begun(call_id, tool, name, provider_executed)
        return replace(known, name=name, provider_executed=provider_executed)

    def _begun(self, call_id: str, tool: str, name: str, provider_executed: bool = True) -> ToolRun:
        key = self._step, call_id
        self._answered.pop(key, None)
        self._brought.pop(key, None)
        self._called.discard(key)
        self._asked.discard(key)
        return ToolRun(
            id=call_id, call_id=call_id, tool=tool, name=name, provider_executed=provider_executed, step=self._step
        )

    def _is_approved(self, run: ToolRun) -> bool:
        """Return whether a provider's call waited for approval and is now made in a later step, with the same id."""
        return run.step != self._step and not run.has_ended and run.key in self._asked

    def _is_called(self, run: ToolRun) -> bool:
        return run.has_ended or run.key in self._called

    def _call_of(self, part: ToolCall) -> ToolRun:
        ended, self._ended = self._ended, None
        known = self._runs.get((self._step, part.id))
        if known is not None and not self._is_called(known):
            return known
        run = None if ended is None else self._runs.get(ended)
        if run is not None and not self._is_called(run) and run.name == part.name and run.call_id != part.id:
            # The final id replaces the one that the input streamed under.
            return replace(run, call_id=part.id)
        earlier = self.run_of(part.id)
        is_open = earlier is not None and not earlier.has_ended and earlier.input == part.input
        if known is None and part.provider_executed and earlier is not None and is_open:
            return earlier  # Older logs repeat the call with its result, in a later step.
        return self._new(part.id, part.name, part.tool, part.provider_executed)

    def _of_event(self, part: ToolEvent) -> ToolRun:
        """Return the event's call, or the tool's last call in this step if the event names none."""
        if part.call_id is not None:
            known = self.run_of(part.call_id)
            if known is None or self._is_other(known, part):
                return self._begun(part.call_id, part.tool, part.tool)
            return known
        last = self._last.get((self._step, part.tool))
        return self._begun(part.tool, part.tool, part.tool) if last is None else self._runs[last]

    def _is_other(self, run: ToolRun, part: ToolEvent) -> bool:
        """Return whether the event belongs to a new call that reuses the id of an earlier step's call."""
        if run.step == self._step:
            return False
        if run.has_ended:
            return self._touched[run.key] != self._step
        return tool_facts.begins_call(part.provider_stage, part.event) and not self._is_approved(run)

    def _stage_after(self, part: ToolEvent, run: ToolRun) -> tuple[CallStage, str | None]:
        """Return the stage after an event and the error of a failed call, unless its result reports them."""
        if part.stage == "started" or part.stage == "running":
            return part.stage, run.error
        is_list = part.provider_stage == "done" and tool_facts.is_list(part.event)
        if not self._is_called(run) and (is_list or part.call_id is None):
            return _ending(part), tool_facts.failure_in(part.event) if part.stage == "failed" else run.error
        if run.key not in self._answered:
            self._brought[run.key] = part  # The result follows.
        return "running", run.error

    def _changed(
        self, run: ToolRun, stage: CallStage | None = None, event: ToolEvent | None = None, **changes: Any
    ) -> tuple[ToolRun, ...]:
        if stage is not None:
            if _RANKS[stage] >= len(run.stages):
                tool, name = changes.get("tool", run.tool), changes.get("provider_tool", run.provider_tool)
                changes["stages"] = self._passed(run, stage, event, tool, name)
                changes.setdefault("status", stage)
            elif stage == "running" and run.status == "waiting":
                changes.setdefault("status", stage)  # The call was approved.
        new = replace(run, **changes) if changes else run
        key = new.step, new.id
        known = self._runs.get(key)
        if "stages" not in changes and known == new:
            return ()
        if known is None or known.tool != new.tool:
            self._last[new.step, new.tool] = key
        self._runs[key] = new
        self._newest[new.call_id] = key
        self._touched[key] = self._step
        if new.is_over:
            self._ending.pop(key, None)
        elif new.status in _ENDED:
            self._ending[key] = None
        return (new,)

    def _passed(
        self, run: ToolRun, stage: CallStage, event: ToolEvent | None, tool: str, provider_tool: str | None
    ) -> tuple[ToolStage, ...]:
        """Return the stages of a call up to this one. Those that no event reported have no event."""
        stages, id, at = run.stages, run.id, self._at
        for name in _PATH[len(stages) : _RANKS[stage]]:
            stages += (ToolStage(tool, name, id, None, provider_tool, None, at),)
        if event is None:
            stages += (ToolStage(tool, stage, id, None, provider_tool, None, at),)
        else:
            stages += (ToolStage(tool, stage, id, event.event, provider_tool, event.provider_stage, at),)
        self._changes += stages[len(run.stages) :]
        return stages

    def _over(self, keys: list[tuple[int, str]]) -> tuple[ToolRun, ...]:
        return tuple(run for key in keys for run in self._changed(self._runs[key], is_over=True))


class ToolFolds:
    """The folds of what tools did in a run."""

    def __init__(self, step: int) -> None:
        self.runs = ToolRunFold(step)
        self.code = CodeFold()
        self._printing = set[str]()
        """Ids of the calls whose tools have reported what they print."""

    def written(self, part: ToolInputDelta, code: str) -> tuple[ToolText, ...]:
        """Return the text that a delta of an input adds, which is `code` if the tool runs code."""
        if self.code.is_code(part.id):
            return self._last_code(part.id) if code else ()
        return (ToolText(tool=self._tool(part.id), call_id=part.id, kind="input", text=part.delta),)

    def pieces(self, call_id: str, deltas: list[str]) -> tuple[list[str], list[tuple[ToolText, ...]]]:
        """Return what `code.delta` and `written` return for deltas that only continue an input."""
        tool, codes = self._tool(call_id), self.code.continued(call_id, deltas)
        if codes is None:
            texts = [(ToolText(tool=tool, call_id=call_id, kind="input", text=delta),) for delta in deltas]
            return [""] * len(deltas), texts
        texts = [(ToolText(tool=tool, call_id=call_id, kind="code", text=code),) if code else () for code in codes]
        return codes, texts

    def completed(self, part: StreamPart) -> tuple[str, tuple[ToolText, ...]]:
        """Return the code that a call adds, which has not streamed, and its text, or the unreported output of one."""
        if type(part) is ToolResult:
            return "", self._printed(part)
        code = self.code.feed(part)
        return code, self._last_code(part.id) if code and type(part) is ToolCall else ()

    def _printed(self, part: ToolResult) -> tuple[ToolText, ...]:
        if part.preliminary or part.tool not in RUNS_CODE or part.id in self._printing:
            return ()
        printed = output_text(part.result)
        return (ToolText(tool=part.tool, call_id=part.id, kind="logs", text=f"{printed}\n"),) if printed else ()

    def _last_code(self, call_id: str) -> tuple[ToolText, ...]:
        return (ToolText(tool=self._tool(call_id), call_id=call_id, kind="code", text=self.code.last),)

    def _tool(self, call_id: str) -> str:
        run = self.runs.run_of(call_id)
        return "" if run is None else run.tool

    def logs(self, event: ToolEvent) -> tuple[ToolText, ...]:
        """Return what a running tool printed."""
        text = logs_in(event) if event.stage == "delta" else ""
        if not text:
            return ()
        call_id = event.call_id or ""
        self._printing.add(call_id)
        return (ToolText(tool=event.tool, call_id=call_id, kind="logs", text=text),)


def _nested(event: ToolEvent) -> ToolCall | ToolResult | None:
    """Return the call or result of a program's call, which older logs have in an event, or None for other events."""
    metadata = jsontext.as_object(event.event).get("provider_metadata")
    if event.call_id is None or tool_facts.origin_in(metadata).caller != event.call_id:
        return None
    part = forwarded_part(event)
    return part if isinstance(part, ToolCall | ToolResult) else None


def _ending(part: ToolEvent) -> CallStage:
    return "failed" if part.stage == "failed" else "completed"


def _found(part: ToolEvent) -> str:
    """Return the first grounding hit, which no result reports."""
    grounding = jsontext.as_object(part.event).get("groundingMetadata")
    return "" if grounding is None else tool_facts.snippet_of(grounding)


def _snippet(part: ToolResult) -> str:
    text = tool_facts.snippet_of(part.result)
    if text or part.provider_executed or part.result in (None, {}, []):
        return text
    return tool_facts.cut(jsontext.shown(part.result))


_HANDLERS: dict[type, Callable[[ToolRunFold, Any], tuple[ToolRun, ...]]] = {
    StepStart: ToolRunFold.begin_step,
    TextStart: ToolRunFold.begin_block,
    ReasoningStart: ToolRunFold.begin_block,
    StepFinish: ToolRunFold.end_step,
    ToolInputStart: ToolRunFold.begin_input,
    ToolInputEnd: ToolRunFold.end_input,
    ToolCall: ToolRunFold.call,
    ToolEvent: ToolRunFold.event,
    ToolApprovalRequest: ToolRunFold.approval,
    ToolResult: ToolRunFold.result,
    Custom: ToolRunFold.granted,
    File: ToolRunFold.file,
    Finish: ToolRunFold.finish,
}
"""Part type → handler. Other parts change no record."""


def tool_runs(parts: Iterable[StreamPart]) -> tuple[ToolRun, ...]:
    """Return the tool runs of a complete stream, without times."""
    folding = ToolRunFold()
    for part in parts:
        folding.feed(part)
    return folding.runs

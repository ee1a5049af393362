"""One record per tool call of a run, hosted or not: a pure fold of the part stream.

Interfaces draw from it: the same facts under the same names, whichever provider ran the tool.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.results import tool_facts
from sidestream.results.tool_code import CODE_FIELDS, CodeFold, code_in
from sidestream.stream.parts import (
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
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.text.reprs import ShortRepr
from sidestream.tools.grants import CALL_GRANTED

ToolStatus = Literal["writing", "running", "waiting", "done", "failed", "unfinished"]
"""`writing`: its input streams. `waiting`: for an approval, or for its result from outside. `unfinished`: the run ended
before it did."""

_ENDED = frozenset({"done", "failed", "unfinished"})


class ToolStage(Struct, frozen=True, eq=False):
    """A stage of a call, by the provider's name or ours (`input`, `called`, `approval`, `result`)."""

    name: str
    at: float | None = None
    """Seconds since the run began."""

    def __eq__(self, other: object) -> bool:
        # Two runs of one recording are equal; their clocks are not.
        return isinstance(other, ToolStage) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class ToolRun(ShortRepr, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a tool, as far as it has come."""

    id: str
    """The first id it was known by; with `step`, it identifies the record in later chunks."""
    call_id: str
    """The id that its call and result have."""
    tool: str
    """The key of its events."""
    name: str
    provider_executed: bool = True
    step: int = 0
    status: ToolStatus = "writing"
    stages: tuple[ToolStage, ...] = ()
    input: Any = None
    queries: tuple[str, ...] = ()
    code: str | None = None
    """Set with the call; `chunk.code` has it as it is written."""
    result_count: int | None = None
    """How many pages, passages or tools it found."""
    file_count: int | None = None
    """How many files the passages that it found are from."""
    snippet: str = ""
    """The beginning of its first result, at most 200 characters."""
    files: tuple[File, ...] = ()
    previews: int = 0
    server: str | None = None
    """The label of the MCP server that it calls."""
    grant: str | None = None
    """The id of the grant that let it run, where the policy would have asked."""
    exit_code: int | None = None
    error: str | None = None
    is_over: bool = False
    """True once nothing more comes but files that are downloaded. One chunk has the record with it, the last."""

    @property
    def has_ended(self) -> bool:
        """Whether its status is final. Files in its result may follow."""
        return self.status in _ENDED

    @property
    def seconds(self) -> float | None:
        """From its first to its last stage; None without a clock."""
        times = [stage.at for stage in self.stages if stage.at is not None]
        return times[-1] - times[0] if times else None

    @property
    def key(self) -> tuple[int, str]:
        """What identifies it within its run: providers may use an id again in a later step."""
        return self.step, self.id


_SILENT = "delta"
"""How stages end that say nothing beside the ones around them."""

MAX_STAGES = 100
"""Later stages of a call are left out: an agent that runs as a tool reports every part as one."""

_CITED = "annotation"
"""The stage of a tool whose file a text cites: the tool may have run in an earlier step."""

_LAST = ("done", "result")
"""Stages that hold all that is known of an item."""

_OWN = ("input", "called", "approval", "preview", "result")
"""Stages of ours, which are never left out."""

_GROUNDED = frozenset({"google_search", "google_maps", "url_context", "file_search"})
"""Tools whose findings may come with the text."""

_RUNNING = frozenset({"searching", "interpreting", "generating", "calling", "completed", "progress"})
"""Stages of a tool that runs, also if the provider reports its input only at the end."""


class ToolRunFold:
    """Makes records of parts. Each part returns the records that it changed."""

    def __init__(self, step: int = 0) -> None:
        self._runs: dict[tuple[int, str], ToolRun] = {}
        self._newest: dict[str, tuple[int, str]] = {}
        self._last: dict[tuple[int, str], tuple[int, str]] = {}
        """The last call of each tool in each step."""
        self._touched: dict[tuple[int, str], int] = {}
        """The step in which each record changed last."""
        self._ending: dict[tuple[int, str], None] = {}
        """Records whose status is final, while more may come."""
        self._answered: dict[tuple[int, str], int] = {}
        """The step in which the result of each call came."""
        self._begun_step: int | None = None
        self._step = step
        self._ended: tuple[int, str] | None = None
        self._at: float | None = None

    @property
    def step(self) -> int:
        """The current step."""
        return self._step

    @property
    def runs(self) -> tuple[ToolRun, ...]:
        """The records, in the order of their first parts."""
        return tuple(self._runs.values())

    def take_up(self, calls: Iterable[tuple[int, ToolCall]], waiting: Container[str]) -> None:
        """Take calls that the turn made before its run was resumed, each with its step."""
        step = self._step
        for self._step, call in calls:
            for run in self.call(call):
                if call.id in waiting:
                    self._changed(run, "approval", status="waiting")
        self._step = step

    def is_silent(self, part: ToolEvent) -> bool:
        """True for a delta of a call that is known: it changes no record."""
        return part.call_id in self._newest and part.stage.endswith(_SILENT)

    def feed(self, part: StreamPart, at: float | None = None) -> tuple[ToolRun, ...]:
        """Takes the next part, which came `at` seconds after the run began."""
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
        """A step of a log is made again: its calls never were, and its results come again."""
        for key in [key for key in self._runs if key[0] == step]:
            run = self._runs.pop(key)
            if self._newest.get(run.call_id) == key:
                del self._newest[run.call_id]
            for known in (self._touched, self._ending, self._answered):
                known.pop(key, None)
        self._last = {at: key for at, key in self._last.items() if at[0] != step}
        self._answered = {key: at for key, at in self._answered.items() if at != step}

    def begin_block(self, part: TextStart | ReasoningStart | ToolInputStart) -> tuple[ToolRun, ...]:
        return self._over(key for key in self._ending if self._runs[key].tool not in _GROUNDED)

    def end_step(self, part: StepFinish) -> tuple[ToolRun, ...]:
        return self._over(self._ending)

    def begin_input(self, part: ToolInputStart) -> tuple[ToolRun, ...]:
        run = self._new(part.id, part.name, part.name, part.provider_executed)
        return *self.begin_block(part), *self._changed(run, "input")

    def end_input(self, part: ToolInputEnd) -> tuple[ToolRun, ...]:
        self._ended = self._newest.get(part.id)
        return ()

    def call(self, part: ToolCall) -> tuple[ToolRun, ...]:
        run = self._called(part)
        return self._changed(
            run,
            "called",
            tool=part.tool,
            name=part.name,
            provider_executed=part.provider_executed,
            status="failed" if part.input_error is not None else "running",
            input=part.input if part.input_error is None else part.input_text,
            queries=tool_facts.queries_in(part.input) or run.queries,
            code=code_in(part.input, CODE_FIELDS.get(part.tool, ())),
            server=(tool_facts.server_in(part.provider_metadata) if part.provider_metadata else None) or run.server,
            error=part.input_error,
        )

    def event(self, part: ToolEvent) -> tuple[ToolRun, ...]:
        run = self._of_event(part)
        if run.is_over or (part.stage == _CITED and run.key not in self._runs):
            return ()
        if part.stage.endswith(_SILENT):
            return () if run.key in self._runs else self._changed(run)
        count = tool_facts.count_in(part.event)
        status, error = self._status_after(part, run)
        return self._changed(
            run,
            part.stage,
            status=status,
            error=error,
            tool=part.tool,
            name=part.tool if run.name == run.call_id else run.name,
            queries=run.queries or tool_facts.queries_in(part.event),
            result_count=run.result_count if count is None else count,
            snippet=run.snippet or _found(part),
            server=run.server or tool_facts.server_in(part.event),
        )

    def approval(self, part: ToolApprovalRequest) -> tuple[ToolRun, ...]:
        run = self._known(part.id) or self._new(part.id, part.name, part.name, provider_executed=False)
        given = part.input if run.input is None else run.input
        server = part.server_label or run.server
        return self._changed(run, "approval", status="waiting", input=given, server=server, grant=None)

    def granted(self, part: Custom) -> tuple[ToolRun, ...]:
        data = jsontext.as_object(part.data)
        run = self._known(str(data.get("call_id"))) if part.kind == CALL_GRANTED else None
        return () if run is None else self._changed(run, grant=jsontext.text_in(data, "grant"))

    def result(self, part: ToolResult) -> tuple[ToolRun, ...]:
        run = self._known(part.id) or self._new(part.id, part.name, part.tool, part.provider_executed)
        if run.key in self._answered:
            return ()  # A step that was made again answers a call again.
        if part.preliminary:
            return self._changed(run, "preview", previews=run.previews + 1)
        self._answered[run.key] = self._step
        count = tool_facts.count_in(part.result)
        return self._changed(
            run,
            "result",
            status="failed" if part.is_error else "done",
            result_count=run.result_count if count is None else count,
            file_count=tool_facts.file_count_in(part.result),
            snippet=_snippet(part) or run.snippet,
            # What a function of yours returns may have such a field of its own.
            server=(tool_facts.server_in(part.result) if part.provider_executed else None) or run.server,
            exit_code=tool_facts.exit_code_in(part.result),
            error=tool_facts.error_in(part.result) if part.is_error else None,
            # Files of a tool that runs here come before its result.
            is_over=not part.provider_executed,
        )

    def file(self, part: File) -> tuple[ToolRun, ...]:
        run = self._known(part.call_id or "")
        # A page that a search found is a result, not a file.
        if run is None or part.data is None:
            return ()
        changed = self._changed(run, files=(*run.files, part))
        return () if run.is_over else changed

    def finish(self, part: Finish) -> tuple[ToolRun, ...]:
        """Calls without a result are unfinished, unless the run waits or they only ever reported events."""
        ended: list[ToolRun] = []
        for run in self.runs:
            is_kept = run.status == "waiting" or (run.provider_executed and _is_called(run))
            if run.is_over or (part.reason == "approval" and is_kept and not run.has_ended):
                continue  # A run that waits for a person is resumed, with the calls that are open.
            is_complete = run.input is None and part.reason != "error" and bool(run.stages)
            status = run.status if run.has_ended else "done" if is_complete else "unfinished"
            ended += self._changed(run, status=status, is_over=True)
        return tuple(ended)

    def _new(self, call_id: str, name: str, tool: str, provider_executed: bool) -> ToolRun:
        """The record of a call that begins now, unless an event has begun it or it was approved."""
        known = self._runs.get((self._step, call_id))
        if known is None or _is_called(known):
            earlier = self._known(call_id)
            is_approved = provider_executed and earlier is not None and self._is_approved(earlier)
            known = earlier if is_approved else None
        return replace(known or self._begun(call_id, tool), name=name, provider_executed=provider_executed)

    def _begun(self, call_id: str, tool: str) -> ToolRun:
        self._answered.pop((self._step, call_id), None)
        return ToolRun(id=call_id, call_id=call_id, tool=tool, name=tool, step=self._step)

    def _is_approved(self, run: ToolRun) -> bool:
        """True for a provider's call that waited for a person; it is made under the same id in a later step."""
        return run.step != self._step and not run.has_ended and any(stage.name == "approval" for stage in run.stages)

    def _called(self, part: ToolCall) -> ToolRun:
        ended, self._ended = self._ended, None
        known = self._runs.get((self._step, part.id))
        if known is not None and not _is_called(known):
            return known
        run = None if ended is None else self._runs.get(ended)
        if run is not None and not _is_called(run) and run.name == part.name and run.call_id != part.id:
            # The final id supersedes the one that the input streamed under.
            return replace(run, call_id=part.id)
        earlier = self._known(part.id)
        is_open = earlier is not None and not earlier.has_ended and earlier.input == part.input
        if known is None and part.provider_executed and earlier is not None and is_open:
            return earlier  # Reported again with its result, as older logs have it: no input streamed in this step.
        return self._new(part.id, part.name, part.tool, part.provider_executed)

    def _of_event(self, part: ToolEvent) -> ToolRun:
        """The call of an event; events without one are of the last call of their tool in this step."""
        if part.call_id is not None:
            known = self._known(part.call_id)
            return self._begun(part.call_id, part.tool) if known is None or self._is_other(known, part) else known
        last = self._last.get((self._step, part.tool))
        return self._begun(part.tool, part.tool) if last is None else self._runs[last]

    def _is_other(self, run: ToolRun, part: ToolEvent) -> bool:
        """True if the event belongs to a new call that has the id of one of an earlier step."""
        if run.step == self._step:
            return False
        if run.has_ended:
            return self._touched[run.key] != self._step
        return tool_facts.begins_call(part.stage, part.event) and not self._is_approved(run)

    def _status_after(self, part: ToolEvent, run: ToolRun) -> tuple[ToolStatus, str | None]:
        """The status after an event, and why the call failed; of a call with a result, the result says that."""
        if not _is_called(run) and part.stage in _LAST:
            failure = tool_facts.failure_in(part.event)
            if failure is not None:
                return "failed", failure
            if part.stage == "done" and tool_facts.is_list(part.event):
                return "done", None
        is_running = run.status == "writing" and part.stage in _RUNNING
        return "running" if is_running else run.status, run.error

    def _known(self, call_id: str) -> ToolRun | None:
        key = self._newest.get(call_id)
        return None if key is None else self._runs.get(key)

    def _changed(self, run: ToolRun, stage: str | None = None, **changes: Any) -> tuple[ToolRun, ...]:
        is_new = stage is not None and (not run.stages or run.stages[-1].name != stage)
        if stage is not None and is_new and (len(run.stages) < MAX_STAGES or stage in _OWN):
            changes["stages"] = (*run.stages, ToolStage(stage, self._at))
        new = replace(run, **changes) if changes else run
        key = new.key
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
        elif new.has_ended:
            self._ending[key] = None
        return (new,)

    def _over(self, keys: Iterable[tuple[int, str]]) -> tuple[ToolRun, ...]:
        return tuple(run for key in [*keys] for run in self._changed(self._runs[key], is_over=True))


class ToolFolds:
    """What tools did in a run, as folds of its parts."""

    def __init__(self, step: int) -> None:
        self.runs = ToolRunFold(step)
        self.code = CodeFold()


def _is_called(run: ToolRun) -> bool:
    return run.has_ended or any(stage.name == "called" for stage in run.stages)


def _found(part: ToolEvent) -> str:
    """The first hit of a grounding, which no result reports."""
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
"""Part type → what it does to the records; the others do nothing."""


def tool_runs(parts: Iterable[StreamPart]) -> tuple[ToolRun, ...]:
    """The records of a whole stream, without times."""
    folding = ToolRunFold()
    for part in parts:
        folding.feed(part)
    return folding.runs

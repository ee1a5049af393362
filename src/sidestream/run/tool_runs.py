"""One record per tool call of a run, hosted or not: a pure fold of the part stream.

Interfaces draw from it: the same facts under the same names, whichever provider ran the tool.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.run import tool_facts
from sidestream.run.code import CODE_FIELDS, CodeFold, code_in
from sidestream.shortrepr import ShortRepr
from sidestream.stream.parts import (
    Custom,
    File,
    Finish,
    StepStart,
    StreamPart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.tools.grants import CALL_GRANTED

ToolStatus = Literal["writing", "running", "waiting", "done", "failed", "unfinished"]
"""`writing`: its input streams. `waiting`: for an approval, or for its result from outside. `unfinished`: the run ended
before it did."""

_SILENT = "delta"
"""How stages end that say nothing beside the ones around them."""

MAX_STAGES = 100
"""Later stages of a call are left out: an agent that runs as a tool reports every part as one."""

_OWN = ("input", "called", "approval", "preview", "result")
"""Stages of ours, which are never left out."""

_RUNNING = frozenset({"searching", "interpreting", "generating", "calling", "completed", "progress"})
"""Stages of a tool that runs, also if the provider reports its input only at the end."""


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

    @property
    def seconds(self) -> float | None:
        """From its first to its last stage; None without a clock."""
        times = [stage.at for stage in self.stages if stage.at is not None]
        return times[-1] - times[0] if times else None

    @property
    def is_over(self) -> bool:
        """True once nothing more comes."""
        return self.status in ("done", "failed", "unfinished")

    @property
    def key(self) -> tuple[int, str]:
        """What identifies it within its run: providers may use an id again in a later step."""
        return self.step, self.id


class ToolRunFold:
    """Makes records of parts. Each part returns the records that it changed."""

    def __init__(self, step: int = 0) -> None:
        self._runs: dict[tuple[int, str], ToolRun] = {}
        self._newest: dict[str, tuple[int, str]] = {}
        self._last: dict[tuple[int, str], tuple[int, str]] = {}
        """The last call of each tool in each step."""
        self._step = step
        self._ended: tuple[int, str] | None = None
        self._at: float | None = None

    @property
    def runs(self) -> tuple[ToolRun, ...]:
        """The records, in the order of their first parts."""
        return tuple(self._runs.values())

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
        self._step = part.step
        return ()

    def begin_input(self, part: ToolInputStart) -> tuple[ToolRun, ...]:
        return self._changed(self._new(part.id, part.name, part.name, part.provider_executed), "input")

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
        if part.stage.endswith(_SILENT):
            return () if run.key in self._runs else self._changed(run)
        count = tool_facts.count_in(part.event)
        return self._changed(
            run,
            part.stage,
            status="running" if run.status == "writing" and part.stage in _RUNNING else run.status,
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
        if part.preliminary:
            return self._changed(run, "preview", previews=run.previews + 1)
        count = tool_facts.count_in(part.result)
        return self._changed(
            run,
            "result",
            status="failed" if part.is_error else "done",
            result_count=run.result_count if count is None else count,
            snippet=_snippet(part) or run.snippet,
            # What a function of yours returns may have such a field of its own.
            server=(tool_facts.server_in(part.result) if part.provider_executed else None) or run.server,
            exit_code=tool_facts.exit_code_in(part.result),
            error=tool_facts.error_in(part.result) if part.is_error else None,
        )

    def file(self, part: File) -> tuple[ToolRun, ...]:
        run = self._known(part.call_id or "")
        # A page that a search found is a result, not a file.
        return () if run is None or part.data is None else self._changed(run, files=(*run.files, part))

    def finish(self, part: Finish) -> tuple[ToolRun, ...]:
        """Calls without a result are unfinished, unless they wait for a person or only ever reported events."""
        ended: list[ToolRun] = []
        for run in self.runs:
            if not run.is_over and not (run.status == "waiting" and part.reason == "approval"):
                is_complete = run.input is None and part.reason != "error" and bool(run.stages)
                ended += self._changed(run, status="done" if is_complete else "unfinished")
        return tuple(ended)

    def _new(self, call_id: str, name: str, tool: str, provider_executed: bool) -> ToolRun:
        """The record of a call that begins now, unless an event has begun it."""
        known = self._runs.get((self._step, call_id))
        if known is not None and not _is_called(known):
            return replace(known, name=name, provider_executed=provider_executed)
        return replace(self._begun(call_id, tool), name=name, provider_executed=provider_executed)

    def _begun(self, call_id: str, tool: str) -> ToolRun:
        return ToolRun(id=call_id, call_id=call_id, tool=tool, name=tool, step=self._step)

    def _called(self, part: ToolCall) -> ToolRun:
        ended, self._ended = self._ended, None
        known = self._runs.get((self._step, part.id))
        if known is not None and not _is_called(known):
            return known
        run = None if ended is None else self._runs.get(ended)
        if run is not None and not _is_called(run) and run.name == part.name and run.call_id != part.id:
            # The final id supersedes the one that the input streamed under.
            return replace(run, call_id=part.id)
        return self._new(part.id, part.name, part.tool, part.provider_executed)

    def _of_event(self, part: ToolEvent) -> ToolRun:
        """The call of an event; events without one are of the last call of their tool in this step."""
        if part.call_id is not None:
            known = self._known(part.call_id)
            if known is None or (known.is_over and known.step != self._step):
                return self._begun(part.call_id, part.tool)
            return known
        last = self._last.get((self._step, part.tool))
        return self._begun(part.tool, part.tool) if last is None else self._runs[last]

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
        return (new,)


class ToolFolds:
    """What tools did in a run, as folds of its parts."""

    def __init__(self, step: int) -> None:
        self.runs = ToolRunFold(step)
        self.code = CodeFold()


def _is_called(run: ToolRun) -> bool:
    return run.is_over or any(stage.name == "called" for stage in run.stages)


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

"""Calls of tools in telemetry: of client tools, around their execution, and of server-side tools, from their parts."""

from collections.abc import Callable
from types import TracebackType

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import Tracer

from sidestream.jsontext import as_object
from sidestream.results.tool_run import ToolRun
from sidestream.results.tool_runs import ToolRunFold
from sidestream.stream.parts import StepStart, StreamPart, ToolCall, ToolEvent, ToolResult
from sidestream.telemetry import names
from sidestream.telemetry.content import as_json
from sidestream.telemetry.metrics import Attributes
from sidestream.telemetry.operation import Attached, Operation, shown
from sidestream.tools.tool import Tool, ToolOutcome

CLIENT_SIDE = "function"
SERVER_SIDE = "extension"


def tool_operation(
    tracer: Tracer, parent: Context, name: str, call_id: str, kind: str, attributes: Attributes, measured: Attributes
) -> Operation:
    """The span of a call."""
    name, call_id = shown(name), shown(call_id)
    shared: Attributes = {names.TOOL_NAME: name, names.TOOL_TYPE: kind}
    own: Attributes = {names.OPERATION: "execute_tool", names.TOOL_CALL_ID: call_id, **shared, **attributes}
    return Operation(tracer, f"execute_tool {name}", parent, own, shared | measured)


class ClientCall:
    """The execution of a client tool: the spans of its function are children of this one's."""

    def __init__(
        self, operation: Operation, duration: Histogram, call: ToolCall, tool: Tool | None, *, with_content: bool
    ) -> None:
        self._operation = operation
        self._duration = duration
        self._attached = Attached(operation.context)
        self._with_content = with_content
        if tool is not None:
            operation.span.set_attribute(names.TOOL_DESCRIPTION, tool.description)
        if with_content:
            operation.span.set_attribute(names.TOOL_ARGUMENTS, as_json(call.input))

    def __enter__(self) -> Callable[[ToolOutcome], None]:
        self._attached.__enter__()
        return self._ended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attached.__exit__(kind, error, trace)
        if error is not None:
            self._operation.span.set_attribute(names.TOOL_STATUS, "unfinished")
        self._operation.end(self._duration)

    def _ended(self, outcome: ToolOutcome) -> None:
        operation, result = self._operation, as_object(outcome.result)
        if outcome.suspended is not None:
            operation.span.set_attribute(names.TOOL_STATUS, "waiting")
        elif outcome.is_error:
            message = str(result.get("message") or "") if self._with_content else None
            operation.failed(shown(str(result.get("error") or "ToolError")), message)
        elif self._with_content:
            operation.span.set_attribute(names.TOOL_RESULT, as_json(outcome.result))


class ServerSideCalls:
    """The calls of server-side tools: their spans begin and end with what the stream reports of them."""

    def __init__(self, tracer: Tracer, duration: Histogram, measured: Attributes, *, with_content: bool) -> None:
        self._tracer = tracer
        self._duration = duration
        self._measured = measured
        self._with_content = with_content
        self._fold = ToolRunFold()
        self._open: dict[tuple[int, str], tuple[Operation, ToolRun]] = {}
        self._closed: set[tuple[int, str]] = set()

    def begin_step(self, part: StepStart) -> None:
        """The next step begins."""
        self._fold.feed(part)

    def feed(self, part: StreamPart, parent: Context) -> None:
        """The next part of a tool."""
        if type(part) is ToolEvent and self._fold.is_silent(part):
            return
        for run in self._fold.feed(part):
            if run.provider_executed and run.key not in self._closed:
                operation = self._operation_of(run, parent)
                if run.has_ended:
                    self._close(run, operation, part)

    def end_step(self) -> None:
        """End the spans of a step, but for calls whose results may come with a later one."""
        for operation, run in [*self._open.values()]:
            if run.input is None:
                self._close(run, operation)

    def end(self) -> None:
        """End all spans."""
        for operation, run in [*self._open.values()]:
            self._close(run, operation)

    def _operation_of(self, run: ToolRun, parent: Context) -> Operation:
        known = self._open.get(run.key)
        if known is None:
            hosted: Attributes = {names.IS_HOSTED: True}
            operation = tool_operation(self._tracer, parent, run.name, run.call_id, SERVER_SIDE, hosted, self._measured)
        else:
            operation = known[0]
        self._open[run.key] = operation, run
        return operation

    def _close(self, run: ToolRun, operation: Operation, part: StreamPart | None = None) -> None:
        self._open.pop(run.key, None)
        self._closed.add(run.key)
        span = operation.span
        # A call is known by its name only once it is made.
        name = operation.measured[names.TOOL_NAME] = shown(run.name)
        span.update_name(f"execute_tool {name}")
        span.set_attributes(
            {names.TOOL_NAME: name, names.TOOL_CALL_ID: shown(run.call_id), names.TOOL_STATUS: run.status}
        )
        if run.status == "failed":
            operation.failed("ToolError", run.error if self._with_content else None)
        if self._with_content:
            span.set_attribute(names.TOOL_ARGUMENTS, as_json(run.input))
            if isinstance(part, ToolResult):
                span.set_attribute(names.TOOL_RESULT, as_json(part.result))
        operation.end(self._duration)

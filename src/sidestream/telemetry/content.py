"""Messages in the conventions' JSON form, and spans of tool calls."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import assert_never

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import Tracer

from sidestream import jsontext
from sidestream.jsontext import Json, JsonObject, as_object
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.parts import StepStart, StreamPart, ToolCall, ToolEvent, ToolResult
from sidestream.providers.protocol import ModelRequest
from sidestream.results.tool_runs import ToolRun, ToolRunFold
from sidestream.telemetry import names
from sidestream.telemetry.metrics import Attributes
from sidestream.telemetry.operation import Attached, Operation, shown
from sidestream.text.redaction import redact
from sidestream.tools.tool import Tool, ToolOutcome

_ROLES = {"model": "assistant"}
_MODALITIES = frozenset({"image", "audio", "video"})


def as_json(value: object) -> str:
    """Encode a value as JSON without secrets, for an attribute."""
    return redact(jsontext.dumps(value).decode())


def message_objects(messages: Iterable[ChatMessage]) -> list[JsonObject]:
    """Convert messages to the conventions' form."""
    return [
        {"role": _ROLES.get(message.role, message.role), "parts": [_part(part) for part in message.parts]}
        for message in messages
    ]


def system_objects(text: str) -> list[JsonObject]:
    """Convert the system prompt to the conventions' form."""
    return [{"type": "text", "content": text}]


def tool_objects(request: ModelRequest) -> list[JsonObject]:
    """Return a request's tools by name, without their schemas, which can be large."""
    functions: list[JsonObject] = [{"type": "function", "name": tool.name} for tool in request.tools]
    hosted = (type(tool).__name__ for tool in request.server_side_tools)
    return functions + [{"type": "extension", "name": name} for name in hosted]


def new_messages(before: int, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the model's messages after the first `before` messages."""
    return [message for message in messages[before:] if message.role == "model"]


def _part(part: MessagePart) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "content": part.text}
        case ThinkingPart():
            return {"type": "reasoning", "content": part.text}
        case ToolCallPart():
            given = part.input if part.input_text is None else part.input_text
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": given}
        case ToolResultPart():
            return {"type": "tool_call_response", "id": part.id, "response": part.result}
        case LinkPart():
            return _file("uri", part.mime_type) | {"uri": part.url}
        case DataPart():
            # Keep files out of spans.
            return _file("blob", part.mime_type) | {"size": len(part.data)}
        case ApprovalPart():
            return {"type": "approval", "id": part.id, "approved": part.is_approved}
        case _:
            assert_never(part)


def _file(kind: str, mime_type: str | None) -> dict[str, Json]:
    modality = (mime_type or "").partition("/")[0]
    return {"type": kind, "mime_type": mime_type, "modality": modality if modality in _MODALITIES else "document"}


CLIENT_SIDE = "function"
SERVER_SIDE = "extension"


def tool_operation(
    tracer: Tracer, parent: Context, name: str, call_id: str, kind: str, attributes: Attributes, measured: Attributes
) -> Operation:
    """Start the span of a tool call."""
    name, call_id = shown(name), shown(call_id)
    shared: Attributes = {names.TOOL_NAME: name, names.TOOL_TYPE: kind}
    own: Attributes = {names.OPERATION: "execute_tool", names.TOOL_CALL_ID: call_id, **shared, **attributes}
    return Operation(tracer, f"execute_tool {name}", parent, own, shared | measured)


class ClientToolSpan:
    """The span of a client tool's execution. Spans of the tool's function are its children."""

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
    """The spans of server-side tool calls, which start and end as the stream reports."""

    def __init__(self, tracer: Tracer, duration: Histogram, measured: Attributes, *, with_content: bool) -> None:
        self._tracer = tracer
        self._duration = duration
        self._measured = measured
        self._with_content = with_content
        self._fold = ToolRunFold()
        self._open: dict[tuple[int, str], tuple[Operation, ToolRun]] = {}
        self._closed: set[tuple[int, str]] = set()

    def begin_step(self, part: StepStart) -> None:
        """Handle the start of a step."""
        self._fold.feed(part)

    def feed(self, part: StreamPart, parent: Context) -> None:
        """Handle the next part of a tool call."""
        if type(part) is ToolEvent and self._fold.is_silent(part):
            return
        for run in self._fold.feed(part):
            if run.provider_executed and run.key not in self._closed:
                operation = self._operation_of(run, parent)
                if run.has_ended:
                    self._close(run, operation, part)

    def end_step(self) -> None:
        """End the step's spans, except those of calls whose results may come in a later step."""
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
            name = _name(run)
            operation = tool_operation(self._tracer, parent, name, run.call_id, SERVER_SIDE, hosted, self._measured)
        else:
            operation = known[0]
        self._open[run.key] = operation, run
        return operation

    def _close(self, run: ToolRun, operation: Operation, part: StreamPart | None = None) -> None:
        self._open.pop(run.key, None)
        self._closed.add(run.key)
        span = operation.span
        # The tool's name may be known only once the call is complete.
        name = operation.measured[names.TOOL_NAME] = shown(_name(run))
        span.update_name(f"execute_tool {name}")
        span.set_attributes(
            {names.TOOL_NAME: name, names.TOOL_CALL_ID: shown(run.call_id), names.TOOL_STATUS: run.status}
        )
        if run.provider_tool is not None:
            span.set_attribute(names.PROVIDER_TOOL, shown(run.provider_tool))
        if run.status == "failed":
            operation.failed("ToolError", run.error if self._with_content else None)
        if self._with_content:
            span.set_attribute(names.TOOL_ARGUMENTS, as_json(run.input))
            if isinstance(part, ToolResult):
                span.set_attribute(names.TOOL_RESULT, as_json(part.result))
        operation.end(self._duration)


def _name(run: ToolRun) -> str:
    """Return the name of a hosted tool, or of the tool that an MCP server offers."""
    return run.name if run.tool == "mcp" else run.tool

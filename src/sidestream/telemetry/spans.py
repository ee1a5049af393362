"""Spans and metrics of a run, with one span for the run and child spans for requests and tool calls."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as contexts, metrics, trace
from opentelemetry.trace import SpanKind

from sidestream.errors import ContextOverflowError, RunError
from sidestream.jsontext import as_object, without_none
from sidestream.parts import (
    Custom,
    FinishReason,
    Raw,
    ResponseMetadata,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.protocol import ChatModel, ModelRequest
from sidestream.run.run_log import type_of
from sidestream.run.settings import ObservedRun
from sidestream.stream.errors import error_from_part
from sidestream.telemetry import content, names
from sidestream.telemetry.metrics import Attributes, instruments_of
from sidestream.telemetry.operation import Attached, Operation, harmless, provider_name, shown, tracer_of
from sidestream.telemetry.settings import Telemetry
from sidestream.tools.tool import Tool, ToolOutcome
from sidestream.transport.calls import HttpCall, HttpResponse, Opening
from sidestream.turn.ledger import MODEL_FALLBACK
from sidestream.turn.machine import Turn
from sidestream.turn.state import AwaitDecision

_PORTS = {"https": 443, "http": 80}
_EVENT_TYPE = re.compile(r"[\w.:/-]{1,64}")
_NOTICES = "sidestream."
"""Prefix of Sidestream's notice kinds."""


class RunSpans:
    """The spans and metrics of one run. Its parent is the span in which the run was created."""

    def __init__(self, settings: Telemetry) -> None:
        self._tracer = tracer_of(settings.tracer_provider or trace.get_tracer_provider())
        self._instruments = instruments_of(settings.meter_provider or metrics.get_meter_provider())
        self._with_content = settings.captures_content
        self._parent = contexts.get_current()
        self._agent: Attributes = {} if settings.agent_name is None else {names.AGENT: settings.agent_name}
        self._run: Operation | None = None
        self._step: Operation | None = None
        self._is_awaiting_chunk = False
        self._request: ModelRequest | None = None
        self._messages_before = 0
        self._steps = 0
        self._usage = Usage()
        self._unknown = 0
        self._server_side = content.ServerSideCalls(
            self._tracer, self._instruments.tool_seconds, self._agent, with_content=self._with_content
        )

    # The run

    @harmless
    def started(self, turn: Turn, settings: ObservedRun) -> None:
        """Start the span of a run that starts or resumes."""
        self._turn, self._settings = turn, settings
        self._use(settings.model)
        attributes = self._common("invoke_agent") | {names.RUN_ID: turn.state.run_id}
        measured = self._agent | {names.REQUEST_MODEL: settings.model.name}
        name = " ".join(["invoke_agent", *map(str, self._agent.values())])
        self._run = Operation(self._tracer, name, self._parent, attributes, measured)
        self._messages_at_start = len(turn.state.messages)

    def active(self) -> AbstractContextManager[object]:
        """Make the run's span the current one."""
        return nullcontext() if self._run is None else Attached(self._run.context)

    @harmless
    def ended(self, reason: FinishReason | None = None, error: BaseException | None = None) -> None:
        """End all open spans."""
        run, self._run = self._run, None
        if run is None:
            return
        if not isinstance(error, Exception):
            error = None  # Cancellation is not a failure.
        self._end_step()
        self._server_side.end()
        state = self._turn.state
        run.span.set_attributes(_usage(self._usage) | {names.STEPS: self._steps})
        run.span.set_attribute(names.RUN_REASON, reason or ("cancelled" if error is None else "error"))
        if reason is not None:
            run.span.set_attribute(names.FINISH_REASONS, [names.FINISH_REASON_NAMES.get(reason, reason)])
        if isinstance(state.command, AwaitDecision):
            nested = sum(len(suspended.approvals) for suspended in state.suspended.values())
            run.span.set_attribute(names.PENDING_APPROVALS, len(state.waiting) + nested)
        if error is not None:
            run.raised(error, with_content=self._with_content)
        if self._with_content and run.span.is_recording():
            answers = content.new_messages(self._messages_at_start, state.messages)
            run.span.set_attribute(
                names.INPUT_MESSAGES, content.as_json(content.message_objects(self._settings.opening))
            )
            run.span.set_attribute(names.OUTPUT_MESSAGES, content.as_json(content.message_objects(answers)))
        run.end(self._instruments.run_seconds)

    # Requests

    def prepared(self, request: ModelRequest) -> None:
        """Store the next request."""
        self._request = request

    def sending(self, call: HttpCall) -> AbstractContextManager[object]:
        """Start the span of a step and make it current."""
        self._end_step()
        model, request = self._settings.model, self._request
        if model is not self._model:
            self._move(model)
        where = _server(call.url)
        attributes = self._common("chat") | where | {names.STEP: self._turn.state.step + 1}
        if request is not None:
            attributes |= _settings(request)
        measured: Attributes = {
            names.OPERATION: "chat",
            names.PROVIDER: self._provider,
            names.REQUEST_MODEL: model.name,
            **where,
        }
        parent = self._parent if self._run is None else self._run.context
        step = Operation(self._tracer, f"chat {model.name}", parent, attributes, measured, kind=SpanKind.CLIENT)
        self._step, self._is_awaiting_chunk, self._unknown = step, False, 0
        self._messages_before = len(self._turn.state.messages)
        if self._with_content and request is not None and step.span.is_recording():
            step.span.set_attributes(_content(request))
        return Attached(step.context)

    @harmless
    def opened(self, response: HttpResponse) -> None:
        """Record how the request was opened, when the answer starts to arrive."""
        self._is_awaiting_chunk = response.is_stream
        # A custom transport may not report this.
        self._attempted(getattr(response, "opening", Opening()))

    @harmless
    def refused(self, error: RunError) -> None:
        """End the step's span with the error of a request that got no answer."""
        if self._step is not None:
            self._attempted(Opening(attempts=error.attempts))
            self._step.raised(error)
        self._end_step()

    def _attempted(self, opening: Opening) -> None:
        """Record attempts, retries and waiting time of a request."""
        step = self._step
        if step is None:
            return
        step.span.set_attribute(names.ATTEMPTS, opening.attempts)
        if opening.causes:
            step.span.set_attribute(names.RETRY_CAUSES, [shown(cause) for cause in opening.causes])
        if opening.limiter_wait_s:
            step.span.set_attribute(names.LIMITER_WAIT, opening.limiter_wait_s)
        if opening.attempts > 1:
            self._instruments.retries.add(opening.attempts - 1, step.measured, step.context)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        self._server_side.end_step()
        if step is not None:
            if self._unknown:
                step.span.set_attribute(names.UNKNOWN_EVENTS, self._unknown)
            step.end(self._instruments.step_seconds)

    # Parts

    @harmless
    def feed(self, parts: Sequence[StreamPart]) -> None:
        """Handle the stream's next parts. Most are deltas, which are ignored."""
        if self._is_awaiting_chunk and parts and type(parts[-1]) not in _NOT_ANSWERED:
            self._first_chunk()
        for part in parts:
            handler = _HANDLERS.get(type(part))
            if handler is not None:
                handler(self, part)

    def _first_chunk(self) -> None:
        self._is_awaiting_chunk = False
        step = self._step
        if step is not None:
            seconds = step.seconds
            step.span.set_attribute(names.TIME_TO_FIRST_CHUNK, seconds)
            self._instruments.first_chunk_seconds.record(seconds, step.measured, step.context)

    def take_warnings(self, part: StreamStart) -> None:
        if self._run is not None and part.warnings:
            self._run.span.set_attribute(names.WARNINGS, [shown(warning) for warning in part.warnings])

    def take_metadata(self, part: ResponseMetadata) -> None:
        if self._step is not None and part.id is not None:
            self._step.span.set_attribute(names.RESPONSE_ID, shown(part.id))
        if self._step is not None and part.model is not None:
            model = self._step.measured[names.RESPONSE_MODEL] = shown(part.model)
            self._step.span.set_attribute(names.RESPONSE_MODEL, model)

    def begin_step(self, part: StepStart) -> None:
        self._server_side.begin_step(part)

    def end_step(self, part: StepFinish) -> None:
        step = self._step
        if step is None:
            return
        self._steps += 1
        self._usage += part.usage
        reason = names.FINISH_REASON_NAMES.get(part.reason, part.reason)
        step.span.set_attributes(_usage(part.usage) | {names.FINISH_REASONS: [reason]})
        if part.reason == "error":
            failure = self._turn.state.error or self._turn.abandoned
            # Only a request that was too long and is retried with less content leaves no error.
            step.raised(error_from_part(failure) if failure is not None else ContextOverflowError("shortened"))
        for kind, count in (("input", part.usage.input.total), ("output", part.usage.output.total)):
            if count:
                self._instruments.tokens.record(count, step.measured | {names.TOKEN_TYPE: kind}, step.context)
        if self._with_content and step.span.is_recording():
            answers = content.new_messages(self._messages_before, self._turn.state.messages)
            step.span.set_attribute(names.OUTPUT_MESSAGES, content.as_json(content.message_objects(answers)))
        self._end_step()

    def count_unknown(self, part: Raw) -> None:
        self._unknown += 1
        kind = shown(type_of(part.event))
        counted: Attributes = {
            names.PROVIDER: self._provider,
            names.REQUEST_MODEL: self._model.name,
            names.EVENT_TYPE: kind if _EVENT_TYPE.fullmatch(kind) else "other",
        }
        self._instruments.unknown_events.add(1, counted)

    def take_notice(self, part: Custom) -> None:
        operation = self._step or self._run
        if operation is not None and part.kind.startswith(_NOTICES):
            data = as_object(part.data)
            reason = data.get("reason") or as_object(data.get("error")).get("kind")
            said = {names.NOTICE_REASON: reason}
            if part.kind == MODEL_FALLBACK:
                said |= {names.NOTICE_FAILED: data.get("failed"), names.NOTICE_MODEL: data.get("model")}
            facts = {name: shown(text) for name, text in said.items() if isinstance(text, str)}
            operation.span.add_event(shown(part.kind), facts)

    def follow_tool(self, part: StreamPart) -> None:
        operation = self._step or self._run
        if operation is not None:
            self._server_side.feed(part, operation.context)

    # Tools

    def tool(self, call: ToolCall, tool: Tool | None) -> AbstractContextManager[Callable[[ToolOutcome], None]]:
        """Trace a client tool's execution, with its span current for the tool's function."""
        parent = self._parent if self._run is None else self._run.context
        operation = content.tool_operation(
            self._tracer, parent, call.name, call.id, content.CLIENT_SIDE, {names.IS_HOSTED: False}, self._agent
        )
        return content.ClientToolSpan(
            operation, self._instruments.tool_seconds, call, tool, with_content=self._with_content
        )

    def _use(self, model: ChatModel) -> None:
        self._model = model
        self._provider = provider_name(model)

    def _move(self, model: ChatModel) -> None:
        """Switch to another model, which the run's span reports from now on."""
        self._use(model)
        if self._run is not None:
            self._run.measured[names.REQUEST_MODEL] = model.name
            self._run.span.set_attributes({names.PROVIDER: self._provider, names.REQUEST_MODEL: model.name})

    def _common(self, operation: str) -> Attributes:
        settings = self._settings
        attributes: Attributes = {
            names.OPERATION: operation,
            names.PROVIDER: self._provider,
            names.REQUEST_MODEL: self._model.name,
            names.OUTPUT_TYPE: "json" if settings.is_typed else "text",
            **self._agent,
        }
        if settings.conversation is not None:
            attributes[names.CONVERSATION] = settings.conversation
        return attributes


_NOT_ANSWERED = (StepStart, Steer)
"""Parts that can precede the answer in a step."""

_HANDLERS: dict[type, Callable[[RunSpans, Any], None]] = {
    StreamStart: RunSpans.take_warnings,
    ResponseMetadata: RunSpans.take_metadata,
    StepStart: RunSpans.begin_step,
    StepFinish: RunSpans.end_step,
    Raw: RunSpans.count_unknown,
    Custom: RunSpans.take_notice,
    ToolInputStart: RunSpans.follow_tool,
    ToolInputEnd: RunSpans.follow_tool,
    ToolCall: RunSpans.follow_tool,
    ToolEvent: RunSpans.follow_tool,
    ToolResult: RunSpans.follow_tool,
    ToolApprovalRequest: RunSpans.follow_tool,
}
"""Handlers by part type. Other parts are ignored."""


def _server(url: str) -> Attributes:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return {}
    return {} if host is None or port is None else {names.SERVER_ADDRESS: host, names.SERVER_PORT: port}


def _settings(request: ModelRequest) -> Attributes:
    given = {name: getattr(request.settings, setting) for setting, name in names.SETTINGS.items()}
    attributes: Attributes = without_none(given)
    stop = request.settings.stop
    if stop is not None:
        attributes[names.STOP_SEQUENCES] = [stop] if isinstance(stop, str) else list(stop)
    return attributes | {names.REQUEST_STREAM: request.stream}


def _usage(usage: Usage) -> Attributes:
    counts = {
        names.INPUT_TOKENS: usage.input.total,
        names.OUTPUT_TOKENS: usage.output.total,
        names.CACHE_READ_TOKENS: usage.input.cache_read,
        names.CACHE_WRITE_TOKENS: usage.input.cache_write,
        names.REASONING_TOKENS: usage.output.reasoning,
    }
    cost: Attributes = {} if usage.cost is None else {names.COST: usage.cost}
    return {name: count for name, count in counts.items() if count} | cost


def _content(request: ModelRequest) -> Attributes:
    attributes: Attributes = {names.INPUT_MESSAGES: content.as_json(content.message_objects(request.messages))}
    if request.system:
        attributes[names.SYSTEM_INSTRUCTIONS] = content.as_json(content.system_objects(request.system))
    if tools := content.tool_objects(request):
        attributes[names.TOOL_DEFINITIONS] = content.as_json(tools)
    return attributes


class EmbeddingSpan:
    """The span of one call, however many batches it sends. It holds no texts or vectors."""

    def __init__(self, settings: Telemetry, model: ChatModel) -> None:
        self._instruments = instruments_of(settings.meter_provider or metrics.get_meter_provider())
        common: Attributes = {
            names.OPERATION: "embeddings",
            names.PROVIDER: provider_name(model),
            names.REQUEST_MODEL: model.name,
        }
        tracer = tracer_of(settings.tracer_provider or trace.get_tracer_provider())
        self._operation = Operation(
            tracer, f"embeddings {model.name}", contexts.get_current(), common, common, kind=SpanKind.CLIENT
        )
        self._attached = Attached(self._operation.context)

    def __enter__(self) -> Callable[[EmbeddingsResult], None]:
        self._attached.__enter__()
        return self._ended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attached.__exit__(kind, error, trace)
        if isinstance(error, Exception):
            self._operation.raised(error)
        self._operation.end(self._instruments.step_seconds)

    @harmless
    def _ended(self, result: EmbeddingsResult) -> None:
        operation, tokens = self._operation, result.usage.input.total
        if result.vectors:
            operation.span.set_attribute(names.DIMENSIONS, len(result.vectors[0]))
        if tokens:
            operation.span.set_attribute(names.INPUT_TOKENS, tokens)
            counted = operation.measured | {names.TOKEN_TYPE: "input"}
            self._instruments.tokens.record(tokens, counted, operation.context)

"""Encoder of a run as Responses API events, for OpenAI's SDK and clients of the Open Responses specification.

    encoder = ResponsesEncoder(ResponseHead(id="resp_1", model="main", created=1))
    events = encoder.begin()
    async for part in agent.stream(prompt):
        events += encoder.feed(part)

The encoder is a pure fold of the part stream. `encoder.response` is the resulting response object.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sidestream.jsontext import JsonObject
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.protocols.responses.object import Dialect, ResponseHead, ResponseOutcome, Status, failure_of
from sidestream.protocols.responses.stream import ResponseStream
from sidestream.protocols.responses.text import TextItems
from sidestream.protocols.responses.tools import ToolItems, passed_on
from sidestream.stream.errors import redacted

_REASONS: dict[FinishReason, tuple[Status, str | None]] = {
    "stop": ("completed", None),
    "tool-calls": ("completed", None),
    "approval": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "content-filter": ("incomplete", "content_filter"),
    "limit": ("incomplete", "max_output_tokens"),
    "error": ("failed", None),
    "other": ("completed", None),
}
"""Our finish reason → status of the response, and why it is incomplete."""
_INCOMPLETE = frozenset({"max_messages", "steered", "max_output_tokens", "content_filter"})
"""Provider finish reasons that are also valid reasons of this API."""
_CUT: Collection[FinishReason] = ("length", "content-filter", "error")
"""Finish reasons of a step whose last item was cut off."""


class ResponsesEncoder:
    """An encoder of one response's parts as events.

    `functions` are the functions that the client runs; None means all that no provider runs. `custom` are those whose
    input is a string. `namespaces` has the namespace and name of those in one. `include` lists the additional output
    that the request asks for.
    """

    def __init__(
        self,
        head: ResponseHead,
        *,
        dialect: Dialect = "openai",
        functions: Collection[str] | None = (),
        custom: Collection[str] = (),
        namespaces: Mapping[str, Sequence[str]] | None = None,
        include: Collection[str] = (),
    ) -> None:
        self.stream = ResponseStream(head, dialect)
        self.tools = ToolItems(self.stream, functions, custom, namespaces)
        self.error: Error | None = None
        """Error that made the run fail, if any."""
        self.at: float | None = None
        """Time of the last part, in seconds since 1970."""
        self._texts = TextItems(self.stream, encrypted="reasoning.encrypted_content" in include)
        self._usage = Usage()
        self._is_in_step = False

    @property
    def response(self) -> JsonObject:
        """The current response object."""
        return self.stream.response

    @property
    def is_over(self) -> bool:
        """Whether the last event has been emitted."""
        return self.stream.outcome is not None

    def begin(self) -> list[JsonObject]:
        """Return the first events."""
        self.stream.begin()
        return self.stream.take()

    def feed(self, part: StreamPart, at: float | None = None) -> list[JsonObject]:
        """Return the events of a part, or none if the response has ended.

        `at` is the time of the part, in seconds since 1970.
        """
        if self.is_over:
            return []
        self.at = at if at is not None else self.at
        self.tools.settle(part)
        if not self._texts.continues(part) and not (isinstance(part, File) and self.tools.is_cited(part)):
            self._texts.leave()
        if (handler := _HANDLERS.get(type(part))) is not None:
            handler(self, part)
        return self.stream.take()

    def started(self, call_id: str) -> list[JsonObject]:
        """Return the events of a call that the server starts to run."""
        if not self.is_over:
            self.tools.settle()
            self._texts.leave()
            self.tools.started(call_id)
        return self.stream.take()

    def resumed(self) -> list[JsonObject]:
        """Prepare for another process that repeats the interrupted step.

        Text that the step repeats is not sent again. Where the step differs, open items end as incomplete.
        """
        if self._is_in_step and not self.is_over:
            self.tools.end_step(is_cut=True)
            self._texts.interrupt()
            self._is_in_step = False
        return self.stream.take()

    def cancelled(self) -> list[JsonObject]:
        """End the response as cancelled."""
        return self._end("cancelled", is_cut=True)

    def split(self) -> list[JsonObject]:
        """End the response at a user message, after which another response begins."""
        return self._end("completed")

    def failed(self, error: Error) -> list[JsonObject]:
        """End the response as failed."""
        self.error = error
        return self._end("failed", is_cut=True)

    # Handlers

    def step_start(self, part: StepStart) -> None:
        self._is_in_step = True

    def step_finish(self, part: StepFinish) -> None:
        self._is_in_step = False
        self._usage += part.usage
        is_cut = part.reason in _CUT and not self._texts.has_refusal
        self.stream.is_cut = is_cut
        self._texts.end_step(is_cut=is_cut)
        self.tools.end_step(is_cut=is_cut)

    def failure(self, part: Error) -> None:
        if part.kind != "tool":
            self.error = redacted(part)

    def file(self, part: File) -> None:
        if (annotation := self.tools.file(part)) is not None:
            self._texts.cite(annotation, part.id)

    def custom(self, part: Custom) -> None:
        given = passed_on(part.data, is_strict=self.stream.dialect == "open-responses")
        if given is not None:
            kind = str(given["type"])
            self.stream.done(self.stream.add({**given, "id": self.stream.next_id(kind)}))

    def finish(self, part: Finish) -> None:
        status, reason = _REASONS[part.reason]
        raw = part.raw_reason or ""
        if part.reason == "content-filter" and self._texts.has_refusal:
            status, reason = "completed", None  # A refusal is a complete answer.
        elif part.reason == "other" and raw in _INCOMPLETE:
            status, reason = "incomplete", raw
        elif part.reason == "limit":
            reason = str(part.metadata.get("limit") or reason)
        self._finish(status, reason, is_cut=status != "completed")

    # Ends

    def _end(self, status: Status, *, is_cut: bool = False) -> list[JsonObject]:
        if not self.is_over:
            self._finish(status, None, is_cut=is_cut)
        return self.stream.take()

    def _finish(self, status: Status, reason: str | None, *, is_cut: bool) -> None:
        self.stream.is_cut = status != "completed"
        self._texts.end_step(is_cut=is_cut)
        self.tools.end()
        self._texts.end_citations()
        error = None
        if status == "failed":
            error = failure_of(self.error or Error("provider", "the run failed"))
        usage = None if error is not None and self._usage.is_empty else self._usage
        self.stream.end(ResponseOutcome(status, usage, reason, error, self.at))


def _text(name: str) -> Callable[[ResponsesEncoder, Any], None]:
    return lambda encoder, part: getattr(encoder._texts, name)(part)  # pyright: ignore[reportPrivateUsage]


def _tool(name: str) -> Callable[[ResponsesEncoder, Any], None]:
    return lambda encoder, part: getattr(encoder.tools, name)(part)


_HANDLERS: dict[type, Callable[[ResponsesEncoder, Any], None]] = {
    TextStart: _text("text_start"),
    TextDelta: _text("text_delta"),
    TextEnd: _text("text_end"),
    ReasoningStart: _text("reasoning_start"),
    ReasoningDelta: _text("reasoning_delta"),
    ReasoningEnd: _text("reasoning_end"),
    Source: _text("source"),
    ToolInputStart: _tool("input_start"),
    ToolInputDelta: _tool("input_delta"),
    ToolCall: _tool("call"),
    ToolEvent: _tool("event"),
    ToolResult: _tool("result"),
    ToolApprovalRequest: _tool("approval"),
    File: ResponsesEncoder.file,
    Custom: ResponsesEncoder.custom,
    StepStart: ResponsesEncoder.step_start,
    StepFinish: ResponsesEncoder.step_finish,
    Error: ResponsesEncoder.failure,
    Finish: ResponsesEncoder.finish,
}
"""Part type → handler. Other parts have no equivalent in this API; the log keeps them."""


def response_of(
    head: ResponseHead, parts: Iterable[StreamPart], *, dialect: Dialect = "openai", **options: Any
) -> JsonObject:
    """Return the response object of a complete run."""
    encoder = ResponsesEncoder(head, dialect=dialect, **options)
    encoder.begin()
    for part in parts:
        encoder.feed(part)
    return encoder.response

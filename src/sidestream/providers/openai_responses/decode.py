"""Responses events → parts: one table, one pure decoder per response."""

from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.providers.openai_responses import handlers, outcome, reasoning, shapes, text
from sidestream.providers.openai_responses.context import DecodeContext
from sidestream.providers.openai_responses.state import Block, State
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Error, Finish, StreamPart, TextDelta


class EventRow(Struct, frozen=True):
    """How one event type is read. Events with a `tool` become a tool event first, whatever else they become."""

    shape: type[shapes.Event]
    handler: handlers.Handler
    tool: str | None = None


_STAGES = {
    "web_search": ("web_search_call", "in_progress searching completed failed"),
    "file_search": ("file_search_call", "in_progress searching completed failed"),
    "code_interpreter": ("code_interpreter_call", "in_progress interpreting completed failed"),
    "image_generation": ("image_generation_call", "in_progress generating completed failed"),
    "mcp": ("mcp_call", "in_progress completed failed"),
}

EVENTS: dict[str, EventRow] = {
    "response.created": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.queued": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.in_progress": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.completed": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.incomplete": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.failed": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.cancelled": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "error": EventRow(shapes.ErrorEvent, handlers.on_error),
    "response.output_item.added": EventRow(shapes.ItemEvent, handlers.on_item_added),
    "response.output_item.done": EventRow(shapes.ItemEvent, handlers.on_item_done),
    "response.content_part.added": EventRow(shapes.ContentPartEvent, text.on_content_part_added),
    "response.content_part.done": EventRow(shapes.ContentPartEvent, text.on_content_part_done),
    "response.output_text.delta": EventRow(shapes.DeltaEvent, text.on_text_delta),
    "response.output_text.done": EventRow(shapes.TextDoneEvent, text.on_text_done),
    "response.output_text.annotation.added": EventRow(shapes.AnnotationEvent, text.on_annotation),
    "response.refusal.delta": EventRow(shapes.DeltaEvent, text.on_refusal_delta),
    "response.refusal.done": EventRow(shapes.TextDoneEvent, text.on_text_done),
    "response.reasoning_summary_part.added": EventRow(shapes.SummaryPartEvent, reasoning.on_summary_part_added),
    "response.reasoning_summary_part.done": EventRow(shapes.SummaryPartEvent, reasoning.on_summary_part_done),
    "response.reasoning_summary_text.delta": EventRow(shapes.SummaryDeltaEvent, reasoning.on_summary_delta),
    "response.reasoning_summary_text.done": EventRow(shapes.SummaryDoneEvent, reasoning.on_summary_done),
    "response.reasoning_text.delta": EventRow(shapes.DeltaEvent, reasoning.on_reasoning_delta),
    "response.reasoning_text.done": EventRow(shapes.TextDoneEvent, reasoning.on_reasoning_done),
    # The Open Responses specification's names for the same two.
    "response.reasoning.delta": EventRow(shapes.DeltaEvent, reasoning.on_reasoning_delta),
    "response.reasoning.done": EventRow(shapes.TextDoneEvent, reasoning.on_reasoning_done),
    "response.function_call_arguments.delta": EventRow(
        shapes.DeltaEvent, handlers.input_delta("function_call", escaped=False)
    ),
    "response.function_call_arguments.done": EventRow(shapes.InputDoneEvent, handlers.input_done("function_call")),
    "response.custom_tool_call_input.delta": EventRow(
        shapes.DeltaEvent, handlers.input_delta("custom_tool_call", escaped=True)
    ),
    "response.custom_tool_call_input.done": EventRow(shapes.InputDoneEvent, handlers.input_done("custom_tool_call")),
    "response.mcp_call_arguments.delta": EventRow(
        shapes.DeltaEvent, handlers.input_delta("mcp_call", escaped=False), "mcp"
    ),
    "response.mcp_call_arguments.done": EventRow(shapes.InputDoneEvent, handlers.input_done("mcp_call"), "mcp"),
    "response.mcp_list_tools.in_progress": EventRow(shapes.StageEvent, handlers.stage, "mcp"),
    "response.mcp_list_tools.completed": EventRow(shapes.StageEvent, handlers.stage, "mcp"),
    "response.mcp_list_tools.failed": EventRow(shapes.StageEvent, handlers.stage, "mcp"),
    "response.code_interpreter_call_code.delta": EventRow(
        shapes.DeltaEvent, handlers.input_delta("code_interpreter_call", escaped=True), "code_interpreter"
    ),
    "response.code_interpreter_call_code.done": EventRow(
        shapes.InputDoneEvent, handlers.input_done("code_interpreter_call"), "code_interpreter"
    ),
    "response.apply_patch_call_operation_diff.delta": EventRow(
        shapes.DeltaEvent, handlers.input_delta("apply_patch_call", escaped=True), "apply_patch"
    ),
    "response.apply_patch_call_operation_diff.done": EventRow(
        shapes.InputDoneEvent, handlers.input_done("apply_patch_call"), "apply_patch"
    ),
    "response.image_generation_call.partial_image": EventRow(
        shapes.PartialImageEvent, handlers.on_partial_image, "image_generation"
    ),
    "response.shell_call_command.added": EventRow(shapes.CommandEvent, handlers.on_command, "shell"),
    "response.shell_call_command.delta": EventRow(shapes.CommandEvent, handlers.on_command, "shell"),
    "response.shell_call_command.done": EventRow(shapes.CommandEvent, handlers.on_command, "shell"),
    "response.shell_call_output_content.delta": EventRow(shapes.StageEvent, handlers.stage, "shell"),
    "response.shell_call_output_content.done": EventRow(shapes.StageEvent, handlers.stage, "shell"),
    "response.compaction.compacting": EventRow(shapes.StageEvent, handlers.on_compacting),
    **{
        f"response.{item}.{stage}": EventRow(shapes.StageEvent, handlers.stage, tool)
        for tool, (item, stages) in _STAGES.items()
        for stage in stages.split()
    },
}
"""Event type → how it is read."""

IGNORED = {
    "keepalive": "keeps the connection open and says nothing",
    "ping": "keeps the connection open and says nothing",
}
"""Events that become no part, each with its reason."""

PASSED_ON = dict.fromkeys(
    (
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
    ),
    "has no item to belong to; handed on as a raw part",
)
"""Known events that become raw parts, each with its reason."""


class _NextDelta(Struct, tag_field="type", tag="response.output_text.delta", gc=False):
    """A text delta, read straight into the fields that matter."""

    delta: str
    output_index: int
    item_id: str | None = None
    content_index: int = 0
    sequence_number: int | None = None
    logprobs: list[Any] | None = None


_next_delta = msgspec.json.Decoder(_NextDelta).decode
_DELTA_HEAD = (b'{"type":"response.output_text.delta"', b'{"type": "response.output_text.delta"')


class ResponsesDecoder:
    """Decodes one response, streamed or whole."""

    def __init__(self, context: DecodeContext) -> None:
        self._state = State(context)
        self._sequence = -1
        self._is_numbered = False
        self._growing: Block | None = None
        """The text block that the last event added to, and where that was."""
        self._place: tuple[int, int, str | None] = (0, 0, None)

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """The container files that the text cited, once each."""
        return tuple(self._state.downloads.values())

    @property
    def resume_point(self) -> tuple[str, int] | None:
        """The response and the last event that came of it, to go on from after a break."""
        identity = self._state.response_id
        return (identity, self._sequence) if identity is not None and self._sequence >= 0 else None

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one event; none for what is no JSON."""
        # Rows of text deltas are most of a stream: each goes on with the block of the one before.
        block = self._growing
        if block is not None and data.startswith(_DELTA_HEAD) and (part := self._next_part(data, block)) is not None:
            return [part]
        s = self._state
        if s.is_over:
            return []
        self._growing = None
        try:
            event = jsontext.loads(data)
        except (ValueError, RecursionError):
            return []
        self._event(event)
        out, s.out = s.out, []
        return out

    def _next_part(self, data: bytes, block: Block) -> StreamPart | None:
        """The part of a text delta right after another; None where more is to be thought of."""
        try:
            e = _next_delta(data)
        except (msgspec.DecodeError, UnicodeError):
            return None
        number = e.sequence_number
        if (e.output_index, e.content_index, e.item_id) != self._place or e.logprobs:
            return None
        if number is not None:
            if number <= self._sequence:
                return None
            self._is_numbered = self._is_numbered or self._sequence >= 0
            self._sequence = number
        block.deltas.append(e.delta)
        return TextDelta(block.id, e.delta)

    def _event(self, event: Any) -> None:
        s = self._state
        fields = jsontext.as_object(event)
        kind = str(fields.get("type"))
        row = EVENTS.get(kind)
        if row is None and "type" not in fields and fields.get("error"):
            # Gateways put a bare error object into the stream.
            row = EVENTS["error"]
        if row is None:
            if kind not in IGNORED:
                s.raw(event)
            return
        try:
            placed = fields if "output_index" in fields else s.placed(fields)
            value = msgspec.convert(placed, row.shape)
            if self._is_late(value.sequence_number) and row.handler is not handlers.on_terminal:
                s.raw(event)
                return
            if row.tool is not None:
                index = placed["output_index"]
                item = s.find(index, fields.get("item_id"))
                s.tool_event(row.tool, kind.rpartition(".")[2], event, index, item)
            row.handler(s, value, event)
            if row.handler is text.on_text_delta and type(s.out[-1]) is TextDelta:
                self._follow(cast(shapes.DeltaEvent, value))
        except (msgspec.ValidationError, UnicodeError):
            s.raw(event)

    def _follow(self, e: shapes.DeltaEvent) -> None:
        """Remembers the block that a delta went to."""
        item = self._state.item(e.output_index, "message", e.item_id)
        self._growing = text.text_block(self._state, item, e.content_index)
        self._place = (e.output_index, e.content_index, e.item_id)

    def _is_late(self, number: int | None) -> bool:
        """True for an event that came before. Servers that do not count upwards are taken at their order."""
        if number is None:
            return False
        if number > self._sequence:
            self._is_numbered = self._is_numbered or self._sequence >= 0
            self._sequence = number
            return False
        return self._is_numbered

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of a response that was not streamed: its items come as if each had just been done."""
        s = self._state
        try:
            answer = jsontext.loads(body)
        except (ValueError, RecursionError):
            return self.close(Error("protocol", "the answer is not JSON"))
        response = jsontext.as_object(answer)
        if "output" not in response and "status" not in response:
            s.raw(answer)
            return self.close(outcome.error_of(response.get("error"), "the answer is no response object"))
        s.declared_tools = jsontext.as_list(response.get("tools"))
        handlers.finish(s, response, str(response.get("status") or "completed"))
        out, s.out = s.out, []
        return out

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Nothing more comes. Without the provider's own end this is an error, never a success."""
        s = self._state
        if s.is_over:
            return []
        handlers.close_blocks(s)
        s.is_over = True
        failure = (
            error or s.error or Error("truncated", "the stream ended before the response was complete", retryable=True)
        )
        s.out.append(failure)
        s.out.append(Finish("error", outcome.usage_of(None, s.server_tool_use), failure.kind))
        out, s.out = s.out, []
        return out

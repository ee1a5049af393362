"""Decoder for Responses events: the event table, the decoder, and a fast path for text deltas."""

import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.messages.fold import Batch
from sidestream.parts import Error, ReasoningDelta, Stage, TextDelta, ToolEvent, ToolInputDelta
from sidestream.providers.openai.responses.decode import handlers, outcome, reasoning, shapes, text
from sidestream.providers.openai.responses.decode.state import ItemState, ResponsesState
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.shared.decoding import (
    NOT_HOSTED_DELTA,
    NOT_LIKE_DELTA,
    UNREADABLE,
    EventRow,
    ResponseDecoder,
    bare_error,
    truncated,
)


class _Delta(Struct, tag_field="type", tag="response.output_text.delta", gc=False):
    delta: str
    output_index: int
    item_id: str | None = None
    content_index: int = 0
    sequence_number: int | None = None
    logprobs: tuple[()] | None = None


class _Done(Struct, tag_field="type", tag="response.output_text.done", gc=False):
    """The event after the last delta. With two types in a union, msgspec requires the type of an event."""


class _Summary(
    Struct,
    tag_field="type",
    tag="response.reasoning_summary_text.delta",
    rename={"content_index": "summary_index"},
    gc=False,
):
    delta: str
    output_index: int
    content_index: int
    item_id: str | None = None
    sequence_number: int | None = None
    logprobs: None = None


class _SummaryDone(Struct, tag_field="type", tag="response.reasoning_summary_text.done", gc=False):
    """The event after the last delta of a summary."""


_text = msgspec.json.Decoder(_Delta | _Done).decode
_summary = msgspec.json.Decoder(_Summary | _SummaryDone).decode
# It cannot nest.
_code_delta = msgspec.json.Decoder(dict[str, str | int]).decode


_NONE_YET = sys.maxsize
"""Sequence number before the first one, which only the tables read, since it tells nothing about the order."""


class BlockCursor:
    """The block of the last delta of text or of a summary, and its position."""

    __slots__ = ("block", "decode", "index", "item", "part", "place", "state")

    def __init__(self, s: ResponsesState, e: shapes.DeltaEvent | shapes.SummaryDeltaEvent) -> None:
        self.state = s
        self.place = (e.output_index, e.item_id)
        if isinstance(e, shapes.SummaryDeltaEvent):
            self.item = s.item(e.output_index, "reasoning", e.item_id)
            self.block = self.item.blocks[reasoning.SUMMARY, e.summary_index]
            self.index = e.summary_index
            self.decode, self.part = _summary, ReasoningDelta
        else:
            self.item = s.item(e.output_index, "message", e.item_id)
            self.block = text.text_block(s, self.item, e.content_index)
            self.index = e.content_index
            self.decode, self.part = _text, TextDelta

    def has(self, index: int) -> bool:
        """Return whether an unknown index belongs to the open part, since some servers number each delta."""
        is_open = self.part is TextDelta and self.block is self.item.open_part
        return is_open and (text.CONTENT, index) not in self.item.blocks

    def read(self, events: Iterator[bytes], out: Batch) -> bytes | None:
        """Decode events that only extend the block."""
        s, block, position, decode = self.state, self.block, self.index, self.decode
        index, item = self.place
        before = sequence = s.sequence if s.sequence >= 0 else _NONE_YET
        texts: list[str] = []
        keep = texts.append
        for data in events:
            try:
                e = decode(data)
                if e.item_id != item or e.output_index != index:
                    break
            except NOT_LIKE_DELTA:
                break
            if e.content_index != position and not self.has(e.content_index):
                break
            number = e.sequence_number
            if number is not None:
                if number <= sequence:
                    break
                sequence = number
            keep(e.delta)
        else:
            data = None
        if sequence != before:
            s.sequence, s.is_numbered = sequence, True
        block.deltas += texts
        out.grow(self.part, block.id, texts)
        return data


class CodeCursor:
    """The code call whose input grew last. The tool events of its deltas hold the JSON verbatim."""

    __slots__ = ("item", "place", "state")

    def __init__(self, s: ResponsesState, item: ItemState, e: shapes.DeltaEvent) -> None:
        self.state = s
        self.item = item
        self.place = (e.output_index, e.item_id)

    def read(self, events: Iterator[bytes], out: Batch) -> bytes | None:
        """Decode events that only extend the code."""
        s, part_id = self.state, self.item.part_id
        index, item_id = self.place
        sequence = s.sequence if s.sequence >= 0 else _NONE_YET
        kept: list[JsonObject] = []
        texts: list[str] = []
        for data in events:
            try:
                event = _code_delta(data)
                code = event["delta"]
                number: Any = event["sequence_number"]
                if event["item_id"] != item_id or event["output_index"] != index or event["type"] != _CODE_DELTA:
                    break
                if type(code) is not str or not code or number <= sequence:
                    break
            except NOT_HOSTED_DELTA:
                break
            if "content_index" in event or "logprobs" in event:
                break
            sequence = number
            kept.append(event)
            texts.append(code)
        else:
            data = None
        if texts:
            s.sequence, s.is_numbered = sequence, True
            self.item.streamed += texts
            tool = repeat("code_interpreter")
            delta = repeat("delta")
            made = map(ToolEvent, tool, delta, kept, repeat(part_id), repeat(index), tool, delta)
            out.grow_input(made, part_id, jsontext.escaped(texts))
        return data


def read_deltas(growing: BlockCursor | CodeCursor, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode events that only extend the block or the code that grew last."""
    return growing.read(events, out)


_STAGES = {
    "web_search_call": ("web_search", "in_progress searching completed failed"),
    "x_search_call": ("x_search", "in_progress searching completed failed"),
    "file_search_call": ("file_search", "in_progress searching completed failed"),
    "code_interpreter_call": ("code_interpreter", "in_progress interpreting executing completed failed"),
    "code_execution_call": ("code_interpreter", "in_progress executing completed failed"),
    "image_generation_call": ("image_generation", "in_progress generating completed failed"),
    "mcp_call": ("mcp", "in_progress executing completed failed"),
    "mcp_call_output": ("mcp", "delta done"),
}
"""Tool and lifecycle events, by type of item."""

EVENTS: dict[str, EventRow] = {
    "response.created": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.queued": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.in_progress": EventRow(shapes.ResponseEvent, handlers.on_created),
    "response.completed": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.incomplete": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.failed": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.cancelled": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "response.done": EventRow(shapes.ResponseEvent, handlers.on_terminal),
    "error": EventRow(shapes.ResponsesError, handlers.on_error),
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
    # vLLM's event names.
    "response.reasoning_part.added": EventRow(shapes.ContentPartEvent, text.on_content_part_added),
    "response.reasoning_part.done": EventRow(shapes.ContentPartEvent, text.on_content_part_done),
    # Event names of the Open Responses specification.
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
        for item, (tool, stages) in _STAGES.items()
        for stage in stages.split()
    },
}
"""Shapes and handlers, by event type."""

_WORDS: dict[str, Stage] = {
    "in_progress": "started",
    "searching": "running",
    "interpreting": "running",
    "executing": "running",
    "generating": "running",
    "completed": "completed",
    "failed": "failed",
}
"""Stages, by the last word of an event's type. All other words are those of code, logs and previews."""

STAGES: dict[str, tuple[Stage, str]] = {
    kind: ("input" if "_arguments." in kind else _WORDS.get(word, "delta"), word)
    for kind, row in EVENTS.items()
    if row.tool is not None
    for word in [kind.rpartition(".")[2]]
}
"""Stage of a tool's call and the API's word for it, by event type."""

_OF_STEERING = "reports the status of a steering message, which the run's `steer` parts also report"

IGNORED = {
    "response.steer.accepted": _OF_STEERING,
    "response.steer.pending": _OF_STEERING,
    "response.steer.failed": _OF_STEERING,
    "keepalive": "only keeps the connection open",
    "ping": "only keeps the connection open",
}
"""Reasons for ignoring an event, by type."""

PASSED_ON = {
    **dict.fromkeys(
        (
            "response.audio.delta",
            "response.audio.done",
            "response.audio.transcript.delta",
            "response.audio.transcript.done",
        ),
        "does not belong to an item; passed on as a raw part",
    ),
    **dict.fromkeys(
        ("response.inject.created", "response.inject.failed"),
        "answers a message of the multi-agent beta that is never sent; passed on as a raw part",
    ),
}
"""Reasons for passing on a known event as a raw part, by type."""

PASSED_ON_ITEMS = dict.fromkeys(
    ("agent_message", "multi_agent_call", "multi_agent_call_output"),
    "belongs to the multi-agent beta, whose agents run at the provider; passed on as a raw part",
)
"""Reasons for passing on a known item as a raw part, by type."""


_CODE_DELTA = "response.code_interpreter_call_code.delta"
_CREATED = handlers.on_created
_GROWING = frozenset({text.on_text_delta, reasoning.on_summary_delta, EVENTS[_CODE_DELTA].handler})
"""Handlers of events that the next ones may continue."""
_DELTAS = frozenset({TextDelta, ReasoningDelta, ToolInputDelta})


def _cursor(s: ResponsesState, e: Any, kind: str) -> BlockCursor | CodeCursor | None:
    """Return what the next events may extend."""
    if kind != _CODE_DELTA:
        return BlockCursor(s, e)
    item = s.find(e.output_index, e.item_id)
    return None if item is None else CodeCursor(s, item, e)


class ResponsesDecoder(ResponseDecoder[ResponsesState]):
    """A decoder for one response."""

    LAST_EVENTS = frozenset(name for name, row in EVENTS.items() if row.handler is handlers.on_terminal)

    def __init__(self, context: ResponsesContext) -> None:
        super().__init__(ResponsesState(context), read_deltas)

    @property
    def response_id(self) -> str | None:
        """The response's id, or None until it is known."""
        return self._state.response_id

    @property
    def resume_point(self) -> tuple[str, int] | None:
        """The response's id and the sequence number of its last event, from which a broken stream can resume."""
        s = self._state
        return (s.response_id, s.sequence) if s.response_id is not None and s.sequence >= 0 else None

    def _read_event(self, s: ResponsesState, event: Any) -> BlockCursor | CodeCursor | None:
        fields = jsontext.as_object(event)
        kind = str(fields.get("type"))
        row = EVENTS.get(kind) or bare_error(EVENTS, fields)
        if row is None:
            if kind not in IGNORED:
                s.raw(event)
            return None
        try:
            placed = fields if "output_index" in fields else s.placed(fields)
            value, handler = msgspec.convert(placed, row.shape), row.handler
            if handler is _CREATED and handlers.is_second(s, value, kind):
                s.second_answer(event)
                return None
            if s.is_late(value.sequence_number) and handler is not handlers.on_terminal:
                s.raw(event)
                return None
            if row.tool is not None:
                index = placed["output_index"]
                item = s.find(index, fields.get("item_id"))
                stage, word = STAGES[kind]
                s.item_event(row.tool, word, event, index, item, stage)
            handler(s, value, event)
            if handler in _GROWING and type(s.out[-1]) in _DELTAS:
                return _cursor(s, value, kind)
        except UNREADABLE:
            s.raw(event)
        return None

    def _read_whole(self, s: ResponsesState, answer: Any) -> Error | None:
        """Decode a response object, with each of its items as if it had just completed."""
        response = jsontext.as_object(answer)
        if "output" not in response and "status" not in response:
            s.raw(answer)
            error = response.get("error")
            return outcome.error_of(response if isinstance(error, str) else error, "the body is not a response object")
        s.declare_tools(response.get("tools"))
        handlers.finish(s, response, str(response.get("status") or "completed"))
        return None

    def _end(self, s: ResponsesState, error: Error | None) -> None:
        handlers.close_blocks(s)
        s.end_with_error(error or s.error or truncated(), outcome.usage_of(None, s.server_tool_use))

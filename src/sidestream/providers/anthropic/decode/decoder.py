"""The Messages decoder: one event table, one pure decoder per response, and a fast path for consecutive deltas."""

from collections.abc import Iterator
from itertools import repeat
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.messages.fold import Batch
from sidestream.parts import Error, ReasoningDelta, TextDelta, ToolEvent, ToolInputDelta
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode import handlers, outcome, shapes
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState
from sidestream.providers.shared.decoding import (
    NOT_HOSTED_DELTA,
    NOT_LIKE_DELTA,
    UNREADABLE,
    EventRow,
    ResponseDecoder,
    bare_error,
    truncated,
)

_EVENT = "content_block_delta"

OPENERS = ("content_block_start", _EVENT)
"""Events that consecutive deltas may follow."""


_Piece = Annotated[str, Meta(min_length=1)]


class _Text(Struct, tag_field="type", tag="text_delta", gc=False):
    text: _Piece


class _Thinking(Struct, tag_field="type", tag="thinking_delta", rename={"text": "thinking"}, gc=False):
    text: _Piece


class _Input(Struct, tag_field="type", tag="input_json_delta", rename={"text": "partial_json"}, gc=False):
    text: _Piece


class _Delta(Struct, tag_field="type", tag=_EVENT, gc=False):
    index: int
    delta: _Text | _Thinking | _Input


class _Stop(Struct, tag_field="type", tag="content_block_stop", gc=False):
    """The event after the last delta. With two types in a union, msgspec requires the type of an event."""


_delta = msgspec.json.Decoder(_Delta | _Stop).decode
# It cannot nest any deeper.
_hosted_delta = msgspec.json.Decoder(dict[str, str | int | dict[str, str]]).decode


_ROWS: dict[str, tuple[type[_Text | _Thinking | _Input], type[TextDelta | ReasoningDelta | ToolInputDelta]]] = {
    "text": (_Text, TextDelta),
    "thinking": (_Thinking, ReasoningDelta),
    "tool_use": (_Input, ToolInputDelta),
}
"""Block type → its delta, and the part that the delta becomes."""

_HOSTED = frozenset({"server_tool_use", "mcp_tool_use"})


def growing_block(s: MessagesState, index: int) -> BlockState | None:
    """Return the block at this index if the fast path may decode its deltas."""
    block = s.at.get(index)
    if block is None or not block.is_open or not (block.kind in _ROWS or block.kind in _HOSTED):
        return None
    # With a reserved result tool, text is held back, which only the slow path does.
    return None if s.context.has_result_tool and not block.provider_executed else block


def read_deltas(growing: BlockState, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode deltas of this block."""
    row = _ROWS.get(growing.kind)
    if row is None:
        return _read_hosted(growing, events, out)
    shape, part = row
    index = growing.index
    texts: list[str] = []
    keep = texts.append
    for data in events:
        try:
            e = _delta(data)
            delta = e.delta
        except NOT_LIKE_DELTA:
            break
        if type(delta) is not shape or e.index != index:
            break
        keep(delta.text)
    else:
        data = None
    growing.deltas += texts
    out.grow(part, growing.part_id, texts)
    return data


def _read_hosted(block: BlockState, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode input deltas of a call that the provider executes. Their tool events hold the JSON verbatim."""
    place = block.index
    kept: list[JsonObject] = []
    texts: list[str] = []
    for data in events:
        try:
            event = _hosted_delta(data)
            delta: Any = event["delta"]
            text = delta["partial_json"]
            if not text or event["index"] != place or event["type"] != _EVENT or delta["type"] != "input_json_delta":
                break
        except NOT_HOSTED_DELTA:
            break
        kept.append(event)
        texts.append(text)
    else:
        data = None
    block.deltas += texts
    out.grow_input(
        map(
            ToolEvent,
            repeat(block.portable_tool),
            repeat(block.growing),
            kept,
            repeat(block.part_id),
            repeat(place),
            repeat(block.tool),
            repeat("delta"),
        ),
        block.part_id,
        texts,
    )
    return data


EVENTS: dict[str, EventRow] = {
    "message_start": EventRow(shapes.MessageStart, handlers.on_message_start),
    "content_block_start": EventRow(shapes.BlockStart, handlers.on_block_start),
    "content_block_delta": EventRow(shapes.BlockDelta, handlers.on_block_delta),
    "content_block_stop": EventRow(shapes.BlockStop, handlers.on_block_stop),
    "message_delta": EventRow(shapes.MessageDelta, handlers.on_message_delta),
    "message_stop": EventRow(shapes.MessageStop, handlers.on_message_stop),
    "error": EventRow(shapes.MessagesError, handlers.on_error),
}
"""Event type → how it is decoded."""

IGNORED = {"ping": "keeps the connection open and says nothing"}
"""Events that become no part, each with its reason."""


class MessagesDecoder(ResponseDecoder[MessagesState]):
    """A decoder for one message."""

    LAST_EVENTS = frozenset({"message_stop", "error"})

    def __init__(self, context: MessagesContext) -> None:
        super().__init__(MessagesState(context), read_deltas)

    def _read_event(self, s: MessagesState, event: Any) -> BlockState | None:
        fields = jsontext.as_object(event)
        kind = str(fields.get("type"))
        row = EVENTS.get(kind) or bare_error(EVENTS, fields)
        if row is None:
            if kind not in IGNORED:
                s.raw(event)
            return None
        try:
            row.handler(s, msgspec.convert(event, row.shape), fields)
        except UNREADABLE:
            s.raw(event)
            return None
        return growing_block(s, fields["index"]) if kind in OPENERS else None

    def _read_whole(self, s: MessagesState, answer: Any) -> Error | None:
        """Decode a non-streaming message, which holds all its blocks."""
        message = jsontext.as_object(answer)
        if not isinstance(message.get("content"), list):
            s.raw(answer)
            return outcome.error_of(message.get("error"), "the body is not a message")
        handlers.on_message_start(s, shapes.MessageStart(message=message), message)
        handlers.finish(s)
        return None

    def _end(self, s: MessagesState, error: Error | None) -> None:
        handlers.fail(s, error or truncated())

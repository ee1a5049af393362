"""The fast path for rows of text deltas, read straight into parts.

Most events of a stream are such deltas. An event is read here only if it adds to the block of the delta before it; if
not, nothing has changed, and the table in `decode.py` reads it.
"""

from typing import Any

import msgspec
from msgspec import Struct

from sidestream.providers.openai.responses.decode import shapes, text
from sidestream.providers.openai.responses.decode.state import ResponsesState
from sidestream.stream.parts import StreamPart, TextDelta


class _Delta(Struct, tag_field="type", tag="response.output_text.delta", gc=False):
    delta: str
    output_index: int
    item_id: str | None = None
    content_index: int = 0
    sequence_number: int | None = None
    logprobs: list[Any] | None = None


_delta = msgspec.json.Decoder(_Delta).decode
_HEADS = (b'{"type":"response.output_text.delta"', b'{"type": "response.output_text.delta"')


class GrowingText:
    """The block of a text delta, and where that was."""

    __slots__ = ("block", "index", "item", "place", "state")

    def __init__(self, s: ResponsesState, e: shapes.DeltaEvent) -> None:
        self.state = s
        self.item = s.item(e.output_index, "message", e.item_id)
        self.block = text.text_block(s, self.item, e.content_index)
        self.index = e.content_index
        self.place = (e.output_index, e.item_id)

    def has(self, index: int) -> bool:
        """True if an index is one that the server made up for a delta of the part that is open."""
        return self.block is self.item.open_part and (text.CONTENT, index) not in self.item.blocks


def read_delta(growing: GrowingText, data: bytes) -> list[StreamPart] | None:
    """The part of a text delta right after another; None for any other event."""
    if not data.startswith(_HEADS):
        return None
    try:
        e = _delta(data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    if (e.output_index, e.item_id) != growing.place or e.logprobs:
        return None
    if e.content_index != growing.index and not growing.has(e.content_index):
        return None
    number = e.sequence_number
    if number is not None:
        s = growing.state
        if number <= s.sequence:
            return None
        if not s.is_numbered:
            s.is_numbered = s.sequence >= 0
        s.sequence = number
    block = growing.block
    block.deltas.append(e.delta)
    return [TextDelta(block.id, e.delta)]

"""The fast path for rows of chunks that hold text or a thought and nothing else, read straight into parts.

Most chunks of a stream are such. For any other chunk nothing has changed, and the tables in `decode.py` read it.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidestream.providers.google.decode.state import GenerateContentState
from sidestream.stream.parts import ReasoningDelta, StreamPart, TextDelta


class _Text(Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    text: str
    thought: bool | None = None
    thought_signature: str | None = None


class _Content(Struct, forbid_unknown_fields=True, gc=False):
    parts: tuple[_Text]
    role: str | None = None


class _Candidate(Struct, forbid_unknown_fields=True, gc=False):
    content: _Content
    index: Literal[0] = 0


class _Chunk(Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    candidates: tuple[_Candidate]
    usage_metadata: dict[str, Any] | None = None
    model_version: str | None = None
    response_id: str | None = None
    create_time: str | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode


def read_delta(growing: GenerateContentState, data: bytes) -> list[StreamPart] | None:
    """The parts of a chunk of text or thought after another; None for any other chunk."""
    try:
        chunk = _chunk(data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    s = growing
    if chunk.response_id != s.response_id or chunk.model_version != s.model:
        return None
    part = chunk.candidates[0].content.parts[0]
    text, block = part.text, s.current
    family = "reasoning" if part.thought else "text"
    if block is None or block.family != family:
        return None
    if chunk.usage_metadata is not None:
        s.usage = chunk.usage_metadata
    if text and part.thought_signature is None and s.layout and s.layout[-1] is block.slice:
        block.pieces.append(text)
        block.size = block.slice["end"] = block.size + len(text)
        return [TextDelta(block.id, text) if family == "text" else ReasoningDelta(block.id, text)]
    s.text(family, text, part.thought_signature)
    out, s.out = s.out, []
    return out

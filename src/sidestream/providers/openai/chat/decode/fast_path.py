"""The fast path for rows of chunks that each add to one thing: text, reasoning, or the arguments of a call.

Most chunks of a stream are such. A chunk is read here only if it is exactly that; if not, nothing has changed, and the
table in `decode.py` reads it.
"""

from typing import Any

import msgspec
from msgspec import Struct

from sidestream.providers.openai.chat.decode.state import CompletionsState
from sidestream.stream.parts import ReasoningDelta, StreamPart, TextDelta, ToolInputDelta


class _Arguments(Struct, forbid_unknown_fields=True, gc=False):
    arguments: str
    name: None = None


class _Piece(Struct, forbid_unknown_fields=True, gc=False):
    index: int
    function: _Arguments
    id: None = None
    type: str | None = None


class _Delta(Struct, forbid_unknown_fields=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_Piece] | None = None
    role: str | None = None
    reasoning: str | None = None
    refusal: None = None


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    delta: _Delta
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class _Chunk(Struct, forbid_unknown_fields=True, gc=False):
    choices: tuple[_Choice]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    obfuscation: str | None = None
    usage: dict[str, Any] | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode


def read_delta(growing: CompletionsState, data: bytes) -> list[StreamPart] | None:
    """The part of a chunk that only adds to what is open; None for any other chunk."""
    try:
        chunk = _chunk(data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    s, choice = growing, chunk.choices[0]
    if choice.index != s.choice or (not s.has_metadata and (chunk.id or chunk.model)):
        return None
    delta = choice.delta
    if delta.role is not None and chunk.id != s.response_id:
        return None
    text, thought, calls = delta.content, delta.reasoning_content or delta.reasoning, delta.tool_calls
    part = None
    if text:
        # Text ends reasoning that is open.
        if not thought and calls is None and s.reasoning_id is None and "text" in s.texts:
            s.said.append(text)
            part = TextDelta(s.texts["text"], text)
    elif thought:
        if calls is None and s.reasoning_id is not None:
            part = ReasoningDelta(s.reasoning_id, thought)
    elif calls is not None:
        part = _argument(s, calls[0])
    if part is None:
        return None
    if chunk.service_tier:
        s.facts["service_tier"] = chunk.service_tier
    if chunk.system_fingerprint:
        s.facts["system_fingerprint"] = chunk.system_fingerprint
    if chunk.usage is not None:
        s.usage = chunk.usage
    return [part]


def _argument(s: CompletionsState, piece: _Piece) -> StreamPart | None:
    text, call = piece.function.arguments, s.calls_at.get(piece.index)
    # A piece as long as all before it may repeat them.
    if not text or call is None or not call.is_started or call.is_custom or len(text) == call.length:
        return None
    call.pieces.append(text)
    call.length += len(text)
    call.emitted = len(call.pieces)
    return ToolInputDelta(call.part_id, text)

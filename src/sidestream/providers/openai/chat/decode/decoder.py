"""Decoder for chat completions: a table of fields, the decoder, and a fast path for deltas.

Chunks have no type, so they are read by their fields. A complete message has the fields of a delta.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_object, is_array, is_object, objects, text_in, without_none
from sidestream.messages.fold import Batch
from sidestream.parts import Error, Finish, ReasoningDelta, StreamPart, TextDelta, ToolInputDelta
from sidestream.providers.openai.chat.decode import content, executed_tools, outcome, state, tool_calls
from sidestream.providers.openai.chat.decode.repeating import LAST_CHUNK, RepeatingChunks
from sidestream.providers.openai.chat.decode.state import CompletionsState
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.providers.shared.decoding import (
    NOT_DELTA,
    UNREADABLE,
    FieldRow,
    ResponseDecoder,
    read_objects,
    read_text,
    reader,
    seconds,
    truncated,
)


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


class _Text(Struct, forbid_unknown_fields=True, gc=False):
    """A delta that has only text, as most do."""

    content: Annotated[str, Meta(min_length=1)]
    reasoning_content: None = None
    tool_calls: None = None
    role: None = None
    reasoning: None = None
    refusal: None = None


D = TypeVar("D", _Delta, _Text)


class _Choice(Struct, Generic[D], forbid_unknown_fields=True, gc=False):
    delta: D
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class _Chunk(Struct, Generic[D], forbid_unknown_fields=True, gc=False):
    choices: tuple[_Choice[D]]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    obfuscation: str | None = None
    usage: dict[str, Any] | None = None


_text_chunk = msgspec.json.Decoder(_Chunk[_Text]).decode
_any_chunk = msgspec.json.Decoder(_Chunk[_Delta]).decode


def read_deltas(growing: CompletionsState, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode chunks that only extend an open block or call."""
    s = growing
    # Text would end an open reasoning block.
    text_id = s.texts.get("text") if s.reasoning_id is None else None
    if text_id is not None and s.has_metadata:
        data = _read_texts(s, text_id, events, out)
        if data is None:
            return None
        events = chain((data,), events)
    return _read_any(s, text_id, events, out)


def _read_texts(s: CompletionsState, text_id: str, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode chunks that have only text. Most streams have few others."""
    index = s.choice
    texts: list[str] = []
    noted: list[_Chunk[_Text]] = []
    for data in events:
        try:
            chunk = _text_chunk(data)
        except NOT_DELTA:
            break
        choice = chunk.choices[0]
        if choice.index != index:
            break
        texts.append(choice.delta.content)
        if chunk.usage is not None or chunk.service_tier or chunk.system_fingerprint:
            noted.append(chunk)
    else:
        data = None
    _grow(s, text_id, None, texts, [], out)
    _note(s, noted)
    return data


def _read_any(s: CompletionsState, text_id: str | None, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode chunks that have text, reasoning or the arguments of a call."""
    index, has_metadata, reasoning_id = s.choice, s.has_metadata, s.reasoning_id
    texts: list[str] = []
    thoughts: list[str] = []
    noted: list[_Chunk[_Delta]] = []
    for data in events:
        try:
            chunk = _any_chunk(data)
        except NOT_DELTA:
            break
        choice = chunk.choices[0]
        if choice.index != index or (not has_metadata and (chunk.id or chunk.model)):
            break
        delta = choice.delta
        if delta.role is not None and chunk.id != s.response_id:
            break
        text, thought = delta.content, delta.reasoning_content or delta.reasoning
        if text:
            if text_id is None or thought or delta.tool_calls is not None:
                break
            texts.append(text)
        elif thought:
            if reasoning_id is None or delta.tool_calls is not None:
                break
            thoughts.append(thought)
        elif (calls := delta.tool_calls) is None or (part := _argument(s, calls[0])) is None:
            break
        else:
            _grow(s, text_id, reasoning_id, texts, thoughts, out)
            texts, thoughts = [], []
            out.parts.append(part)
        if chunk.usage is not None or chunk.service_tier or chunk.system_fingerprint:
            noted.append(chunk)
    else:
        data = None
    _grow(s, text_id, reasoning_id, texts, thoughts, out)
    _note(s, noted)
    return data


def _note(s: CompletionsState, chunks: list[_Chunk[D]]) -> None:
    """Store the usage and the metadata of chunks. The last values count."""
    for chunk in chunks:
        if chunk.service_tier:
            s.facts["service_tier"] = chunk.service_tier
        if chunk.system_fingerprint:
            s.facts["system_fingerprint"] = chunk.system_fingerprint
        if chunk.usage is not None:
            s.usage = chunk.usage


def _grow(
    s: CompletionsState,
    text_id: str | None,
    reasoning_id: str | None,
    texts: list[str],
    thoughts: list[str],
    out: Batch,
) -> None:
    """Add deltas of the open block, which is text or reasoning."""
    if text_id is not None and texts:
        s.wrote(texts)
        out.grow(TextDelta, text_id, texts)
    if reasoning_id is not None and thoughts:
        out.grow(ReasoningDelta, reasoning_id, thoughts)


def _argument(s: CompletionsState, piece: _Piece) -> StreamPart | None:
    text, call = piece.function.arguments, s.calls_at.get(piece.index)
    # A piece as long as the input so far may repeat it.
    if not text or call is None or not call.is_started or call.is_custom or len(text) == call.length:
        return None
    call.pieces.append(text)
    call.length += len(text)
    call.emitted = len(call.pieces)
    return ToolInputDelta(call.part_id, text)


class DeltaField(FieldRow, frozen=True, kw_only=True):
    """The reader and handler of a delta's field."""

    unless: str | None = None
    """Name of another field with the same content, which takes precedence."""
    may_be_late: bool = False
    """Whether the field may follow the finish reason."""


FIELDS: dict[str, DeltaField] = {
    "reasoning_content": DeltaField(read_text, content.on_reasoning),
    "reasoning": DeltaField(read_text, content.on_reasoning, unless="reasoning_content"),
    "reasoning_details": DeltaField(read_objects, content.on_reasoning_details),
    "executed_tools": DeltaField(read_objects, executed_tools.on_executed_tools, may_be_late=True),
    "reasoning_steps": DeltaField(read_objects, executed_tools.on_reasoning_steps),
    "content": DeltaField(state.text_or_objects, content.on_content),
    "refusal": DeltaField(read_text, content.on_refusal),
    "audio": DeltaField(reader(state.AudioPiece), content.on_audio, may_be_late=True),
    "images": DeltaField(read_objects, content.on_images, may_be_late=True),
    "annotations": DeltaField(read_objects, content.on_annotations, may_be_late=True),
    "tool_calls": DeltaField(state.tool_call_pieces, tool_calls.on_tool_calls),
    "function_call": DeltaField(reader(state.Function), tool_calls.on_function_call, unless="tool_calls"),
    # After the content, so that the block that they belong to has started.
    "channel": DeltaField(read_text, content.extra("channel"), may_be_late=True),
    "token_id": DeltaField(reader(int), content.extra("token_id"), may_be_late=True),
}
"""Fields of a delta or message, in the order in which they are handled. The first non-empty field of any other name
makes the chunk `raw`."""

PLACED = {
    "id": "`response-metadata`, once",
    "model": "`response-metadata`, once",
    "created": "`response-metadata`, once",
    "choices": "by the fields of the first choice's `delta` or `message`, see below; other choices are `raw`",
    "choices[].index": "identifies the choice; only the first choice is decoded",
    "choices[].delta": "by its fields, see below",
    "choices[].message": "by its fields, see below; in a stream only if no content came before it",
    "choices[].text": "like `content` of a delta; ignored beside a delta, whose content it repeats",
    "choices[].finish_reason": "reason of `finish`",
    "choices[].logprobs": "`provider_metadata` of the `text-delta`; for tokens without text, metadata of `finish`",
    "choices[].usage": "like `usage`",
    "choices[].error": "`error`, `finish`, at the end of the stream",
    "usage": "usage of `finish`, with the reported cost; the last one is used. Hosted calls of which it has only the "
    "number are one `tool-call` and `tool-result` per tool",
    "citations": "`source` where the text cites an entry as `[n]`, and at the end for the others; metadata of `finish`",
    "search_results": "`tool-call` and `tool-result` of one web search, and the titles of `citations`",
    "error": "`error`, `finish`",
}
"""Documented effects of the fields of a chunk or a choice. All others become metadata of `finish`."""

IGNORED = {
    "object": "names the API",
    "obfuscation": "is padding against traffic analysis",
    "delta.role": "is always the model's",
}
"""Reasons for ignoring a field."""

_PINGS = ("ping", "keepalive")


class CompletionsDecoder(ResponseDecoder[CompletionsState]):
    """A decoder for one chat completion. `close` emits `finish`, since usage comes last."""

    def __init__(self, context: CompletionsContext) -> None:
        super().__init__(CompletionsState(context), read_deltas)

    def _read_event(self, s: CompletionsState, event: Any) -> CompletionsState | None:
        s.begin_event(event)
        _chunk(s, event)
        if s.has_second or s.is_over:
            return None
        if s.cited and self.read_deltas is read_deltas:
            self.read_deltas = RepeatingChunks().read_deltas
        is_growing = s.finish_reason is None and (s.texts or s.reasoning_id or s.calls)
        return s if is_growing else None

    def _read_whole(self, s: CompletionsState, answer: Any) -> Error | None:
        """Decode the body as a single chunk, and finish."""
        s.begin_event(answer)
        s.is_whole = True
        _chunk(s, answer)
        if not s.is_over and s.choice is None:
            s.raw_chunk()
            return Error("protocol", "the body is not a chat completion: it has no choices")
        if not s.is_over:
            _finish(s)
        return None

    def _end(self, s: CompletionsState, error: Error | None) -> None:
        s.read_usage()
        if error is None and s.failure is None and (s.finish_reason is not None or outcome.is_complete(s)):
            _finish(s)
        else:
            _fail(s, _failure(s) if s.failure is not None else error or truncated())


def _chunk(s: CompletionsState, event: Any) -> None:
    if s.unread_usage is not None:
        s.read_usage()
    fields = jsontext.as_object(event)
    if fields.get("error") or fields.get("object") == "error":
        _usage(s, fields)
        _fail(s, outcome.error_of(fields.get("error") or fields, "the server reported an error"))
        return
    if "choices" not in fields and "usage" not in fields:
        if fields.get("type") not in _PINGS:
            s.raw_chunk()
        return
    if _is_second(s, fields):
        s.second_answer(event)
        return
    _metadata(s, fields)
    _keep(s, fields, _NO_FACTS)
    _usage(s, fields)
    if fields.get("object") == LAST_CHUNK:
        s.is_done = True
    s.failure = as_object(fields.get("x_groq")).get("error") or s.failure
    choices = fields.get("choices")
    if not executed_tools.FOUND.isdisjoint(fields):
        executed_tools.on_found(s, fields)
    if choices is not None and not is_array(choices):
        s.raw_chunk()
    for choice in choices if is_array(choices) else ():
        if not is_object(choice):
            s.raw_chunk()
            continue
        index = choice.get("index")
        index = index if type(index) is int else 0
        s.choice = index if s.choice is None else s.choice
        if index == s.choice:
            _choice(s, choice)
        else:
            s.raw_chunk()


def _is_second(s: CompletionsState, fields: JsonObject) -> bool:
    """Return whether a chunk starts a second response.

    It must have another id and a role, since some hosts change the id with every chunk.
    """
    identity = text_in(fields, "id")
    if not identity or s.response_id in (None, identity) or not s.has_content or s.changes_ids:
        return False
    has_role = any(as_object(choice.get("delta")).get("role") for choice in objects(fields.get("choices")))
    s.changes_ids = not has_role
    return has_role


def _usage(s: CompletionsState, fields: JsonObject) -> None:
    usage = fields.get("usage")
    if usage is None and "x_groq" in fields:
        usage = jsontext.as_object(fields["x_groq"]).get("usage")
    if is_object(usage):
        s.usage = usage


def _metadata(s: CompletionsState, fields: JsonObject) -> None:
    """Emit `response-metadata`, not necessarily for the first chunk, since Azure's has neither id nor model."""
    identity, model = text_in(fields, "id") or None, text_in(fields, "model") or None
    if not s.has_metadata and (identity or model):
        s.response_metadata(identity, model, seconds(fields.get("created")))
        s.response_id = identity
        s.facts |= {"response_id": identity, "model": model}


_OWN = frozenset({"response_id", "model", "status", "limit", "reached", "thinking", "logprobs"})
"""Names of our own metadata, which server fields must not override."""

_NO_FACTS = _OWN | IGNORED.keys() | {name for name in PLACED if "[" not in name}
_NO_FACTS_OF_CHOICE = _OWN | IGNORED.keys() | {name.partition("[].")[2] for name in PLACED}


def _keep(s: CompletionsState, fields: JsonObject, others: frozenset[str]) -> None:
    """Keep the non-empty fields for the metadata of `finish`."""
    for name, value in fields.items():
        if name not in others and (value or value == 0):
            s.facts[name] = value


def _choice(s: CompletionsState, choice: JsonObject) -> None:
    _keep(s, choice, _NO_FACTS_OF_CHOICE)
    _usage(s, choice)
    s.failure = choice.get("error") or s.failure
    is_late = s.finish_reason is not None
    logprobs = choice.get("logprobs")
    s.logprobs = dict(logprobs) if is_object(logprobs) else {}
    delta, message = choice.get("delta"), choice.get("message")
    if is_object(message) and s.is_whole:
        _delta(s, message, is_late=False)  # Some servers send an empty delta as well.
    elif is_object(delta) and delta:
        _delta(s, delta, is_late)
        if is_object(message) and choice.get("finish_reason"):
            s.final = text_in(message, "content")
    elif is_object(message):
        _message(s, message)
    elif delta is None and isinstance(choice.get("text"), str):
        _delta(s, {"content": choice["text"]}, is_late)
    elif delta is not None and not is_object(delta):
        s.raw_chunk()
    if s.logprobs:
        content.keep_logprobs(s)
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason and not is_late:
        s.finish_reason = reason
    elif reason is not None and not isinstance(reason, str):
        s.raw_chunk()


def _message(s: CompletionsState, message: JsonObject) -> None:
    """Handle a complete message, which at the end of a stream repeats the deltas."""
    if s.has_written:
        s.final = text_in(message, "content")
        return
    is_whole, s.is_whole = s.is_whole, True
    _delta(s, message, is_late=False)
    s.is_whole = is_whole


def _delta(s: CompletionsState, delta: JsonObject, is_late: bool) -> None:
    """Read all fields before calling their handlers, which change the state."""
    found: list[tuple[DeltaField, Any]] = []
    for name, value in delta.items():
        row = FIELDS.get(name)
        if value is None or name == "role" or (row is not None and row.unless is not None and delta.get(row.unless)):
            continue
        if row is None:
            if value and name not in s.unknown:
                s.unknown.add(name)
                s.raw_chunk()
            continue
        try:
            found.append((row, row.read(value)))
        except UNREADABLE:
            s.raw_chunk()
    if len(found) > 1:
        found.sort(key=_order)
    for row, value in found:
        if not is_late or row.may_be_late:
            row.handler(s, value)
        elif value:
            s.raw_chunk()


_ROWS = list(FIELDS.values())


def _order(entry: tuple[DeltaField, Any]) -> int:
    return _ROWS.index(entry[0])


def _finish(s: CompletionsState) -> None:
    """End a complete response. Closes open blocks, then emits calls, speech and `finish`."""
    reason, raw_reason = outcome.finish_reason(s)
    if reason == "error" or s.failure is not None:
        _fail(s, _failure(s))
        return
    s.end_reasoning()
    s.end_search()
    s.end_texts()
    if s.cited:
        s.end_sources()
    if s.hosted:
        executed_tools.end_executed_tools(s)
    outcome.count_tools(s)
    tool_calls.end_calls(s, is_cut=reason in ("length", "content-filter"))
    content.end_audio(s)
    if s.finish_reason is None and not s.is_whole:
        s.out.append(outcome.no_reason(reason))
    s.is_over = True
    s.out.append(Finish(reason, outcome.usage_of(s.usage, s.server_tool_use), raw_reason, without_none(s.facts)))


def _failure(s: CompletionsState) -> Error:
    return outcome.error_of(s.failure, "the server reported that the response failed")


def _fail(s: CompletionsState, error: Error) -> None:
    """End a failed response. Closes open blocks and inputs, but emits no calls."""
    s.end_reasoning()
    s.end_texts()
    tool_calls.end_inputs(s)
    s.end_with_error(error, outcome.usage_of(s.usage, s.server_tool_use))

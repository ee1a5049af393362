"""The generateContent decoder: tables of fields, one pure decoder per response, and a fast path for text.

A chunk has no type, so it is decoded field by field. A field of the wrong type becomes a raw part, and the others are
still decoded. A stream has no terminal event. It is complete if it held a finish reason or a blocked prompt.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.messages.fold import Batch
from sidestream.parts import Custom, Error, ReasoningDelta, TextDelta
from sidestream.providers.google.context import (
    BLOCK_REASONS,
    FINISH_REASONS,
    URL_STATES,
    GoogleContext,
    named,
    some_text,
)
from sidestream.providers.google.decode import outcome
from sidestream.providers.google.decode.content import close_calls, on_part
from sidestream.providers.google.decode.grounding import on_citations, on_grounding
from sidestream.providers.google.decode.state import GenerateContentState
from sidestream.providers.shared.decoding import (
    NOT_DELTA,
    UNREADABLE,
    FieldRow,
    ResponseDecoder,
    read_array,
    read_object,
    read_objects,
    read_text,
    reader,
    truncated,
)
from sidestream.providers.transfers import seconds_of


class _Text(Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    text: Annotated[str, Meta(min_length=1)]
    thought: bool = False
    thought_signature: None = None


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


_fast_chunk = msgspec.json.Decoder(_Chunk).decode


def read_deltas(growing: GenerateContentState, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Decode chunks that only continue the current text or thought."""
    s = growing
    response_id, model, block = s.response_id, s.model, s.current
    if block is None or not s.layout or s.layout[-1] is not block.slice:
        return next(events, None)
    is_thought = block.family == "reasoning"
    usage: dict[str, Any] | None = None
    texts: list[str] = []
    keep = texts.append
    for data in events:
        try:
            chunk = _fast_chunk(data)
        except NOT_DELTA:
            break
        part = chunk.candidates[0].content.parts[0]
        if part.thought is not is_thought or chunk.response_id != response_id or chunk.model_version != model:
            break
        if chunk.usage_metadata is not None:
            usage = chunk.usage_metadata
        keep(part.text)
    else:
        data = None
    if texts:
        s.usage = s.usage if usage is None else usage
        block.pieces += texts
        block.size = block.slice["end"] = block.size + len("".join(texts))
        out.grow(ReasoningDelta if is_thought else TextDelta, block.id, texts)
    return data


CANDIDATE = "google.candidate"


def _any(value: Any) -> Any:
    return value


def _on_error(s: GenerateContentState, value: Any) -> None:
    """End open blocks and calls, then emit `error` and `finish`."""
    s.error = outcome.error_of(value, "the provider reported an error")


def _on_usage(s: GenerateContentState, value: JsonObject) -> None:
    """Store the usage for `finish`. The last value counts."""
    s.usage = value


def _on_prompt_feedback(s: GenerateContentState, value: JsonObject) -> None:
    """Store metadata for `finish`. A blocked prompt finishes with `content-filter`."""
    s.metadata["prompt_feedback"] = value
    s.block_reason = named(value.get("blockReason") or None, BLOCK_REASONS) or s.block_reason


def _on_candidates(s: GenerateContentState, value: list[JsonObject]) -> None:
    """Decode the fields of the first candidate, as listed below. Emit `custom` for each further one."""
    for place, candidate in enumerate(value):
        index = candidate.get("index")
        if (index if isinstance(index, int) else place) == 0:
            read(s, candidate, CANDIDATE_FIELDS)
        else:
            s.count_entry()
            s.out.append(Custom(CANDIDATE, candidate))


def _on_content(s: GenerateContentState, value: JsonObject) -> None:
    """Decode each part, as listed below."""
    parts = value.get("parts")
    if parts is not None and not is_array(parts):
        s.raw({"content": value})
        return
    for part in parts or ():
        if is_object(part):
            on_part(s, part)
        else:
            s.raw({"part": part})


def _read_reason(value: Any) -> str | None:
    if type(value) is int:
        return named(value or None, FINISH_REASONS)  # 0 means that there is none yet
    return read_text(value)


def _on_finish_reason(s: GenerateContentState, value: str | None) -> None:
    """Store the reason for `finish`."""
    s.finish_reason = s.finish_reason if value is None else value


def _on_url_context(s: GenerateContentState, value: JsonObject) -> None:
    """Emit only the tool event."""
    if value:
        s.tool_event("url_context", _url_stage(value), {"urlContextMetadata": value})
        s.metadata["url_context_metadata"] = value


def _url_stage(value: JsonObject) -> str:
    states = [str(named(entry.get("urlRetrievalStatus"), URL_STATES)) for entry in objects(value.get("urlMetadata"))]
    return "failed" if states and not any(state.endswith("_SUCCESS") for state in states) else "completed"


def _on_continuation(s: GenerateContentState, value: str) -> None:
    """Store the token in the session, to continue from."""
    s.continuation_token = value


def _kept(name: str) -> Callable[[GenerateContentState, Any], None]:
    def handler(s: GenerateContentState, value: Any) -> None:
        """Store metadata for `finish`."""
        s.metadata[name] = value

    return handler


def _read_first(s: GenerateContentState, value: Any) -> None:
    """Emit `response-metadata`, once per response."""


def _first_candidate(s: GenerateContentState, value: int) -> None:
    """Do nothing, since the index only selects the candidate."""


CHUNK_FIELDS: dict[str, FieldRow] = {
    "responseId": FieldRow(read_text, _read_first),
    "modelVersion": FieldRow(read_text, _read_first),
    "createTime": FieldRow(read_text, _read_first),
    "promptFeedback": FieldRow(read_object, _on_prompt_feedback),
    "candidates": FieldRow(read_objects, _on_candidates),
    "usageMetadata": FieldRow(read_object, _on_usage),
    "modelStatus": FieldRow(read_object, _kept("model_status")),
    "error": FieldRow(_any, _on_error),
}
"""Field of a chunk → how it is decoded, in this order."""

CANDIDATE_FIELDS: dict[str, FieldRow] = {
    "index": FieldRow(reader(int), _first_candidate),
    "urlContextMetadata": FieldRow(read_object, _on_url_context, "url_context"),
    "content": FieldRow(read_object, _on_content),
    "citationMetadata": FieldRow(read_object, on_citations),
    "groundingMetadata": FieldRow(read_object, on_grounding, "google_search, file_search, google_maps or url_context"),
    "finishReason": FieldRow(_read_reason, _on_finish_reason),
    "finishMessage": FieldRow(read_text, _kept("finish_message")),
    "safetyRatings": FieldRow(read_array, _kept("safety_ratings")),
    "avgLogprobs": FieldRow(reader(float), _kept("avg_logprobs")),
    "logprobsResult": FieldRow(read_object, _kept("logprobs_result")),
    "tokenCount": FieldRow(reader(int), _kept("token_count")),
    "continuationToken": FieldRow(read_text, _on_continuation),
}
"""Field of a candidate → how it is decoded, in this order."""


def read(s: GenerateContentState, value: JsonObject, fields: dict[str, FieldRow]) -> None:
    """Decode each field with its row. Unreadable fields, and the first of each unknown name, become raw parts."""
    for name, row in fields.items():
        content = value.get(name)
        if content is None:
            continue
        try:
            converted = row.read(content)
        except UNREADABLE:
            s.raw({name: content})
            continue
        row.handler(s, converted)
    for name in value:
        if name not in fields and name not in s.unknown:
            s.unknown.add(name)
            s.raw({name: value[name]})


def _chunk(s: GenerateContentState, chunk: Any) -> None:
    if not is_object(chunk) or not chunk:
        s.raw(chunk)
        return
    identity = some_text(chunk, "responseId")
    if s.has_second or (identity is not None and s.response_id not in (None, identity) and s.has_content):
        s.second_answer(chunk)
        return
    s.response_id = identity or s.response_id
    s.model = some_text(chunk, "modelVersion") or s.model
    s.response_metadata(s.response_id, s.model, seconds_of(chunk.get("createTime")))
    read(s, chunk, CHUNK_FIELDS)


def _finish(s: GenerateContentState) -> None:
    s.end_block()
    close_calls(s, is_over=True)
    s.emit_draft()
    reason, raw_reason = outcome.finish_reason(s)
    s.finish(reason, raw_reason, outcome.result_metadata(s), outcome.step_outcome(s))


def _fail(s: GenerateContentState, error: Error) -> None:
    s.end_block()
    close_calls(s, is_over=False)
    s.end_with_error(error, s.total_usage())


_RESPONSE_FIELDS = frozenset({"candidates", "promptFeedback", "usageMetadata"})


class GenerateContentDecoder(ResponseDecoder[GenerateContentState]):
    """A decoder for one generateContent response."""

    def __init__(self, context: GoogleContext) -> None:
        super().__init__(GenerateContentState(context), read_deltas)

    def _read_event(self, s: GenerateContentState, event: Any) -> GenerateContentState | None:
        _chunk(s, event)
        if s.error is not None:
            _fail(s, s.error)
        return s if s.current is not None and not s.has_second else None

    def _read_whole(self, s: GenerateContentState, answer: Any) -> Error | None:
        """Decode a non-streaming response, which is one chunk or a list of them."""
        chunks: list[Any] = answer if is_array(answer) else [answer]
        for chunk in chunks:
            _chunk(s, chunk)
        if s.error is None and not any(is_object(chunk) and chunk.keys() & _RESPONSE_FIELDS for chunk in chunks):
            return Error("protocol", "the body is not a response object")
        if s.error is None:
            _finish(s)
        return s.error

    def _end(self, s: GenerateContentState, error: Error | None) -> None:
        if error is None and (s.finish_reason is not None or s.block_reason is not None):
            _finish(s)
        else:
            _fail(s, error or truncated())

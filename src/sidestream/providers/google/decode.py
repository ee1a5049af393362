"""Chunks of generateContent → parts: tables of fields, one pure decoder per response.

A chunk has no type. What it holds is read field by field; a field of the wrong shape becomes a raw part, the others
are read all the same. A stream has no terminal event: it is complete if it held a finish reason or a blocked prompt.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.providers.google import outcome, shapes
from sidestream.providers.google.content import on_part
from sidestream.providers.google.context import PROVIDER_NAME, DecodeContext
from sidestream.providers.google.functions import close_calls
from sidestream.providers.google.grounding import on_citations, on_grounding
from sidestream.providers.google.state import State
from sidestream.providers.google.values import seconds_of, some_text
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Custom, Error, Finish, ResponseMetadata, StepOutcome, StreamPart

CANDIDATE = "google.candidate"


class FieldRow(Struct, frozen=True):
    """How one field is read. `tool` is the metadata key of its tool events."""

    read: Callable[[Any], Any]
    handler: Callable[[State, Any], None]
    tool: str | None = None


def _on_error(s: State, value: Any) -> None:
    """Ends of what is open, `error`, `finish`."""
    s.error = outcome.error_of(value, "the provider reported an error")


def _on_usage(s: State, value: JsonObject) -> None:
    """Usage of the `finish`; the last one counts."""
    s.usage = value


def _on_prompt_feedback(s: State, value: JsonObject) -> None:
    """Metadata of the `finish`; a blocked prompt gives the reason `content-filter`."""
    s.metadata["prompt_feedback"] = value
    s.block_reason = some_text(value, "blockReason") or s.block_reason


def _on_candidates(s: State, value: list[JsonObject]) -> None:
    """The first candidate by its fields, see below; each further one a `custom` part."""
    for place, candidate in enumerate(value):
        index = candidate.get("index")
        if (index if isinstance(index, int) else place) == 0:
            read(s, candidate, CANDIDATE_FIELDS)
        else:
            s.out.append(Custom(CANDIDATE, candidate))


def _on_content(s: State, value: JsonObject) -> None:
    """By part, see below."""
    parts = value.get("parts")
    if parts is not None and not is_array(parts):
        s.raw({"content": value})
        return
    for part in parts or ():
        if is_object(part):
            on_part(s, part)
        else:
            s.raw({"part": part})


def _on_finish_reason(s: State, value: str) -> None:
    """Reason of the `finish`."""
    s.finish_reason = value


def _on_url_context(s: State, value: JsonObject) -> None:
    """Nothing more: the tool event says it all."""
    if value:
        s.tool_event("url_context", _url_stage(value), {"urlContextMetadata": value})
        s.metadata["url_context_metadata"] = value


def _url_stage(value: JsonObject) -> str:
    states = [str(entry.get("urlRetrievalStatus")) for entry in objects(value.get("urlMetadata"))]
    return "failed" if states and not any(state.endswith("_SUCCESS") for state in states) else "completed"


def _on_continuation(s: State, value: str) -> None:
    """Kept in the session, to go on from."""
    s.continuation_token = value


def _kept(name: str) -> Callable[[State, Any], None]:
    def handler(s: State, value: Any) -> None:
        """Metadata of the `finish`."""
        s.metadata[name] = value

    return handler


def _read_first(s: State, value: Any) -> None:
    """`response-metadata`, once."""


def _first_candidate(s: State, value: int) -> None:
    """Tells the first candidate from the others."""


CHUNK_FIELDS: dict[str, FieldRow] = {
    "responseId": FieldRow(shapes.text, _read_first),
    "modelVersion": FieldRow(shapes.text, _read_first),
    "createTime": FieldRow(shapes.text, _read_first),
    "promptFeedback": FieldRow(shapes.one_object, _on_prompt_feedback),
    "candidates": FieldRow(shapes.objects, _on_candidates),
    "usageMetadata": FieldRow(shapes.one_object, _on_usage),
    "modelStatus": FieldRow(shapes.one_object, _kept("model_status")),
    "error": FieldRow(shapes.anything, _on_error),
}
"""Field of a chunk → how it is read, in this order."""

CANDIDATE_FIELDS: dict[str, FieldRow] = {
    "index": FieldRow(shapes.of(int), _first_candidate),
    "urlContextMetadata": FieldRow(shapes.one_object, _on_url_context, "url_context"),
    "content": FieldRow(shapes.one_object, _on_content),
    "citationMetadata": FieldRow(shapes.one_object, on_citations),
    "groundingMetadata": FieldRow(
        shapes.one_object, on_grounding, "google_search, file_search, google_maps or url_context"
    ),
    "finishReason": FieldRow(shapes.text, _on_finish_reason),
    "finishMessage": FieldRow(shapes.text, _kept("finish_message")),
    "safetyRatings": FieldRow(shapes.array, _kept("safety_ratings")),
    "avgLogprobs": FieldRow(shapes.of(float), _kept("avg_logprobs")),
    "logprobsResult": FieldRow(shapes.one_object, _kept("logprobs_result")),
    "tokenCount": FieldRow(shapes.of(int), _kept("token_count")),
    "continuationToken": FieldRow(shapes.text, _on_continuation),
}
"""Field of a candidate → how it is read, in this order."""


def read(s: State, value: JsonObject, fields: dict[str, FieldRow]) -> None:
    """Each field by its row; what is unknown or of the wrong shape is handed on raw."""
    for name, row in fields.items():
        content = value.get(name)
        if content is None:
            continue
        try:
            converted = row.read(content)
        except (msgspec.ValidationError, UnicodeError):  # the latter: half a surrogate pair of the wrong type
            s.raw({name: content})
            continue
        row.handler(s, converted)
    for name in value:
        if name not in fields:
            s.raw({name: value[name]})


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


class _NextText(Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    """A chunk that says nothing but more text, or more of a thought."""

    candidates: tuple[_Candidate]
    usage_metadata: dict[str, Any] | None = None
    model_version: str | None = None
    response_id: str | None = None
    create_time: str | None = None


_next_text = msgspec.json.Decoder(_NextText).decode


class GenerateContentDecoder:
    """Decodes one response, streamed or whole."""

    def __init__(self, context: DecodeContext) -> None:
        self._state = State(context)
        self._is_growing = False
        """True while a block of text or of thoughts is open."""

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """None: files come inline."""
        return ()

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one chunk; none for what is no JSON."""
        s = self._state
        # Rows of text are most of a stream: each goes on with the block of the one before.
        if self._is_growing and (parts := self._grown(data)) is not None:
            return parts
        if s.is_over:
            return []
        try:
            chunk = jsontext.loads(data)
        except (ValueError, RecursionError):
            return []
        self._chunk(chunk)
        self._is_growing = s.current is not None and s.error is None
        return self.close(s.error) if s.error is not None else self._taken()

    def _grown(self, data: bytes) -> list[StreamPart] | None:
        """The parts of a chunk of plain text or thought after another; None where it says more."""
        s = self._state
        try:
            chunk = _next_text(data)
        except (msgspec.DecodeError, UnicodeError):
            return None
        if chunk.response_id != s.response_id or chunk.model_version != s.model:
            return None
        if chunk.usage_metadata is not None:
            s.usage = chunk.usage_metadata
        part = chunk.candidates[0].content.parts[0]
        family = "reasoning" if part.thought else "text"
        if part.text and part.thought_signature is None and (more := s.more(family, part.text)) is not None:
            return [more]
        s.text(family, part.text, part.thought_signature)
        return self._taken()

    def _chunk(self, chunk: Any) -> None:
        s = self._state
        if not is_object(chunk) or not chunk:
            s.raw(chunk)
            return
        self._metadata(chunk)
        read(s, chunk, CHUNK_FIELDS)

    def _metadata(self, chunk: JsonObject) -> None:
        s = self._state
        s.response_id = some_text(chunk, "responseId") or s.response_id
        s.model = some_text(chunk, "modelVersion") or s.model
        if not s.has_metadata and (s.response_id or s.model):
            s.has_metadata = True
            s.out.append(ResponseMetadata(s.response_id, s.model, seconds_of(chunk.get("createTime")), PROVIDER_NAME))

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of a response that was not streamed: one chunk, or a list of them."""
        try:
            answer = jsontext.loads(body)
        except (ValueError, RecursionError):
            return self.close(Error("protocol", "the answer is not JSON"))
        s = self._state
        chunks: list[Any] = answer if is_array(answer) else [answer]
        for chunk in chunks:
            self._chunk(chunk)
        is_answer = any(is_object(chunk) and chunk.keys() & _OF_AN_ANSWER for chunk in chunks)
        if s.error is not None or not is_answer:
            return self.close(s.error or Error("protocol", "the answer is no response object"))
        return self._finish()

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Nothing more comes. Without a finish reason this is an error, never a success."""
        s = self._state
        if s.is_over:
            return []
        self._is_growing = False
        if error is None and (s.finish_reason is not None or s.block_reason is not None):
            return self._finish()
        s.is_over = True
        s.end_block()
        close_calls(s, is_over=False)
        failure = error or Error("truncated", "the stream ended before the response was complete", retryable=True)
        s.out.append(failure)
        s.out.append(Finish("error", outcome.usage_of(s.usage, s.server_tool_use), failure.kind))
        return self._taken()

    def _finish(self) -> list[StreamPart]:
        s = self._state
        s.is_over = True
        s.end_block()
        close_calls(s, is_over=True)
        s.tell_draft()
        reason, raw_reason = outcome.finish_reason(s)
        meaning = StepOutcome(
            message_metadata=outcome.message_metadata(s),
            is_paused=s.finish_reason == outcome.PAUSED,
            is_kept=bool(s.draft),
        )
        s.out.append(
            Finish(
                reason,
                outcome.usage_of(s.usage, s.server_tool_use),
                raw_reason,
                outcome.result_metadata(s),
                outcome=meaning,
            )
        )
        return self._taken()

    def _taken(self) -> list[StreamPart]:
        s = self._state
        out, s.out = s.out, []
        return out


_OF_AN_ANSWER = frozenset({"candidates", "promptFeedback", "usageMetadata"})

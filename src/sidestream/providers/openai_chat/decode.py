"""Chunks of a chat completion → parts: one table of fields, one pure decoder per answer.

Chunks have no types; what one says is in its fields. A message that comes whole has the fields of a delta.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.providers.openai_chat import content, growth, outcome, shapes, tool_calls
from sidestream.providers.openai_chat.context import DecodeContext
from sidestream.providers.openai_chat.state import State
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Error, Finish, ResponseMetadata, StreamPart


class FieldRow(Struct, frozen=True):
    """How one field of a delta is read."""

    read: Callable[[Any], Any]
    handler: Callable[[State, Any], None]
    unless: str | None = None
    """Another field that says the same."""
    may_be_late: bool = False
    """True: it may come after the finish reason."""


FIELDS: dict[str, FieldRow] = {
    "reasoning_content": FieldRow(shapes.text, content.on_reasoning),
    "reasoning": FieldRow(shapes.text, content.on_reasoning, unless="reasoning_content"),
    "reasoning_details": FieldRow(shapes.objects, content.on_reasoning_details),
    "content": FieldRow(shapes.text_or_objects, content.on_content),
    "refusal": FieldRow(shapes.text, content.on_refusal),
    "audio": FieldRow(shapes.one(shapes.AudioPiece), content.on_audio, may_be_late=True),
    "annotations": FieldRow(shapes.objects, content.on_annotations, may_be_late=True),
    "tool_calls": FieldRow(shapes.each(shapes.ToolCallPiece), tool_calls.on_tool_calls),
    "function_call": FieldRow(shapes.one(shapes.Function), tool_calls.on_function_call, unless="tool_calls"),
}
"""Field of a delta or message → how it is read, in this order. Any other that says something makes the chunk `raw`."""

PLACED = {
    "id": "`response-metadata`, once",
    "model": "`response-metadata`, once",
    "created": "`response-metadata`, once",
    "choices": "by the fields of the first choice's `delta` or `message`, see below; other choices are `raw`",
    "choices[].index": "tells the first choice from others",
    "choices[].delta": "by its fields, see below",
    "choices[].message": "by its fields, see below; in a stream only where nothing came before it",
    "choices[].finish_reason": "the reason of `finish`",
    "choices[].logprobs": "`provider_metadata` of the `text-delta` beside it; of other tokens, `finish` metadata",
    "choices[].usage": "as `usage`",
    "usage": "usage of `finish`; the last one counts",
    "error": "`error`, `finish`",
}
"""Field of a chunk or a choice → what becomes of it. All others are facts of the answer: `finish` metadata."""

IGNORED = {
    "object": "names the form that is known anyway",
    "obfuscation": "is padding against traffic analysis",
    "delta.role": "is always the model's",
}
"""Fields that become nothing, each with its reason."""

_PINGS = ("ping", "keepalive")


class CompletionsDecoder:
    """Decodes one chat completion, streamed or whole."""

    def __init__(self, context: DecodeContext) -> None:
        self._state = State(context)
        self._is_growing = False
        """True while the next chunk may just add to what is open."""

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """None: all that an answer makes is in it."""
        return ()

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one chunk; none for what is no JSON. `finish` comes with `close`, since usage comes last."""
        s = self._state
        # Rows of text are most of a stream: each goes on with the block of the one before.
        if self._is_growing and (part := growth.grown(s, data)) is not None:
            return [part]
        if s.is_over:
            return []
        try:
            event = jsontext.loads(data)
        except (ValueError, RecursionError):
            return []
        s.begin_event(event)
        _chunk(s, event)
        self._is_growing = growth.is_growing(s)
        return self._told()

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of an answer that was not streamed: one chunk, and the end."""
        s = self._state
        try:
            answer = jsontext.loads(body)
        except (ValueError, RecursionError):
            return self.close(Error("protocol", "the answer is not JSON"))
        s.begin_event(answer)
        s.is_whole = True
        _chunk(s, answer)
        if not s.is_over and s.choice is None:
            s.raw()
            _fail(s, Error("protocol", "the answer is no chat completion: it has no choices"))
        elif not s.is_over:
            _end(s)
        return self._told()

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Nothing more comes. Without a finish reason this is an error, never a success."""
        s = self._state
        if s.is_over:
            return []
        self._is_growing = False
        if error is None and s.finish_reason is not None:
            _end(s)
        else:
            message = "the stream ended before the answer was complete"
            _fail(s, error or Error("truncated", message, retryable=True))
        return self._told()

    def _told(self) -> list[StreamPart]:
        s = self._state
        out, s.out = s.out, []
        return out


def _chunk(s: State, event: Any) -> None:
    fields = jsontext.as_object(event)
    if fields.get("error") or fields.get("object") == "error":
        _fail(s, outcome.error_of(fields.get("error") or fields, "the server reported an error"))
        return
    if "choices" not in fields and "usage" not in fields:
        if fields.get("type") not in _PINGS:
            s.raw()
        return
    _metadata(s, fields)
    _keep(s, fields, _NO_FACTS)
    _usage(s, fields)
    choices = fields.get("choices")
    if choices is not None and not is_array(choices):
        s.raw()
    for choice in choices if is_array(choices) else ():
        if not is_object(choice):
            s.raw()
            continue
        index = choice.get("index")
        index = index if type(index) is int else 0
        s.choice = index if s.choice is None else s.choice
        if index == s.choice:
            _choice(s, choice)
        else:
            s.raw()


def _usage(s: State, fields: JsonObject) -> None:
    usage = fields.get("usage")
    if usage is None and "x_groq" in fields:
        usage = jsontext.as_object(fields["x_groq"]).get("usage")
    if is_object(usage):
        s.usage = usage


def _metadata(s: State, fields: JsonObject) -> None:
    """`response-metadata`; Azure's first chunk knows neither id nor model."""
    if s.has_metadata:
        return
    identity, model = (value if isinstance(value := fields.get(key), str) else "" for key in ("id", "model"))
    if not (identity or model):
        return
    s.has_metadata = True
    s.response_id = identity or None
    s.facts |= {"response_id": identity or None, "model": model or None}
    created = fields.get("created")
    time = created if isinstance(created, int | float) and not isinstance(created, bool) else None
    s.out.append(ResponseMetadata(identity or None, model or None, time, s.context.provider))


_OWN = frozenset({"response_id", "model", "status", "limit", "reached", "thinking", "logprobs"})
"""Names of our own metadata, which no field of a server replaces."""

_NO_FACTS = _OWN | IGNORED.keys() | {name for name in PLACED if "[" not in name}
_NO_FACTS_OF_CHOICE = _OWN | IGNORED.keys() | {name.partition("[].")[2] for name in PLACED}


def _keep(s: State, fields: JsonObject, others: frozenset[str]) -> None:
    """Facts of the answer; what is empty says nothing."""
    for name, value in fields.items():
        if name not in others and (value or value == 0):
            s.facts[name] = value


def _choice(s: State, choice: JsonObject) -> None:
    _keep(s, choice, _NO_FACTS_OF_CHOICE)
    _usage(s, choice)
    is_late = s.finish_reason is not None
    logprobs = choice.get("logprobs")
    s.logprobs = dict(logprobs) if is_object(logprobs) else {}
    delta, message = choice.get("delta"), choice.get("message")
    if is_object(delta) and delta:
        _delta(s, delta, is_late)
    elif is_object(message):
        _message(s, message)
    elif delta is not None and not is_object(delta):
        s.raw()
    if s.logprobs:
        content.keep_logprobs(s)
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason and not is_late:
        s.finish_reason = reason
    elif reason is not None and not isinstance(reason, str):
        s.raw()


def _message(s: State, message: JsonObject) -> None:
    """A whole message; at the end of a stream it repeats what came in pieces."""
    if s.texts or s.calls or s.reasoning_count:
        return
    is_whole, s.is_whole = s.is_whole, True
    _delta(s, message, is_late=False)
    s.is_whole = is_whole


def _delta(s: State, delta: JsonObject, is_late: bool) -> None:
    """Fields are first brought into their shapes; only then may a handler change the state."""
    found: list[tuple[FieldRow, Any]] = []
    for name, value in delta.items():
        row = FIELDS.get(name)
        if value is None or name == "role" or (row is not None and row.unless is not None and delta.get(row.unless)):
            continue
        if row is None:
            if value:
                s.raw()
            continue
        try:
            found.append((row, row.read(value)))
        except (msgspec.ValidationError, UnicodeError):  # the latter: half a surrogate pair of the wrong type
            s.raw()
    if len(found) > 1:
        found.sort(key=_order)
    for row, value in found:
        if not is_late or row.may_be_late:
            row.handler(s, value)
        elif value:
            s.raw()


_ROWS = list(FIELDS.values())


def _order(entry: tuple[FieldRow, Any]) -> int:
    return _ROWS.index(entry[0])


def _end(s: State) -> None:
    """The answer is complete: ends of what is open, calls, what was spoken, `finish`."""
    reason, raw_reason = outcome.finish_reason(s)
    if reason == "error":
        _fail(s, Error("provider", "the server says that the answer failed"))
        return
    s.end_reasoning()
    s.end_texts()
    tool_calls.end_calls(s, is_cut=reason in ("length", "content-filter"))
    content.end_audio(s)
    s.is_over = True
    facts = {name: value for name, value in s.facts.items() if value is not None}
    s.out.append(Finish(reason, outcome.usage_of(s.usage), raw_reason, facts))


def _fail(s: State, error: Error) -> None:
    """The answer broke off: what is open ends, and nothing of it is called."""
    s.end_reasoning()
    s.end_texts()
    tool_calls.end_inputs(s)
    s.is_over = True
    s.out += [error, Finish("error", outcome.usage_of(s.usage), error.kind)]

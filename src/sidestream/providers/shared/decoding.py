"""Base classes for decoders, rows of their event tables, and parsers for fields and tool inputs. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from sidestream import jsontext, limits
from sidestream.jsontext import JsonObject, is_array, is_object, text_in
from sidestream.messages.fold import Batch
from sidestream.messages.sessions import RequestHistory
from sidestream.parts import (
    TEXT_CORRECTED,
    Custom,
    Error,
    Finish,
    InputUsage,
    OutputUsage,
    Raw,
    ResponseMetadata,
    Stage,
    StreamPart,
    ToolCall,
    ToolEvent,
    Usage,
)
from sidestream.providers.protocol import FileRef
from sidestream.transport.calls import DONE, is_keep_alive, is_plain_keep_alive

NOT_JSON = (ValueError, RecursionError)
"""Exceptions that `jsontext.loads` raises."""

NOT_DELTA = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions that a typed decode raises for an event of another shape, or one that is nested too deeply for any."""

NOT_LIKE_DELTA = (*NOT_DELTA, AttributeError)
"""Exceptions that reading the fields of a typed event raises, too, if the event after the last delta has none."""

NOT_HOSTED_DELTA = (*NOT_DELTA, KeyError, TypeError)
"""Exceptions that reading the fields of an event raises, too, if it has others."""

UNREADABLE = (msgspec.ValidationError, UnicodeError)
"""Exceptions that a conversion raises. UnicodeError comes from a lone surrogate in a value of the wrong type."""

MAX_COUNT = 2**63 - 1
"""Largest accepted count, so that sums stay within the numbers that JSON can hold."""

CUSTOM_TOOL = "custom"
"""Portable name of all tools whose input is a string. `provider_tool` has the name of each."""
INCOMPLETE_INPUT = "the input is incomplete"


class TooManyEntries(Exception):
    """Raised inside a decoder if the response holds more than `limits.MAX_ENTRIES` entries."""


class DecodeContext(RequestHistory, frozen=True, kw_only=True):
    """Request data that a decoder needs. Recordings without it use the defaults."""

    model: str | None = None
    base_url: str | None = None


class EventRow(Struct, frozen=True):
    """The shape and handler of one event type. With `tool`, the event is also emitted as a tool event, first."""

    shape: Any
    handler: Callable[[Any, Any, JsonObject], None]
    tool: str | None = None


class FieldRow(Struct, frozen=True):
    """The reader and handler of one field. `tool` is the metadata key of its tool events."""

    read: Callable[[Any], Any]
    handler: Callable[[Any, Any], None]
    tool: str | None = None


def bare_error(rows: Mapping[str, EventRow], fields: JsonObject, key: str = "type") -> EventRow | None:
    """Return the `error` row for an untyped event that holds an error object, as some gateways send it."""
    return rows["error"] if key not in fields and fields.get("error") else None


class DecoderState:
    """The state of one response during decoding. Handlers change it and append to `out`."""

    TOOLS: ClassVar[Mapping[str, str]] = {}
    """Portable names of tools, by the provider's name, where they differ."""
    STAGES: ClassVar[Mapping[str, Stage]] = {}
    """Portable stages, by the provider's word for them."""

    has_metadata = False
    has_client_call = False
    error: Error | None = None
    """Error that the provider reported before the end."""
    fault: Error | None = None
    """Protocol fault that makes the response end in this error, even if its last event reports success."""
    has_second = False
    """Whether a second response has started in mid-stream. Its events are passed on as raw parts."""
    is_done = False
    """Whether the stream has sent `[DONE]`."""
    is_over = False

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.out: list[StreamPart] = []
        self.downloads: dict[Any, FileRef] = {}
        self.server_tool_use: dict[str, int] = {}
        self.open_calls: dict[str, ToolCall] = {}
        """Hosted calls without a result from earlier responses of the turn, by id."""
        self._owners: dict[str, object] = {}
        self._numbers: dict[str, int] = {}
        """Next suffix for each id that was requested more than once."""
        self._numbered: dict[tuple[str, int], str] = {}
        """Suffixed ids, by requested id and `id()` of the owner."""
        self._entries_left = limits.MAX_ENTRIES

    def count_entry(self) -> None:
        """Count a new block, item, call, source or file. Raises TooManyEntries above the limit."""
        self._entries_left -= 1
        if self._entries_left == -1:  # Raise only once: the handlers that end the response must not fail again.
            raise TooManyEntries

    def raw(self, event: Any) -> None:
        """Emit an unknown, unreadable or late event as a raw part."""
        if self.out:
            # Unknown events are not limited, but the entries within one event are.
            self.count_entry()
        self.out.append(Raw(self.provider, event))

    def unread(self, data: bytes) -> list[StreamPart]:
        """Return an event that cannot be read as a raw part."""
        return [Raw(self.provider, data.decode("utf-8", "replace"))]

    def unparsed(self, data: bytes) -> list[StreamPart]:
        """Return an event that is not JSON as a raw part, and make the response end in an error."""
        if self.fault is None:
            message = "an event of the stream is not valid JSON, so the response is incomplete"
            self.fault = Error("protocol", message, code="not-json", retryable=True)
        return self.unread(data[: limits.MAX_UNPARSED_BYTES])

    def second_answer(self, event: Any) -> None:
        """Handle a second response that starts before this one has ended, by passing on its events as raw parts."""
        self.has_second = True
        self.raw(event)
        if self.fault is None:
            message = "a second response started in mid-stream, so the first is incomplete"
            self.fault = Error("protocol", message, code="second-answer", retryable=True)

    def tool_event(
        self,
        tool: str,
        word: str,
        event: Any,
        call_id: str | None = None,
        index: int | None = None,
        stage: Stage | None = None,
    ) -> None:
        """Emit a tool event, given the provider's names of the tool and the stage."""
        stage = stage or self.STAGES[word]
        self.out.append(ToolEvent(self.portable(tool), stage, event, call_id, index, tool, word))

    def portable(self, tool: str) -> str:
        """Return the portable name of a hosted tool."""
        return self.TOOLS.get(tool, tool)

    def corrected(self, text_id: str) -> None:
        """Emit a notice that the final text of a block differs from the streamed text."""
        message = "The final text of the answer differs from the streamed text and replaces it."
        self.out.append(Custom(TEXT_CORRECTED, {"text_id": text_id, "message": message}))

    def response_metadata(self, identity: str | None, model: str | None, created: float | None = None) -> None:
        """Emit `response-metadata` once, as soon as the id or the model is known."""
        if not self.has_metadata and (identity is not None or model is not None):
            self.has_metadata = True
            self.out.append(ResponseMetadata(identity, model, created, self.provider))

    def unique_id(self, wanted: str, owner: object | None = None) -> str:
        """Return the id for an owner, with a number appended if another owner has it already."""
        owner = object() if owner is None else owner
        if self._owners.setdefault(wanted, owner) is owner:
            return wanted
        known = self._numbered.get((wanted, id(owner)))
        if known is not None:
            return known
        number = self._numbers.get(wanted, 1)
        while self._owners.setdefault(unique := f"{wanted}#{number}", owner) is not owner:
            number += 1
        self._numbers[wanted] = number + 1
        self._numbered[wanted, id(owner)] = unique
        return unique

    def count_call(self, tool: str, *, provider_executed: bool) -> None:
        """Count a hosted call for the usage, or note a client call for the finish reason."""
        if provider_executed:
            self.server_tool_use[tool] = self.server_tool_use.get(tool, 0) + 1
        else:
            self.has_client_call = True

    def answered_call(self, tool: str, call_id: str | None) -> ToolCall | None:
        """Remove and return the earlier call that a result belongs to. Without an id, that is the tool's last call."""
        if call_id is None:
            calls = reversed(self.open_calls.items())
            call_id = next((id for id, call in calls if (call.provider_tool or call.tool) == tool), None)
        return None if call_id is None else self.open_calls.pop(call_id, None)

    def end_with_error(self, error: Error, usage: Usage) -> None:
        """Emit the last parts of a failed response."""
        self.is_over = True
        self.out += (error, Finish("error", usage, error.kind))


StateT = TypeVar("StateT", bound=DecoderState)


ReadDeltas = Callable[[Any, Iterator[bytes], Batch], bytes | None]
"""Fast path of a decoder. It takes events that only add to the growing block, and appends their parts.

Returns the first event that does more, without having changed any state for it, or None at the end."""


def by_tables(growing: Any, events: Iterator[bytes], out: Batch) -> bytes | None:
    """Return the next event, so that every event is read by the tables. Used by decoders without a fast path."""
    return next(events, None)


class ResponseDecoder(ABC, Generic[StateT]):
    """Base class for decoders. A provider implements `_read_event`, `_read_whole` and `_end`."""

    LAST_EVENTS: ClassVar[frozenset[str]] = frozenset()
    """Event types that end a response. If empty, it ends with its stream."""

    def __init__(self, state: StateT, read_deltas: ReadDeltas = by_tables) -> None:
        self._state = state
        self.read_deltas = read_deltas
        self._growing: Any = None
        """Block that the last event opened or extended, if the next event may extend it."""

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """Files to fetch, without duplicates."""
        return tuple(self._state.downloads.values())

    def take_up(self, calls: Iterable[ToolCall]) -> None:
        """Register hosted calls of earlier responses whose results this one may hold."""
        self._state.open_calls = {call.id: call for call in calls}

    def feed(self, data: bytes) -> list[StreamPart]:
        """Decode one event. Returns no parts for a keep-alive."""
        out = Batch()
        self.feed_all((data,), out)
        return out.parts

    def feed_all(self, events: Iterable[bytes], out: Batch) -> None:
        """Decode events that came together, and append their parts."""
        rest, parts = iter(events), out.parts
        while True:
            # Most of a stream is consecutive deltas of one block.
            growing = self._growing
            data = next(rest, None) if growing is None else self.read_deltas(growing, rest, out)
            if data is None:
                return
            parts += self._feed(data)

    def _feed(self, data: bytes) -> list[StreamPart]:
        """Decode one event by the tables."""
        s, self._growing = self._state, None
        if s.is_over:
            return []
        if jsontext.is_too_deep(data):
            return s.unread(data)
        try:
            event = jsontext.loads(data)
        except jsontext.NumberTooLong:
            return s.unread(data)
        except NOT_JSON:
            s.is_done = s.is_done or data == DONE
            return [] if is_plain_keep_alive(data) else s.unparsed(data)
        try:
            if s.has_second:
                s.raw(event)
                if event_type(event) in self.LAST_EVENTS:
                    self._end(s, s.fault)
            else:
                self._growing = self._read_event(s, event)
        except TooManyEntries:
            self._end(s, too_many())
        out, s.out = s.out, []
        if s.is_over:
            _end_in_fault(s, out)
        elif out and type(out[0]) is Raw and is_keep_alive(event):
            return []
        return out

    def whole(self, body: bytes) -> list[StreamPart]:
        """Decode a non-streaming response."""
        s = self._state
        if jsontext.is_too_deep(body):
            return self.close(Error("protocol", f"the body nests deeper than {jsontext.MAX_DEPTH} levels"))
        try:
            answer = jsontext.loads(body)
        except jsontext.NumberTooLong as error:
            return self.close(Error("protocol", f"the body cannot be read: {error}"))
        except NOT_JSON:
            return self.close(Error("protocol", "the body is not JSON"))
        try:
            error = self._read_whole(s, answer)
        except TooManyEntries:
            error = too_many()
        if error is not None:
            return self.close(error)
        out, s.out = s.out, []
        _end_in_fault(s, out)
        return out

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """End the response. If the provider has not ended it, it ends in an error, never in success."""
        s = self._state
        if s.is_over:
            return []
        self._growing = None
        try:
            self._end(s, s.fault if error is None and s.has_second else error)
        except TooManyEntries:
            self._end(s, too_many())
        out, s.out = s.out, []
        if error is None:
            _end_in_fault(s, out)
        return out

    @abstractmethod
    def _read_event(self, s: StateT, event: Any) -> Any:
        """Decode one event by the tables. Returns the block that the fast path may extend, if any."""

    @abstractmethod
    def _read_whole(self, s: StateT, answer: Any) -> Error | None:
        """Decode a non-streaming response completely. Returns an error if it is not a response."""

    @abstractmethod
    def _end(self, s: StateT, error: Error | None) -> None:
        """Close open blocks, then emit the error, or `finish` if the response was complete."""


def _end_in_fault(s: DecoderState, out: list[StreamPart]) -> None:
    """Replace the end of a response by its protocol fault, unless the provider reported an error."""
    if s.fault is None or not out or not isinstance(last := out[-1], Finish):
        return
    if last.reason != "error":
        out[-1:] = [s.fault, Finish("error", last.usage, s.fault.kind)]
    elif isinstance(error := out[-2], Error) and error.kind == "truncated":
        out[-2:] = [s.fault, Finish("error", last.usage, s.fault.kind)]


def event_type(event: Any) -> str | None:
    """Return the type field of an event."""
    fields = jsontext.as_object(event)
    return text_in(fields, "type") or text_in(fields, "event_type")


def truncated() -> Error:
    """Return the error for a stream that ended too early."""
    return Error("truncated", "the stream ended before the response was complete", retryable=True)


def too_many() -> Error:
    """Return the error for a response with too many entries."""
    return Error("limit", f"the response has more than {limits.MAX_ENTRIES:,} blocks, calls, sources and files")


# Tool inputs


def parse_input(text: str | None) -> tuple[Any, str | None]:
    """Parse the input of a call into a value and an error message. Empty, blank and `null` input is an empty object."""
    if text is None or not text.strip() or text.strip() == "null":
        return {}, None
    if jsontext.is_too_deep(text):
        return None, f"the arguments nest deeper than {jsontext.MAX_DEPTH} levels"
    try:
        value = jsontext.loads(text)
    except jsontext.NumberTooLong as error:
        return None, f"the arguments cannot be read: {error}"
    except NOT_JSON as error:
        return None, f"the arguments are not JSON: {error}"
    if not isinstance(value, dict):
        return None, "the arguments are JSON but not an object"
    return cast(dict[str, Any], value), None


def input_fields(text: str, *, is_cut: bool = False) -> dict[str, Any]:
    """Return the `tool-call` fields for this input.

    Input that a limit cut off is an error even if it parses, since it may be half a command.
    """
    value, error = parse_input(text)
    if is_cut and error is None:
        error = INCOMPLETE_INPUT
    return {"input": value} if error is None else {"input_error": error, "input_text": text}


# Field readers: each returns the value if it has the right type, and raises ValidationError if not. A conversion by
# msgspec would copy the whole value.


def read_text(value: Any) -> str:
    """Return a string."""
    if isinstance(value, str):
        return value
    raise msgspec.ValidationError("not a string")


def read_object(value: Any) -> JsonObject:
    """Return an object."""
    if is_object(value):
        return value
    raise msgspec.ValidationError("not an object")


def read_array(value: Any) -> list[Any]:
    """Return an array."""
    if is_array(value):
        return value
    raise msgspec.ValidationError("not an array")


def read_objects(value: Any) -> list[JsonObject]:
    """Return an array of objects."""
    if is_array(value) and all(map(is_object, value)):
        return value
    raise msgspec.ValidationError("not an array of objects")


def reader(shape: Any) -> Callable[[Any], Any]:
    """Build a reader for values of this type."""
    return lambda value: msgspec.convert(value, shape)


def int_in(value: JsonObject, key: str) -> int | None:
    """Return the integer under a key, or None if it is missing or of another type."""
    found = value.get(key)
    return found if type(found) is int else None


def count_in(value: Any, key: str) -> int:
    """Return the count under a key, or 0 if it is missing, of another type or out of range."""
    found = value.get(key) if is_object(value) else None
    return found if type(found) is int and abs(found) <= MAX_COUNT else 0


def usd_in(value: JsonObject, key: str, unit: float = 1.0) -> float | None:
    """Return the cost under a key in US dollars, or None if it is missing, of another type or out of range."""
    found = value.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= MAX_COUNT:
        return None
    return round(found * unit, 12)


def seconds(value: Any) -> float | None:
    """Convert a time in seconds to a float, since huge integers do not survive JSON. Returns None if not a number."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def usage_from(
    raw: JsonObject,
    server_tool_use: dict[str, int],
    *,
    inputs: int,
    outputs: int,
    read: int = 0,
    written: int = 0,
    reasoning: int = 0,
    cost: float | None = None,
) -> Usage:
    """Build the usage from a provider's counts. `inputs` includes cache reads and writes.

    `cost` is what the provider says that the response costs, in US dollars.
    """
    return Usage(
        input=InputUsage(inputs, max(inputs - read - written, 0), read, written),
        output=OutputUsage(outputs, max(outputs - reasoning, 0), reasoning),
        server_tool_use=dict(server_tool_use),
        raw=raw or None,
        cost=cost,
    )

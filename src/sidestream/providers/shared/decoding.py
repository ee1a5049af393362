"""What decoders share: the frame around one response, rows of their tables, readers of fields and inputs. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from sidestream import jsontext, limits
from sidestream.jsontext import JsonObject, is_array, is_object, text_in
from sidestream.messages.sessions import RequestHistory
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import (
    TEXT_CORRECTED,
    Custom,
    Error,
    Finish,
    InputUsage,
    OutputUsage,
    Raw,
    ResponseMetadata,
    StreamPart,
    ToolCall,
    ToolEvent,
    Usage,
)
from sidestream.transport.calls import DONE, is_keep_alive, is_plain_keep_alive

NOT_JSON = (ValueError, RecursionError)
"""What `jsontext.loads` raises."""

UNREADABLE = (msgspec.ValidationError, UnicodeError)
"""What a conversion raises; UnicodeError if a value of the wrong type holds half a surrogate pair."""

MAX_COUNT = 2**63 - 1
"""Sums of what providers count must stay numbers that JSON can hold."""

INCOMPLETE_INPUT = "the input is incomplete"


class TooManyEntries(Exception):
    """The answer holds more than `limits.MAX_ENTRIES`. Never leaves the decoder."""


class DecodeContext(RequestHistory, frozen=True, kw_only=True):
    """Facts of the request that a decoder needs. A recording may not have them; then the defaults hold."""

    model: str | None = None
    base_url: str | None = None


class EventRow(Struct, frozen=True):
    """How one event type is read. An event with a `tool` becomes a tool event first, whatever else it becomes."""

    shape: Any
    handler: Callable[[Any, Any, JsonObject], None]
    tool: str | None = None


class FieldRow(Struct, frozen=True):
    """How one field is read. `tool` is the metadata key of its tool events."""

    read: Callable[[Any], Any]
    handler: Callable[[Any, Any], None]
    tool: str | None = None


def bare_error(rows: Mapping[str, EventRow], fields: JsonObject, key: str = "type") -> EventRow | None:
    """The row `error` for an event without a type that holds an error object, as gateways send it."""
    return rows["error"] if key not in fields and fields.get("error") else None


class DecoderState:
    """One response while it is decoded. Handlers read and change it and append to `out`."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.out: list[StreamPart] = []
        self.downloads: dict[Any, FileRef] = {}
        self.server_tool_use: dict[str, int] = {}
        self.has_metadata = False
        self.has_client_call = False
        self.error: Error | None = None
        """An error that the provider reported ahead of the end."""
        self.fault: Error | None = None
        """Why the answer cannot be trusted: it ends in this error, whatever its last event says."""
        self.has_second = False
        """True once another answer has begun in mid-stream; its events are passed on as they are."""
        self.is_done = False
        """True once the stream has said `[DONE]`."""
        self.is_over = False
        self.open_calls: dict[str, ToolCall] = {}
        """Hosted calls that earlier responses of the turn left without a result, by id."""
        self._owners: dict[str, object] = {}
        self._numbers: dict[str, int] = {}
        """For an id that was wanted more than once, the number that comes next."""
        self._numbered: dict[tuple[str, int], str] = {}
        """Ids with a number, by the id that was wanted and who has it."""
        self._entries_left = limits.MAX_ENTRIES

    def count_entry(self) -> None:
        """Counts a block, item, call, source or file that is about to begin. Raises TooManyEntries above the limit."""
        self._entries_left -= 1
        if self._entries_left == -1:  # Once: what ends the answer may not fail again.
            raise TooManyEntries

    def raw(self, event: Any) -> None:
        """Passes on what is unknown, unreadable or too late."""
        if self.out:
            # An unknown event is one part, however many come. What one event holds is counted.
            self.count_entry()
        self.out.append(Raw(self.provider, event))

    def unparsed(self, data: bytes) -> None:
        """Passes on the text of an event that is not JSON. What it said is missing, so the answer ends in an error."""
        self.raw(data[: limits.MAX_UNPARSED_BYTES].decode("utf-8", "replace"))
        if self.fault is None:
            message = "an event of the stream is not valid JSON, so the answer is incomplete"
            self.fault = Error("protocol", message, code="not-json", retryable=True)

    def second_answer(self, event: Any) -> None:
        """Another answer begins before this one has ended. It is passed on as it is, up to the end of the stream."""
        self.has_second = True
        self.raw(event)
        if self.fault is None:
            message = "a second answer began in mid-stream, so the first is incomplete"
            self.fault = Error("protocol", message, code="second-answer", retryable=True)

    def tool_event(
        self, tool: str, stage: str, event: Any, call_id: str | None = None, index: int | None = None
    ) -> None:
        """Reports a stage of a tool."""
        self.out.append(ToolEvent(tool, stage, event, call_id=call_id, output_index=index))

    def corrected(self, text_id: str) -> None:
        """Reports that the final text of a block differs from what was streamed."""
        message = "The final text of the answer differs from the streamed text and replaces it."
        self.out.append(Custom(TEXT_CORRECTED, {"text_id": text_id, "message": message}))

    def response_metadata(self, identity: str | None, model: str | None, created: float | None = None) -> None:
        """`response-metadata`, once, as soon as one of its facts is known."""
        if not self.has_metadata and (identity is not None or model is not None):
            self.has_metadata = True
            self.out.append(ResponseMetadata(identity, model, created, self.provider))

    def unique_id(self, wanted: str, owner: object | None = None) -> str:
        """This id, numbered if it belongs to another owner already."""
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
        """Counts a call: the provider's for the usage, the client's for the finish reason."""
        if provider_executed:
            self.server_tool_use[tool] = self.server_tool_use.get(tool, 0) + 1
        else:
            self.has_client_call = True

    def answered_call(self, tool: str, call_id: str | None) -> ToolCall | None:
        """Return the call of an earlier response that a result answers, once; without an id, the tool's last one."""
        if call_id is None:
            call_id = next((id for id, call in reversed(self.open_calls.items()) if call.tool == tool), None)
        return None if call_id is None else self.open_calls.pop(call_id, None)

    def end_with_error(self, error: Error, usage: Usage) -> None:
        """The last parts of a response that broke off."""
        self.is_over = True
        self.out += (error, Finish("error", usage, error.kind))


StateT = TypeVar("StateT", bound=DecoderState)


def by_tables(growing: Any, data: bytes) -> list[StreamPart] | None:
    """The fast path of a decoder without one: every event is read by its tables."""
    return None


class ResponseDecoder(ABC, Generic[StateT]):
    """Decodes one response, streamed or whole. A provider implements `_read_event`, `_read_whole` and `_end`."""

    LAST_EVENTS: ClassVar[frozenset[str]] = frozenset()
    """Types of events that end a response. Without any, it ends with its stream."""

    def __init__(self, state: StateT, read_delta: Callable[[Any, bytes], list[StreamPart] | None] = by_tables) -> None:
        self._state = state
        self.read_delta = read_delta
        """The fast path: the parts of an event that only adds to what grows; None, with nothing changed, if not."""
        self._growing: Any = None
        """What the last event opened or added to, if the next may just add to it."""

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """The files to fetch, once each."""
        return tuple(self._state.downloads.values())

    def take_up(self, calls: Iterable[ToolCall]) -> None:
        """Take hosted calls of earlier responses whose results this one may hold."""
        self._state.open_calls = {call.id: call for call in calls}

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one event; none if it only keeps the connection open."""
        # Rows of deltas are most of a stream: each adds to the block of the one before.
        growing = self._growing
        if growing is not None:
            read_delta = self.read_delta
            try:
                if (parts := read_delta(growing, data)) is not None:
                    return parts
            except RecursionError:
                pass  # It nests too deep: no delta. Nothing was changed before it was read.
        s, self._growing = self._state, None
        if s.is_over:
            return []
        if jsontext.is_too_deep(data):
            s.raw(data.decode("utf-8", "replace"))
        else:
            try:
                event = jsontext.loads(data)
            except jsontext.NumberTooLong:
                s.raw(data.decode("utf-8", "replace"))
            except NOT_JSON:
                if not is_plain_keep_alive(data):
                    s.unparsed(data)
                s.is_done = s.is_done or data == DONE
            else:
                self._read(s, event)
        out, s.out = s.out, []
        return out

    def _read(self, s: StateT, event: Any) -> None:
        try:
            if s.has_second:
                s.raw(event)
                if event_type(event) in self.LAST_EVENTS:
                    self._end(s, s.fault)
            else:
                self._growing = self._read_event(s, event)
        except TooManyEntries:
            self._end(s, too_many())
        if s.is_over:
            _end_in_fault(s)
        elif s.out and type(s.out[0]) is Raw and is_keep_alive(event):
            s.out.clear()

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of a response that was not streamed."""
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
        _end_in_fault(s)
        out, s.out = s.out, []
        return out

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Ends the response. Unless the provider ended it, this is an error, never a success."""
        s = self._state
        if s.is_over:
            return []
        self._growing = None
        try:
            self._end(s, s.fault if error is None and s.has_second else error)
        except TooManyEntries:
            self._end(s, too_many())
        if error is None:
            _end_in_fault(s)
        out, s.out = s.out, []
        return out

    @abstractmethod
    def _read_event(self, s: StateT, event: Any) -> Any:
        """Reads one event by the tables. Returns what the fast path may add to, if it may be tried next."""

    @abstractmethod
    def _read_whole(self, s: StateT, answer: Any) -> Error | None:
        """Reads a whole response to its end. Returns an error to close with if it is not a response."""

    @abstractmethod
    def _end(self, s: StateT, error: Error | None) -> None:
        """The stream is over: ends what is open, then the error, or `finish` if the response was complete."""


def _end_in_fault(s: DecoderState) -> None:
    """Turns the end of a response into the error that its stream deserves, unless the provider reported one."""
    last = s.out[-1] if s.out else None
    if s.fault is None or not isinstance(last, Finish):
        return
    if last.reason != "error":
        s.out[-1:] = [s.fault, Finish("error", last.usage, s.fault.kind)]
    elif isinstance(error := s.out[-2], Error) and error.kind == "truncated":
        s.out[-2:] = [s.fault, Finish("error", last.usage, s.fault.kind)]


def event_type(event: Any) -> str | None:
    """The type that an event states."""
    fields = jsontext.as_object(event)
    return text_in(fields, "type") or text_in(fields, "event_type")


def truncated() -> Error:
    """The error of a stream that ended too early."""
    return Error("truncated", "the stream ended before the response was complete", retryable=True)


def too_many() -> Error:
    """The error of an answer that holds more than any should."""
    return Error("limit", f"the answer has more than {limits.MAX_ENTRIES:,} blocks, calls, sources and files")


# Inputs of calls


def parse_input(text: str | None) -> tuple[Any, str | None]:
    """The input of a call and what is wrong with it. Nothing, `null` and blanks are an empty object."""
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
    """The fields of a `tool-call` with this input; if a limit cut it off, what looks whole may be half a command."""
    value, error = parse_input(text)
    if is_cut and error is None:
        error = INCOMPLETE_INPUT
    return {"input": value} if error is None else {"input_error": error, "input_text": text}


# Readers of fields: each returns the value if it has the right type, and raises ValidationError if not. A conversion
# by msgspec would copy all that is in it.


def read_text(value: Any) -> str:
    """Text."""
    if isinstance(value, str):
        return value
    raise msgspec.ValidationError("not a string")


def read_object(value: Any) -> JsonObject:
    """An object."""
    if is_object(value):
        return value
    raise msgspec.ValidationError("not an object")


def read_array(value: Any) -> list[Any]:
    """An array."""
    if is_array(value):
        return value
    raise msgspec.ValidationError("not an array")


def read_objects(value: Any) -> list[JsonObject]:
    """An array of objects."""
    if is_array(value) and all(map(is_object, value)):
        return value
    raise msgspec.ValidationError("not an array of objects")


def reader(shape: Any) -> Callable[[Any], Any]:
    """A reader of values of this type."""
    return lambda value: msgspec.convert(value, shape)


def int_in(value: JsonObject, key: str) -> int | None:
    """The integer under a key, None if there is none."""
    found = value.get(key)
    return found if type(found) is int else None


def count_in(value: Any, key: str) -> int:
    """The count under a key; what is missing, of another type or beyond any count is 0."""
    found = int_in(jsontext.as_object(value), key) or 0
    return found if abs(found) <= MAX_COUNT else 0


def seconds(value: Any) -> float | None:
    """A time in seconds, None if it is not a number. As a float: JSON would not give a huge integer back as it was."""
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
) -> Usage:
    """Usage from a provider's counts: `inputs` includes what was read from and written to the cache."""
    return Usage(
        input=InputUsage(inputs, max(inputs - read - written, 0), read, written),
        output=OutputUsage(outputs, max(outputs - reasoning, 0), reasoning),
        server_tool_use=dict(server_tool_use),
        raw=raw or None,
    )

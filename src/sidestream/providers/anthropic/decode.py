"""Messages events → parts: one table, one pure decoder per response."""

from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.providers.anthropic import growth, handlers, outcome, shapes
from sidestream.providers.anthropic.context import DecodeContext
from sidestream.providers.anthropic.state import BlockState, State
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Error, StreamPart


class EventRow(Struct, frozen=True):
    """How one event type is read."""

    shape: type[shapes.Event]
    handler: handlers.Handler


EVENTS: dict[str, EventRow] = {
    "message_start": EventRow(shapes.MessageStart, handlers.on_message_start),
    "content_block_start": EventRow(shapes.BlockStart, handlers.on_block_start),
    "content_block_delta": EventRow(shapes.BlockDelta, handlers.on_block_delta),
    "content_block_stop": EventRow(shapes.BlockStop, handlers.on_block_stop),
    "message_delta": EventRow(shapes.MessageDelta, handlers.on_message_delta),
    "message_stop": EventRow(shapes.Event, handlers.on_message_stop),
    "error": EventRow(shapes.ErrorEvent, handlers.on_error),
}
"""Event type → how it is read."""

IGNORED = {"ping": "keeps the connection open and says nothing"}
"""Events that become no part, each with its reason."""

_GROWING = ("content_block_start", "content_block_delta")
"""Events after which the block may go on growing."""


class MessagesDecoder:
    """Decodes one response, streamed or whole."""

    def __init__(self, context: DecodeContext) -> None:
        self._state = State(context)
        self._growing: BlockState | None = None
        """The block that the last event began or added to, if the next may just add to it."""

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """The files that code made, once each."""
        return tuple(self._state.downloads.values())

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one event; none for what is no JSON."""
        # Rows of deltas are most of a stream: each goes on with the block of the one before.
        block = self._growing
        if block is not None and (parts := growth.grown(block, data)) is not None:
            return parts
        self._growing = None
        if self._state.is_over:
            return []
        try:
            event = jsontext.loads(data)
        except (ValueError, RecursionError):
            return []
        self._event(event)
        return self._taken()

    def _event(self, event: Any) -> None:
        fields = jsontext.as_object(event)
        kind = str(fields.get("type"))
        row = EVENTS.get(kind)
        if row is None and "type" not in fields and fields.get("error"):
            # Gateways put a bare error object into the stream.
            row = EVENTS["error"]
        if row is None:
            if kind not in IGNORED:
                self._state.raw(event)
            return
        s = self._state
        try:
            row.handler(s, msgspec.convert(event, row.shape), fields)
        except (msgspec.ValidationError, UnicodeError):  # the latter: half a surrogate pair of the wrong type
            s.raw(event)
            return
        if kind in _GROWING:
            self._growing = growth.growing(s, fields["index"])

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of a response that was not streamed: a message that holds its blocks when it starts."""
        s = self._state
        try:
            answer = jsontext.loads(body)
        except (ValueError, RecursionError):
            return self.close(Error("protocol", "the answer is not JSON"))
        message = jsontext.as_object(answer)
        if not isinstance(message.get("content"), list):
            s.raw(answer)
            return self.close(outcome.error_of(message.get("error"), "the answer is no message"))
        handlers.on_message_start(s, shapes.MessageStart(message=message), message)
        handlers.finish(s)
        return self._taken()

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Nothing more comes. Without the provider's own end this is an error, never a success."""
        if self._state.is_over:
            return []
        self._growing = None
        missing = Error("truncated", "the stream ended before the response was complete", retryable=True)
        handlers.fail(self._state, error or missing)
        return self._taken()

    def _taken(self) -> list[StreamPart]:
        out, self._state.out = self._state.out, []
        return out

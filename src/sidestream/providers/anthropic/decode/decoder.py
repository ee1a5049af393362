"""Messages events → parts: one table, one pure decoder per response."""

from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode import fast_path, handlers, outcome, shapes
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState
from sidestream.providers.shared.decoding import UNREADABLE, EventRow, ResponseDecoder, bare_error, truncated
from sidestream.stream.parts import Error

EVENTS: dict[str, EventRow] = {
    "message_start": EventRow(shapes.MessageStart, handlers.on_message_start),
    "content_block_start": EventRow(shapes.BlockStart, handlers.on_block_start),
    "content_block_delta": EventRow(shapes.BlockDelta, handlers.on_block_delta),
    "content_block_stop": EventRow(shapes.BlockStop, handlers.on_block_stop),
    "message_delta": EventRow(shapes.MessageDelta, handlers.on_message_delta),
    "message_stop": EventRow(shapes.MessageStop, handlers.on_message_stop),
    "error": EventRow(shapes.MessagesError, handlers.on_error),
}
"""Event type → how it is read."""

IGNORED = {"ping": "keeps the connection open and says nothing"}
"""Events that become no part, each with its reason."""


class MessagesDecoder(ResponseDecoder[MessagesState]):
    """Decodes one message."""

    LAST_EVENTS = frozenset({"message_stop", "error"})

    def __init__(self, context: MessagesContext) -> None:
        super().__init__(MessagesState(context), fast_path.read_delta)

    def _read_event(self, s: MessagesState, event: Any) -> BlockState | None:
        fields = jsontext.as_object(event)
        kind = str(fields.get("type"))
        row = EVENTS.get(kind) or bare_error(EVENTS, fields)
        if row is None:
            if kind not in IGNORED:
                s.raw(event)
            return None
        try:
            row.handler(s, msgspec.convert(event, row.shape), fields)
        except UNREADABLE:
            s.raw(event)
            return None
        return fast_path.growing_block(s, fields["index"]) if kind in fast_path.OPENERS else None

    def _read_whole(self, s: MessagesState, answer: Any) -> Error | None:
        """A message that holds its blocks when it starts."""
        message = jsontext.as_object(answer)
        if not isinstance(message.get("content"), list):
            s.raw(answer)
            return outcome.error_of(message.get("error"), "the body is not a message")
        handlers.on_message_start(s, shapes.MessageStart(message=message), message)
        handlers.finish(s)
        return None

    def _end(self, s: MessagesState, error: Error | None) -> None:
        handlers.fail(s, error or truncated())

"""Codec for Responses over WebSocket, which carries several multiplexed streams per connection. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_object, text_in
from sidestream.providers.openai.responses.decode.outcome import RATE_LIMITS, RETRYABLE
from sidestream.transport.calls import FrameHead, HttpCall, LaneFailure, SteerProgress, SteerReport

LAST_TYPES: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"}
)
"""Types of events that end a response."""

STEER_TYPES: Final[Mapping[str, SteerProgress]] = {
    "response.steer.accepted": "accepted",
    "response.steer.pending": "pending",
    "response.steer.failed": "failed",
}
"""Status of a user message to a running response, by event type."""

PLAIN_HEADS: Final = tuple(
    b'{"type":%b"response.%b.delta"' % (space, kind)
    for kind in (b"output_text", b"function_call_arguments", b"reasoning_summary_text")
    for space in (b"", b" ")
)

USED_UP: Final = frozenset({"websocket_connection_limit_reached", "websocket_stream_limit_reached"})
"""Error codes that a new connection resolves: the old one is too old or has used all its streams."""

NOT_SENT: Final = ("stream", "background")
"""Request fields without meaning over WebSocket, where every response is streamed and none runs in the background."""

_STATUSES: Final[Mapping[str, int]] = {
    **dict.fromkeys(RETRYABLE, 500),
    **dict.fromkeys(RATE_LIMITS, 429),
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_error": 429,
    "previous_response_not_found": 400,
    "invalid_stream_id": 400,
}
"""HTTP statuses for errors without one, by error code or type."""


class _Head(FrameHead, kw_only=True, gc=False):
    lane: str | None = field(default=None, name="stream_id")


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ResponsesSocket(Struct, frozen=True, kw_only=True):
    """The WebSocket mode of the Responses API, with the limits of OpenAI's service."""

    max_lanes: int = 32
    max_active: int = 16
    max_age_s: float = 55 * 60.0
    """Age at which a connection is replaced. The service closes it after an hour, and most responses take under five
    minutes."""
    last_types: frozenset[str] = LAST_TYPES
    steer_types: frozenset[str] = frozenset(STEER_TYPES)
    plain_heads: tuple[bytes, ...] = PLAIN_HEADS

    def request(self, call: HttpCall) -> Callable[[str], bytes] | None:
        """Return an encoder for `response.create`, given a stream id, or None if the call needs HTTP.

        Non-streaming and background responses, and all other calls, need HTTP.
        """
        if call.method != "POST" or not call.stream or call.body is None:
            return None
        if not call.url.partition("?")[0].rstrip("/").endswith("/responses"):
            return None
        try:
            fields = _decode_fields(call.body)
        except (msgspec.DecodeError, UnicodeError):
            return None  # lone surrogates, which only HTTP can carry
        if bytes(fields.get("background", b"")).strip() == b"true":
            return None
        kept = {name: value for name, value in fields.items() if name not in NOT_SENT}
        return lambda lane: jsontext.dumps({"type": "response.create", "stream_id": lane, **kept})

    def tails(self, lane: str) -> tuple[bytes, ...]:
        """Return the possible endings of a message of this stream, with `stream_id` as the last field.

        A match is reliable, since quotes inside JSON strings are escaped.
        """
        return f',"stream_id":"{lane}"}}'.encode(), f', "stream_id": "{lane}"}}'.encode()

    def head(self, message: bytes) -> FrameHead:
        """Parse the type and `stream_id` of a message."""
        try:
            return _decode_head(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _lenient_head(message)

    def steer_report(self, message: bytes) -> SteerReport | None:
        """Parse a `response.steer.*` event, or an `error` from a server that does not support steering."""
        event = _event_in(message)
        steer, error = as_object(event.get("steer")), as_object(event.get("error"))
        status = "failed" if event.get("type") == "error" else STEER_TYPES.get(str(event.get("type")))
        if status is None:
            return None
        return SteerReport(
            status=status,
            id=text_in(steer, "id"),
            response_id=text_in(steer, "previous_response_id"),
            code=text_in(error, "code") or text_in(error, "type"),
            message=text_in(error, "message") or "",
        )

    def failure(self, message: bytes) -> LaneFailure | None:
        """Parse an `error` event. Its status is its own or derived from its code. Returns None for other events."""
        event = _event_in(message)
        error = as_object(event.get("error"))
        if event.get("type") != "error" or not error:
            return None
        code, kind = error.get("code"), error.get("type")
        status: Any = event.get("status")
        if not isinstance(status, int) or not 400 <= status <= 599:
            status = _STATUSES.get(str(code)) or _STATUSES.get(str(kind))
        ends_connection = code in USED_UP
        if status is None and not ends_connection:
            return None
        headers = {str(name).lower(): str(value) for name, value in as_object(error.get("headers")).items()}
        body = jsontext.dumps({"error": error})
        return LaneFailure(status=status or 429, headers=headers, body=body, ends_connection=ends_connection)


def _event_in(message: bytes) -> JsonObject:
    return jsontext.object_in(message) or {}


def _lenient_head(message: bytes) -> FrameHead:
    """Parse a message that msgspec refuses, e.g. for invalid UTF-8 or a field of another type."""
    event = _event_in(message)
    kind, lane = event.get("type"), event.get("stream_id")
    return FrameHead(type=kind if isinstance(kind, str) else "", lane=lane if isinstance(lane, str) else None)


RESPONSES_WEBSOCKET: Final = ResponsesSocket()

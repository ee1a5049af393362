"""Responses over WebSocket: the messages of a connection, and what they say of its lanes. Pure."""

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
"""Events after which a response is over."""

STEER_TYPES: Final[Mapping[str, SteerProgress]] = {
    "response.steer.accepted": "accepted",
    "response.steer.pending": "pending",
    "response.steer.failed": "failed",
}
"""Events about a message to a response in progress → what they say of it."""

PLAIN_HEADS: Final = tuple(
    b'{"type":%b"response.%b.delta"' % (space, kind)
    for kind in (b"output_text", b"function_call_arguments", b"reasoning_summary_text")
    for space in (b"", b" ")
)

USED_UP: Final = frozenset({"websocket_connection_limit_reached", "websocket_stream_limit_reached"})
"""Codes of errors that a new connection remedies: it is an hour old, or has used all its lanes."""

NOT_SENT: Final = ("stream", "background")
"""Fields of a request that have no meaning here: everything is streamed, nothing runs in the background."""

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
"""Code or type of an error without a status → the status that HTTP has for it."""


class _Head(FrameHead, kw_only=True, gc=False):
    lane: str | None = field(default=None, name="stream_id")


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ResponsesSocket(Struct, frozen=True, kw_only=True):
    """The WebSocket mode of the Responses API, with the limits of OpenAI's service."""

    max_lanes: int = 32
    max_active: int = 16
    max_age_s: float = 55 * 60.0
    """The service closes a connection after an hour; most responses complete within five minutes."""
    last_types: frozenset[str] = LAST_TYPES
    steer_types: frozenset[str] = frozenset(STEER_TYPES)
    plain_heads: tuple[bytes, ...] = PLAIN_HEADS

    def request(self, call: HttpCall) -> Callable[[str], bytes] | None:
        """`response.create`. Responses that are whole or in the background, and all other calls, need HTTP."""
        if call.method != "POST" or not call.stream or call.body is None:
            return None
        if not call.url.partition("?")[0].rstrip("/").endswith("/responses"):
            return None
        try:
            fields = _decode_fields(call.body)
        except (msgspec.DecodeError, UnicodeError):
            return None  # lone surrogates, which only HTTP carries as they are
        if bytes(fields.get("background", b"")).strip() == b"true":
            return None
        kept = {name: value for name, value in fields.items() if name not in NOT_SENT}
        return lambda lane: jsontext.dumps({"type": "response.create", "stream_id": lane, **kept})

    def tails(self, lane: str) -> tuple[bytes, ...]:
        """`stream_id` as the last field: in valid JSON, a key and a value right before the last brace are the event's
        own, since quotes inside of texts are escaped."""
        return f',"stream_id":"{lane}"}}'.encode(), f', "stream_id": "{lane}"}}'.encode()

    def head(self, message: bytes) -> FrameHead:
        """Type and `stream_id`."""
        try:
            return _decode_head(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _lenient_head(message)

    def steer_report(self, message: bytes) -> SteerReport | None:
        """A `response.steer.*` event; also an `error` in place of one, from a server that knows no such messages."""
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
        """An `error` event, by its status, or that of its code."""
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
    """For what msgspec refuses, such as invalid UTF-8, or fields of another type."""
    event = _event_in(message)
    kind, lane = event.get("type"), event.get("stream_id")
    return FrameHead(type=kind if isinstance(kind, str) else "", lane=lane if isinstance(lane, str) else None)


RESPONSES_WEBSOCKET: Final = ResponsesSocket()

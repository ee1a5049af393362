"""Log messages about a run, with milestones at level INFO and the events of its streams at level DEBUG."""

import logging

from sidestream.errors import RunError
from sidestream.jsontext import as_object, loads
from sidestream.logs import get_logger
from sidestream.parts import Custom, FinishReason
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.protocol import ChatModel, Encoded
from sidestream.providers.shared.continuation import FALLBACK
from sidestream.transport.calls import HttpResponse, WrappedResponse
from sidestream.turn.state import TurnState

log = get_logger(__name__)

_TYPE_FIELDS = ("type", "event_type", "object")
"""Fields in which the APIs name the type of an event."""
_ID_HEADERS = ("x-request-id", "request-id")
"""Headers with the id of a request in the server's own logs."""


def log_session(encoded: Encoded) -> None:
    """Log whether the request continues the session that the provider holds, or resends the history."""
    if encoded.first:
        log.info("session anchored: the server holds the first %d messages", encoded.first)
    for notice in encoded.notices:
        if isinstance(notice, Custom) and notice.kind == FALLBACK:
            log.info("session not continued, history resent: %s", as_object(notice.data).get("reason"))


def log_sent(model: ChatModel, purpose: str, response: HttpResponse) -> None:
    """Log that a request was sent, and that its answer begins to arrive."""
    if log.isEnabledFor(logging.INFO):
        headers = {name.lower(): value for name, value in response.headers.items()}
        request_id = next((headers[name] for name in _ID_HEADERS if name in headers), "unknown")
        log.info(
            "request sent to %s:%s for %s: request id %s, status %d",
            model.provider,
            model.name,
            purpose,
            request_id,
            response.status,
        )


def log_refused(purpose: str, error: RunError) -> None:
    """Log that a request failed."""
    log.info("request for %s failed: %s (status %s)", purpose, type(error).__name__, error.status)


def log_embedded(result: EmbeddingsResult, requests: int, seconds: float) -> None:
    """Log that texts were embedded."""
    log.info(
        "embeddings finished: %d vectors in %d requests, %d input tokens, %.3f s",
        len(result.vectors),
        requests,
        result.usage.input.total,
        seconds,
    )


def log_ended(state: TurnState, reason: FinishReason | None, error: RunError | None, seconds: float) -> None:
    """Log that the run has finished, or waits."""
    log.info(
        "run %s finished: %s after %d steps, %d input and %d output tokens, %.3f s",
        state.run_id,
        reason if error is None else f"{reason} ({type(error).__name__})",
        state.step + 1,
        state.usage.input.total,
        state.usage.output.total,
        seconds,
    )


def log_left(state: TurnState) -> None:
    """Log that the run was abandoned."""
    log.info("run %s abandoned after %d steps", state.run_id, state.step + 1)


def logged(response: HttpResponse) -> HttpResponse:
    """Return the response, wrapped to log its events if the log level is DEBUG."""
    return _LoggedResponse(response) if log.isEnabledFor(logging.DEBUG) else response


class _LoggedResponse(WrappedResponse):
    """A response that logs the type and size of each event read from it, never its content."""

    async def events(self) -> list[bytes]:
        """Return the data of the next events."""
        events = await self._inner.events()
        for event in events:
            log.debug("event %s (%d bytes)", _type_in(event), len(event))
        return events

    async def body(self) -> bytes:
        """Return the whole body."""
        body = await self._inner.body()
        log.debug("non-streaming response (%d bytes)", len(body))
        return body


def type_of(event: object) -> str:
    """Return the provider's type of an event, or `?` if it has none."""
    named = (as_object(event).get(field) for field in _TYPE_FIELDS)
    return next((name for name in named if isinstance(name, str)), "?")[:100]


def _type_in(data: bytes) -> str:
    try:
        return type_of(loads(data))
    except (ValueError, RecursionError):
        return "that is not JSON"

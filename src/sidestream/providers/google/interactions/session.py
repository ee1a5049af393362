"""Where a request goes on from: the newest session of the history, or its beginning, and why."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream.jsontext import is_object
from sidestream.messages.message import ChatMessage
from sidestream.messages.sessions import DIGEST, Anchor, find_anchor, history_digest, is_unchanged
from sidestream.providers.google.interactions.context import SESSION_KEY
from sidestream.providers.google.interactions.options import GoogleInteractionsOptions
from sidestream.providers.google.values import some_text
from sidestream.providers.protocol import ModelRequest
from sidestream.stream.parts import Custom, StreamPart

FALLBACK = "sidestream.session-fallback"

REASONS = {
    "model-changed": "The conversation went on with another model, so it was sent again in full.",
    "base-url-changed": "The conversation went on at another server, so it was sent again in full.",
    "message-edited": "The last answer was edited, so the conversation was sent again in full.",
    "history-edited": "Earlier messages were edited, so the conversation was sent again in full.",
    "refused": "The server no longer has the earlier interaction, so the conversation was sent again in full.",
}
"""Why a session was not used → in words."""


class Start(Struct, frozen=True, kw_only=True):
    """The first message to send, what the server holds of those before it, and what the stream must say of it."""

    index: int = 0
    previous_id: str | None = None
    notices: tuple[StreamPart, ...] = ()


def fallback_notice(reason: str) -> Custom:
    """Says in the stream that a session could not be used."""
    return Custom(FALLBACK, {"reason": reason, "message": REASONS[reason]})


def continue_from(request: ModelRequest, options: GoogleInteractionsOptions, model: str, base_url: str) -> Start:
    """Where to go on. What the options name wins over what the history holds."""
    messages = request.messages
    if options.previous_interaction_id is not None:
        index = _index_after(messages, options.previous_interaction_id)
        return Start(index=index, previous_id=options.previous_interaction_id)
    if options.store is False or "session" in request.without:
        return Start()
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or some_text(anchor.session, "interaction_id") is None:
        return Start()
    reason = _unusable(anchor, messages, model, base_url)
    if reason is not None:
        return Start(notices=(fallback_notice(reason),))
    return Start(index=anchor.index + 1, previous_id=anchor.session["interaction_id"])


def _index_after(messages: Sequence[ChatMessage], interaction_id: str) -> int:
    for index in range(len(messages) - 1, -1, -1):
        session = messages[index].metadata.get(SESSION_KEY)
        if is_object(session) and session.get("interaction_id") == interaction_id:
            return index + 1
    return 0


def _unusable(anchor: Anchor, messages: Sequence[ChatMessage], model: str, base_url: str) -> str | None:
    """Why the session does not fit. What it does not say of itself is not held against it."""
    session, index = anchor.session, anchor.index
    checks = {
        "model-changed": session.get("model") not in (None, model),
        "base-url-changed": session.get("base_url") not in (None, base_url),
        "message-edited": DIGEST in session and not is_unchanged(messages[index], session),
        "history-edited": session.get("history") not in (None, history_digest(messages[:index])),
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def last_environment(messages: Sequence[ChatMessage], base_url: str) -> str | None:
    """The newest environment that the conversation used on this server."""
    for message in reversed(messages):
        session: Any = message.metadata.get(SESSION_KEY)
        if is_object(session) and session.get("base_url") in (None, base_url):
            found = some_text(session, "environment_id")
            if found is not None:
                return found
    return None

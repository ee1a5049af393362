"""Where a request continues: after the newest session of the history, or at its beginning."""

from collections.abc import Sequence
from typing import Any

from sidestream.jsontext import is_object
from sidestream.messages.message import ChatMessage
from sidestream.messages.sessions import find_anchor
from sidestream.providers.google.interactions.context import SESSION_KEY
from sidestream.providers.google.interactions.options import GoogleInteractionsOptions
from sidestream.providers.google.values import some_text
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.continuation import SessionStart, find_session, mismatch, start_after


def continue_from(request: ModelRequest, options: GoogleInteractionsOptions, model: str, base_url: str) -> SessionStart:
    """Where to continue. A session that the options name wins over one in the history."""
    messages = request.messages
    previous = options.previous_interaction_id
    if previous is not None:
        return start_after(find_session(messages, SESSION_KEY, "interaction_id", previous), previous)
    if options.store is False:
        return SessionStart()
    if "session" in request.without:
        return SessionStart(reason="refused")
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or some_text(anchor.session, "interaction_id") is None:
        return SessionStart()
    reason = mismatch(anchor, messages, model, base_url)
    return start_after(anchor, anchor.session["interaction_id"]) if reason is None else SessionStart(reason=reason)


def last_environment(messages: Sequence[ChatMessage], base_url: str) -> str | None:
    """The newest environment that the conversation used on this server."""
    for message in reversed(messages):
        session: Any = message.metadata.get(SESSION_KEY)
        if is_object(session) and session.get("base_url") in (None, base_url):
            found = some_text(session, "environment_id")
            if found is not None:
                return found
    return None

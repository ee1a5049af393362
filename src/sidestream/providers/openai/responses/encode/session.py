"""Where a request continues: after the newest session of the history, or at its beginning."""

from collections.abc import Sequence
from typing import Any

from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.messages.message import ApprovalPart, ChatMessage, ToolResultPart
from sidestream.messages.sessions import find_anchor
from sidestream.providers.openai.responses.context import SESSION_KEY
from sidestream.providers.openai.responses.encode.answers import answer, answer_key
from sidestream.providers.openai.responses.options import OpenAIResponsesOptions
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.continuation import SessionStart, find_session, mismatch, start_after


def continue_from(
    request: ModelRequest, options: OpenAIResponsesOptions, model: str, base_url: str, *, names_container: bool
) -> SessionStart:
    """Where to continue. A session that the options name wins over one in the history.

    `names_container`: a tool names its container. If none does, a container that is gone was one of the session's own.
    """
    messages = request.messages
    previous = options.previous_response_id
    if previous is not None:
        return start_after(find_session(messages, SESSION_KEY, "response_id", previous), previous)
    if options.conversation is not None:
        return start_after(find_session(messages, SESSION_KEY, "conversation", options.conversation), None)
    if options.store is False:
        return SessionStart()
    if "session" in request.without:
        return SessionStart(reason="refused")
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or not isinstance(anchor.session.get("response_id"), str):
        return SessionStart()
    reason = mismatch(anchor, messages, model, base_url)
    if reason is None and not _answerable(anchor.session, messages[anchor.index + 1 :]):
        reason = "call-unanswered"
    if reason is None and "container" in request.without and not names_container:
        reason = "container-gone"
    return start_after(anchor, anchor.session["response_id"]) if reason is None else SessionStart(reason=reason)


def _answerable(session: JsonObject, later: Sequence[ChatMessage]) -> bool:
    """False if the server holds a pending call that has no answer and for which none can be made up."""
    answers = (part for message in later for part in message.parts if isinstance(part, ToolResultPart | ApprovalPart))
    results = {part.id: part for part in answers}
    return all(
        item.get("type") == "mcp_approval_request" or answer(item, results.get(answer_key(item))) is not None
        for item in objects(session.get("pending_items"))
    )


def last_container(messages: Sequence[ChatMessage], keys: tuple[str, ...], base_url: str) -> str | None:
    """The newest container that the conversation used on this server."""
    for message in reversed(messages):
        for session in (message.metadata.get(key) for key in keys):
            if is_object(session) and session.get("base_url") in (None, base_url):
                found = session.get("container_id") or _container_in(session)
                if isinstance(found, str):
                    return found
    return None


def _container_in(session: JsonObject) -> Any:
    return next(
        (item["container_id"] for item in reversed(objects(session.get("items"))) if item.get("container_id")), None
    )

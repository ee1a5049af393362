"""Where a request goes on from: the newest session of the history, or its beginning, and why."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.messages.message import ApprovalPart, ChatMessage, ToolResultPart
from sidestream.messages.sessions import DIGEST, Anchor, find_anchor, history_digest, is_unchanged
from sidestream.providers.openai_responses.context import SESSION_KEY
from sidestream.providers.openai_responses.encode_answers import answer, answer_key
from sidestream.providers.openai_responses.options import OpenAIResponsesOptions
from sidestream.providers.protocol import ModelRequest
from sidestream.stream.parts import Custom, StreamPart

FALLBACK = "sidestream.session-fallback"
CONTAINER_REPLACED = "sidestream.container-replaced"

REASONS = {
    "model-changed": "The conversation went on with another model, so it was sent again in full.",
    "base-url-changed": "The conversation went on at another server, so it was sent again in full.",
    "message-edited": "The last answer was edited, so the conversation was sent again in full.",
    "history-edited": "Earlier messages were edited, so the conversation was sent again in full.",
    "container-gone": "A container of earlier turns is gone, so the conversation was sent again without it.",
    "call-unanswered": "A call that cannot go without an answer had none, so the conversation was sent again in full.",
    "refused": "The server no longer has the earlier response, so the conversation was sent again in full.",
}
"""Why a session was not used → in words."""


class Start(Struct, frozen=True, kw_only=True):
    """The first message to send, what the server holds of those before it, and what the stream must say of it."""

    index: int = 0
    previous_response_id: str | None = None
    pending: list[JsonObject] = []
    notices: tuple[StreamPart, ...] = ()


def fallback_notice(reason: str) -> Custom:
    """Says in the stream that a session could not be used."""
    return Custom(FALLBACK, {"reason": reason, "message": REASONS[reason]})


def continue_from(
    request: ModelRequest, options: OpenAIResponsesOptions, model: str, base_url: str, *, names_container: bool
) -> Start:
    """Where to go on. What the options name wins over what the history holds.

    `names_container`: a tool names its container. If none does, a container that is gone was one of the session's own.
    """
    messages = request.messages
    if options.previous_response_id is not None:
        known = _find(messages, "response_id", options.previous_response_id)
        return _after(known, options.previous_response_id)
    if options.conversation is not None:
        return _after(_find(messages, "conversation", options.conversation), None)
    if options.store is False or "session" in request.without:
        return Start()
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or not isinstance(anchor.session.get("response_id"), str):
        return Start()
    reason = _unusable(anchor, messages, model, base_url)
    if reason is None and "container" in request.without and not names_container:
        reason = "container-gone"
    if reason is not None:
        return Start(notices=(fallback_notice(reason),))
    return _after(anchor, anchor.session["response_id"])


def _after(anchor: Anchor | None, response_id: str | None) -> Start:
    if anchor is None:
        return Start(previous_response_id=response_id)
    return Start(
        index=anchor.index + 1,
        previous_response_id=response_id,
        pending=objects(anchor.session.get("pending_items")),
    )


def _find(messages: Sequence[ChatMessage], field: str, value: str) -> Anchor | None:
    for index in range(len(messages) - 1, -1, -1):
        session = messages[index].metadata.get(SESSION_KEY)
        if is_object(session) and session.get(field) == value:
            return Anchor(index, session)
    return None


def _unusable(anchor: Anchor, messages: Sequence[ChatMessage], model: str, base_url: str) -> str | None:
    """Why the session does not fit. What it does not say of itself is not held against it."""
    session, index = anchor.session, anchor.index
    checks = {
        "model-changed": session.get("model") not in (None, model),
        "base-url-changed": session.get("base_url") not in (None, base_url),
        "message-edited": DIGEST in session and not is_unchanged(messages[index], session),
        "history-edited": session.get("history") not in (None, history_digest(messages[:index])),
        "call-unanswered": not _answerable(session, messages[index + 1 :]),
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def _answerable(session: JsonObject, later: Sequence[ChatMessage]) -> bool:
    """False if a call waits on the server for which there is no answer, nor can one be made up."""
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

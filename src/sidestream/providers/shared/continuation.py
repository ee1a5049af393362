"""Sessions that a provider's server holds: where a request continues, and what it reports if it cannot. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import Replays
from sidestream.messages.sessions import DIGEST, Anchor, history_digest, is_unchanged
from sidestream.providers.protocol import Recovery
from sidestream.stream.parts import Custom

FALLBACK = "sidestream.session-fallback"
CONTAINER_REPLACED = "sidestream.container-replaced"

REASONS = {
    "model-changed": "The conversation continues with another model",
    "base-url-changed": "The conversation continues on another server",
    "message-edited": "The last answer was edited",
    "history-edited": "Earlier messages were edited",
    "setup-changed": "The system prompt or the tools changed",
    "container-gone": "A container of earlier turns is gone, and what ran in it is left out",
    "call-unanswered": "A call that requires an answer had none",
    "refused": "The server no longer has the earlier answer",
    "log-missing": "The log that holds items of earlier answers is not available",
}
"""Why a session was not used → the beginning of the message in the stream."""
_IN_FULL = "the conversation was sent again in full"
_REDUCED = "the conversation was sent again as its texts, files, calls and results, without the items of hosted tools"


class SessionStart(Struct, frozen=True, kw_only=True):
    """The first message to send, and what the server holds of those before it."""

    index: int = 0
    previous_id: str | None = None
    pending: list[JsonObject] = []
    """Items on the server that need an answer."""
    reason: str | None = None
    """Why a session of the history is not used."""


def fallback_notice(reason: str, message: str | None = None, *, is_reduced: bool = False) -> Custom:
    """Reports in the stream that a session could not be used, and whether the request is complete without it."""
    message = message or f"{REASONS[reason]}: {_REDUCED if is_reduced else _IN_FULL}."
    return Custom(FALLBACK, {"reason": reason, "message": message} | ({"is_reduced": True} if is_reduced else {}))


def replay_notices(reason: str | None, replays: Replays) -> tuple[Custom, ...]:
    """What the stream must report of a replay; `reason` says why the session was not used, where there is one."""
    if reason is None and not replays.is_reduced:
        return ()
    return (fallback_notice(reason or "log-missing", is_reduced=replays.is_reduced),)


_NEW_CONTAINER = "The container of the earlier turns is gone; the tool continues in a new one, without its files."
SESSION_REFUSED = Recovery("session")
"""The request that follows reports it: only then it is known what the replay holds."""
CONTAINER_REFUSED = Recovery("container", Custom(CONTAINER_REPLACED, {"reason": "refused", "message": _NEW_CONTAINER}))


def start_after(anchor: Anchor | None, previous_id: str | None) -> SessionStart:
    """Sends what follows a session; the whole history if it does not hold that session."""
    if anchor is None:
        return SessionStart(previous_id=previous_id)
    pending = objects(anchor.session.get("pending_items"))
    return SessionStart(index=anchor.index + 1, previous_id=previous_id, pending=pending)


def find_session(messages: Sequence[ChatMessage], key: str, field: str, value: str) -> Anchor | None:
    """The newest session in which a field has this value."""
    for index in range(len(messages) - 1, -1, -1):
        session = messages[index].metadata.get(key)
        if is_object(session) and session.get(field) == value:
            return Anchor(index, session)
    return None


def mismatch(anchor: Anchor, messages: Sequence[ChatMessage], model: str, base_url: str) -> str | None:
    """Why a session does not fit the request; None if it fits. What the session does not record is not compared."""
    session, index = anchor.session, anchor.index
    if session.get("model") not in (None, model):
        return "model-changed"
    if session.get("base_url") not in (None, base_url):
        return "base-url-changed"
    if DIGEST in session and not is_unchanged(messages[index], session):
        return "message-edited"
    if session.get("history") not in (None, history_digest(messages[:index])):
        return "history-edited"
    return None

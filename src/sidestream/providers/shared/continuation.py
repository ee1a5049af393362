"""Sessions on a provider's server: where a request continues, and notices for sessions that cannot be used. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import Replays
from sidestream.messages.sessions import DIGEST, FORKED, Anchor, history_digest, is_unchanged
from sidestream.parts import Custom
from sidestream.providers.protocol import UPLOADS, Recovery

FALLBACK = "sidestream.session-fallback"
CONTAINER_REPLACED = "sidestream.container-replaced"

REASONS = {
    "model-changed": "The conversation continues with another model",
    "base-url-changed": "The conversation continues on another server",
    "message-edited": "The last answer was edited",
    "history-edited": "Earlier messages were edited",
    "setup-changed": "The system prompt or the tools changed",
    "container-gone": "A container of earlier turns no longer exists, so what ran in it is left out",
    "forked": "A fork does not use what its original has at the provider, so what ran in its containers is left out",
    "call-unanswered": "A call that requires an answer has none",
    "refused": "The server no longer has the earlier answer",
    "log-missing": "The log that holds items of earlier answers is not available",
}
"""Beginning of the message in the stream, by the reason why a session was not used."""
_IN_FULL = "the conversation was sent again in full"
_REDUCED = "the conversation was sent again as text, files, calls and results, without the items of hosted tools"


class SessionStart(Struct, frozen=True, kw_only=True):
    """The first message to send, and the session that holds the earlier ones."""

    index: int = 0
    previous_id: str | None = None
    pending: list[JsonObject] = []
    """Items on the server that need a response."""
    reason: str | None = None
    """Reason why a session of the history is not used."""


def fallback_notice(reason: str, message: str | None = None, *, is_reduced: bool = False) -> Custom:
    """Return the notice that a session could not be used, and whether the request is incomplete without it."""
    message = message or f"{REASONS[reason]}: {_REDUCED if is_reduced else _IN_FULL}."
    return Custom(FALLBACK, {"reason": reason, "message": message} | ({"is_reduced": True} if is_reduced else {}))


def replay_notices(reason: str | None, replays: Replays) -> tuple[Custom, ...]:
    """Return the notices about resent messages. `reason` says why a session was not used, if there was one."""
    if reason is None and not replays.is_reduced:
        return ()
    return (fallback_notice(reason or "log-missing", is_reduced=replays.is_reduced),)


_NEW_CONTAINER = (
    "The container of the earlier turns no longer exists. The tool continues in a new one, without its variables and "
    "with the files of the conversation."
)
_LEFT_CONTAINER = (
    "The container of the earlier turns belongs to the conversation that was forked. The tool continues in a new one, "
    "without its variables and with the files of the conversation."
)
_EXPIRED_FILE = "A file of an earlier turn has expired at the provider, so the files were uploaded again."
UPLOADS_REFUSED = Recovery(UPLOADS, Custom(FALLBACK, {"reason": "file-expired", "message": _EXPIRED_FILE}))
SESSION_REFUSED = Recovery("session")
"""Has no notice: the next request emits it, since only then is it known what can be resent."""
CONTAINER_REFUSED = Recovery("container", Custom(CONTAINER_REPLACED, {"reason": "refused", "message": _NEW_CONTAINER}))


def start_after(anchor: Anchor | None, previous_id: str | None) -> SessionStart:
    """Continue after a session's message, or from the first message if the history does not contain the session."""
    if anchor is None:
        return SessionStart(previous_id=previous_id)
    pending = objects(anchor.session.get("pending_items"))
    return SessionStart(index=anchor.index + 1, previous_id=previous_id, pending=pending)


class LastContainer(NamedTuple):
    """The newest container that a conversation used."""

    id: str | None = None
    """None means that there is none to use."""
    is_left: bool = False
    """Whether there is one that belongs to the conversation that this one was forked from."""

    @property
    def notices(self) -> tuple[Custom, ...]:
        """Notices that the container is not used."""
        return (Custom(CONTAINER_REPLACED, {"reason": "forked", "message": _LEFT_CONTAINER}),) if self.is_left else ()


def last_container(
    messages: Sequence[ChatMessage], keys: Sequence[str], base_url: str, field: str = "container_id"
) -> LastContainer:
    """Return the newest container that the conversation used on this server."""
    for message in reversed(messages):
        for session in (message.metadata.get(key) for key in keys):
            if is_object(session) and session.get("base_url") in (None, base_url):
                found = session.get(field) or _container_in(session)
                if isinstance(found, str):
                    return LastContainer(is_left=True) if session.get(FORKED) else LastContainer(found)
    return LastContainer()


def _container_in(session: JsonObject) -> Any:
    return next(
        (item["container_id"] for item in reversed(objects(session.get("items"))) if item.get("container_id")), None
    )


def find_session(messages: Sequence[ChatMessage], key: str, field: str, value: str) -> Anchor | None:
    """Find the newest session in which a field has this value."""
    for index in range(len(messages) - 1, -1, -1):
        session = messages[index].metadata.get(key)
        if is_object(session) and session.get(field) == value:
            return Anchor(index, session)
    return None


def mismatch(anchor: Anchor, messages: Sequence[ChatMessage], model: str, base_url: str) -> str | None:
    """Return why a session does not match the request, or None if it does. Unrecorded fields are not compared."""
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

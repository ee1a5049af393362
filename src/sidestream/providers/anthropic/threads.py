"""Message threads: the server holds the conversation, and a request sends only new messages.

The answer's session stores a digest of the system prompt and tools, which only the request that creates a thread can
set. If they changed, or the history was edited, a new thread is created from the whole conversation.
"""

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import ChatMessage
from sidestream.messages.sessions import Anchor, find_anchor
from sidestream.providers.anthropic.context import SESSION_KEY, THREAD, THREAD_SESSION
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.continuation import find_session, mismatch

UNSUPPORTED = "unsupported"
"""Session note after the server refused to hold the conversation."""
CREATE_ONLY = ("system", "tools")
"""Parameters that a continued thread already has. They must not be repeated."""


class ThreadStart(Struct, frozen=True, kw_only=True):
    """The thread of a request, and the messages that it needs."""

    parameter: JsonObject | None = None
    first: int = 0
    """Index of the first message to send."""
    begin: int = 0
    """Index of the first message of its turn, whose calls may still be pending."""
    note: str | None = None
    """Note for the session of the answer."""
    reason: str | None = None
    """Reason why a thread of the history is not continued."""

    @property
    def is_continued(self) -> bool:
        """Whether the server holds all messages before the first."""
        return self.parameter is not None and self.parameter["type"] == "continue"


def start_thread(
    request: ModelRequest, chosen: str | None, tools: list[JsonObject], model: str, base_url: str
) -> ThreadStart:
    """Continue the thread of the history, or the chosen one, else create one."""
    if chosen is None:
        return ThreadStart()
    messages = request.messages
    anchor = find_anchor(messages, SESSION_KEY)
    known = anchor.session.get(THREAD) if anchor is not None else None
    if THREAD in request.without or known == UNSUPPORTED:
        return ThreadStart(note=UNSUPPORTED)
    digest = blake2b(jsontext.dumps([request.system, tools]), digest_size=8).hexdigest()
    created = ThreadStart(parameter={"type": "create"}, note=digest)
    if chosen == "create":
        return created
    if THREAD_SESSION in request.without:
        return ThreadStart(parameter=created.parameter, note=digest, reason="refused")
    message_id = anchor.session.get("message_id") if anchor is not None else None
    if anchor is not None and known is not None and isinstance(message_id, str):
        reason = mismatch(anchor, messages, model, base_url) or (None if known == digest else "setup-changed")
        if reason is not None:
            return ThreadStart(parameter=created.parameter, note=digest, reason=reason)
        return _continued(messages, anchor, message_id, digest)
    if chosen == "auto":
        return created
    return _continued(messages, find_session(messages, SESSION_KEY, "message_id", chosen), chosen, digest)


def _continued(messages: Sequence[ChatMessage], anchor: Anchor | None, message_id: str, note: str) -> ThreadStart:
    parameter: JsonObject = {"type": "continue", "previous_message_id": message_id}
    if anchor is None:
        return ThreadStart(parameter=parameter, note=note)
    turn = (place for place in range(anchor.index, -1, -1) if messages[place].role == "user")
    return ThreadStart(parameter=parameter, first=anchor.index + 1, begin=next(turn, 0), note=note)


def is_continuable(stop_reason: object, kinds: Sequence[str]) -> bool:
    """Return whether the thread holds an answer. It holds no refusals, and no answers of fallback models."""
    return stop_reason != "refusal" and "fallback" not in kinds


def is_paused(messages: Sequence[ChatMessage]) -> bool:
    """Return whether the last message is a paused answer, which an empty request resumes."""
    session = messages[-1].metadata.get(SESSION_KEY) if messages else None
    return is_object(session) and session.get("stop_reason") == "pause_turn"

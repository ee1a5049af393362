"""Sessions: finding the anchor in a history, and knowing whether the history before it is still the same.

A session is a dict under a private metadata key (`_…_session`) of a model message. Only the provider that wrote a key
reads it.
"""

import weakref
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.messages import ChatMessage, MessagePart

SUFFIX = "_session"
DIGEST = "digest"

_known: dict[int, tuple["weakref.ref[ChatMessage]", bytes]] = {}
# Messages are frozen, so a digest stays true for the object's life; the weak reference guards against a reused id().


class Anchor(Struct, frozen=True):
    """The newest session in a history and where it stands."""

    index: int
    session: dict[str, Any]


def is_session_key(key: str) -> bool:
    """True for metadata keys that hold a session."""
    return key.startswith("_") and key.endswith(SUFFIX)


def find_anchor(messages: Sequence[ChatMessage], key: str) -> Anchor | None:
    """The newest message with this session; the scan stops there, whoever wrote the messages behind it."""
    for index in range(len(messages) - 1, -1, -1):
        session = messages[index].metadata.get(key)
        if isinstance(session, dict):
            return Anchor(index, session)  # pyright: ignore[reportUnknownArgumentType]
    return None


def stamp(metadata: dict[str, Any], parts: tuple[MessagePart, ...]) -> dict[str, Any]:
    """The same metadata, each session marked with a digest of the message it belongs to."""
    return {
        key: {**value, DIGEST: _digest("model", parts).hex()}
        if is_session_key(key) and isinstance(value, dict)
        else value
        for key, value in metadata.items()
    }


def is_unchanged(message: ChatMessage, session: dict[str, Any]) -> bool:
    """True if the message still has the parts it was stamped with."""
    return session.get(DIGEST) == message_digest(message).hex()


def message_digest(message: ChatMessage) -> bytes:
    """A digest of role and parts; metadata does not count."""
    identity = id(message)
    known = _known.get(identity)
    if known is not None and known[0]() is message:
        return known[1]
    digest = _digest(message.role, message.parts)
    _known[identity] = (weakref.ref(message, lambda _: _known.pop(identity, None)), digest)
    return digest


def history_digest(messages: Sequence[ChatMessage]) -> str:
    """A digest of a run of messages, in order."""
    chain = blake2b(digest_size=16)
    for message in messages:
        chain.update(message_digest(message))
    return chain.hexdigest()


def _digest(role: str, parts: tuple[MessagePart, ...]) -> bytes:
    return blake2b(jsontext.dumps((role, parts)), digest_size=16).digest()

"""Provider sessions in a history, and digests that tell whether the history before a session has changed.

A session is a dict under a private metadata key (`_…_session`) of a model message. Only the provider that wrote a key
reads it.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.jsontext import is_object
from sidestream.messages.message import ChatMessage, DataPart, MessagePart

if TYPE_CHECKING:
    import hashlib

SUFFIX = "_session"
DIGEST = "digest"
FORKED = "forked"
"""Session field that marks a message of the conversation that this one was forked from."""

_known: dict[int, tuple["weakref.ref[ChatMessage]", bytes]] = {}
# Messages are frozen, so a digest is valid for the object's life; the weak reference guards against a reused id().


class RequestHistory(Struct, frozen=True, kw_only=True, gc=False):
    """The messages that a request was made from, to recognise them later."""

    messages: tuple[ChatMessage, ...] | None = None

    @property
    def history(self) -> str | None:
        """The digest of the messages, computed on demand because many answers never need it."""
        return None if self.messages is None else history_digest(self.messages)


class Anchor(Struct, frozen=True):
    """The newest session in a history and its position."""

    index: int
    session: dict[str, Any]


def is_session_key(key: str) -> bool:
    """Return whether a metadata key holds a session."""
    return key.startswith("_") and key.endswith(SUFFIX)


def find_anchor(messages: Sequence[ChatMessage], key: str) -> Anchor | None:
    """Return the newest session under this key, regardless of who wrote the messages after it."""
    for index in range(len(messages) - 1, -1, -1):
        metadata = messages[index].metadata
        if metadata and isinstance(session := metadata.get(key), dict):
            return Anchor(index, session)  # pyright: ignore[reportUnknownArgumentType]
    return None


def stamp(metadata: dict[str, Any], parts: tuple[MessagePart, ...]) -> dict[str, Any]:
    """Return the metadata with each session marked with a digest of its message."""
    return {
        key: {**value, DIGEST: _digest("model", parts).hex()}
        if is_session_key(key) and isinstance(value, dict)
        else value
        for key, value in metadata.items()
    }


def forked(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with each session marked as one of the conversation that this one was forked from.

    They stay as they are if no session names a container or a conversation, which both would change.
    """
    sessions = [value for message in messages for key, value in message.metadata.items() if is_session_key(key)]
    if not any(is_object(session) and session.keys() & _SHARED for session in sessions):
        return [*messages]
    return [
        replace(message, metadata={key: _forked(key, value) for key, value in message.metadata.items()})
        if message.metadata
        else message
        for message in messages
    ]


_SHARED = frozenset({"container_id", "environment_id", "conversation"})
"""Session fields that name what a request changes at the provider."""


def _forked(key: str, value: Any) -> Any:
    return {**value, FORKED: True} if is_session_key(key) and is_object(value) else value


def is_unchanged(message: ChatMessage, session: dict[str, Any]) -> bool:
    """Return whether the message still has the parts it was stamped with."""
    return session.get(DIGEST) == message_digest(message).hex()


def message_digest(message: ChatMessage) -> bytes:
    """Return a digest of role and parts, without metadata."""
    identity = id(message)
    known = _known.get(identity)
    if known is not None and known[0]() is message:
        return known[1]
    digest = _digest(message.role, message.parts)
    _known[identity] = (weakref.KeyedRef(message, _forget, identity), digest)
    return digest


def _forget(reference: "weakref.KeyedRef[int, ChatMessage]") -> None:
    _known.pop(reference.key, None)
    _chains.pop(reference.key, None)


class _Chain(Struct, frozen=True):
    """A digest of all messages before one, cached while that one lives, because histories grow at the end."""

    message: "weakref.ref[ChatMessage]"
    before: tuple[ChatMessage, ...]
    state: Any


_chains: dict[int, _Chain] = {}
_MAX_CHAINS = 256
_LOOK_BACK = 8
"""Maximum messages that a turn may add before the digest is computed from scratch."""


def history_digest(messages: Sequence[ChatMessage]) -> str:
    """Return a digest of messages, in order."""
    if len(messages) <= _LOOK_BACK:
        # Too short to cache.
        return _blake2b(b"".join(map(message_digest, messages))).hexdigest()
    history = tuple(messages)
    start, state = _known_beginning(history)
    chain = state.copy()
    # The last message is often new; the one before it is still there in the next turn.
    end = len(history) - 2
    if start < end:
        for message in history[start:end]:
            chain.update(message_digest(message))
        kept, start = history[end], end
        _chains[id(kept)] = _Chain(weakref.KeyedRef(kept, _forget, id(kept)), history[:end], chain.copy())
        while len(_chains) > _MAX_CHAINS:
            _chains.pop(next(iter(_chains)), None)
    for message in history[start:]:
        chain.update(message_digest(message))
    return chain.hexdigest()


def _known_beginning(history: tuple[ChatMessage, ...]) -> tuple[int, Any]:
    """Return how many of the first messages have a cached digest, and the digest's state."""
    for index in range(len(history) - 1, max(len(history) - 1 - _LOOK_BACK, -1), -1):
        known = _chains.get(id(history[index]))
        # Tuple comparison checks identity first, in C.
        if known is not None and known.message() is history[index] and known.before == history[:index]:
            return index, known.state
    return 0, _blake2b()


def _digest(role: str, parts: tuple[MessagePart, ...]) -> bytes:
    if role == "model" and DataPart in map(type, parts):
        # Only a provider's own items hold the files of an answer, so their destination is not compared.
        parts = tuple(replace(part, to="model") if type(part) is DataPart else part for part in parts)
    return _blake2b(jsontext.dumps((role, parts))).digest()


def _blake2b(data: bytes = b"") -> "hashlib.blake2b":
    # Importing hashlib loads OpenSSL, which takes a tenth of the time to import an agent.
    import hashlib

    return hashlib.blake2b(data, digest_size=16)

"""Provider sessions in a history, and digests that tell whether the history before a session has changed.

A session is a dict under a private metadata key (`_…_session`) of a model message. Only the provider that wrote a key
reads it.
"""

import weakref
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.files import media_types
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
    for back, message in enumerate(reversed(messages), 1):
        if message.metadata and isinstance(session := message.metadata.get(key), dict):
            return Anchor(len(messages) - back, session)  # pyright: ignore[reportUnknownArgumentType]
    return None


def stamp(metadata: dict[str, Any], digest: bytes) -> dict[str, Any]:
    """Return the metadata with each session marked with the digest of its message."""
    return {
        key: {**value, DIGEST: digest.hex()} if isinstance(value, dict) and is_session_key(key) else value
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
    known = _known.get(id(message))
    if known is not None and known[0]() is message:
        return known[1]
    digest = digest_of(message.role, message.parts)
    remember(message, digest)
    return digest


def remember(message: ChatMessage, digest: bytes) -> None:
    """Cache the digest of a message."""
    identity = id(message)
    _known[identity] = (weakref.ref(message, partial(_forget, _known, identity)), digest)


def _forget(entries: dict[int, Any], identity: int, reference: "weakref.ref[ChatMessage]") -> None:
    # A new message may have the id by now, and an entry of its own.
    if (known := entries.get(identity)) is not None and known[0] is reference:
        del entries[identity]


class _Chain(NamedTuple):
    """A digest of messages, cached while the last of them lives, because histories grow at the end."""

    last: "weakref.ref[ChatMessage]"
    before: tuple[ChatMessage, ...]
    """The messages before the last one."""
    state: Any
    digest: str


_chains: dict[int, _Chain] = {}
_MAX_CHAINS = 256
_LOOK_BACK = 8
"""Maximum messages that a turn may add before the digest is computed from scratch."""


def history_digest(messages: Sequence[ChatMessage]) -> str:
    """Return a digest of messages, in order."""
    count = len(messages)
    if count <= _LOOK_BACK:
        # Too short to cache.
        return _blake2b(b"".join(map(message_digest, messages))).hexdigest()
    history = tuple(messages)
    known = _known_beginning(history)
    if known is None:
        start, state = 0, _blake2b()
    elif (start := len(known.before) + 1) == count:
        return known.digest
    else:
        state = known.state.copy()
    if start == 0:
        # The last message may be new in each turn; the one before it is still there.
        state.update(b"".join(map(message_digest, history[:-1])))
        _cache(history[:-1], state)
        start, state = count - 1, state.copy()
    for message in history[start:]:
        state.update(message_digest(message))
    return _cache(history, state)


def _cache(history: tuple[ChatMessage, ...], state: Any) -> str:
    """Cache the digest of a history, and return it."""
    last, digest = history[-1], state.hexdigest()
    identity = id(last)
    _chains[identity] = _Chain(weakref.ref(last, partial(_forget, _chains, identity)), history[:-1], state, digest)
    if len(_chains) > _MAX_CHAINS:
        _chains.pop(next(iter(_chains)), None)
    return digest


def _known_beginning(history: tuple[ChatMessage, ...]) -> _Chain | None:
    """Return the cached digest of the beginning of a history that lacks only its last messages, if there is one."""
    for index in range(len(history) - 1, len(history) - 1 - _LOOK_BACK, -1):
        known = _chains.get(id(history[index]))
        # Tuple comparison checks identity first, in C.
        if known is not None and known.last() is history[index] and known.before == history[:index]:
            return known
    return None


def digest_of(role: str, parts: tuple[MessagePart, ...]) -> bytes:
    """Return a digest of a message with this role and these parts."""
    if DataPart not in map(type, parts):
        return _blake2b(jsontext.dumps((role, parts))).digest()
    # Content counts by its digest, which is known already if the file has just arrived.
    contents = [media_types.digest(part.data) for part in parts if isinstance(part, DataPart)]
    # Only a provider's own items hold the files of an answer, so their destination is not compared.
    changes: dict[str, Any] = {"data": b"", "to": "model"} if role == "model" else {"data": b""}
    parts = tuple(replace(part, **changes) if isinstance(part, DataPart) else part for part in parts)
    return _blake2b(jsontext.dumps((role, parts, contents))).digest()


def _blake2b(data: bytes = b"") -> "hashlib.blake2b":
    return _hash()(data, digest_size=16)


@cache
def _hash() -> "type[hashlib.blake2b]":
    # Importing hashlib loads OpenSSL, which takes a tenth of the time to import an agent.
    import hashlib

    return hashlib.blake2b

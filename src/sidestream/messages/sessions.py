"""Sessions: finding the anchor in a history, and knowing whether the history before it is still the same.

A session is a dict under a private metadata key (`_…_session`) of a model message. Only the provider that wrote a key
reads it.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.messages.message import ChatMessage, MessagePart

if TYPE_CHECKING:
    import hashlib

SUFFIX = "_session"
DIGEST = "digest"

_known: dict[int, tuple["weakref.ref[ChatMessage]", bytes]] = {}
# Messages are frozen, so a digest stays true for the object's life; the weak reference guards against a reused id().


class RequestHistory(Struct, frozen=True, kw_only=True, gc=False):
    """The messages that a request was made from, for those who must know them again later."""

    messages: tuple[ChatMessage, ...] | None = None

    @property
    def history(self) -> str | None:
        """Their digest, computed on demand: many answers never need it."""
        return None if self.messages is None else history_digest(self.messages)


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
        metadata = messages[index].metadata
        if metadata and isinstance(session := metadata.get(key), dict):
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
    _known[identity] = (weakref.KeyedRef(message, _forget, identity), digest)
    return digest


def _forget(reference: "weakref.KeyedRef[int, ChatMessage]") -> None:
    _known.pop(reference.key, None)
    _chains.pop(reference.key, None)


class _Chain(Struct, frozen=True):
    """The digest of the messages before one, kept as long as that one lives: a long history grows at its end."""

    message: "weakref.ref[ChatMessage]"
    before: tuple[ChatMessage, ...]
    state: Any


_chains: dict[int, _Chain] = {}
_MAX_CHAINS = 256
_LOOK_BACK = 8
"""How many messages a turn may add before its digest is computed from scratch."""


def history_digest(messages: Sequence[ChatMessage]) -> str:
    """A digest of a run of messages, in order."""
    if len(messages) <= _LOOK_BACK:
        # Not worth remembering.
        return _blake2b(b"".join(map(message_digest, messages))).hexdigest()
    history = tuple(messages)
    start, state = _known_beginning(history)
    chain = state.copy()
    # The last message is often new each time; the one before it is what the next turn has too.
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
    """How many of the first messages are known to be the same as before, and the digest of them."""
    for index in range(len(history) - 1, max(len(history) - 1 - _LOOK_BACK, -1), -1):
        known = _chains.get(id(history[index]))
        # The same objects, compared without a step of Python for each.
        if known is not None and known.message() is history[index] and known.before == history[:index]:
            return index, known.state
    return 0, _blake2b()


def _digest(role: str, parts: tuple[MessagePart, ...]) -> bytes:
    return _blake2b(jsontext.dumps((role, parts))).digest()


def _blake2b(data: bytes = b"") -> "hashlib.blake2b":
    # Importing hashlib loads OpenSSL's, a tenth of what importing an agent takes.
    import hashlib

    return hashlib.blake2b(data, digest_size=16)

"""Answers in the background: what the stream reports of them, and how the log finds them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct, ValidationError, convert

from sidestream.jsontext import as_object
from sidestream.stream.parts import Custom, StreamPart

BACKGROUND: Final = "sidestream.background"
"""The kind of the custom part that tells of an answer in the background: `provider`, `id`, `is_streamed`, `status`."""
STARTED: Final = "started"
TAKEN_UP: Final = "taken-up"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
"""Statuses of our own; the others are the provider's words."""


_NOT_UNDER_WAY: Final = frozenset({LOST, CANCELLED})


class Background(Struct, frozen=True):
    """The answer of the current step, where the provider works on it without a connection."""

    provider: str
    id: str
    is_streamed: bool
    """True: it was asked for as a stream, so it can be had as one again."""


def background_in(parts: Iterable[StreamPart]) -> Background | None:
    """The answer that the parts of an unfinished step tell to be under way, if they do."""
    told = [as_object(part.data) for part in parts if isinstance(part, Custom) and part.kind == BACKGROUND]
    with suppress(ValidationError):
        return convert(told[-1], Background) if told and told[-1].get("status") not in _NOT_UNDER_WAY else None
    return None

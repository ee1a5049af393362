"""Answers in the background: what the stream reports of them, and how the log finds them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct, ValidationError, convert

from sidestream.jsontext import as_object
from sidestream.stream.parts import Custom, StreamPart

BACKGROUND: Final = "sidestream.background"
"""The kind of the custom part that reports an answer in the background: `provider`, `id`, `is_streamed`, `status`."""
STARTED: Final = "started"
RESUMED: Final = "resumed"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
POLLED: Final = "polled"
"""Statuses of our own; the others are the provider's words."""


_NOT_UNDER_WAY: Final = frozenset({LOST, CANCELLED})


class Background(Struct, frozen=True):
    """The answer of the current step, where the provider works on it without a connection."""

    provider: str
    id: str
    is_streamed: bool
    """True if it was requested as a stream, so that it can be fetched as one."""


def background_in(parts: Iterable[StreamPart]) -> Background | None:
    """The pending answer that the parts of an unfinished step report, if they do."""
    reports = [as_object(part.data) for part in parts if isinstance(part, Custom) and part.kind == BACKGROUND]
    with suppress(ValidationError):
        return convert(reports[-1], Background) if reports and reports[-1].get("status") not in _NOT_UNDER_WAY else None
    return None

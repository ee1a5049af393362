"""What encoders share to walk a history: results paired with calls; ids, names and input that APIs accept. Pure."""

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import ChatMessage, MessagePart, ToolCallPart, ToolResultPart

FILES_ABOVE = "Files from the message above:"
"""Introduces files of the model or of a tool. They are sent as the user's, since no API accepts them from others."""

ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
PartT = TypeVar("PartT", bound=MessagePart)


class ToolResults:
    """The results in a history. Each is claimed by one call, in order, since the same id may come more than once."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._unclaimed: dict[str, list[ToolResultPart]] = {}
        self._claimed: set[int] = set()
        for message in messages:
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    self._unclaimed.setdefault(part.id, []).append(part)

    def claim(self, call_id: str) -> ToolResultPart | None:
        """The next result of a call; None if there is none left."""
        results = self._unclaimed.get(call_id)
        if not results:
            return None
        self._claimed.add(id(results[0]))
        return results.pop(0)

    def warnings_for(self, part: ToolResultPart) -> list[str]:
        """A warning if no call has claimed the result."""
        if id(part) in self._claimed:
            return []
        return [f"the result {part.id} of {part.name} belongs to no call and is left out"]


def take(
    parts: list[MessagePart], kind: type[PartT] | tuple[type[PartT], ...], matches: Callable[[PartT], bool]
) -> PartT | None:
    """Removes the first part of a kind that matches, and returns it."""
    for place, part in enumerate(parts):
        if isinstance(part, kind) and matches(part):
            del parts[place]
            return part
    return None


def hashed_id(call_id: str, length: int | None = None) -> str:
    """A replacement for an id that an API refuses: always the same for the same id, `length` characters if given."""
    digest = blake2b(call_id.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return f"call_{digest}" if length is None else digest[:length]


def legal_name(name: str, *, illegal: re.Pattern[str] = ILLEGAL_IN_NAME, max_length: int = 64) -> str:
    """A tool's name without the characters that an API refuses: other providers may accept more."""
    return illegal.sub("_", name)[:max_length] or "unnamed"


def input_object(part: ToolCallPart) -> JsonObject:
    """The input of a call as an object; any other value, or text that was not JSON, is wrapped in one."""
    if is_object(part.input):
        return part.input
    value = part.input if part.input_text is None else part.input_text
    return {} if value is None else {"input": value}

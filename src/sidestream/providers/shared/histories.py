"""What encoders share to walk a history: results paired with calls; ids, names and input that APIs accept. Pure."""

import re
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar, cast

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

FILES_ABOVE = "Files from the message above:"
"""Introduces files of the model or of a tool. They are sent as the user's, since no API accepts them from others."""

ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
PartT = TypeVar("PartT", bound=MessagePart)


class ToolResults:
    """The results in a history. Each is claimed by one call, in order, since the same id may come more than once."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._unclaimed: dict[str, deque[ToolResultPart]] = {}
        self._claimed: set[int] = set()
        for message in messages:
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    self._unclaimed.setdefault(part.id, deque()).append(part)

    def claim(self, call_id: str) -> ToolResultPart | None:
        """The next result of a call; None if there is none left."""
        results = self._unclaimed.get(call_id)
        if not results:
            return None
        self._claimed.add(id(results[0]))
        return results.popleft()

    def warnings_for(self, part: ToolResultPart) -> list[str]:
        """A warning if no call has claimed the result."""
        if id(part) in self._claimed:
            return []
        return [f"the result {part.id} of {part.name} belongs to no call and is left out"]


class UnsentParts:
    """The parts of a message that nothing in a request covers yet, found by id, name, address or content."""

    def __init__(self, parts: Sequence[MessagePart]) -> None:
        self._parts = parts
        self._taken: set[int] = set()
        self._places: dict[tuple[type, str], deque[int]] = {}
        self._digests: dict[str, deque[int]] | None = None
        for place, part in enumerate(parts):
            name = _name_of(part)
            if name is not None:
                self._places.setdefault((type(part), name), deque()).append(place)

    @property
    def rest(self) -> list[MessagePart]:
        """What is left."""
        return [part for place, part in enumerate(self._parts) if place not in self._taken]

    def take(self, name: object, *kinds: type[PartT]) -> PartT | None:
        """Takes the first part of these kinds with an id (texts, calls), a name (files) or an address (links)."""
        return self._taken_from([self._places.get((kind, name)) for kind in kinds] if isinstance(name, str) else [])

    def peek(self, name: object, kind: type[PartT]) -> PartT | None:
        """The part that `take` would take. It stays."""
        places = self._places.get((kind, name)) if isinstance(name, str) else None
        return cast(PartT, self._parts[places[0]]) if places else None

    def take_file(self, digest: object) -> DataPart | None:
        """Takes the first file with these bytes."""
        if self._digests is None:
            self._digests = {}
            for place, part in enumerate(self._parts):
                if isinstance(part, DataPart):
                    self._digests.setdefault(media_types.digest(part.bytes), deque()).append(place)
        return self._taken_from([self._digests.get(digest)] if isinstance(digest, str) else [])

    def _taken_from(self, groups: list[deque[int] | None]) -> Any:
        first = min((places for places in groups if places), default=None, key=lambda places: places[0])
        if first is None:
            return None
        place = first.popleft()
        self._taken.add(place)
        return self._parts[place]


def _name_of(part: MessagePart) -> str | None:
    match part:
        case TextPart() | ThinkingPart() | ToolCallPart():
            return part.id
        case DataPart():
            return part.name
        case LinkPart():
            return part.url
        case _:
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

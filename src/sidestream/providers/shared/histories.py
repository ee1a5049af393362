"""What encoders share to write a history: the walk over it; ids, names and input that APIs accept. Pure."""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar, assert_never, cast

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    Role,
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


class HistoryWriter(ABC):
    """Writes a history in the form of an API, whose messages, contents, calls and results a subclass encodes.

    Every call gets exactly one result, right after the answer that made it. Files of answers follow as the user's.
    """

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.warnings: list[str] = []
        self.files: list[JsonObject] = []
        """Files to send with the next message."""
        self._results = ToolResults(messages)
        self._calls: list[tuple[str, JsonObject]] = []
        """Calls without a result yet, with the ids that their results have."""
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Id that came more than once → its last number."""

    @abstractmethod
    def append(self, role: Role, entries: list[JsonObject]) -> None:
        """Append a message. The entries of the role `tool` are results."""

    @abstractmethod
    def text(self, text: str, role: Role) -> JsonObject | None:
        """Encode a text; None leaves it out."""

    @abstractmethod
    def file(self, part: DataPart | LinkPart) -> JsonObject:
        """Encode a file or a link."""

    @abstractmethod
    def call(self, part: ToolCallPart) -> JsonObject:
        """Encode a call, which may be another provider's, and `expect` its result."""

    @abstractmethod
    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        """Encode the result of a call. None means that it was not executed."""

    def instruct(self, text: str) -> None:  # noqa: B027 (optional)
        """Append a system message; by default it is left out."""

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        """Return what an answer was received as, and the parts that this does not cover."""
        return [], message.parts

    def write(self, message: ChatMessage) -> None:
        """Append a message and what must come before it."""
        if message.role == "system":
            self.instruct(message.text)
            return
        self.flush()
        if message.role == "model":
            entries, rest = self.replay(message)
            self.append("model", entries + self.content("model", rest))
        else:
            self.append("user", self.content(message.role, message.parts))

    def flush(self) -> None:
        """Append the results of pending calls, then the files of the last answer as the user's."""
        self.settle()
        if self.files:
            self.append("user", self.taken_files())

    def settle(self) -> None:
        """Append the results of pending calls."""
        if self._calls:
            calls, self._calls = self._calls, []
            self.append("tool", [self.result(call, self._results.claim(key)) for key, call in calls])

    def taken_files(self) -> list[JsonObject]:
        """Return the files to send, with their introduction, and forget them."""
        files, self.files = self.files, []
        return [*self.content("user", [TextPart(FILES_ABOVE)]), *files] if files else []

    def expect(self, key: str, call: JsonObject) -> JsonObject:
        """Mark a call as pending; `key` is the id of its result in the history."""
        self._calls.append((key, call))
        return call

    def unique_id(self, wanted: str, replacement: Callable[[int], str]) -> str:
        """Return an id that no call has yet, since APIs accept each once and some providers reuse theirs."""
        unique, number = wanted, self._numbers.get(wanted, 0)
        while unique in self._used:
            number += 1
            unique = replacement(number)
        self._numbers[wanted] = number
        self._used.add(unique)
        return unique

    def content(self, role: Role, parts: Sequence[MessagePart]) -> list[JsonObject]:
        """Encode the parts of a message. Files of the model are set aside."""
        entries: list[JsonObject] = []
        for part in parts:
            match part:
                case TextPart():
                    if (entry := self.text(part.text, role)) is not None:
                        entries.append(entry)
                case DataPart() | LinkPart():
                    (self.files if role == "model" else entries).append(self.file(part))
                case ToolCallPart() if role == "model":
                    entries.append(self.call(part))
                case ToolResultPart() if role != "model":
                    self.warnings += self._results.warnings_for(part)
                case ThinkingPart() | ToolCallPart() | ToolResultPart() | ApprovalPart():
                    pass
                case _:
                    assert_never(part)
        return entries


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

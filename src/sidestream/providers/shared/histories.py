"""Base class for history encoders, and conversions of ids, names and inputs to forms that APIs accept. Pure."""

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
    file_note,
)

FILES_ABOVE = "Files from the message above:"
"""Introduction to files from the model or a tool. They are sent as user content, since APIs accept no others."""

ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
PartT = TypeVar("PartT", bound=MessagePart)


class ToolResults:
    """The results in a history. Each is claimed by one call, in order, since ids may repeat."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._unclaimed: dict[str, deque[ToolResultPart]] = {}
        self._claimed: set[int] = set()
        for message in messages:
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    self._unclaimed.setdefault(part.id, deque()).append(part)

    def claim(self, call_id: str) -> ToolResultPart | None:
        """Return the next result of a call, or None if there is none left."""
        results = self._unclaimed.get(call_id)
        if not results:
            return None
        self._claimed.add(id(results[0]))
        return results.popleft()

    def warnings_for(self, part: ToolResultPart) -> list[str]:
        """Return a warning if no call has claimed the result."""
        if id(part) in self._claimed:
            return []
        return [f"the result {part.id} of {part.name} has no matching call and is left out"]


class HistoryWriter(ABC):
    """Base class for history encoders. A subclass encodes messages, contents, calls and results for its API.

    Every call gets exactly one result, right after its message. Files from the model follow as user content.
    """

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.warnings: list[str] = []
        self.files: list[JsonObject] = []
        """Files to send with the next message."""
        self._results = ToolResults(messages)
        self._calls: list[tuple[str, JsonObject]] = []
        """Calls without a result yet, each with the id of its result."""
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Last suffix of each id."""

    @abstractmethod
    def append(self, role: Role, entries: list[JsonObject]) -> None:
        """Append a message. The entries of the role `tool` are results."""

    @abstractmethod
    def text(self, text: str, role: Role) -> JsonObject | None:
        """Encode a string. None means that it is left out."""

    @abstractmethod
    def file(self, part: DataPart | LinkPart) -> JsonObject:
        """Encode a file or a link."""

    @abstractmethod
    def call(self, part: ToolCallPart) -> JsonObject:
        """Encode a call, possibly from another provider, and `expect` its result."""

    @abstractmethod
    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        """Encode the result of a call. None means that it was not executed."""

    def instruct(self, text: str) -> None:  # noqa: B027 (optional)
        """Append a system message. By default it is left out."""

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        """Return the original items of a model message, and the parts that they do not cover."""
        return [], message.parts

    def write(self, message: ChatMessage) -> None:
        """Append a message, after pending results and files."""
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
        """Append the results of pending calls, then files from the model as user content."""
        self.settle()
        if self.files:
            self.append("user", self.taken_files())

    def settle(self) -> None:
        """Append the results of pending calls."""
        if self._calls:
            calls, self._calls = self._calls, []
            self.append("tool", [self.result(call, self._results.claim(key)) for key, call in calls])

    def taken_files(self) -> list[JsonObject]:
        """Return the pending files with their introduction, and clear them."""
        files, self.files = self.files, []
        return [*self.content("user", [TextPart(FILES_ABOVE)]), *files] if files else []

    def expect(self, key: str, call: JsonObject) -> JsonObject:
        """Mark a call as pending. `key` is the id of its result in the history."""
        self._calls.append((key, call))
        return call

    def unique_id(self, wanted: str, replacement: Callable[[int], str]) -> str:
        """Return an id that no other call has, since APIs accept each id once and some providers reuse theirs."""
        unique, number = wanted, self._numbers.get(wanted, 0)
        while unique in self._used:
            number += 1
            unique = replacement(number)
        self._numbers[wanted] = number
        self._used.add(unique)
        return unique

    def content(self, role: Role, parts: Sequence[MessagePart]) -> list[JsonObject]:
        """Encode the parts of a message. Files from the model go to `files`."""
        entries: list[JsonObject] = []
        for part in parts:
            match part:
                case TextPart():
                    if (entry := self.text(part.text, role)) is not None:
                        entries.append(entry)
                case DataPart() | LinkPart():
                    (self.files if role == "model" else entries).append(self._file_or_note(part))
                case ToolCallPart() if role == "model":
                    entries.append(self.call(part))
                case ToolResultPart() if role != "model":
                    self.warnings += self._results.warnings_for(part)
                case ThinkingPart() if role == "model":
                    if (entry := self.thinking(part)) is not None:
                        entries.append(entry)
                case ThinkingPart() | ToolCallPart() | ToolResultPart() | ApprovalPart():
                    pass
                case _:
                    assert_never(part)
        return entries

    def thinking(self, part: ThinkingPart) -> JsonObject | None:
        """Encode reasoning that a client sent back, or return None if this API did not make it."""
        return None

    def _file_or_note(self, part: DataPart | LinkPart) -> JsonObject:
        if not isinstance(part, DataPart) or part.to == "model":
            return self.file(part)
        note = self.text(file_note(part), "user")
        assert note is not None
        return note


class UnsentParts:
    """The parts of a message that the request does not contain yet, indexed by id, name, URL or content."""

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
        """The remaining parts."""
        return [part for place, part in enumerate(self._parts) if place not in self._taken]

    def take(self, name: object, *kinds: type[PartT]) -> PartT | None:
        """Remove and return the first part of these kinds with this id (text, calls), name (files) or URL (links)."""
        return self._taken_from([self._places.get((kind, name)) for kind in kinds] if isinstance(name, str) else [])

    def peek(self, name: object, kind: type[PartT]) -> PartT | None:
        """Return the part that `take` would remove, without removing it."""
        places = self._places.get((kind, name)) if isinstance(name, str) else None
        return cast(PartT, self._parts[places[0]]) if places else None

    def take_file(self, digest: object) -> DataPart | None:
        """Remove and return the first file whose bytes have this digest."""
        return self._taken_from([self._places_of_file(digest)])

    def is_made(self, digest: object) -> bool:
        """Return whether the file that `take_file` would remove was made by a tool, so that it is not resent."""
        places = self._places_of_file(digest)
        part = self._parts[places[0]] if places else None
        return isinstance(part, DataPart) and part.to == "container"

    def _places_of_file(self, digest: object) -> deque[int] | None:
        if self._digests is None:
            self._digests = {}
            for place, part in enumerate(self._parts):
                if isinstance(part, DataPart):
                    self._digests.setdefault(media_types.digest(part.data), deque()).append(place)
        return self._digests.get(digest) if isinstance(digest, str) else None

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
    """Return a deterministic replacement for an id that an API refuses, of `length` characters if given."""
    digest = blake2b(call_id.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return f"call_{digest}" if length is None else digest[:length]


def legal_name(name: str, *, illegal: re.Pattern[str] = ILLEGAL_IN_NAME, max_length: int = 64) -> str:
    """Replace the characters of a tool name that an API refuses, since other providers may accept more."""
    return illegal.sub("_", name)[:max_length] or "unnamed"


def input_object(part: ToolCallPart) -> JsonObject:
    """Return the input of a call as an object. Other values, and text that is not JSON, are wrapped in one."""
    if is_object(part.input):
        return part.input
    value = part.input if part.input_text is None else part.input_text
    return {} if value is None else {"input": value}

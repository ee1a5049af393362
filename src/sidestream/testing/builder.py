"""What the script builders share: ids derived from content, text cut into deltas, the two kinds of reply."""

import base64
import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from sidestream.jsontext import dumps, without_none
from sidestream.stream.parts import Json
from sidestream.testing.replies import Event, Reply, json_reply, sse

Text = str | Sequence[str]
"""Text that streams word by word, or a list of its deltas."""


class ScriptBuilder(ABC):
    """Composes one response of a provider's API, in its two forms: a stream of events, and one JSON object.

    Ids are derived from the content: the same in every run, and different for different responses.
    """

    path: ClassVar[str]
    """Where a client requests such a response."""
    _sentinel: ClassVar[tuple[str, ...]] = ()
    """The data that follows the last event of the stream."""

    def __init__(self, head: Event, id: str | None, usage: Mapping[str, Json] | None) -> None:
        self._head = head
        self._id = id
        self._usage = usage
        self._error: Event | None = None
        self._whole: list[Event] = []
        """The items (blocks, steps, parts) of the response."""
        self._streamed: list[list[Event]] = []
        """The events of each item."""

    @abstractmethod
    def response(self) -> Event:
        """The whole response object."""

    @abstractmethod
    def _stream(self) -> list[Event]:
        """The events of the same response."""

    def reply(self, **fields: Any) -> Reply:
        """The reply in the form that the request wants: the stream, or the whole response.

        `fields` are those of `Reply`.
        """
        return sse([*self._stream(), *self._sentinel], whole=self.response(), **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """The whole response, even if the request wants a stream; `fields` are those of `Reply`."""
        return json_reply(self.response(), **fields)

    def _identity(self, prefix: str, length: int, *content: Json) -> str:
        return self._id or prefix + digest(length, self._head, *content)

    def _add_item(self, item: Event, *events: Event) -> Self:
        self._whole.append(item)
        self._streamed.append([*events])
        return self

    def _all_events(self, *, interleaved: bool = False) -> list[Event]:
        """The events of all items: item by item, or one event of each item in turn."""
        if interleaved:
            return [event for row in itertools.zip_longest(*self._streamed) for event in row if event is not None]
        return [event for events in self._streamed for event in events]


def digest(length: int, *values: Json) -> str:
    """The first hex digits of a hash of these values."""
    return hashlib.sha256(dumps(values)).hexdigest()[:length]


def words(text: Text) -> list[str]:
    """The deltas of a text: its words, or the items of a list."""
    return re.findall(r"\s*\S+|\s+", text) if isinstance(text, str) else [*text]


def json_text(value: Json) -> str:
    """A value as JSON; a string is JSON text already, valid or not."""
    return value if isinstance(value, str) else dumps(value).decode()


def json_deltas(value: Json) -> list[str]:
    """The deltas of a value's JSON; a string, or a list of deltas, is JSON text already, valid or not."""
    if isinstance(value, list):
        return cast("list[str]", value)
    return [value] if isinstance(value, str) else words(json_text(value))


def base64_text(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def present(**fields: Json) -> Event:
    """The fields that are not None."""
    return without_none(fields)

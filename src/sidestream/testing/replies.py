"""Replies of a fake provider, faults included, and what the script builders share.

FakeProvider([error_reply(503, "overloaded"), sse(responses_text("Hello"), cut="reset")])
"""

import asyncio
import base64
import hashlib
import itertools
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, cast

from msgspec import Struct

from sidestream.jsontext import dumps, without_none
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ChunkSizes
from sidestream.stream.parts import Json

Event = dict[str, Json]
"""One event of a provider's stream."""


class Keepalives(Struct, frozen=True):
    """A frame that is repeated after the body; with an interval of 0 as fast as the client reads."""

    frame: bytes = b": keep-alive\n\n"
    interval_s: float = 0.01
    count: int | None = None
    """None: until the client disconnects."""


class AwaitedSteer(Struct, frozen=True):
    """In the events of a reply over WebSocket: waits here for a message to the response, and accepts or refuses it.

    What follows in the list comes after that, e.g. the rest of the response and the events of its successor.
    """

    id: str = "steer_1"
    """How the server names the message."""
    refusal: str | None = None
    """The code with which it refuses the message; None: it accepts it."""
    says: bool = True
    """False: it says nothing at all."""


class Reply(Struct, frozen=True, kw_only=True):
    """One HTTP response. Byte counts refer to the body before chunked encoding.

    `body` is bytes, text, a JSON object, or a list: the frames of an event stream. In such a list an object
    is an event, a string the data of one, bytes are sent unchanged, and an `asyncio.Event` is awaited. Over WebSocket,
    an `AwaitedSteer` waits for a message to the response.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    content_type: str | None = None
    """None: derived from the body."""
    body: Any = b""
    chunk_sizes: ChunkSizes = None
    """How the body is cut into HTTP chunks, each written separately; None: one per frame, or one in total."""
    pace_s: float = 0.0
    """The pause after each chunk."""
    gate: asyncio.Event | None = None
    """Nothing is sent, not even the status, before this is set."""
    cut: Literal["close", "reset", "end"] | None = None
    """How the body ends: the connection is closed or reset without the last chunk, or the body ends properly."""
    cut_after_bytes: int | None = None
    """Ends the body here; with `close` unless `cut` is set."""
    stall_after_bytes: int | None = None
    """Sends nothing after this many bytes, until the client disconnects. Beyond the body's length: at its end."""
    keepalives: Keepalives | None = None
    """Sent after the body, which then ends with their count or when the client disconnects."""
    garbage: bytes | None = None
    """Sent instead of an HTTP response; then the connection is closed, or reset with `cut="reset"`."""
    cut_upload_after_bytes: int | None = None
    """Resets the connection once this much of the request's body has arrived. No response is sent."""
    whole: Any = None
    """The JSON body, as an object, for a request that wants no stream. None: `body` for every request."""


def encode_event(event: Event | str | bytes) -> bytes:
    """One frame of an event stream; the event's name is the object's type."""
    if isinstance(event, bytes):
        return event
    if isinstance(event, str):
        return b"".join(b"data: %b\n" % line.encode() for line in event.split("\n")) + b"\n"
    name = event.get("type")
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return head + b"data: " + dumps(event) + b"\n\n"


def encode_events(events: Iterable[Event | str | bytes]) -> bytes:
    """The frames as one body, e.g. to find the byte at which to cut a stream."""
    return b"".join(map(encode_event, events))


def sse(events: Iterable[Event | str | bytes | asyncio.Event | AwaitedSteer], **fields: Any) -> Reply:
    """A stream of these events; `fields` are those of `Reply`, e.g. `cut="reset"`."""
    return Reply(body=[*events], **fields)


def json_reply(value: Json, content_type: str = "application/json", **fields: Any) -> Reply:
    """A response whose body is this JSON value."""
    return Reply(body=dumps(value), content_type=content_type, **fields)


def error_reply(
    status: int,
    code: str = "error",
    message: str = "scripted error",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An HTTP error with a JSON body."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return json_reply({"error": error}, status=status, headers=headers or {})


def html_page(title: str = "Sign in", status: int = 200) -> Reply:
    """An HTML page instead of an API response, as proxies and captive portals send it."""
    page = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Reply(status=status, content_type="text/html; charset=utf-8", body=page)


def dropped(cut: Literal["close", "reset"] = "reset") -> Reply:
    """The connection ends before any response."""
    return Reply(garbage=b"", cut=cut)


def recorded(recording: Recording) -> list[Reply]:
    """The responses of a recording, in order."""
    responses = [(exchange.response, exchange.body_bytes()) for exchange in recording.exchanges]
    return [Reply(status=head.status, content_type=head.content_type, body=body) for head, body in responses]


def pixel_png(red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """A PNG image of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes((0, red, green, blue))))
    return b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")


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

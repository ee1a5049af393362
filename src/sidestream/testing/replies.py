"""Replies of a fake provider, including faults, and the base class of the script builders.

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
from sidestream.parts import Json
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ChunkSizes
from sidestream.transport.calls import FRAMES

Event = dict[str, Json]
"""One event of a provider's stream."""


class Keepalives(Struct, frozen=True):
    """A frame that is repeated after the body. An interval of 0 sends frames as fast as the client reads."""

    frame: bytes = b": keep-alive\n\n"
    interval_s: float = 0.01
    count: int | None = None
    """Number of frames. None means until the client disconnects."""


class AwaitedSteer(Struct, frozen=True):
    """An entry among a WebSocket reply's events that waits for a steering message and accepts or refuses it.

    The entries after it are sent afterwards, e.g. the rest of the response and the events of its successor.
    """

    id: str = "steer_1"
    """Id that the server gives the message."""
    refusal: str | None = None
    """Error code with which the message is refused. None means that it is accepted."""
    says: bool = True
    """Whether the server reports the acceptance."""


class Reply(Struct, frozen=True, kw_only=True):
    """One HTTP response. Byte counts refer to the body before chunked encoding.

    `body` is bytes, a string, a JSON object, or the list of an event stream's frames. In such a list an object is an
    event, a string is an event's data, bytes are sent unchanged, and an `asyncio.Event` is awaited. Over WebSocket, an
    `AwaitedSteer` waits for a steering message.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    content_type: str | None = None
    """Content type. None means that it is derived from the body."""
    body: Any = b""
    chunk_sizes: ChunkSizes = None
    """Sizes of the HTTP chunks, each written separately. None means one per frame, or one in total."""
    pace_s: float = 0.0
    """Pause after each chunk, in seconds."""
    gate: asyncio.Event | None = None
    """Event that must be set before anything is sent, even the status."""
    cut: Literal["close", "reset", "end"] | None = None
    """End of the body: the connection is closed or reset without the last chunk, or the body ends properly."""
    cut_after_bytes: int | None = None
    """Bytes after which the body ends, with `close` unless `cut` is set."""
    stall_after_bytes: int | None = None
    """Bytes after which the body stalls until the client disconnects. A larger number stalls at its end."""
    keepalives: Keepalives | None = None
    """Frames sent after the body, until their count is reached or the client disconnects."""
    garbage: bytes | None = None
    """Bytes sent instead of an HTTP response. The connection is then closed, or reset with `cut="reset"`."""
    cut_upload_after_bytes: int | None = None
    """Bytes of the request's body after which the connection is reset, without a response."""
    whole: Any = None
    """JSON body, as an object, for non-streaming requests. None means `body` for every request."""


def encode_event(event: Event | str | bytes) -> bytes:
    """Encode one frame of an event stream. The event's name is the object's type."""
    if isinstance(event, bytes):
        return event
    if isinstance(event, str):
        return b"".join(b"data: %b\n" % line.encode() for line in event.split("\n")) + b"\n"
    name = event.get("type")
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return head + b"data: " + dumps(event) + b"\n\n"


def encode_events(events: Iterable[Event | str | bytes]) -> bytes:
    """Encode the frames as one body, e.g. to find the byte at which to cut a stream."""
    return b"".join(map(encode_event, events))


def sse(events: Iterable[Event | str | bytes | asyncio.Event | AwaitedSteer], **fields: Any) -> Reply:
    """Create a reply that streams these events. `fields` are those of `Reply`, e.g. `cut="reset"`."""
    return Reply(body=[*events], **fields)


def aws_frame(payload: Event | bytes, **headers: str) -> bytes:
    """Encode a frame of an AWS event stream. `event_type="chunk"` is the header `:event-type`, and so on."""
    fields = b""
    for name, value in headers.items():
        key, text = f":{name.replace('_', '-')}".encode(), value.encode()
        fields += bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(text)) + text
    data = payload if isinstance(payload, bytes) else dumps(payload)
    prelude = struct.pack(">II", len(fields) + len(data) + 16, len(fields))
    content = prelude + zlib.crc32(prelude).to_bytes(4) + fields + data
    return content + zlib.crc32(content).to_bytes(4)


def aws_frames(events: Iterable[Event | bytes], **fields: Any) -> Reply:
    """Create a reply that streams these events as Amazon Bedrock does. Bytes are sent unchanged."""
    frames = [
        event
        if isinstance(event, bytes)
        else aws_frame({"bytes": base64_text(dumps(event)), "p": "abc"}, event_type="chunk", message_type="event")
        for event in events
    ]
    return Reply(body=frames, content_type=FRAMES, **fields)


def json_reply(value: Json, content_type: str = "application/json", **fields: Any) -> Reply:
    """Create a reply whose body is this JSON value."""
    return Reply(body=dumps(value), content_type=content_type, **fields)


def error_reply(
    status: int,
    code: str = "error",
    message: str = "scripted error",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Create an HTTP error with a JSON body."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return json_reply({"error": error}, status=status, headers=headers or {})


def html_page(title: str = "Sign in", status: int = 200) -> Reply:
    """Create an HTML page in place of an API response, as proxies and captive portals send it."""
    page = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Reply(status=status, content_type="text/html; charset=utf-8", body=page)


def dropped(cut: Literal["close", "reset"] = "reset") -> Reply:
    """Create a reply that ends the connection before any response."""
    return Reply(garbage=b"", cut=cut)


def recorded(recording: Recording) -> list[Reply]:
    """Return a recording's responses as replies, in order."""
    responses = [(exchange.response, exchange.body_bytes()) for exchange in recording.exchanges]
    return [Reply(status=head.status, content_type=head.content_type, body=body) for head, body in responses]


def pixel_png(red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """Encode a PNG image of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes((0, red, green, blue))))
    return b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")


Text = str | Sequence[str]
"""A string that streams word by word, or a list of its deltas."""


class ScriptBuilder(ABC):
    """A builder of one API response, both as a stream of events and as one JSON object.

    Ids are derived from the content, so they are the same in every run and differ between responses.
    """

    path: ClassVar[str]
    """Path of the API's requests."""
    _sentinel: ClassVar[tuple[str, ...]] = ()
    """Data that follows the last event of the stream."""

    def __init__(self, head: Event, id: str | None, usage: Mapping[str, Json] | None) -> None:
        self._head = head
        self._id = id
        self._usage = usage
        self._error: Event | None = None
        self._whole: list[Event] = []
        """Items (blocks, steps, parts) of the response."""
        self._streamed: list[list[Event]] = []
        """Events of each item."""

    @abstractmethod
    def response(self) -> Event:
        """Return the non-streaming response."""

    @abstractmethod
    def _stream(self) -> list[Event]:
        """Return the events of the same response."""

    def reply(self, **fields: Any) -> Reply:
        """Create a reply that streams if the request asks for it. `fields` are those of `Reply`."""
        return sse([*self._stream(), *self._sentinel], whole=self.response(), **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """Create a non-streaming reply, even if the request asks for a stream. `fields` are those of `Reply`."""
        return json_reply(self.response(), **fields)

    def _identity(self, prefix: str, length: int, *content: Json) -> str:
        return self._id or prefix + digest(length, self._head, *content)

    def _add_item(self, item: Event, *events: Event) -> Self:
        self._whole.append(item)
        self._streamed.append([*events])
        return self

    def _all_events(self, *, interleaved: bool = False) -> list[Event]:
        """Return the events of all items, item by item or alternating between the items."""
        if interleaved:
            return [event for row in itertools.zip_longest(*self._streamed) for event in row if event is not None]
        return [event for events in self._streamed for event in events]


def digest(length: int, *values: Json) -> str:
    """Return the first hex digits of a hash of these values."""
    return hashlib.sha256(dumps(values)).hexdigest()[:length]


def words(text: Text) -> list[str]:
    """Split text into its words, or return the items of a list."""
    return re.findall(r"\s*\S+|\s+", text) if isinstance(text, str) else [*text]


def json_text(value: Json) -> str:
    """Encode a value as JSON. A string is taken as JSON already, valid or not."""
    return value if isinstance(value, str) else dumps(value).decode()


def json_deltas(value: Json) -> list[str]:
    """Return the deltas of a value's JSON. A string, or a list of deltas, is taken as JSON already, valid or not."""
    if isinstance(value, list):
        return cast("list[str]", value)
    return [value] if isinstance(value, str) else words(json_text(value))


def base64_text(data: bytes) -> str:
    """Encode bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def present(**fields: Json) -> Event:
    """Return the fields that are not None."""
    return without_none(fields)

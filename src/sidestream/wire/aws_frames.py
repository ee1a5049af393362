"""A splitter of bytes into the events of an AWS event stream, without I/O.

A frame is: its length, the headers' length, a CRC of both, the headers, the payload, and a CRC of everything before.
Amazon Bedrock sends each event of a model as base64 in the payload of a frame.
"""

import struct
from binascii import crc32
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from sidestream.errors import ProtocolError, RunError
from sidestream.jsontext import as_object, dumps, loads

_PRELUDE_BYTES: Final = 12
_MIN_BYTES: Final = 16
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Type of a header value → its size in bytes. Values of types 6 and 7, bytes and strings, begin with their length."""
_STRING: Final = 7

EXCEPTIONS: Final[Mapping[str, tuple[int, bool]]] = {
    "throttlingException": (429, True),
    "serviceUnavailableException": (503, True),
    "internalServerException": (500, True),
    "modelStreamErrorException": (424, True),
    "modelTimeoutException": (408, True),
    "modelNotReadyException": (429, True),
    "validationException": (400, False),
    "accessDeniedException": (403, False),
    "resourceNotFoundException": (404, False),
}
"""Type of an exception → the status that it has outside of streams, and whether it is retried."""
_UNKNOWN: Final = (500, False)

Refused = Callable[[int, Mapping[str, str], bytes], RunError]
"""Creates the error for a status, headers and a body."""


class _Chunk(Struct, gc=False):
    bytes: bytes


class FrameSplitter:
    """A splitter for one response: `feed` bytes as they arrive, `flush` once at a clean end.

    The cap counts all bytes of a frame. `refused` creates the error for a frame that reports an exception.
    """

    __slots__ = ("_cap", "_error", "_partial", "_refused", "_total")

    def __init__(self, max_event_bytes: int, refused: Refused) -> None:
        self._cap = max_event_bytes
        self._refused = refused
        self._partial = bytearray()
        self._total = 0  # size of the unfinished frame; 0 until its prelude is complete
        self._error: RunError | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of each complete event.

        Raises ProtocolError if a frame is damaged or exceeds the cap, and the error that a frame reports.
        """
        if self._error is not None:
            raise self._error
        partial = self._partial
        partial += chunk
        events: list[bytes] = []
        at = 0
        try:
            while len(partial) - at >= (self._total or _PRELUDE_BYTES):
                if not self._total:
                    self._total = self._checked_total(partial, at)
                    continue
                frame = bytes(memoryview(partial)[at : at + self._total])
                at += self._total
                self._total = 0
                if data := self._data(frame):
                    events.append(data)
        except RunError as error:
            self._error = error
            partial.clear()
            if not events:
                raise
            return events  # The next call raises.
        del partial[:at]
        return events

    @property
    def has_partial(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._partial)

    has_begun_event = has_partial

    def flush(self) -> list[bytes]:
        """Return no events, since an incomplete frame is never valid. Raises the error of an earlier frame."""
        if self._error is not None:
            raise self._error
        self._partial.clear()
        self._total = 0
        return []

    def _checked_total(self, partial: bytearray, at: int) -> int:
        total, headers, crc = struct.unpack_from(">III", partial, at)
        if crc32(memoryview(partial)[at : at + 8]) != crc:
            raise _damaged("its length has a wrong checksum")
        if not _MIN_BYTES + headers <= total:
            raise _damaged("its headers are longer than the frame")
        if total > self._cap:
            raise ProtocolError(
                f"a frame of the stream is larger than {self._cap} bytes; "
                "if this model sends such frames, raise Limits.max_event_bytes",
                code="event-too-large",
            )
        return total

    def _data(self, frame: bytes) -> bytes:
        """Return the data of a frame's event. Empty if it has none."""
        if crc32(memoryview(frame)[:-4]) != int.from_bytes(frame[-4:]):
            raise _damaged("its content has a wrong checksum")
        end = _PRELUDE_BYTES + int.from_bytes(frame[4:8])
        headers, payload = dict(_headers(frame[_PRELUDE_BYTES:end])), frame[end:-4]
        match headers.get(":message-type", "event"):
            case "event":
                return _unwrapped(payload) if headers.get(":event-type") == "chunk" else payload
            case "exception":
                message = _message(payload)
                raise self._reported(headers.get(":exception-type", "exception"), message)
            case _:
                raise self._reported(headers.get(":error-code", "error"), headers.get(":error-message", ""))

    def _reported(self, code: str, message: str) -> RunError:
        status, is_retried = EXCEPTIONS.get(code[:1].lower() + code[1:], _UNKNOWN)
        body = dumps({"error": {"code": code, "message": message or code}})
        return self._refused(status, {"x-should-retry": "true" if is_retried else "false"}, body)


def frames_of(data: bytes) -> Iterator[bytes]:
    """Cut a stream after each frame, without checking the frames."""
    at = 0
    while at < len(data):
        size = max(int.from_bytes(data[at : at + 4]), _MIN_BYTES)
        yield data[at : at + size]
        at += size


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the headers whose values are strings."""
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end], data[name_end]
            start = name_end + 1
            size = _SIZES.get(kind)
            if size is None:
                if kind not in (_STRING - 1, _STRING):
                    raise _damaged("a header has an unknown type")
                size = int.from_bytes(data[start : start + 2])
                start += 2
            at = start + size
            if at > len(data):
                raise _damaged("a header is cut off")
            if kind == _STRING:
                yield name.decode("utf-8", "replace"), data[start:at].decode("utf-8", "replace")
    except IndexError:
        raise _damaged("a header is cut off") from None


def _unwrapped(payload: bytes) -> bytes:
    """Return the event in a payload such as `{"bytes": "…"}`, or the payload itself if it has none."""
    try:
        return msgspec.json.decode(payload, type=_Chunk).bytes
    except (msgspec.DecodeError, RecursionError):
        return payload


def _message(payload: bytes) -> str:
    try:
        fields = as_object(loads(payload))
    except (ValueError, RecursionError):
        return payload.decode("utf-8", "replace")
    return str(fields.get("message") or fields.get("Message") or fields.get("originalMessage") or "")


def _damaged(why: str) -> ProtocolError:
    return ProtocolError(f"a frame of the stream is damaged: {why}", code="frame")

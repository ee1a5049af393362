"""A splitter of bytes into server-sent events, without I/O.

Follows the WHATWG rules for `data`. It skips `event`, `id` and `retry`, since providers repeat the type inside the JSON
and resume by other means. Events without data are dropped; `[DONE]` is kept as an event's data.
"""

import json
import re

from sidestream.errors import ProtocolError

_BOM = b"\xef\xbb\xbf"
_LF, _COLON = b"\n:"
_DONE = b"[DONE]"
_lone_cr = re.compile(rb"\r(?!\n)").search
_BATCH_BYTES = 2048
"""Chunk size from which many events are likely, so that columns are tried before single events."""


class Splitter:
    """A splitter for one response: `feed` bytes as they arrive, `flush` once at a clean end.

    Each byte is scanned once and copied at most twice, however the chunks are cut. The cap counts all bytes of an
    event, with each line end as one byte.
    """

    __slots__ = ("_cap", "_head", "_overrun", "_partial", "_plain", "_skip_lf")

    def __init__(self, max_event_bytes: int) -> None:
        self._cap = max_event_bytes
        self._partial = bytearray()  # the unfinished event; never contains a blank line
        self._head: bytes | None = b""  # bytes at the start that may become a BOM; None once decided
        self._skip_lf = False  # the last byte was a CR, so a following LF belongs to it
        self._overrun = False
        self._plain = False  # none of the three above applies

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of each complete event. Raises ProtocolError if an event exceeds the cap."""
        if not self._plain or b"\r" in chunk:
            chunk = self._normalised(chunk)
        elif not self._partial and chunk.find(b"\n\n") == (size := len(chunk)) - 2 and size <= self._cap:
            # The fast path for one event in each packet.
            at = chunk.find(b"\n") + 1
            if at < size - 1:
                if (
                    chunk.startswith(b"event:")
                    and chunk.startswith(b"data: {", at)
                    and chunk.find(b"\n", at) == size - 2
                ):
                    return [chunk[at + 6 : -2]]
            elif chunk.startswith(b"data: {"):
                return [chunk[6:-2]]
        events: list[bytes] = []
        partial = self._partial
        if partial:
            if chunk[:1] == b"\n" and partial[-1] == _LF:
                del partial[-1]
                end, rest = 0, 1
            elif (end := chunk.find(b"\n\n")) >= 0:
                rest = end + 2
            else:
                partial += chunk
                return self._checked(events)
            partial += chunk[:end]
            if len(partial) > self._cap:
                return self._failed(events)
            if data := _data(partial):
                events.append(data)
            partial.clear()
            chunk = chunk[rest:]
        if len(chunk) >= _BATCH_BYTES and len(chunk) <= self._cap and (batch := _columns(chunk)):
            events += batch[0]
            tail = batch[1]
        else:
            blocks = chunk.split(b"\n\n")
            tail = blocks.pop()
            for block in blocks:
                if len(block) > self._cap:
                    return self._failed(events)
                at = block.find(b"\n") + 1
                if block.startswith(b"data: {", at) and (
                    not at or (block.startswith(b"event:") and block.find(b"\n", at) < 0)
                ):
                    events.append(block[at + 6 :])
                elif data := _data(bytearray(block)):
                    events.append(data)
        if tail:
            partial += tail
            return self._checked(events)
        return events

    @property
    def has_partial(self) -> bool:
        """Whether an event has begun and is not complete."""
        return bool(self._partial)

    @property
    def has_begun_event(self) -> bool:
        """Whether an unfinished event begins with a field. Comments only keep a connection open."""
        return bool(self._partial) and not self._partial.startswith(b":")

    def flush(self) -> list[bytes]:
        """Return the last event if the stream ended without a blank line after it and it is complete.

        The WHATWG rules drop it, but some gateways omit the last blank line, and it may be the terminal event. It is
        complete if its last line has a line end, or if its data is a JSON object or `[DONE]`.
        """
        if self._overrun:
            raise self._error()
        has_line_end = self._partial.endswith(b"\n")
        data = _data(self._partial)
        self._partial.clear()
        return [data] if data and (has_line_end or data == _DONE or _is_json_object(data)) else []

    def _normalised(self, chunk: bytes) -> bytes:
        """Remove the BOM, and convert line ends to LF. A CR at the end of the chunk counts at once."""
        if self._overrun:
            raise self._error()
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._head = chunk
                return b""
            chunk = chunk.removeprefix(_BOM)
            self._head = None
        if not chunk:
            return chunk
        if self._skip_lf and chunk[0] == _LF:
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r")
        self._plain = not self._skip_lf
        # Nearly always each CR precedes an LF. Searching for one byte is several times faster than for two.
        if _lone_cr(chunk) is None:
            return chunk.replace(b"\r", b"")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _checked(self, events: list[bytes]) -> list[bytes]:
        size = len(self._partial)
        # The last line end may already belong to the blank line that ends the event.
        if size > self._cap and size - (self._partial[-1] == _LF) > self._cap:
            return self._failed(events)
        return events

    def _failed(self, events: list[bytes]) -> list[bytes]:
        """Return the events that were complete before the overrun. The next call raises."""
        self._overrun = True
        self._plain = False
        self._partial.clear()
        if events:
            return events
        raise self._error()

    def _error(self) -> ProtocolError:
        return ProtocolError(
            f"an event of the stream is larger than {self._cap} bytes; "
            "if this model sends such events, raise Limits.max_event_bytes",
            code="event-too-large",
        )


def _columns(chunk: bytes) -> tuple[list[bytes], bytes] | None:
    """Split a chunk of `data: {…}` events, each after at most one `event:` line, into the events and the rest.

    Returns None for any other chunk, which providers rarely send. The lines form columns, which slices separate without
    a Python step per line.
    """
    period = 3 if chunk.startswith(b"event:") else 2
    lines = chunk.split(b"\n")
    whole = (len(lines) - 1) // period * period
    if any(lines[period - 1 : whole : period]):
        return None
    if period == 3 and not all(line.startswith(b"event:") for line in set(lines[:whole:3])):
        return None
    data = lines[period - 2 : whole : period]
    # Chat Completions ends with `[DONE]`.
    events = [line[6:] for line in data if line[:7] == b"data: {" or line == b"data: [DONE]"]
    return (events, b"\n".join(lines[whole:])) if len(events) == len(data) else None


def _data(block: bytearray) -> bytes:
    """Join the data of an event's lines with newlines, overwriting the block. Empty if it has none.

    Lines are joined in place: a list of many short ones would need far more memory than the cap allows.
    """
    write = start = first = count = 0
    size = len(block)
    while start < size:
        end = block.find(b"\n", start)
        if end < 0:
            end = size
        if block.startswith(b"data", start, end) and (end == start + 4 or block[start + 4] == _COLON):
            begin = min(start + 5, end)
            if block.startswith(b" ", begin, end):
                begin += 1
            count += 1
            if count == 1:
                first, write = begin, end
            else:
                block[write] = _LF
                block[write + 1 : write + 1 + end - begin] = block[begin:end]
                write += 1 + end - begin
        start = end + 1
    if not count and block.startswith(b"{") and _is_json_object(bare := bytes(block)):
        # Not a valid event, but some servers write a plain JSON error into a stream before they close it.
        return bare
    data = bytes(memoryview(block)[first:write])
    if len(data) < 64 and (bare := data.strip()) in (b"", _DONE):
        return bare
    return data


def _is_json_object(data: bytes) -> bool:
    if not data.startswith(b"{"):
        return False
    try:
        json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True

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
_ALIKE_BYTES = 8192
"""Chunk size from which a search for events that begin alike pays off."""
_FEW = 8
"""Number of events that begin alike below which looking for more of them does not pay off."""
_beginning = re.compile(rb"\n(\r?\n)((?:event:[^\r\n]*\1)?data: )\{").match


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
        size = len(chunk)
        if self._plain and not self._partial and size <= self._cap and chunk.endswith(b"\n\n"):
            # The fast path for one event in each packet.
            at = chunk.find(b"\n") + 1
            if at == size - 1:
                at = 0
            elif chunk.find(b"\n", at) != size - 2 or not chunk.startswith(b"event:"):
                at = size
            if chunk.startswith(b"data: {", at) and b"\r" not in chunk:
                return [chunk[at + 6 : -2]]
        events: list[bytes] = []
        self._add(chunk, events)
        return events

    def _add(self, chunk: bytes, events: list[bytes]) -> None:
        """Append the data of each complete event, events that begin alike first, and the others around them."""
        if not _ALIKE_BYTES <= len(chunk) <= self._cap or (found := _alike(chunk)) is None:
            self._split(chunk, events)
            return
        before, beginning, alike, end, after = found
        self._add(before, events)
        if self._overrun:
            return
        together = b"".join(alike)
        if b"\r" in together or min(alike) < b"{":
            for data in alike:
                self._split(beginning + data + end, events)
        elif b"\n" in together:
            at = 0
            for place in [place for place, data in enumerate(alike) if b"\n" in data]:
                events += alike[at:place]
                self._add(beginning + alike[place] + end, events)
                at = place + 1
            events += alike[at:]
        else:
            events += alike
        self._add(after, events)

    def _split(self, chunk: bytes, events: list[bytes]) -> None:
        if not self._plain or b"\r" in chunk:
            chunk = self._normalised(chunk)
        partial = self._partial
        if partial:
            if chunk[:1] == b"\n" and partial[-1] == _LF:
                del partial[-1]
                end, rest = 0, 1
            elif (end := _blank_line(chunk)) >= 0:
                rest = end + 2
            else:
                partial += chunk
                self._check(events)
                return
            partial += chunk[:end]
            if len(partial) > self._cap:
                self._fail(events)
                return
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
                    self._fail(events)
                    return
                at = block.find(b"\n") + 1
                if block.startswith(b"data: {", at) and (
                    not at or (block.startswith(b"event:") and block.find(b"\n", at) < 0)
                ):
                    events.append(block[at + 6 :])
                elif data := _data(bytearray(block)):
                    events.append(data)
        if tail:
            partial += tail
            self._check(events)

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

    def _check(self, events: list[bytes]) -> None:
        size = len(self._partial)
        # The last line end may already belong to the blank line that ends the event.
        if size > self._cap and size - (self._partial[-1] == _LF) > self._cap:
            self._fail(events)

    def _fail(self, events: list[bytes]) -> None:
        """Raise, or let the next call raise if events were complete before the overrun."""
        self._overrun = True
        self._plain = False
        self._partial.clear()
        if not events:
            raise self._error()

    def _error(self) -> ProtocolError:
        return ProtocolError(
            f"an event of the stream is larger than {self._cap} bytes; "
            "if this model sends such events, raise Limits.max_event_bytes",
            code="event-too-large",
        )


def _alike(chunk: bytes) -> tuple[bytes, bytes, list[bytes], bytes, bytes] | None:
    """Split a chunk at the beginning of an event in its middle, `data: ` with the `event:` line before it.

    Most events of a stream begin alike, so this yields their data without a Python step for each. Returns what is
    before the first of them, how they begin, what follows each but the last, the blank line, and the last with what is
    after it. The first and the last piece are at most half of the chunk. None means that few events begin like that.
    """
    at = len(chunk) // 2
    for _ in range(3):  # The line end of an `event:` line, of the data, and of the blank line.
        at = chunk.find(b"\n", at)
        if at < 0:
            return None
        found = _beginning(chunk, at)
        if found is not None:
            break
        at += 1
    else:
        return None
    end, beginning = found[1] * 2, found[2]
    before, *alike = chunk.split(end + beginning)
    if len(alike) < _FEW:
        return None
    after = alike.pop()
    return before + end, beginning, alike, end, beginning + after


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


def _blank_line(chunk: bytes) -> int:
    """Return the position of the first blank line, or -1. Searching for one byte is several times faster than for two.

    A line may hold a file, so only the first lines are searched one by one.
    """
    at = -1
    for _ in range(_FEW):
        at = chunk.find(b"\n", at + 1)
        if at < 0 or chunk.startswith(b"\n", at + 1):
            return at
    return chunk.find(b"\n\n", at)


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

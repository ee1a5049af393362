"""An event stream read from an HTTP connection."""

import asyncio
import math
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Final, cast

import aiohttp

from sidestream.errors import RunError
from sidestream.jsontext import loads
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall, Opening, is_keep_alive, is_plain_keep_alive
from sidestream.wire.aws_frames import FrameSplitter
from sidestream.wire.download import too_large
from sidestream.wire.failures import connect_error, idle_timeout, truncated
from sidestream.wire.sse import Splitter

WATCH_INTERVAL_S: Final = 3.0
"""Interval in seconds at which a waiting stream checks its connection, and so the delay until it notices broken
framing."""
LINGER_S: Final = 0.01
"""Seconds to wait for the end of a body after the last event. That is cheaper than a new connection."""


PAUSED_BYTES: Final = 32 * 1024
"""Bytes that wake a paused stream, so that it is not slowed down and its buffer need not grow."""
_HAS_LOW_WATER: Final = sys.platform == "linux"
"""Whether changing SO_RCVLOWAT reliably wakes waiting readers."""
_CONTEXT: Final = Context()


class EventStream:
    """The events of one HTTP response, as they arrive."""

    is_stream = True
    opening = Opening()

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        call: HttpCall,
        limits: Limits,
        splitter: Splitter | FrameSplitter | None = None,
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._call = call
        self._limits = limits
        self._splitter = splitter or Splitter(limits.max_event_bytes)
        self._received_bytes = 0
        self._ready: list[bytes] | None = None
        self._has_begun = False
        self._has_ended = False
        self._error: RunError | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._deadline_s = math.inf
        self._was_ignored = False
        self._paused: socket.socket | None = None
        # Never later than a deadline that is set after the timer.
        self._watch_interval_s = min(WATCH_INTERVAL_S, limits.idle_timeout_s)

    async def begin(self) -> None:
        """Wait for the first events with content, so that a stream that breaks before them can be retried."""
        while (events := await self.events()) and all(map(says_nothing, events)):
            self._has_begun = False
        self._ready = events

    async def events(self) -> list[bytes]:
        """Return the next events, without keep-alives. The list is empty at the end."""
        if self._ready:
            events, self._ready = self._ready, None
            return events
        if self._error is not None:
            raise self._error
        if self._has_ended:
            return []
        limits, splitter = self._limits, self._splitter
        if not self._has_begun:
            self._deadline_s = math.inf
        elif not self._was_ignored:
            self._deadline_s = monotonic() + limits.idle_timeout_s
        is_idle, self._was_ignored = self._was_ignored, False
        self._is_waiting = True
        if self._timer is None and self._content.total_bytes <= self._received_bytes:
            self._watch_later()
        try:
            while True:
                # While keep-alives arrive, the timer always finds bytes that are not read yet.
                if is_idle and monotonic() >= self._deadline_s:
                    raise idle_timeout(self._call, limits)
                is_idle = True
                try:
                    chunk = await self._content.readany()
                except RunError:
                    raise
                except Exception:
                    chunk = None
                if chunk is None:
                    return self._broken()
                if not chunk:
                    return self._ended()
                self._received_bytes += len(chunk)
                if self._received_bytes > limits.max_response_bytes:
                    raise too_large(self._call, "max_response_bytes", limits.max_response_bytes)
                if events := splitter.feed(chunk):
                    self._has_begun = True
                    return events
                if not self._has_begun:  # the first event may be late, but must not stall halfway
                    end_s = monotonic() + limits.idle_timeout_s if splitter.has_begun_event else math.inf
                    self._deadline_s = min(self._deadline_s, end_s) if end_s < math.inf else end_s
                if self._timer is None:
                    self._watch_later()
        except RunError as error:
            self._error = error
            self._close()
            raise
        finally:
            self._is_waiting = False

    def ignored(self) -> None:
        self._was_ignored = self._deadline_s < math.inf

    def pause(self) -> None:
        """Leave arriving data in the operating system's buffer until `resume`.

        Many packets then cost one read and one wake-up. The end of the connection, and large amounts of data, are still
        noticed.
        """
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        if transport is not None:
            self._paused = transport.get_extra_info("socket")
            _set_low_water(self._paused, PAUSED_BYTES)

    def resume(self) -> None:
        """Resume reading. Data that has arrived is read in the next iteration of the event loop."""
        # Stored by `pause`: once the body was read to its end, the connection may serve another request.
        paused, self._paused = self._paused, None
        if paused is not None:
            _set_low_water(paused, 1)

    async def body(self) -> bytes:
        raise RuntimeError("this response is a stream; call events()")

    async def aclose(self) -> None:
        self._close()

    async def complete(self) -> None:
        try:
            if not self._content.is_eof():
                with suppress(aiohttp.ClientError, OSError):
                    async with asyncio.timeout(LINGER_S):
                        while await self._content.readany():
                            pass
        finally:
            self._close()

    def _close(self) -> None:
        self._unwatch()
        self.resume()
        # A finished stream has already released its connection; any other connection cannot be reused.
        self._response.close()

    def _ended(self) -> list[bytes]:
        """Return the last events. Raises ConnectError if the body ended before the first event was complete."""
        is_cut = self._splitter.has_partial or not _is_framed(self.headers)
        events = self._splitter.flush()
        if is_cut and not events and not self._has_begun:
            # The end of a body without a length does not prove that it is whole: a reset looks the same.
            raise connect_error(ConnectionResetError(), self._call.url)
        self._has_ended = True
        self._close()
        return events

    def _broken(self) -> list[bytes]:
        """Return the events that arrived before the connection broke.

        Raises ConnectError or StreamTruncatedError if there are none.
        """
        events = self._splitter.feed(_unread(self._content))
        self._has_begun |= bool(events)
        self._error = (
            truncated(self._call) if self._has_begun else connect_error(ConnectionResetError(), self._call.url)
        )
        self._close()
        if events:
            return events
        raise self._error

    def _watch_later(self) -> None:
        # One periodic timer: a timeout around each read would cost more than the read. All streams share one context,
        # since a copy for each would live as long as its timer.
        wait_s = min(max(self._deadline_s - monotonic(), 0.0), self._watch_interval_s)
        self._timer = self._loop.call_later(wait_s, self._watch, context=_CONTEXT)

    def _unwatch(self) -> None:
        self._is_waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        self._timer = None
        if not self._is_waiting:
            return
        connection = self._response.connection
        if self._content.total_bytes > self._received_bytes or self._content.is_eof():
            pass  # the reader wakes up next
        elif connection is None or connection.protocol is None or not connection.protocol.is_connected():
            # aiohttp does not wake a reader when the framing of its body breaks.
            self._content.set_exception(aiohttp.ClientPayloadError())
            return
        elif monotonic() >= self._deadline_s:
            self._content.set_exception(idle_timeout(self._call, self._limits))
            return
        self._watch_later()


def _set_low_water(connection: socket.socket | None, size: int) -> None:
    """Set how many bytes must arrive before the event loop wakes. Cheaper than deregistering the socket."""
    if connection is not None and _HAS_LOW_WATER:
        with suppress(OSError):  # already closed
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


def says_nothing(event: bytes) -> bool:
    """Return whether an event only keeps the connection open. Long events never do."""
    if len(event) > 200:
        return False
    try:
        value = loads(event)
        return not value or is_keep_alive(value)
    except (ValueError, RecursionError):
        return is_plain_keep_alive(event)


def _is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether the headers show where the body ends."""
    return "content-length" in headers or "transfer-encoding" in headers


def _unread(content: aiohttp.StreamReader) -> bytes:
    """Return the bytes that arrived before the connection broke. aiohttp withholds them once its exception is set."""
    content.set_exception(cast("BaseException", None))
    return content.read_nowait()

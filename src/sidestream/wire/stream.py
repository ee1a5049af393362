"""An answer that is a stream of events, read from its connection."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Final

import aiohttp

from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.providers.calls import HttpCall
from sidestream.wire.download import too_large
from sidestream.wire.failures import connect_error, idle_timeout, truncated
from sidestream.wire.sse import Splitter

LOOK_INTERVAL_S: Final = 3.0
"""How often a waiting stream looks after its connection: so late it may notice that the framing of a body broke."""
LINGER_S: Final = 0.01
"""How long the end of a body may take after the last event. To wait for it is cheaper than to connect anew."""


_CONTEXT: Final = Context()


class EventStream:
    """The events of one answer, as they come."""

    is_stream = True

    def __init__(self, response: aiohttp.ClientResponse, call: HttpCall, limits: Limits) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._call = call
        self._limits = limits
        self._splitter = Splitter(limits.max_event_bytes)
        self._received_bytes = 0
        self._ready: list[bytes] | None = None
        self._has_begun = False
        self._has_ended = False
        self._error: RunError | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._deadline_s = math.inf

    async def begin(self) -> None:
        """Waits for the first events, so that a stream that breaks before them can be tried again."""
        self._ready = await self.events()

    async def events(self) -> list[bytes]:
        """The next events; empty at the end. Keep-alives are read over."""
        if self._ready:
            events, self._ready = self._ready, None
            return events
        if self._error is not None:
            raise self._error
        if self._has_ended:
            return []
        limits, splitter = self._limits, self._splitter
        if self._has_begun:
            self._deadline_s = monotonic() + limits.idle_timeout_s
        self._is_waiting = True
        if self._timer is None:
            self._look_later()
        try:
            while True:
                try:
                    chunk = await self._content.readany()
                except RunError:
                    raise
                except Exception:
                    chunk = None
                if chunk is None:
                    return self._broken()
                if not chunk:
                    self._has_ended = True
                    self._close()
                    return splitter.flush()
                self._received_bytes += len(chunk)
                if self._received_bytes > limits.max_response_bytes:
                    raise too_large(self._call, "max_response_bytes", limits.max_response_bytes)
                if events := splitter.feed(chunk):
                    self._has_begun = True
                    return events
        except RunError as error:
            self._error = error
            self._close()
            raise
        finally:
            self._is_waiting = False

    async def body(self) -> bytes:
        raise RuntimeError("This answer is a stream: read events().")

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
        # A stream that has ended gave its connection back already; any other connection is of no more use.
        self._response.close()

    def _broken(self) -> list[bytes]:
        """The events that had come before the connection broke; if none had, raises what happened."""
        events = self._splitter.feed(_unread(self._content))
        self._has_begun |= bool(events)
        self._error = (
            truncated(self._call) if self._has_begun else connect_error(ConnectionResetError(), self._call.url)
        )
        self._close()
        if events:
            return events
        raise self._error

    def _look_later(self) -> None:
        # One timer that looks now and then: a timeout around each read would cost more than the read. It runs in one
        # context for all streams: a copy for each would be kept as long as its timer.
        wait_s = min(max(self._deadline_s - monotonic(), 0.0), LOOK_INTERVAL_S)
        self._timer = self._loop.call_later(wait_s, self._look, context=_CONTEXT)

    def _unwatch(self) -> None:
        self._is_waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._is_waiting:
            return
        connection = self._response.connection
        if self._content.total_bytes > self._received_bytes or self._content.is_eof():
            pass  # the reader is about to wake up
        elif connection is None or connection.protocol is None or not connection.protocol.is_connected():
            # aiohttp does not wake a reader when the framing of its body breaks.
            self._content.set_exception(aiohttp.ClientPayloadError())
            return
        elif monotonic() >= self._deadline_s:
            self._content.set_exception(idle_timeout(self._call, self._limits))
            return
        self._look_later()


def _unread(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke: aiohttp would raise the break first and lose it."""
    read: Callable[[int], bytes] | None = getattr(content, "_read_nowait", None)
    return read(-1) if read else b""

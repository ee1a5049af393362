"""A response that arrives in a lane of a WebSocket connection."""

import asyncio
import math
from collections.abc import Mapping
from contextvars import Context
from time import monotonic
from typing import Final, Protocol

from sidestream.errors import LimitError, RunError
from sidestream.limits import MAX_UNREAD_BYTES, Limits
from sidestream.providers.calls import HttpCall, Opening
from sidestream.wire.download import too_large
from sidestream.wire.failures import connect_error, idle_timeout, truncated
from sidestream.wire.origins import origin_of
from sidestream.wire.stream import says_nothing

_HEADERS: Final[Mapping[str, str]] = {"content-type": "text/event-stream"}
_CONTEXT: Final = Context()


class Carrier(Protocol):
    """The connection of a stream."""

    async def send(self, message: bytes) -> None:
        """Sends a message."""
        ...

    def leave(self, lane: str) -> None:
        """Nobody reads this lane any more."""
        ...


class SocketStream:
    """The events of one response, as the connection hands them over. Recorded and read like a stream over HTTP."""

    status = 200
    headers = _HEADERS
    is_stream = True
    opening = Opening()

    def __init__(self, carrier: Carrier, lane: str, call: HttpCall, limits: Limits) -> None:
        self.lane = lane
        self.has_begun = False
        """True once the first event that says something was read: from then on nothing is retried."""
        self.call = call
        self._carrier = carrier
        self._limits = limits
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._left_bytes = limits.max_response_bytes
        """How much more of the response may be read."""
        self._limit_unread()
        self._is_over = False
        self._is_broken = False
        self._error: RunError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = math.inf
        self._was_ignored = False

    # For the connection

    def push(self, event: bytes) -> None:
        """The next event has arrived."""
        self._unread.append(event)
        self._unread_bytes += len(event)
        if self._unread_bytes > self._max_unread_bytes:
            self._check_size()
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """The last event has arrived."""
        self._is_over = True
        self._wake()

    def breaks(self, error: RunError | None) -> None:
        """The connection has ended. Events that had arrived are read first."""
        self._is_broken = True
        self._error = self._error or error
        self._wake()

    def refuse(self, error: RunError) -> None:
        """The server refuses the request, in place of events."""
        self._is_over = True
        self._error = error
        self._unread.clear()
        self._wake()

    def fail(self, error: RunError) -> None:
        """The response ends with an error, here and at the server."""
        self._error = error
        self._unread.clear()
        self._wake()
        self._leave()

    @property
    def is_silent(self) -> bool:
        """True if no event has arrived that says something."""
        return not self.has_begun and all(map(says_nothing, self._unread))

    # For the reader

    async def begin(self) -> None:
        """Waits for the first events that say something, so that a response that fails before them can be retried."""
        while (events := await self.events()) and all(map(says_nothing, events)):
            pass
        self._unread[:0] = events
        self._unread_bytes += sum(map(len, events))
        self._left_bytes += sum(map(len, events))
        self.has_begun = bool(events)
        self._is_over = self._is_over or not events

    async def events(self) -> list[bytes]:
        """The next events, as many as have arrived; empty at the end."""
        if self.has_begun and not self._was_ignored:
            self._deadline_s = monotonic() + self._limits.idle_timeout_s
        elif self._was_ignored and monotonic() >= self._deadline_s:
            self.fail(idle_timeout(self.call, self._limits))
        self._was_ignored = False
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return []
            if self._is_broken:
                self._error = truncated(self.call) if self.has_begun else connect_error(_RESET, self.call.url)
                continue
            await self._wait()
        events, self._unread = self._unread, []
        self._left_bytes -= self._unread_bytes
        self._unread_bytes = 0
        self._limit_unread()
        return events

    def ignored(self) -> None:
        self._was_ignored = self._deadline_s < math.inf

    async def body(self) -> bytes:
        raise RuntimeError("This response is a stream: read events().")

    async def send(self, event: bytes) -> None:
        """Sends another event to the server while the response runs, e.g. one that steers it."""
        await self._carrier.send(event)

    async def aclose(self) -> None:
        """Leaves the lane. If no other response is in progress, the connection is closed, and the server stops."""
        self.close()

    complete = aclose

    def close(self) -> None:
        """As `aclose`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave()
        self._unread.clear()
        self._wake()

    def _limit_unread(self) -> None:
        self._max_unread_bytes = min(MAX_UNREAD_BYTES, self._left_bytes)

    def _check_size(self) -> None:
        if self._unread_bytes > self._left_bytes:
            self.fail(too_large(self.call, "max_response_bytes", self._limits.max_response_bytes))
        elif len(self._unread) > 1:
            self.fail(_unread_error(self.call))

    def _leave(self) -> None:
        # Only while the lane is its own: after the last event, another response may have it.
        if not self._is_over:
            self._is_over = True
            self._carrier.leave(self.lane)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self._timer is None and self._deadline_s < math.inf:
            self._watch_later()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch_later(self) -> None:
        # One timer for many waits: a timeout around each would cost more than the event.
        wait_s = max(self._deadline_s - monotonic(), 0.0)
        self._timer = self._loop.call_later(wait_s, self._watch, context=_CONTEXT)

    def _watch(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if monotonic() >= self._deadline_s:
            self.fail(idle_timeout(self.call, self._limits))
        else:
            self._watch_later()


_RESET: Final = ConnectionResetError()


def _unread_error(call: HttpCall) -> LimitError:
    return LimitError(
        f"More than {MAX_UNREAD_BYTES} bytes from {origin_of(call.url)} were not read. Responses share a connection, "
        "so a slow reader would delay the others. Read faster, or use HTTP for this agent.",
        code="max-unread-bytes",
    )

"""A response that arrives in a lane of a WebSocket connection, and the messages sent to it."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from contextvars import Context
from time import monotonic
from typing import Final, Protocol

from sidestream.errors import LimitError, RunError
from sidestream.limits import MAX_STEER_ANSWER_S, MAX_UNREAD_BYTES, Limits
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall, Opening, SentSteer, SocketCodec, SteerReport
from sidestream.wire.download import too_large
from sidestream.wire.failures import connect_error, idle_timeout, truncated
from sidestream.wire.stream import says_nothing


class LaneSteers:
    """The messages of a lane, tracked across responses until each is applied or has failed.

    A server answers messages in the order in which they were sent, and assigns an id to each that it accepts.
    """

    def __init__(self) -> None:
        self.response_id = ""
        """Id of the response that the last message was sent to."""
        self._unanswered: deque[SentSteer] = deque()
        self._held: dict[str, SentSteer] = {}
        """Messages that the server has accepted, by its own ids."""

    @property
    def has_unanswered(self) -> bool:
        """Whether the server has yet to accept or refuse a message."""
        return bool(self._unanswered)

    @property
    def has_pending(self) -> bool:
        """Whether the server will add a message to the next request of the lane."""
        return any(steer.status == "pending" for steer in self._held.values())

    @property
    def is_settled(self) -> bool:
        """Whether the server will report nothing more before the next request."""
        return not self._unanswered and all(steer.status == "pending" for steer in self._held.values())

    @property
    def is_empty(self) -> bool:
        """Whether no message is unanswered or held by the server."""
        return not self._unanswered and not self._held

    def sent(self, response_id: str) -> SentSteer:
        """Register a message that is about to be sent."""
        steer = SentSteer()
        self.response_id = response_id
        self._unanswered.append(steer)
        return steer

    def take(self, report: SteerReport) -> None:
        """Apply a server's report to its message. Reports on unknown messages are ignored."""
        steer = self._held.get(report.id) if report.id is not None else None
        if steer is None:
            if report.status == "pending" or not self._unanswered:
                return
            steer = self._unanswered.popleft()
        if report.status == "failed":
            self._held.pop(report.id or "", None)
            steer.fail(report.code, report.message)
        else:
            self._held[report.id or f"unnamed {id(steer)}"] = steer
            steer.status = report.status

    def apply(self) -> None:
        """Mark the messages that the server held as applied, since a response has begun that takes them."""
        for steer in self._held.values():
            steer.status = "applied"
        self._held.clear()

    def drop(self, code: str, message: str) -> None:
        """Fail all open messages, since the server will report nothing more about them."""
        for steer in (*self._unanswered, *self._held.values()):
            steer.fail(code, message)
        self._unanswered.clear()
        self._held.clear()


_HEADERS: Final[Mapping[str, str]] = {"content-type": "text/event-stream"}
_CONTEXT: Final = Context()


class Carrier(Protocol):
    """The connection of a stream."""

    @property
    def codec(self) -> SocketCodec:
        """Protocol of the connection."""
        ...

    async def send(self, message: bytes) -> None: ...

    def leave(self, lane: str) -> None:
        """Release a lane whose stream is no longer read."""
        ...


class SocketStream:
    """The events of one response on a WebSocket. It is recorded and read like an HTTP stream."""

    status = 200
    headers = _HEADERS
    is_stream = True
    is_steerable = True
    opening = Opening()

    def __init__(self, carrier: Carrier, lane: str, call: HttpCall, limits: Limits) -> None:
        self.lane = lane
        self.has_begun = False
        """Whether an event with content was read. From then on nothing is retried."""
        self.call = call
        self._carrier = carrier
        self._limits = limits
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._left_bytes = limits.max_response_bytes
        """Bytes of the response that may still be read."""
        self._limit_unread()
        self._is_over = False
        self._is_broken = False
        self._error: RunError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = math.inf
        self._was_ignored = False
        self.steers: LaneSteers | None = None
        """Messages to the responses of this lane. None means that none were sent."""
        self.is_awaited = False
        """Whether this is a successor that the server has yet to start, by itself or with the next request."""
        self._following: SocketStream | None = None
        """The next stream in the lane once this response has ended, if the server holds messages."""

    # For the connection

    def push(self, *events: bytes) -> None:
        """Add events that have arrived."""
        self._unread += events
        self._unread_bytes += sum(map(len, events))
        if self._unread_bytes > self._max_unread_bytes:
            self._check_size()
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """Mark the response as complete."""
        self._is_over = True
        self._wake()

    def breaks(self, error: RunError | None) -> None:
        """Mark the connection as lost. Events that have arrived are read first."""
        self._is_broken = True
        self._error = self._error or error
        self._wake()

    def refuse(self, error: RunError) -> None:
        """Fail the request with the server's refusal, and discard its events."""
        self._is_over = True
        self._error = error
        self._unread.clear()
        self._wake()

    def fail(self, error: RunError) -> None:
        """Fail the response, and stop it on the server."""
        self._error = error
        self._unread.clear()
        self._wake()
        self._leave()

    def followed(self) -> "SocketStream":
        """Create the stream for a successor, for a response that ended while the server holds messages to it."""
        self._following = following = SocketStream(self._carrier, self.lane, self.call, self._limits)
        following.steers = self.steers
        following.is_awaited = True
        return following

    def starts(self) -> None:
        """Mark a successor as begun, which applies the messages that the server holds."""
        self.is_awaited = False
        if self.steers is not None:
            self.steers.apply()

    @property
    def holds_messages(self) -> bool:
        """Whether the server holds messages to this response, or has not answered them."""
        return self.steers is not None and not self.steers.is_empty

    def reported(self) -> None:
        """Wake the reader after a report on a message."""
        self._wake()

    @property
    def is_silent(self) -> bool:
        """Whether no event with content has arrived."""
        return not self.has_begun and all(map(says_nothing, self._unread))

    # For the reader

    async def begin(self) -> None:
        """Wait for the first events with content, so that a response that fails before them can be retried."""
        while (events := await self.events()) and all(map(says_nothing, events)):
            pass
        self._unread[:0] = events
        self._unread_bytes += sum(map(len, events))
        self._left_bytes += sum(map(len, events))
        self.has_begun = bool(events)
        self._is_over = self._is_over or not events

    async def events(self) -> list[bytes]:
        """Return the events that have arrived, waiting for at least one. The list is empty at the end."""
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
        raise RuntimeError("this response is a stream; call events()")

    async def aclose(self) -> None:
        """Stop reading. If no other response is in progress, the connection is closed, and the server stops."""
        self.close()

    async def complete(self) -> None:
        """Stop reading, but keep a successor of this response."""
        self._stop()

    def close(self) -> None:
        """Stop reading, and drop a successor of this response."""
        self._stop()
        following, self._following = self._following, None
        if following is not None:
            following.close()

    # Messages to the response

    async def steer(self, response_id: str, message: bytes) -> SentSteer:
        """Send a message to the current response."""
        if self._is_over or self._is_broken:
            return SentSteer("failed", "response_already_completed", "The response has just ended.")
        if self.steers is None:
            self.steers = LaneSteers()
        steer = self.steers.sent(response_id)
        await self._carrier.send(message)
        return steer

    async def successor(self) -> "SocketStream | None":
        """Return the response that the server starts by itself once this one has ended, or None if it starts none."""
        following = self._following
        if following is None:
            return None
        try:
            has_begun = await following._begins()
        except (RunError, TimeoutError) as error:
            self._lose(following, error)
            return None
        if not has_begun:
            return None  # nothing follows, or the server waits for a request
        self._following = None
        return following

    async def proceed(self, call: HttpCall) -> "SocketStream":
        """Send the next request of the lane, to which the server adds pending messages.

        Raises RunError if there is no successor, or if the server does not answer.
        """
        following, self._following = self._following, None
        message_for = self._carrier.codec.request(call)
        if following is None or following._is_over or message_for is None:
            raise connect_error(_RESET, call.url)
        following.call = call
        try:
            await self._carrier.send(message_for(self.lane))
            async with asyncio.timeout(self._limits.first_byte_timeout_s):
                await following.begin()
            if not following.has_begun:
                raise connect_error(_RESET, call.url)
        except TimeoutError as error:
            self._lose(following, error)
            raise idle_timeout(call, self._limits) from None
        except BaseException as error:
            self._lose(following, error)
            raise
        return following

    async def _begins(self) -> bool:
        """Wait for the server to start a response. Returns False if it does not, or if it waits for a request."""
        assert self.steers is not None
        from_s = self._loop.time()
        while not self._unread:
            if self._error is not None or self._is_broken:
                break
            if self._is_over or (self.steers.is_settled and self.is_awaited):
                return False
            wait_s = MAX_STEER_ANSWER_S if self.steers.has_unanswered else self._limits.first_byte_timeout_s
            async with asyncio.timeout_at(from_s + wait_s):
                await self._wait()
        await self.begin()
        return self.has_begun

    def _lose(self, following: "SocketStream", error: BaseException) -> None:
        """Give up on a successor. Messages that the server may still hold are resent with another request."""
        following.close()
        if self.steers is not None:
            why = error.message if isinstance(error, RunError) else "The server reported nothing more about it."
            self.steers.drop("no-successor", why)

    def _stop(self) -> None:
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
        # Only while this stream owns the lane: after the last event, another response may have it.
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
        f"more than {MAX_UNREAD_BYTES} bytes from {origin_of(call.url)} are unread; read faster, or use HTTP for this "
        "agent, since a slow reader would delay the other responses on its connection",
        code="max-unread-bytes",
    )

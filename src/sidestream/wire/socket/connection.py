"""A WebSocket connection that carries several responses, each in its own lane."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Final, Literal, NamedTuple

import aiohttp
from aiohttp import ClientWebSocketResponse, WebSocketError, WSCloseCode, WSMsgType

from sidestream.errors import ProtocolError, RunError
from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall, Opening, SocketCodec
from sidestream.wire.egress import arrived_messages
from sidestream.wire.failures import connect_error, status_error
from sidestream.wire.socket.stream import SocketStream
from sidestream.wire.stream import says_nothing

CLOSE_S: Final = 1.0
"""Seconds to wait for the server's closing handshake before the connection is dropped."""
IDLE_S: Final = 600.0
"""Time in seconds that a connection without responses stays open."""

log = get_logger(__name__)
Socket = ClientWebSocketResponse[Literal[False]]


class SocketTarget(NamedTuple):
    """The settings of a connection. Calls with the same target share it."""

    url: str
    headers: tuple[tuple[str, str], ...]
    proxy: str | None
    max_event_bytes: int
    codec: SocketCodec


class SocketConnection:
    """A WebSocket connection that routes each event to the stream of its lane."""

    def __init__(self, socket: Socket, target: SocketTarget) -> None:
        self.is_open = True
        """False once it accepts no further responses."""
        self._socket = socket
        self._arrived = arrived_messages(socket)
        self._target = target
        self.codec = target.codec
        self._special = target.codec.last_types | target.codec.steer_types
        self._opened_s = monotonic()
        self._lanes: dict[str, SocketStream | None] = {}
        """Streams of the responses in progress, by lane. None means that the stream was abandoned."""
        self._last: SocketStream | None = None
        """The stream that got the last event, while it is still being read."""
        self._tails: tuple[bytes, ...] = ()
        self._free: list[str] = []
        self._named = 0
        self._places = asyncio.Semaphore(self.codec.max_active)
        self._has_reported = False
        self._idle: asyncio.TimerHandle | None = None
        # Use a separate context, so that the task does not keep the first request's alive.
        self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    @property
    def is_too_old(self) -> bool:
        """Whether the server is about to close the connection."""
        return monotonic() - self._opened_s >= self.codec.max_age_s

    @property
    def is_idle(self) -> bool:
        """Whether no response is in progress."""
        return not self._lanes

    async def open(self, message_for: Callable[[str], bytes], call: HttpCall, limits: Limits) -> SocketStream | None:
        """Request a response, waiting for a turn. Returns None if the connection accepts no further responses."""
        waits_from_s = monotonic() if self._places.locked() else None
        await self._places.acquire()
        lane = self._new_lane()
        if lane is None:
            self._places.release()
            return None
        stream = SocketStream(self, lane, call, limits)
        self._lanes[lane] = stream
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            if waits_from_s is not None:
                stream.opening = Opening(limiter_wait_s=monotonic() - waits_from_s)
            await self.send(message_for(lane))
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    async def send(self, message: bytes) -> None:
        """Send a message. If the connection is lost, its streams report that."""
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.send_frame(message, WSMsgType.TEXT)

    def leave(self, lane: str) -> None:
        """Release a lane whose stream is no longer read.

        Only a closed connection tells the server to stop. While other responses use the connection, the rest of this
        one is discarded.
        """
        stream = self._lanes.get(lane)
        if stream is None:
            return
        self._last = None
        self._lanes[lane] = None
        if stream.holds_messages:
            # The server may start a successor in the lane, or add the message to another request there.
            self.retire()
        self._settle()

    def retire(self) -> None:
        """Accept no further responses, and close after those in progress."""
        if self.is_open:
            self.is_open = False
            self._places.release()  # wakes waiting requests one by one
            self._settle()

    def close(self) -> None:
        """Close the connection, which breaks the responses in progress."""
        self.is_open = False
        self._reading.cancel()

    def when_closed(self, action: Callable[[], None]) -> None:
        """Call `action` once the connection is closed."""
        self._reading.add_done_callback(lambda _: action())

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.wait([self._reading])

    def _new_lane(self) -> str | None:
        if not self.is_open:
            return None
        if self._free:
            return self._free.pop()
        if self._named == self.codec.max_lanes:
            self.retire()
            return None
        self._named += 1
        return f"lane-{self._named}"

    def _finish(self, lane: str, *, is_reusable: bool) -> None:
        """Remove a finished response, and free its lane if it is reusable."""
        del self._lanes[lane]
        self._last = None
        if is_reusable:
            self._free.append(lane)
        self._places.release()
        self._settle()

    def _settle(self) -> None:
        """Close the connection if no stream is being read, at once if the server still sends, else after `IDLE_S`."""
        if any(stream is not None for stream in self._lanes.values()):
            return
        if self._lanes or not self.is_open:
            self.close()
        elif self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close, context=Context())

    async def _read(self) -> None:
        error: RunError | None = None
        try:
            error = await self._route()
        finally:
            self.is_open = False
            self._places.release()
            if self._idle is not None:
                self._idle.cancel()
            lanes, self._lanes = self._lanes, {}
            for stream in [stream for stream in lanes.values() if stream is not None]:
                stream.breaks(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close()

    async def _route(self) -> RunError | None:
        """Route events until the connection ends. Returns the error, or None if the connection just broke."""
        plain_heads, special = self.codec.plain_heads, self._special
        receive, head_of, lanes = self._socket.receive, self.codec.head, self._lanes
        while True:
            message = await receive()
            # Accept binary messages too: the vendor's client reads them as text.
            if message.type is not WSMsgType.TEXT and message.type is not WSMsgType.BINARY:
                return self._end_of(message.data)
            event: bytes = message.data
            stream = self._last
            # Most events are deltas of the same response as before. Route them without parsing.
            if stream is not None and event.endswith(self._tails) and event.startswith(plain_heads):
                stream.push(event, *await self._arrived_deltas(event))
                continue
            head = head_of(event)
            lane = head.lane
            stream = lanes.get(lane) if lane is not None else None
            if stream is None:
                self._unrouted(lane, head.type, event)
            elif stream is self._last and head.type not in special:
                stream.push(event)
            else:
                self._deliver(stream, head.type, event)

    async def _arrived_deltas(self, event: bytes) -> list[bytes]:
        """Take the deltas that have arrived since, as long as they begin and end like this one."""
        arrived, take = self._arrived
        if not arrived:
            return []
        head = next(filter(event.startswith, self.codec.plain_heads))
        tail = next(filter(event.endswith, self._tails))
        deltas: list[bytes] = []
        for (kind, data, _), _ in arrived:
            if kind is not WSMsgType.TEXT or not data.endswith(tail) or not data.startswith(head):
                break
            deltas.append(data)
        for _ in deltas:
            await take()
        return deltas

    def _deliver(self, stream: SocketStream, kind: str, event: bytes) -> None:
        """Route an event that needs handling, or that follows an event of another response."""
        if kind in self.codec.last_types:
            self._ended(stream, kind, event)
        elif kind in self.codec.steer_types:
            self._reported(stream, kind, event)
        elif not stream.is_awaited or not says_nothing(event):
            if stream.is_awaited:
                stream.starts()
            self._last, self._tails = stream, self.codec.tails(stream.lane)
            stream.push(event)

    def _reported(self, stream: SocketStream, kind: str, event: bytes) -> None:
        """Handle a report on a message to a response."""
        report, steers = self.codec.steer_report(event), stream.steers
        if report is not None and steers is not None:
            steers.take(report)
        if not stream.is_awaited:
            if kind != "error":  # which would look like an error of the response
                stream.push(event)
            return
        stream.reported()
        if steers is not None and steers.is_empty and stream.lane in self._lanes:
            stream.end()
            self._finish(stream.lane, is_reusable=True)

    def _ended(self, stream: SocketStream, kind: str, event: bytes) -> None:
        """Route the last event of a response."""
        is_error = kind == "error"
        if is_error and stream.is_silent and self._refused(stream, event):
            return
        if stream.is_awaited:
            stream.starts()
        stream.push(event)
        stream.end()
        if stream.holds_messages and not is_error and self._lanes.get(stream.lane) is stream:
            # The server starts a successor in the lane, or reports why not.
            self._last = None
            self._lanes[stream.lane] = stream.followed()
        elif stream.lane in self._lanes:
            # After an error midway, the server may send more of the same response.
            self._finish(stream.lane, is_reusable=not is_error)

    def _refused(self, stream: SocketStream, event: bytes) -> bool:
        """Fail the stream if the event refuses the response as an HTTP status would. Returns whether it does."""
        failure = self.codec.failure(event)
        if failure is None and not stream.is_awaited:
            return False
        call = stream.call
        if failure is None or failure.ends_connection:
            self.retire()
            stream.refuse(connect_error(ConnectionResetError(), call.url))
        else:
            stream.refuse(status_error(call, failure.status, failure.headers, failure.body))
        if stream.lane in self._lanes:
            self._finish(stream.lane, is_reusable=True)
        return True

    def _unrouted(self, lane: str | None, kind: str, event: bytes) -> None:
        """Handle an event without a lane, or of a lane whose stream is no longer read."""
        if lane is not None and lane in self._lanes:
            if kind in self.codec.last_types:
                self._finish(lane, is_reusable=kind != "error")
            return
        streams = [stream for stream in self._lanes.values() if stream is not None]
        if lane is None and (steered := self._steered(streams, kind, event)) is not None:
            self._reported(steered, kind, event)
            return
        if lane is None and kind == "error":
            # It concerns the connection or an unreadable request, so it fails the streams without a response so far.
            for stream in [stream for stream in streams if stream.is_silent]:
                self._ended(stream, kind, event)
            return
        if lane is None and len(streams) == 1:
            # The server has no lanes, so it can only mean this response.
            self._deliver(streams[0], kind, event)
            return
        if not self._has_reported:
            self._has_reported = True
            log.warning("%s: dropped an event that belongs to no open response", origin_of(self._target.url))

    def _steered(self, streams: list[SocketStream], kind: str, event: bytes) -> SocketStream | None:
        """Return the stream whose message an event without a lane is about.

        Requests name their lanes, so an error without one may come from a server that does not know such messages.
        """
        if kind in self.codec.steer_types:
            report = self.codec.steer_report(event)
            wanted = report.response_id if report is not None else None
            return next((stream for stream in streams if stream.steers and stream.steers.response_id == wanted), None)
        failure = self.codec.failure(event) if kind == "error" else None
        if failure is None or failure.ends_connection:
            return None
        return next((stream for stream in streams if stream.steers and stream.steers.has_unanswered), None)

    def _end_of(self, reason: object) -> RunError | None:
        origin = origin_of(self._target.url)
        if not isinstance(reason, WebSocketError):
            log.info("%s: WebSocket closed (%s)", origin, self._socket.close_code)
            return None
        if reason.code == WSCloseCode.MESSAGE_TOO_BIG:
            return ProtocolError(
                f"an event of the stream is larger than {self._target.max_event_bytes} bytes; "
                "if this model sends such events, raise Limits.max_event_bytes",
                code="event-too-large",
            )
        return ProtocolError(f"{origin} violated the WebSocket protocol (close code {reason.code})", code="websocket")

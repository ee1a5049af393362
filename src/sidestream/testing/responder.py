"""Sending of scripted replies over a connection, with their chunks, pauses and faults, and over a WebSocket."""

import asyncio
import base64
import hashlib
import itertools
import socket
import struct
import sys
from asyncio import StreamReader
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

from sidestream.jsontext import JsonObject, as_object, dumps, loads
from sidestream.parts import Json
from sidestream.replay.recording import EVENT_STREAM
from sidestream.replay.transport import pieces
from sidestream.testing.replies import AwaitedSteer, Reply, encode_event
from sidestream.transport.calls import DONE
from sidestream.wire.sse import Splitter


class Responder:
    """Sends replies to one client, exactly as scripted."""

    def __init__(self, disconnected: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        self._disconnected = disconnected
        self._writer = writer
        self._chunked = False

    async def play(self, reply: Reply, *, has_body: bool, may_chunk: bool) -> bool:
        """Send the reply and return whether the connection can be reused."""
        if reply.gate is not None:
            await self.wait(reply.gate)
        if reply.garbage is not None:
            await self.send(reply.garbage)
            if reply.cut == "reset":
                self.reset()
            return False
        segments, content_type = _segments(reply)
        headers = {"content-type": reply.content_type or content_type}
        headers |= {name.lower(): value for name, value in reply.headers.items()}
        has_body = has_body and reply.status not in (204, 304)
        faults = (reply.cut, reply.cut_after_bytes, reply.stall_after_bytes, reply.keepalives, reply.chunk_sizes)
        if has_body and not isinstance(reply.body, list) and all(field is None for field in faults):
            headers.setdefault("content-length", str(sum(map(len, cast("list[bytes]", segments)))))
        elif has_body and may_chunk and "content-length" not in headers:
            headers["transfer-encoding"] = "chunked"
        await self.send(response_head(reply.status, headers))
        if not has_body:
            return True
        self._chunked = "transfer-encoding" in headers
        await self._send_body(reply, segments)
        cut = reply.cut or ("end" if reply.cut_after_bytes is None else "close")
        if cut == "end" and self._chunked:
            await self.send(b"0\r\n\r\n")
        if cut == "reset":
            self.reset()
        return cut == "end"

    async def _send_body(self, reply: Reply, segments: "list[bytes | asyncio.Event]") -> None:
        ends = [end for end in (reply.cut_after_bytes, reply.stall_after_bytes) if end is not None]
        left = min(ends, default=sys.maxsize)
        for segment in segments:
            if isinstance(segment, asyncio.Event):
                await self.wait(segment)
                continue
            for piece in pieces(segment[:left], reply.chunk_sizes):
                await self.send_chunk(piece, reply.pace_s)
            left -= min(len(segment), left)
            if not left:
                break
        if reply.stall_after_bytes is not None and reply.stall_after_bytes == min(ends):
            await self.disconnected()
        if (again := reply.keepalives) is not None:
            for _ in itertools.count() if again.count is None else range(again.count):
                await self.send_chunk(again.frame, again.interval_s)

    async def send_chunk(self, data: bytes, pause_s: float) -> None:
        """Write a chunk of a body and pause. Raises EOFError if the client disconnects meanwhile."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._disconnected.wait()
                raise EOFError("the client disconnected")

    async def send(self, data: bytes) -> None:
        """Write the bytes, and let a client on the same event loop read them before the next ones."""
        self._writer.write(data)
        await asyncio.sleep(0)
        await self._writer.drain()

    async def wait(self, gate: asyncio.Event) -> None:
        """Wait for a gate. Raises EOFError if the client disconnects first."""
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._disconnected)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not gate.is_set():
            raise EOFError("the client disconnected")

    async def disconnected(self) -> None:
        """Wait until the client disconnects, then raise EOFError."""
        await self._disconnected.wait()
        raise EOFError("the client disconnected")

    def reset(self) -> None:
        """Reset the connection."""
        tcp = self._writer.get_extra_info("socket")
        # With a linger time of 0, closing sends RST instead of FIN.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def _segments(reply: Reply) -> tuple[list[bytes | asyncio.Event], str]:
    """Return the bytes to send and the gates to await, in order, and the body's content type."""
    body: Json = reply.body
    if isinstance(body, bytes):
        return [body], "application/octet-stream"
    if isinstance(body, str):
        return [body.encode()], "text/plain; charset=utf-8"
    if not isinstance(body, list):
        return [dumps(body)], "application/json"
    frames = [frame for frame in cast("list[Json]", body) if not isinstance(frame, AwaitedSteer)]
    parts = [frame if isinstance(frame, asyncio.Event) else encode_event(frame) for frame in frames]
    if reply.chunk_sizes is not None:  # Chunks may span frames.
        groups = itertools.groupby(parts, key=lambda part: isinstance(part, asyncio.Event))
        parts = [part for is_gate, group in groups for part in (group if is_gate else [b"".join(cast("Any", group))])]
    return parts, EVENT_STREAM


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """Encode a response's status line and headers."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Message(NamedTuple):
    """A client's message, joined if it came in several frames."""

    opcode: int
    data: bytes


def socket_frame(data: bytes | str, opcode: int = TEXT, *, is_final: bool = True, claims: int | None = None) -> bytes:
    """Encode a server's frame. `claims` replaces the length in its header.

    With `is_final=False`, more frames of the message follow.

    The body of a `Reply` sends bytes unchanged, so use this to send frames that no server should.
    """
    payload = data.encode() if isinstance(data, str) else data
    size = len(payload) if claims is None else claims
    head = bytes([opcode | (0x80 if is_final else 0)])
    if size < 126:
        return head + bytes([size]) + payload
    return head + (struct.pack("!BH", 126, size) if size < 1 << 16 else struct.pack("!BQ", 127, size)) + payload


def socket_close(code: int = 1000, reason: str = "") -> bytes:
    """Encode the frame that closes a connection, e.g. with 1012 for a server that restarts."""
    return socket_frame(struct.pack("!H", code) + reason.encode(), CLOSE)


def accept_key(key: str) -> str:
    """Return the `sec-websocket-accept` header for the client's key."""
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()


async def read_message(reader: StreamReader) -> Message:
    """Read the client's next message or control frame. Raises EOFError if the connection ends."""
    opcode, pieces = 0, b""
    while True:
        first, second = await reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await reader.readexactly(8))
        mask = await reader.readexactly(4) if second & 0x80 else b"\0\0\0\0"
        data = unmasked(await reader.readexactly(size), mask)
        if first & 0x0F >= CLOSE:
            return Message(first & 0x0F, data)
        opcode, pieces = opcode or first & 0x0F, pieces + data
        if first & 0x80:
            return Message(opcode, pieces)


def unmasked(data: bytes, mask: bytes) -> bytes:
    """Unmask the data of a client's frame."""
    # As one large integer: byte by byte, a message with an image would take seconds.
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(data), "big")


LAST_TYPES = ("response.completed", "response.incomplete", "response.failed")

Play = Callable[[bytes], Reply]
"""A function from a message that requests a response to the script's reply."""


class _Playing:
    """A reply that is being sent, and the steering messages for it."""

    def __init__(self, lane: str | None, reply: Reply) -> None:
        self.lane = lane
        self.steers: asyncio.Queue[JsonObject] = asyncio.Queue()
        body: Json = reply.body
        entries = cast("list[Any]", body) if isinstance(body, list) else []
        self.awaited = sum(isinstance(entry, AwaitedSteer) for entry in entries)
        """Steering messages that the reply still awaits."""
        self.is_over = False


class SocketResponder:
    """A client's WebSocket. Requests of one multiplexed stream are answered in order, streams concurrently."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        responder: Responder,
        play: Play,
        steered: Callable[[bytes], None],
        count: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._responder = responder
        self._play = play
        self._steered = steered
        self._playing: dict[str, _Playing] = {}
        """Replies, by response id."""
        self._lanes: dict[str | None, asyncio.Lock] = {}
        self._ended = asyncio.Event()
        self._writing = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()
        self._count = count

    async def serve(self) -> None:
        """Answer until the client disconnects or a reply ends the connection."""
        reading = asyncio.create_task(self._read())
        try:
            await self._ended.wait()
        finally:
            for task in (reading, *self._answers):
                task.cancel()
            await asyncio.gather(reading, *self._answers, return_exceptions=True)
        if not reading.cancelled():
            reading.result()  # Raise the error of a failed script function.

    async def _read(self) -> None:
        try:
            while True:
                message = await read_message(self._reader)
                if message.opcode == CLOSE:
                    await self._send_frame(socket_frame(message.data, CLOSE))
                    break
                if message.opcode == PING:
                    await self._send_frame(socket_frame(message.data, PONG))
                elif message.opcode != PONG:
                    await self._begin(message)
        except (EOFError, ConnectionError):
            pass
        finally:
            self._ended.set()

    async def _begin(self, message: Message) -> None:
        try:
            request = as_object(loads(message.data))
        except ValueError:
            request = {}
        if request.get("type") == "response.steer":
            self._steered(message.data)
            await self._steer(request)
            return
        lane = request.get("stream_id")
        if request.get("type") != "response.create" or request.get("background") is True:
            refusal = _error_event(400, {"type": "invalid_request_error", "message": "unknown"})
            await self._send_frame(_event_frame(refusal, lane))
            return
        task = asyncio.create_task(self._answer(self._play(message.data), lane))
        self._count(1)
        self._answers.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        self._count(-1)

    async def _steer(self, request: JsonObject) -> None:
        """Pass a message to its response, or refuse it as the service does."""
        playing = self._playing.get(str(request.get("previous_response_id")))
        if playing is not None and playing.awaited and not playing.is_over:
            playing.awaited -= 1
            playing.steers.put_nowait(request)
            return
        code = "response_not_found" if playing is None else "steering_not_supported"
        code = "response_already_completed" if playing is not None and playing.is_over else code
        await self._send_frame(_event_frame(_refusal(request, code), None if playing is None else playing.lane))

    async def _answer(self, reply: Reply, lane: str | None) -> None:
        async with self._lanes.setdefault(lane, asyncio.Lock()):
            try:
                await self._send(reply, lane)
            except (EOFError, ConnectionError):
                self._ended.set()

    async def _send(self, reply: Reply, lane: str | None) -> None:
        if reply.gate is not None:
            await self._responder.wait(reply.gate)
        left = min((end for end in (reply.cut_after_bytes, reply.stall_after_bytes) if end is not None), default=None)
        playing = _Playing(lane, reply)
        for entry in _entries(reply):
            if isinstance(entry, asyncio.Event):
                await self._responder.wait(entry)
                continue
            if isinstance(entry, AwaitedSteer):
                answer = _steer_answer(entry, await playing.steers.get())
                if answer is None:
                    continue
                frame = _event_frame(answer, lane)
            else:
                self._note(entry, playing)
                frame = _frame(entry, lane)
            async with self._writing:  # Keep a frame's pieces together when several streams send.
                for piece in pieces(frame if left is None else frame[:left], reply.chunk_sizes):
                    await self._responder.send_chunk(piece, reply.pace_s)
            if left is not None:
                left -= min(len(frame), left)
                if not left:
                    break
        if reply.stall_after_bytes is not None:
            await self._responder.disconnected()
        for _ in _times(reply):
            assert reply.keepalives is not None
            async with self._writing:
                await self._responder.send_chunk(socket_frame(b"", PING), reply.keepalives.interval_s)
        if reply.cut == "reset":
            self._responder.reset()
        if reply.cut in ("reset", "close") or reply.cut_after_bytes is not None:
            self._ended.set()

    def _note(self, entry: Any, playing: _Playing) -> None:
        """Track which response is being sent."""
        kind, response = as_object(entry).get("type"), as_object(as_object(entry).get("response"))
        if kind in ("response.created", *LAST_TYPES):
            playing.is_over = kind in LAST_TYPES
            self._playing[str(response.get("id"))] = playing

    async def _send_frame(self, frame: bytes) -> None:
        async with self._writing:
            await self._responder.send(frame)


def _times(reply: Reply) -> Iterator[None]:
    again = reply.keepalives
    count = 0
    while again is not None and (again.count is None or count < again.count):
        count += 1
        yield


def _entries(reply: Reply) -> Iterator[Any]:
    """Yield the entries of a reply's body. A recorded stream is split into its events."""
    body: Json = reply.body
    if reply.status >= 400:
        error = as_object(as_object(loads(body) if isinstance(body, bytes) and body else body).get("error"))
        headers = {"headers": dict(reply.headers)} if reply.headers else {}
        yield _error_event(reply.status, {**error, **headers})
        return
    if isinstance(body, bytes):
        splitter = Splitter(1 << 30)
        body = [loads(event) for event in (*splitter.feed(body), *splitter.flush()) if event != DONE]
    yield from cast("list[Any]", body)


def _frame(entry: Any, lane: str | None) -> bytes:
    if isinstance(entry, bytes):
        return entry
    return socket_frame(entry) if isinstance(entry, str) else _event_frame(entry, lane)


def _steer_answer(awaited: AwaitedSteer, request: JsonObject) -> JsonObject | None:
    if awaited.refusal is not None:
        return _refusal(request, awaited.refusal)
    steer = {"id": awaited.id, "previous_response_id": request.get("previous_response_id")}
    accepted = {"type": "response.steer.accepted", "sequence_number": 0, "steer": steer}
    return accepted if awaited.says else None


def _refusal(request: JsonObject, code: str) -> JsonObject:
    error = {"type": "invalid_request_error", "code": code, "message": f"scripted refusal: {code}"}
    steer = {"previous_response_id": request.get("previous_response_id"), "input": request.get("input")}
    return {"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error}


def _error_event(status: int, error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "status": status, "error": error}


def _event_frame(event: dict[str, Any], lane: str | None) -> bytes:
    """Encode an event, with the request's stream id unless the event names another."""
    return socket_frame(dumps(event if lane is None or "stream_id" in event else {**event, "stream_id": lane}))

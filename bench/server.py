"""A loopback server, in its own process, that plays pre-rendered streams with as little work as possible.

`python -m bench.server` prints its port, and exits when its stdin, a pipe, closes. `/NAME/…` plays the payload of that
name in the wire format that the rest of the path selects. `/about/NAME/…` returns its size.
"""

import asyncio
import heapq
import json
import re
import socket
import sys
import threading
import time
from functools import cache
from typing import Any

from bench.payloads import STAMP, Payload, answer, payload
from bench.processes import allow_many_files
from sidestream.testing.responder import CLOSE, PING, PONG, TEXT, accept_key, socket_frame, unmasked

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n"
)
END = b"0\r\n\r\n"
CHUNK_BYTES = 8192
WRITE_BYTES = 1 << 18
PACKET_GAP_S = 0.0006
"""Seconds between two packets of a `single-` stream, longer than most clients need for an event."""
TICK_S = 0.001
SETTLE_S = 0.5
"""Seconds between the opening of the last stream and the first delta, to measure opening and running separately."""

_WIRES = {b"/responses": "responses", b"/messages": "messages", b"/completions": "chat"}
_STAMP = STAMP.encode()


def wire_of(path: bytes) -> str:
    """Return the wire format of a request, by its path."""
    path = path.partition(b"?")[0]
    if b"GenerateContent" in path:
        return "generate"
    return _WIRES[path[path.rindex(b"/") :]]


def http_chunks(data: bytes) -> bytes:
    """Encode the body in HTTP chunks of 8 kB."""
    pieces = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
    return b"".join(map(_chunk, pieces)) + END


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


_EVENTS = HEAD % b"text/event-stream"
_LAST_EVENTS = _EVENTS.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@cache
def whole(wire: str, name: str) -> bytes:
    """Return a stream as one HTTP response."""
    return _EVENTS + http_chunks(b"".join(payload(wire, name).frames))


@cache
def packets(wire: str, name: str) -> list[bytes]:
    """Return a stream with one HTTP chunk for each event."""
    return [*map(_chunk, payload(wire, name).frames), END]


@cache
def socket_frames(wire: str, name: str, lane: str) -> bytes:
    """Return a stream as WebSocket frames with this stream id."""
    events = (re.search(rb"data: (.*)\}\n", frame) for frame in payload(wire, name).frames)
    end = b',"stream_id":"%b"}' % lane.encode()
    return b"".join(socket_frame(event[1] + end) for event in events if event)


class Pacer:
    """Sends the deltas of many streams at evenly spread times, each stamped with its time of sending.

    A connection serves one stream, so that opening them costs the same in every round.
    """

    def __init__(self, wire: str, name: str) -> None:
        _, streams, rate, _ = name.split("-")
        self.waiting: list[Connection] = []
        self.streams, self.gap_s = int(streams), 1 / int(rate)
        frames = payload(wire, name).frames
        stamped = [place for place, frame in enumerate(frames) if frame.count(_STAMP) == 1]
        self.opening = b"".join(map(_chunk, frames[: stamped[0]]))
        self.deltas = [_chunk(frames[place]).split(_STAMP) for place in stamped]
        # The frames after the last delta may repeat the whole text.
        self.ending = frames[stamped[-1] + 1 :]

    def join(self, connection: "Connection") -> None:
        """Start a stream. The deltas start shortly after all streams are open."""
        connection.send(_LAST_EVENTS + self.opening)
        self.send_next(connection)
        # Do not count clients that have disconnected or sent their request again.
        self.waiting = [other for other in self.waiting if not other.transport.is_closing()]
        self.waiting.append(connection)
        if len(self.waiting) == self.streams:
            asyncio.get_running_loop().create_task(self.run(self.waiting))
            self.waiting = []

    def send_next(self, connection: "Connection") -> bool:
        """Send the next delta of a stream, or its end, and return whether there is more."""
        at = len(connection.stamps)
        if at < len(self.deltas):
            stamp = b"%016d" % (time.monotonic_ns() // 1000)
            connection.stamps.append(stamp)
            before, after = self.deltas[at]
            connection.send(before + stamp + after)
            return True
        text = b" ".join((*connection.stamps, b""))
        whole_text = b" ".join((_STAMP,) * len(connection.stamps)) + b" "
        connection.send(b"".join(_chunk(frame.replace(whole_text, text)) for frame in self.ending) + END)
        connection.transport.close()
        return False

    async def run(self, streams: "list[Connection]") -> None:
        # One stream has no others to wait for.
        now = time.monotonic() + (SETTLE_S if len(streams) > 1 else 0.0)
        due = [(now + self.gap_s * (1 + place / len(streams)), place) for place in range(len(streams))]
        while due:
            now = time.monotonic()
            while due and due[0][0] <= now:
                at, place = heapq.heappop(due)
                if not streams[place].transport.is_closing() and self.send_next(streams[place]):
                    heapq.heappush(due, (at + self.gap_s, place))
            await asyncio.sleep(TICK_S)


_connections: "set[Connection]" = set()
_pacers: dict[tuple[str, str], Pacer] = {}


class Connection(asyncio.Protocol):
    """The connection of one client, whose requests arrive one after the other."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        _connections.add(self)
        self.socket: socket.socket = transport.get_extra_info("socket")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        self.incoming = bytearray()
        self.needed = 0
        self.outgoing = memoryview(b"")
        self.stamps: list[bytes] = []
        self.socket_path = b""
        """Path of the WebSocket. Empty means that the connection is not one."""

    def connection_lost(self, exc: Exception | None) -> None:
        _connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.incoming += data
        if len(self.incoming) < self.needed:
            return
        if self.socket_path:
            self.answer_message()
            return
        end = self.incoming.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self.incoming[:end])
        if key := re.search(rb"(?i)\r\nsec-websocket-key:\s*(\S+)", head):
            self.incoming.clear()
            self.socket_path = head.split(b" ", 2)[1]
            self.send(UPGRADED % accept_key(key[1].decode()).encode())
            return
        found = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
        if found is None and re.search(rb"(?i)\r\ntransfer-encoding:\s*chunked", head):
            if not self.incoming.endswith(END):
                return
            self.needed = len(self.incoming)
        else:
            self.needed = end + (int(found[1]) if found else 0)
        if len(self.incoming) < self.needed:
            return
        body = bytes(self.incoming[end : self.needed])
        del self.incoming[: self.needed]
        self.needed = 0
        self.answer(head.split(b" ", 2)[1], body)

    def answer_message(self) -> None:
        """Answer a WebSocket message, which is one masked frame."""
        size, start = self.incoming[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(self.incoming[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(self.incoming[2:10], "big"), 10
        if len(self.incoming) < start + 4 + size:
            return
        message = unmasked(bytes(self.incoming[start + 4 : start + 4 + size]), bytes(self.incoming[start : start + 4]))
        opcode = self.incoming[0] & 0x0F
        del self.incoming[: start + 4 + size]
        if opcode == CLOSE:
            self.send(socket_frame(message, CLOSE))
            self.transport.close()
        elif opcode == PING:
            self.send(socket_frame(message, PONG))
        elif opcode == TEXT:
            name = self.socket_path.split(b"/")[1].decode()
            self.send(socket_frames(wire_of(self.socket_path), name, json.loads(message)["stream_id"]))

    def answer(self, path: bytes, body: bytes) -> None:
        if path.startswith(b"/about/"):
            self.send(_json(_about(path[7:])))
            return
        name = path.split(b"/")[1].decode()
        wire = wire_of(path)
        kind = name.partition("-")[0]
        if kind == "single":
            threading.Thread(target=_trickle, args=(self.socket.dup(), packets(wire, name)), daemon=True).start()
        elif kind == "paced":
            if (wire, name) not in _pacers:
                _pacers[wire, name] = Pacer(wire, name)
            _pacers[wire, name].join(self)
        elif kind in ("calls", "history"):
            self.send(_EVENTS + http_chunks(b"".join(answer(wire, name, body).frames)))
        else:
            self.send(whole(wire, name))

    def send(self, data: bytes) -> None:
        if len(data) <= WRITE_BYTES:
            self.transport.write(data)
            return
        self.outgoing = memoryview(data)
        self.resume_writing()

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        while self.outgoing and self.transport.get_write_buffer_size() < WRITE_BYTES:
            piece, self.outgoing = self.outgoing[:WRITE_BYTES], self.outgoing[WRITE_BYTES:]
            self.transport.write(piece)


def _trickle(connection: socket.socket, pieces: list[bytes]) -> None:
    """Write each event separately. Runs in a thread, since the loop's timers are coarser than the gap."""
    try:
        with connection:
            _push(connection, _EVENTS)
            for piece in pieces:
                time.sleep(PACKET_GAP_S)
                _push(connection, piece)
    except OSError:
        pass  # the client disconnected


def _push(connection: socket.socket, data: bytes) -> None:
    # The loop needs the socket to stay non-blocking, so retry writes that would block.
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            time.sleep(PACKET_GAP_S)


def _about(path: bytes) -> dict[str, Any]:
    name, wire = path.partition(b"/")[0].decode(), wire_of(path)
    if name.partition("-")[0] in ("calls", "history"):
        return {}
    found: Payload = payload(wire, name)
    if name.startswith("single-"):
        packets(wire, name)
    elif not name.startswith("paced-"):
        whole(wire, name)
    return {"events": found.events, "chars": found.chars, "bytes": sum(map(len, found.frames))}


def _json(value: Any) -> bytes:
    return HEAD % b"application/json" + http_chunks(json.dumps(value).encode())


async def serve() -> None:
    allow_many_files()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # The parent never writes to stdin, and closes it by exiting.
    loop.add_reader(sys.stdin, ended.set)
    async with await loop.create_server(Connection, "127.0.0.1", 0, backlog=4096) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await ended.wait()
        loop.remove_reader(sys.stdin)
        for connection in list(_connections):
            connection.transport.abort()


if __name__ == "__main__":
    asyncio.run(serve())

"""A provider on loopback that says what a script tells it to, faults included.

It speaks HTTP/1.1 by hand, so that a test decides about every byte: where a chunk ends, where the connection
breaks, when nothing more comes. Nothing here knows any one provider.
"""

import asyncio
import glob
import itertools
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from sidestream.jsontext import dumps, loads
from sidestream.replay.recording import EVENT_STREAM
from sidestream.replay.transport import pieces
from sidestream.stream.parts import Json
from sidestream.testing.reader import Head, Reader
from sidestream.testing.script import Reply, encode_event, error_reply

_SHUTDOWN_S = 5.0


class Received(Struct, frozen=True):
    """One request as it came. Header names are in lower case; the path has no query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        """The body as JSON, None where it is none."""
        try:
            return loads(self.body)
        except ValueError:
            return None


Answer = Reply | Callable[[Received], Reply]
"""What a script is made of: a reply, or a function that makes one from the request."""


class FakeProvider:
    """Answers requests on 127.0.0.1 by a script: replies in order, and rules for paths, which go first.

    Use it with `async with`; from code without a loop, with `with FakeProvider(...).in_thread() as fake`.
    """

    def __init__(self, script: Iterable[Answer] = (), *, base_path: str = "/v1") -> None:
        self.requests: list[Received] = []
        self.unexpected: list[Received] = []
        """Requests that came when no reply was left."""
        self.connections_total = 0
        self.port = 0
        self._base_path = base_path
        self._script = deque(script)
        self._rules: list[tuple[str, str, deque[Answer]]] = []
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._answering = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}{self._base_path}"

    @property
    def connections_open(self) -> int:
        """How many clients are connected."""
        return len(self._open)

    def add(self, *answers: Answer) -> None:
        """Appends to the script."""
        self._script.extend(answers)

    def on(self, method: str, pattern: str, *answers: Answer) -> None:
        """A rule that stays: several answers are given in turn, the last one for ever. Later rules go first.

        `*` in the pattern matches anything, slashes too; the query is not looked at.
        """
        self._rules.insert(0, (method, pattern, deque(answers)))

    def add_file(self, path: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        """Serves these bytes at this path."""
        self.on("GET", glob.escape(path), Reply(body=data, content_type=content_type))

    def release(self, gate: asyncio.Event) -> None:
        """Sets a gate, from any thread."""
        if self._loop is None:
            gate.set()
        else:
            self._loop.call_soon_threadsafe(gate.set)

    async def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> list[Received]:
        """Waits until so many requests have come, whole. Raises TimeoutError."""
        await self._wait(lambda: len(self.requests) >= count, timeout_s)
        return self.requests[:count]

    async def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Waits until no client is connected. Raises TimeoutError."""
        await self._wait(lambda: not self._open, timeout_s)

    async def wait_answered(self, timeout_s: float = 10.0) -> None:
        """Waits until no request is being answered; a client may keep its connection. Raises TimeoutError."""
        await self._wait(lambda: not self._answering, timeout_s)

    async def _wait(self, holds: Callable[[], bool], timeout_s: float) -> None:
        async def watch() -> None:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()

        if self._loop is None or self._loop is asyncio.get_running_loop():
            await watch()
        else:  # The server runs in a thread of its own.
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(watch(), self._loop))

    async def __aenter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = Reader(loop)
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._serve(reader, writer), loop=loop)

        self._server = await loop.create_server(protocol, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Breaks off what is open and stops. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for _ in range(3):  # The turns of the loop that a connection just accepted takes to show up.
            await asyncio.sleep(0)
        for writer, task in [*self._open.items()]:
            writer.transport.abort()
            if task is not None:
                task.cancel()
        with suppress(TimeoutError):
            await self.wait_idle(_SHUTDOWN_S)
            async with asyncio.timeout(_SHUTDOWN_S):
                await server.wait_closed()
        self._loop = None

    @contextmanager
    def in_thread(self) -> Generator[Self, None, None]:
        """Runs the server in a thread of its own; `asyncio.run(fake.wait_idle())` works from outside."""
        started: Future[None] = Future()
        stop = asyncio.Event()

        async def main() -> None:
            async with self:
                started.set_result(None)
                await stop.wait()

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                started.set_exception(error)

        thread = threading.Thread(target=run, name="sidestream-fake", daemon=True)
        thread.start()
        started.result()
        try:
            yield self
        finally:
            self.release(stop)
            thread.join(2 * _SHUTDOWN_S)

    def _choose(self, method: str, path: str) -> Answer | None:
        for rule_method, pattern, answers in self._rules:
            if rule_method == method and fnmatchcase(path, pattern):
                return answers.popleft() if len(answers) > 1 else answers[0]
        return self._script.popleft() if self._script else None

    async def _serve(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.connections_total += 1
        self._open[writer] = asyncio.current_task()
        # The limit of 0 makes `drain` wait until the kernel has everything.
        writer.transport.set_write_buffer_limits(0)
        try:
            # A connection that was accepted while the server stopped gets no answer.
            while self._server is not None and await self._exchange(reader, _Answering(reader.gone, writer)):
                pass
        except (ConnectionError, EOFError, asyncio.CancelledError):
            pass  # Only the server's own end cancels this task; Python 3.11 prints a traceback if it stays cancelled.
        except Exception as error:  # A request that is none, or a function of the script that failed.
            writer.write(_head(400 if isinstance(error, ValueError) else 500, {"connection": "close"}))
            writer.write(repr(error).encode())
        finally:
            writer.close()
            try:
                with suppress(OSError):
                    await writer.wait_closed()
            finally:
                self._open.pop(writer, None)
                self._changed.set()

    async def _exchange(self, reader: Reader, answering: "_Answering") -> bool:
        """One request and its reply; True where another may follow."""
        head = await reader.head()
        self._answering += 1
        try:
            return await self._answer(head, reader, answering)
        finally:
            self._answering -= 1
            self._changed.set()

    async def _answer(self, head: Head, reader: Reader, answering: "_Answering") -> bool:
        method, target, version, headers = head
        url = urlsplit(target)
        path = unquote(url.path)
        answer = self._choose(method, path)
        cap = answer.cut_upload_after_bytes if isinstance(answer, Reply) else None
        if headers.get("expect", "").lower() == "100-continue":
            await answering.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.body(headers, sys.maxsize if cap is None else cap)
        request = Received(method, path, dict(parse_qsl(url.query, True)), headers, body)
        self.requests.append(request)
        self._changed.set()
        if cap is not None:
            answering.reset()
            return False
        if answer is None:
            self.unexpected.append(request)
            message = f"no reply left in the script for {method} {path}"
            # Clients that would try again are told not to: the script has nothing for that either.
            answer = error_reply(500, "no-reply-left", message, {"x-should-retry": "false"})
        reply = answer if isinstance(answer, Reply) else answer(request)
        may_chunk = version == "HTTP/1.1"
        ended = await answering.play(reply, has_body=method != "HEAD", may_chunk=may_chunk)
        return ended and may_chunk and headers.get("connection", "").lower() != "close"


class _Answering:
    """Plays replies to one client, to the byte."""

    def __init__(self, gone: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        self._gone = gone
        self._writer = writer
        self._chunked = False

    async def play(self, reply: Reply, *, has_body: bool, may_chunk: bool) -> bool:
        """Sends the reply; False where the connection must not be used again."""
        if reply.gate is not None:
            await self._wait(reply.gate)
        if reply.garbage is not None:
            await self.send(reply.garbage)
            if reply.cut == "reset":
                self.reset()
            return False
        segments, content_type = _segments(reply)
        headers = {"content-type": reply.content_type or content_type}
        headers |= {name.lower(): value for name, value in reply.headers.items()}
        has_body = has_body and reply.status not in (204, 304)
        odd = (reply.cut, reply.cut_after_bytes, reply.stall_after_bytes, reply.keepalives, reply.chunk_sizes)
        if has_body and not isinstance(reply.body, list) and all(field is None for field in odd):
            headers.setdefault("content-length", str(sum(map(len, cast("list[bytes]", segments)))))
        elif has_body and may_chunk and "content-length" not in headers:
            headers["transfer-encoding"] = "chunked"
        await self.send(_head(reply.status, headers))
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
        room = min(ends, default=sys.maxsize)
        for segment in segments:
            if isinstance(segment, asyncio.Event):
                await self._wait(segment)
                continue
            for piece in pieces(segment[:room], reply.chunk_sizes):
                await self._send_chunk(piece, reply.pace_s)
            room -= min(len(segment), room)
            if not room:
                break
        if reply.stall_after_bytes is not None and reply.stall_after_bytes == min(ends):
            await self._gone.wait()
            raise EOFError("the client has left")
        if (again := reply.keepalives) is not None:
            for _ in itertools.count() if again.count is None else range(again.count):
                await self._send_chunk(again.frame, again.interval_s)

    async def _send_chunk(self, data: bytes, pause_s: float) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._gone.wait()
                raise EOFError("the client has left")

    async def send(self, data: bytes) -> None:
        """Writes the bytes, and lets a client on this loop see them before the next ones."""
        self._writer.write(data)
        await asyncio.sleep(0)
        await self._writer.drain()

    async def _wait(self, gate: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not gate.is_set():
            raise EOFError("the client has left")

    def reset(self) -> None:
        """Breaks the connection off: with no time to linger, closing sends RST in place of FIN."""
        tcp = self._writer.get_extra_info("socket")
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def _segments(reply: Reply) -> tuple[list[bytes | asyncio.Event], str]:
    """What is sent and waited for, in order, and the content type that fits it."""
    body: Json = reply.body
    if isinstance(body, bytes):
        return [body], "application/octet-stream"
    if isinstance(body, str):
        return [body.encode()], "text/plain; charset=utf-8"
    if not isinstance(body, list):
        return [dumps(body)], "application/json"
    frames = cast("list[Json]", body)
    parts = [frame if isinstance(frame, asyncio.Event) else encode_event(frame) for frame in frames]
    if reply.chunk_sizes is not None:  # Chunks may then reach over the ends of frames.
        runs = itertools.groupby(parts, key=lambda part: isinstance(part, asyncio.Event))
        parts = [part for is_gate, run in runs for part in (run if is_gate else [b"".join(cast("Any", run))])]
    return parts, EVENT_STREAM


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

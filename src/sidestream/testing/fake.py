"""A fake provider on loopback, which reads requests and sends scripted replies, including faults.

It implements HTTP/1.1 itself, so that a test controls every byte: where a chunk ends, where the connection breaks,
where the stream stalls. It is independent of any particular provider.
"""

import asyncio
import glob
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from sidestream.jsontext import as_object, loads
from sidestream.parts import Json
from sidestream.testing.replies import Reply, error_reply
from sidestream.testing.responder import Responder, SocketResponder, accept_key, response_head

_MAX_HEAD_BYTES = 256 * 1024

Head = tuple[str, str, str, dict[str, str]]
"""Method, target, version, headers."""


class RequestReader(asyncio.StreamReader):
    """A stream reader that parses HTTP/1.1 requests and reports when the client disconnects."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_MAX_HEAD_BYTES, loop)
        self.disconnected = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.disconnected.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.disconnected.set()

    async def head(self) -> Head:
        """Read a request's head. Raises ValueError if it is not HTTP/1.1."""
        first = await self.readexactly(1)
        if not first.isalpha():  # A TLS hello has no line end to wait for.
            raise ValueError("not an HTTP request")
        head = (first + await self.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        method, target, version = line.split(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise ValueError(f"not HTTP/1.1: {line!r}")
        pairs = (field.partition(":") for field in fields)
        return method, target, version, {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def body(self, headers: Mapping[str, str], max_bytes: int) -> bytes:
        """Read a request's body, at most `max_bytes`."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self.readexactly(min(int(headers.get("content-length", "0")), max_bytes))
        body = bytearray()
        while size := int((await self.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.readexactly(min(size, max_bytes - len(body)))
            if len(body) >= max_bytes:
                return bytes(body)
            await self.readuntil(b"\r\n")
        while await self.readuntil(b"\r\n") != b"\r\n":
            pass  # Ignore trailers.
        return bytes(body)


_SHUTDOWN_S = 5.0


class Received(Struct, frozen=True):
    """A received request. Header names are in lower case; the path has no query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    is_websocket: bool = False
    """Whether this is a WebSocket message. Its method is that of the same request over HTTP."""

    @property
    def json(self) -> Json:
        """The body as JSON. None means that it is not JSON."""
        try:
            return loads(self.body)
        except ValueError:
            return None

    @property
    def asks_for_stream(self) -> bool:
        """Whether the client requests server-sent events, in any of the APIs' ways."""
        wants = (as_object(self.json).get("stream"), self.query.get("stream") == "true", self.query.get("alt") == "sse")
        return True in wants or self.path.endswith((":streamGenerateContent", "/invoke-with-response-stream"))


Answer = Reply | Callable[[Received], Reply]
"""An entry of a script: a reply, or a function from the request to a reply."""


class FakeProvider:
    """A server on 127.0.0.1 that answers from a script of replies, and from rules for paths, which take precedence.

    ```python
    async with FakeProvider([ResponsesScript().web_search("python").text("3.15 is out.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="test")
        assert (await agent.send("What is new?")).output == "3.15 is out."
        assert fake.requests[0].json["input"]
    ```

    Synchronous code uses `with FakeProvider(...).in_thread() as fake`. `base_path` is the path prefix of its API.
    """

    def __init__(self, script: Iterable[Answer] = (), *, base_path: str = "/v1") -> None:
        self.requests: list[Received] = []
        self.unexpected: list[Received] = []
        """Requests received when the script had no reply left."""
        self.upgrades: list[Received] = []
        """Accepted WebSocket upgrades, which are GET requests to a path that ends in `/responses`."""
        self.steers: list[Received] = []
        """Steering messages received over WebSocket. The script awaits them with `AwaitedSteer`."""
        self.connections_total = 0
        self.port = 0
        self._base_path = base_path
        self._script = deque(script)
        self._rules: list[tuple[str, str, deque[Answer]]] = []
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._answering = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.port}{self._base_path}"

    @property
    def connections_open(self) -> int:
        """The number of connected clients."""
        return len(self._open)

    def add(self, *answers: Answer) -> None:
        """Append to the script."""
        self._script.extend(answers)

    def on(self, method: str, pattern: str, *answers: Answer) -> None:
        """Add a rule for a path. Later rules win.

        The answers are given in order, the last one repeatedly. `*` in the pattern matches anything, including slashes;
        the query is ignored.
        """
        self._rules.insert(0, (method, pattern, deque(answers)))

    def add_file(self, path: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        """Serve these bytes at this path."""
        self.on("GET", glob.escape(path), Reply(body=data, content_type=content_type))

    def release(self, gate: asyncio.Event) -> None:
        """Set a gate, from any thread."""
        if self._loop is None:
            gate.set()
        else:
            self._loop.call_soon_threadsafe(gate.set)

    async def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> list[Received]:
        """Wait until `count` requests were received completely. Raises TimeoutError if that takes too long."""
        await self._wait(lambda: len(self.requests) >= count, timeout_s)
        return self.requests[:count]

    async def wait_for_steers(self, count: int, timeout_s: float = 10.0) -> list[Received]:
        """Wait until `count` steering messages were received. Raises TimeoutError if that takes too long."""
        await self._wait(lambda: len(self.steers) >= count, timeout_s)
        return self.steers[:count]

    async def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Wait until no client is connected. Raises TimeoutError if that takes too long."""
        await self._wait(lambda: not self._open, timeout_s)

    async def wait_answered(self, timeout_s: float = 10.0) -> None:
        """Wait until every request is answered. Raises TimeoutError if that takes too long.

        Clients may stay connected.
        """
        await self._wait(lambda: not self._answering, timeout_s)

    async def _wait(self, holds: Callable[[], bool], timeout_s: float) -> None:
        async def watch() -> None:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()

        if self._loop is None or self._loop is asyncio.get_running_loop():
            await watch()
        else:  # The server runs in its own thread.
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(watch(), self._loop))

    async def __aenter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = RequestReader(loop)
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._accept(reader, writer), loop=loop)

        self._server = await loop.create_server(protocol, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort open connections and stop the server. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for _ in range(3):  # A newly accepted connection takes this many iterations to be registered.
            await asyncio.sleep(0)
        for writer, task in [*self._open.items()]:
            writer.transport.abort()
            task.cancel()
        with suppress(TimeoutError):
            await self.wait_idle(_SHUTDOWN_S)
            async with asyncio.timeout(_SHUTDOWN_S):
                await server.wait_closed()
        self._loop = None

    @contextmanager
    def in_thread(self) -> Generator[Self, None, None]:
        """Run the server in a separate thread. `asyncio.run(fake.wait_idle())` works from other threads."""
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

    def _accept(self, reader: RequestReader, writer: asyncio.StreamWriter) -> None:
        # Not StreamReaderProtocol's task, which reports its cancellation as an error in Python 3.11.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.connections_total += 1
        self._open[writer] = task

        def forget(task: asyncio.Task[None]) -> None:
            self._open.pop(writer, None)
            self._changed.set()

        task.add_done_callback(forget)

    async def _serve(self, reader: RequestReader, writer: asyncio.StreamWriter) -> None:
        # With a limit of 0, `drain` waits until the kernel has all data.
        writer.transport.set_write_buffer_limits(0)
        try:
            # Connections accepted during shutdown get no response.
            while self._server is not None and await self._exchange(reader, Responder(reader.disconnected, writer)):
                pass
        except (ConnectionError, EOFError):
            pass  # The client disconnected.
        except Exception as error:  # An invalid request, or a failed function of the script.
            writer.write(response_head(400 if isinstance(error, ValueError) else 500, {"connection": "close"}))
            writer.write(repr(error).encode())
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _reply(self, answer: Answer | None, request: Received) -> Reply:
        if answer is None:
            self.unexpected.append(request)
            message = f"no reply left in the script for {request.method} {request.path}"
            # A retry would not find a reply either.
            return error_reply(500, "no-reply-left", message, {"x-should-retry": "false"})
        return answer if isinstance(answer, Reply) else answer(request)

    def _accepts_socket(self, path: str) -> bool:
        """Return whether the path is the Responses API's and no rule answers GET there."""
        is_refused = any(method == "GET" and fnmatchcase(path, pattern) for method, pattern, _ in self._rules)
        return path.endswith("/responses") and not is_refused

    async def _upgrade(self, request: Received, reader: RequestReader, responder: Responder) -> None:
        """Answer over a WebSocket until it closes. Each message is added to `requests`, with the upgrade's headers."""
        self.upgrades.append(request)

        def received(message: bytes, into: list[Received]) -> Received:
            into.append(replace(request, method="POST", body=message, is_websocket=True))
            self._changed.set()
            return into[-1]

        def play(message: bytes) -> Reply:
            new = received(message, self.requests)
            return self._reply(self._choose("POST", request.path), new)

        def steered(message: bytes) -> None:
            received(message, self.steers)

        accept = {"sec-websocket-accept": accept_key(request.headers.get("sec-websocket-key", ""))}
        await responder.send(response_head(101, {"upgrade": "websocket", "connection": "Upgrade", **accept}))
        self._count(-1)
        try:
            await SocketResponder(reader, responder, play, steered, self._count).serve()
        finally:
            self._count(1)

    def _count(self, answering: int) -> None:
        self._answering += answering
        self._changed.set()

    async def _exchange(self, reader: RequestReader, responder: Responder) -> bool:
        """Answer one request and return whether the connection can be reused."""
        head = await reader.head()
        self._count(1)
        try:
            return await self._answer(head, reader, responder)
        finally:
            self._count(-1)

    async def _answer(self, head: Head, reader: RequestReader, responder: Responder) -> bool:
        method, target, version, headers = head
        url = urlsplit(target)
        path = unquote(url.path)
        query = dict(parse_qsl(url.query, True))
        if headers.get("upgrade", "").lower() == "websocket" and self._accepts_socket(path):
            await self._upgrade(Received(method, path, query, headers, b""), reader, responder)
            return False
        answer = self._choose(method, path)
        cap = answer.cut_upload_after_bytes if isinstance(answer, Reply) else None
        if headers.get("expect", "").lower() == "100-continue":
            await responder.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.body(headers, sys.maxsize if cap is None else cap)
        request = Received(method, path, query, headers, body)
        self.requests.append(request)
        self._changed.set()
        if cap is not None:
            responder.reset()
            return False
        reply = self._reply(answer, request)
        if reply.whole is not None and not request.asks_for_stream:
            reply = replace(reply, body=reply.whole, content_type=reply.content_type or "application/json")
        may_chunk = version == "HTTP/1.1"
        ended = await responder.play(reply, has_body=method != "HEAD", may_chunk=may_chunk)
        return ended and may_chunk and headers.get("connection", "").lower() != "close"

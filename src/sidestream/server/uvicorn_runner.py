"""Serves an app with uvicorn, on a socket that is bound before anything is announced."""

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from sidestream.durable.worker.process_tuning import allow_many_streams, keep_what_is_loaded
from sidestream.errors import ConfigurationError
from sidestream.limits import MAX_BODY_S, MAX_HEADER_BYTES, MAX_HEADER_S, SMALL_BODY_BYTES
from sidestream.server.errors import RequestError
from sidestream.server.http.requests import json_response
from sidestream.server.runs.quotas import Bodies, Body
from sidestream.server.security import HEADERS
from sidestream.server.server import Server
from sidestream.server.settings import MAX_BODY_BYTES, is_loopback

if TYPE_CHECKING:
    import uvicorn

_INVALID_DATA, _TRY_AGAIN_LATER = 1007, 1013
"""Close codes of RFC 6455."""
GRACE_S = 5
"""Seconds that open requests have to finish when the server is stopped."""


def is_every_address(host: str) -> bool:
    """Return whether a bind address means all interfaces."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


def shown_host(host: str) -> str:
    """Return a bind address as it is written in a URL."""
    return f"[{host.strip('[]')}]" if ":" in host else host


def check_exposure(host: str, *, has_token: bool) -> None:
    """Raise ConfigurationError if other machines could use the server without a token."""
    if not is_loopback(host) and not has_token:
        raise ConfigurationError(
            f"{host} can be reached from other machines, so the server needs a token: leave out --no-token, or use "
            "--host 127.0.0.1"
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket listening on this address. Port 0 means any free port.

    Raises ConfigurationError if the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = "choose another --port" if is_port else "choose another --host"
        raise ConfigurationError(f"cannot listen on {shown_host(host)}:{port}: {reason}; {advice}") from None
    return listening


def serving_config(app: ASGIApp) -> "uvicorn.Config":
    """Return a uvicorn configuration without server header and access log, and with a graceful shutdown."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        http=_http_protocol(),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=_socket_protocol(),
        ws_max_size=MAX_BODY_BYTES,
        ws_per_message_deflate=False,  # Deflate would let a few bytes grow to the maximum message size.
    )


def _http_protocol() -> type[asyncio.Protocol]:
    """Return the class for HTTP connections, which bounds the time and the size of a request's headers."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Http(AutoHTTPProtocol):
        loop: asyncio.AbstractEventLoop
        transport: asyncio.Transport
        cycle: Any
        _timer: asyncio.TimerHandle | None = None
        _arrived = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.transport.is_closing() or self.transport.get_protocol() is not self or self._is_answering():
                self._forget()
                return
            # The rest of a body whose request was answered early is not part of any headers.
            self._arrived += len(data) if self.cycle is None or not self.cycle.more_body else 0
            if self._arrived > MAX_HEADER_BYTES:
                self._refuse(431, "Request Header Fields Too Large")
            elif self._timer is None:
                self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _expect_headers(self) -> None:
            self._timer = self.loop.call_later(MAX_HEADER_S, self._refuse, 408, "Request Timeout")

        def _forget(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._arrived = None, 0

        def _refuse(self, status: int, reason: str) -> None:
            self._forget()
            self.transport.write(
                f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
            )
            self.transport.close()

    return Http


def _socket_protocol() -> type[asyncio.Protocol]:
    """Return the class for WebSocket connections, which bounds unfinished messages and logs garbage in one line."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    bodies = Bodies()

    class Socket(WebSocketsSansIOProtocol):
        _message: Body | None = None
        _arrived = 0
        _timer: asyncio.TimerHandle | None = None

        def data_received(self, data: bytes) -> None:
            self._arrived += len(data)
            if self._arrived > SMALL_BODY_BYTES:
                if self._message is None:
                    state: dict[str, Any] = getattr(self, "scope", {}).get("state", {})
                    self._message = bodies.body(state.get("owner", ""))
                    self._timer = self.loop.call_later(
                        MAX_BODY_S, self._refuse, "timed out waiting for the rest of the message"
                    )
                try:
                    self._message.reserve(self._arrived)
                except RequestError as error:
                    self._refuse(error.close_reason)
                    return
            super().data_received(data)

        def send_receive_event_to_app(self) -> None:
            self._forget()
            self.frames = [b"".join(self.frames)]
            if self.curr_msg_data_type == "text" and not _is_utf8(self.frames[0]):
                self.logger.warning("closing a WebSocket connection: the message is not valid UTF-8")
                self.frames = [b""]
                self.conn.send_close(_INVALID_DATA)
                self.handle_parser_exception()
                return
            super().send_receive_event_to_app()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _forget(self) -> None:
            """Release the reservation of a message that is complete or was abandoned."""
            self._arrived = 0
            if self._message is not None and self._timer is not None:
                self._message.close()
                self._timer.cancel()
            self._message = self._timer = None

        def _refuse(self, reason: str) -> None:
            self._forget()
            self.conn.fail(_TRY_AGAIN_LATER, reason)
            self.handle_parser_exception()

    return Socket


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def serve(
    app: Starlette,
    listening: socket.socket,
    *,
    exit_now: Callable[[], object],
    on_start: Callable[[], object] = lambda: None,
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Serve until the process gets SIGINT or SIGTERM, then drop the connections of open streams.

    Calls `on_start` once requests are answered, and `on_stop` once no more are; after that the signal ends the process.
    A second SIGINT calls `exit_now` instead of waiting for the shutdown. Raises StoreError if the app's store cannot be
    used.
    """
    import uvicorn

    server: Server | None = getattr(app.state, "server", None)
    interruptible = _Interruptible(app)

    class StreamingServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                exit_now()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if server is not None:
                await server.open()  # In the lifespan, an error would be a traceback in the log.
            await super().startup(sockets)
            keep_what_is_loaded()
            on_start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # A stream outlives the grace period, as it ends with its run. Its client reconnects after a restart.
            for connection in list(self.server_state.connections):
                _drop_stream(connection)
            ending = asyncio.create_task(self._interrupt())
            try:
                await super().shutdown(sockets)
            finally:
                ending.cancel()
                on_stop()

        async def _interrupt(self) -> None:
            for _ in range(GRACE_S):
                if server is not None:
                    server.store.wake_all()  # Wake requests that wait for changes of a run.
                await asyncio.sleep(1.0)
            interruptible.is_ending = True
            for task in list(self.server_state.tasks):
                task.cancel()

    allow_many_streams()
    config = serving_config(interruptible)
    config.timeout_graceful_shutdown = 2 * GRACE_S  # Longer than our own, so that uvicorn logs no error.
    StreamingServer(config).run(sockets=[listening])


class _Interruptible:
    """Middleware that answers requests with status 503 if they are cancelled because the server stops."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.is_ending:
                raise
            if scope["type"] == "http":
                error = RequestError(
                    503, "the server is shutting down; try again later", type="server_error", code="stopping"
                )
                with suppress(RuntimeError):  # The response has already started.
                    await json_response(error.body(), error.status, dict(HEADERS))(scope, receive, send)


def _drop_stream(connection: Any) -> None:
    """Close a connection in the middle of its response."""
    cycle = getattr(connection, "cycle", None)
    if cycle is not None and cycle.response_started and not cycle.response_complete:
        connection.transport.abort()

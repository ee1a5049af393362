"""Serves an app with uvicorn, on a socket that is bound before anything is said."""

import errno
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from sidestream.durable.tuning import allow_many_streams, keep_what_is_loaded
from sidestream.errors import ConfigurationError

if TYPE_CHECKING:
    import uvicorn

DEFAULT_PORT = 8787
GRACE_S = 5
"""How long open streams have to end when the server is stopped."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address to bind to."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def shown_host(host: str) -> str:
    """An address to bind to, as a URL has it."""
    return f"[{host.strip('[]')}]" if ":" in host else host


def check_exposure(host: str, *, has_token: bool) -> None:
    """Raises ConfigurationError for a server that others on the network could use without a token."""
    if not is_loopback(host) and not has_token:
        raise ConfigurationError(
            f"{host} can be reached from other machines, so the server needs a token: pass --token, or set "
            "SIDESTREAM_TOKEN; without one, use --host 127.0.0.1"
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any free one. Raises ConfigurationError."""
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


def serving_config(app: Starlette) -> "uvicorn.Config":
    """How uvicorn serves an app: it names neither itself nor its requests, and open streams have time to end."""
    import uvicorn

    return uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S
    )


def serve(app: Starlette, listening: socket.socket, exit_now: Callable[[], object]) -> None:
    """Serves until the process gets SIGINT or SIGTERM. Clients of open streams then lose their connection.

    A second SIGINT does not wait for what is being closed: it calls `exit_now`.
    """
    import uvicorn

    class StreamingServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                exit_now()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            keep_what_is_loaded()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # A stream ends with its run, not within the grace. Its client reconnects, and continues after a restart.
            for connection in list(self.server_state.connections):
                _drop_stream(connection)
            await super().shutdown(sockets)

    allow_many_streams()
    StreamingServer(serving_config(app)).run(sockets=[listening])


def _drop_stream(connection: Any) -> None:
    """Closes a connection whose response has begun."""
    cycle = getattr(connection, "cycle", None)
    if cycle is not None and cycle.response_started and not cycle.response_complete:
        connection.transport.abort()

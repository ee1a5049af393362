"""HTTP as values: requests, and what a transport must be.

Encoders make `HttpCall`s and know nothing of sockets. A `Transport` sends them: `sidestream.wire` over HTTP,
`sidestream.replay` from a recording. Pass your own to `Agent(transport=...)`.
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from sidestream.limits import Limits


class HttpCall(Struct, frozen=True, kw_only=True, gc=False):
    """One request. `stream` says that server-sent events are expected."""

    method: str = "POST"
    url: str
    headers: dict[str, str] = {}
    body: bytes | None = None
    stream: bool = False
    key_variable: str | None = None
    """The environment variable that holds the key; named in the error when the key is refused."""

    def __repr__(self) -> str:
        # Headers may hold a key, bodies hold the conversation: neither belongs into a log by accident.
        return f"HttpCall({self.method} {self.url}, {len(self.body or b'')} bytes)"


class HttpResponse(Protocol):
    """A response that has begun to arrive, with a status below 400."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def is_stream(self) -> bool:
        """True: read `events`. False: read `body`."""
        ...

    async def events(self) -> list[bytes]:
        """The data of the next events, as many as have arrived; empty at the end of the stream.

        Raises StreamTimeoutError, StreamTruncatedError, ProtocolError or LimitError.
        """
        ...

    async def body(self) -> bytes:
        """The whole body."""
        ...

    async def aclose(self) -> None:
        """Stops reading, and closes the connection unless all was read. Safe to call twice."""
        ...

    async def complete(self) -> None:
        """As `aclose`, after the terminal event: the connection may serve the next request."""
        ...


class Transport(Protocol):
    """Sends calls. Only the opening of a request is ever retried."""

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Sends the call; returns with the first event, or the head of a whole response. Raises RunError."""
        ...

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """The body of a deliverable. Raises RunError."""
        ...


class OpensHttp(Protocol):
    """Creates the transport that speaks HTTP. Providers get it from the agent, so that none imports `wire`."""

    def __call__(self, *, uses_proxies: bool = True) -> Transport: ...

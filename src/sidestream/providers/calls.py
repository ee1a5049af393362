"""HTTP as values: what an encoder asks for, and what carries it out.

Encoders make `HttpCall`s and know nothing of sockets. A `Transport` carries them out: the wire room over HTTP,
the replay provider from a recording. Pass your own to `Agent(transport=...)`.
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from sidestream.limits import Limits


class HttpCall(Struct, frozen=True, kw_only=True, gc=False):
    """One request. `stream` says that the answer is expected as server-sent events."""

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
    """An answer that has begun to arrive with a status below 400."""

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
        """Leaves the answer as it is, and closes the connection unless all of it was read. Safe to call twice."""
        ...

    async def complete(self) -> None:
        """As `aclose`, for an answer that has said all: the connection may serve the next request."""
        ...


class Transport(Protocol):
    """Carries out calls. Only the opening request is ever tried again."""

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Sends the call and returns when the first event, or a whole answer's head, is there. Raises RunError."""
        ...

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """The body of a deliverable. Raises RunError."""
        ...


class OpensHttp(Protocol):
    """Creates the transport that speaks HTTP. Providers get it from the agent, so that none imports `wire`."""

    def __call__(self, *, uses_proxies: bool = True) -> Transport: ...

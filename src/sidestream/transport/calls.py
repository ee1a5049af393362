"""HTTP as values: requests, and what a transport must be.

Encoders make `HttpCall`s and know nothing of sockets. A `Transport` sends them: `sidestream.wire` over HTTP,
`sidestream.replay` from a recording. Pass your own to `Agent(transport=...)`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, as_object, is_object
from sidestream.limits import Limits
from sidestream.text.redaction import redact_url

if TYPE_CHECKING:
    from pathlib import Path


KEEP_ALIVES: Final = ("ping", "keepalive", "keep-alive", "keep_alive", "heartbeat")
"""Types of events that keep a connection open and say nothing, at providers and at the gateways before them."""


def is_keep_alive(event: Any) -> bool:
    """True if the type of an event says that it only keeps the connection open."""
    fields = as_object(event)
    return fields.get("type", fields.get("event_type")) in KEEP_ALIVES


DONE: Final = b"[DONE]"
"""Data of the last event at many servers. It is not JSON."""

_PLAIN: Final = frozenset(name.encode() for name in KEEP_ALIVES)
_MAX_PLAIN: Final = 32


def is_plain_keep_alive(data: bytes) -> bool:
    """True if data that is not JSON only keeps the connection open, or marks the end of the stream."""
    if len(data) > _MAX_PLAIN:
        return False
    text = data.strip()
    return not text or text == DONE or text.strip(b": ").lower() in _PLAIN


class FileBody(Struct, frozen=True, kw_only=True, gc=False):
    """A body that is read while it is sent: a range of a file or of bytes, between `head` and `tail`."""

    source: "Path | bytes"
    start: int
    end: int
    head: bytes = b""
    tail: bytes = b""
    sent: Callable[[int], None] | None = None
    """Called with how many bytes of the body have been written; from the start again if the request is retried."""

    @property
    def size(self) -> int:
        """The length of the whole body."""
        return len(self.head) + self.end - self.start + len(self.tail)

    def __repr__(self) -> str:
        return f"FileBody({self.size} bytes)"


class HttpCall(Struct, frozen=True, kw_only=True, gc=False):
    """One request. `stream` says that server-sent events are expected."""

    method: str = "POST"
    url: str
    headers: dict[str, str] = {}
    body: bytes | None = None
    file: FileBody | None = None
    """The body of an upload, in place of `body`."""
    stream: bool = False
    key_variable: str | None = None
    """The environment variable that holds the key; named in the error when the key is refused."""
    has_untrusted_host: bool = False
    """The host was not configured but came from data, e.g. a redirect: it must have a public address."""

    def __repr__(self) -> str:
        # Headers and queries may hold a key, bodies hold the conversation: neither belongs into a log by accident.
        size = self.file.size if self.file is not None else len(self.body or b"")
        return f"HttpCall({self.method} {redact_url(self.url)}, {size} bytes)"

    def __rich_repr__(self) -> list[Any]:
        return [self.method, redact_url(self.url)]  # msgspec's own would show all fields


class Opening(Struct, frozen=True, kw_only=True, gc=False):
    """How a request was opened, for telemetry: the attribute `opening` of a response, where its transport knows it."""

    attempts: int = 1
    causes: tuple[str, ...] = ()
    """Why each attempt but the last failed: a status or the code of an error."""
    retry_wait_s: float = 0.0
    """The waits between the attempts."""
    limiter_wait_s: float = 0.0
    """How long the request waited for its turn."""
    fallback: str = ""
    """Why the request was sent by another transport than the chosen one; only the first such request says it."""

    @property
    def message(self) -> str:
        """Why the request was delayed, in words."""
        if self.attempts == 1:
            return f"The request waited {self.limiter_wait_s:.3g} s for its turn."
        return f"The request was sent {self.attempts} times; before, it failed with {', '.join(self.causes)}."


class HttpResponse(Protocol):
    """A response that has begun to arrive, with a status below 400."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; names match in any case."""
        ...

    @property
    def is_stream(self) -> bool:
        """True: read `events`. False: read `body`."""
        ...

    async def events(self) -> list[bytes]:
        """The data of the next events, as many as have arrived; empty at the end of the stream.

        Raises StreamTimeoutError, StreamTruncatedError, ProtocolError or LimitError.
        """
        ...

    def ignored(self) -> None:
        """Called if the last events said nothing: they do not reset the idle timeout."""
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


SteerProgress = Literal["sent", "accepted", "pending", "applied", "failed"]


class SentSteer(Struct, gc=False):
    """A message to a response in progress, and what the server has said of it so far. The transport updates it."""

    status: SteerProgress = "sent"
    """`accepted`: the server holds it. `pending`: it adds it to the next request. `applied`: a successor answers it."""
    code: str | None = None
    """Why it failed, as a word."""
    message: str = ""
    """Why it failed, in words."""

    def fail(self, code: str | None, message: str) -> None:
        """The response does not take the message."""
        self.status, self.code, self.message = "failed", code, message


class SteerableResponse(HttpResponse, Protocol):
    """A stream that takes messages while it is read: `is_steerable` is true. Other responses may lack all of this."""

    @property
    def is_steerable(self) -> bool:
        """True if its server can be sent messages."""
        ...

    async def steer(self, response_id: str, message: bytes) -> SentSteer:
        """Sends a message to this response."""
        ...

    async def successor(self) -> "HttpResponse | None":
        """Once all was read: the response with which the server itself answers messages; None if it begins none."""
        ...

    async def proceed(self, call: HttpCall) -> "HttpResponse":
        """Sends the request to which the server adds messages that are `pending`. Not retried. Raises RunError."""
        ...


class FrameHead(Struct, kw_only=True, gc=False):
    """What a connection must know of a message to route it."""

    type: str = ""
    lane: str | None = None
    """The lane of the response that it belongs to; None if it names none."""


class LaneFailure(Struct, frozen=True, kw_only=True, gc=False):
    """An event that refuses a response, as an HTTP response would."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    ends_connection: bool = False
    """The connection is used up; a new one can serve the request."""


class SteerReport(Struct, frozen=True, kw_only=True, gc=False):
    """What a server says of a message to a response in progress."""

    status: SteerProgress
    id: str | None = None
    """The server's own name for the message; None if it was never accepted."""
    response_id: str | None = None
    """The response that it was sent to."""
    code: str | None = None
    message: str = ""


class SocketCodec(Protocol):
    """How a provider carries several responses at once over one WebSocket, each in a lane of its own. Pure."""

    @property
    def max_lanes(self) -> int:
        """Names of lanes that one connection may ever use."""
        ...

    @property
    def max_active(self) -> int:
        """Responses in progress on one connection; further requests wait."""
        ...

    @property
    def max_age_s(self) -> float:
        """An older connection gets no further requests, since the server is about to close it."""
        ...

    @property
    def last_types(self) -> frozenset[str]:
        """Types of events after which a response is over."""
        ...

    @property
    def steer_types(self) -> frozenset[str]:
        """Types of events that say what becomes of a message to a response in progress."""
        ...

    def steer_report(self, message: bytes) -> SteerReport | None:
        """What an event of such a type says; None if it cannot be read."""
        ...

    def request(self, call: HttpCall) -> Callable[[str], bytes] | None:
        """Lane → the message that requests a response in it; None for a call that needs HTTP."""
        ...

    @property
    def plain_heads(self) -> tuple[bytes, ...]:
        """How the most frequent events begin, none of which is the last. They are routed by `tails` alone."""
        ...

    def tails(self, lane: str) -> tuple[bytes, ...]:
        """How an event of this lane may end."""
        ...

    def head(self, message: bytes) -> FrameHead:
        """Type and lane of a message; empty if it is not an event. Never raises."""
        ...

    def failure(self, message: bytes) -> LaneFailure | None:
        """The refusal that this event stands for; None for all other events."""
        ...


class WrappedResponse:
    """A response that passes everything on to another one. Subclasses change what they are for."""

    def __init__(self, inner: HttpResponse) -> None:
        self._inner = inner
        self.opening: Opening = getattr(inner, "opening", Opening())

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    @property
    def is_stream(self) -> bool:
        return self._inner.is_stream

    async def events(self) -> list[bytes]:
        return await self._inner.events()

    def ignored(self) -> None:
        self._inner.ignored()

    async def body(self) -> bytes:
        return await self._inner.body()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def complete(self) -> None:
        await self._inner.complete()

    @property
    def is_steerable(self) -> bool:
        return getattr(self._inner, "is_steerable", False)

    async def steer(self, response_id: str, message: bytes) -> SentSteer:
        return await self._steerable.steer(response_id, message)

    async def successor(self) -> HttpResponse | None:
        return await self._steerable.successor()

    async def proceed(self, call: HttpCall) -> HttpResponse:
        return await self._steerable.proceed(call)

    @property
    def _steerable(self) -> SteerableResponse:
        return cast("SteerableResponse", self._inner)


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


def response_object(body: bytes) -> JsonObject:
    """The JSON object in the body of a response. Raises ProtocolError."""
    try:
        value = jsontext.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the response is not JSON") from error
    if not is_object(value):
        raise ProtocolError("the response is not a JSON object")
    return value

"""HTTP requests, responses and the transport protocol, as values.

Encoders create `HttpCall`s without touching sockets. A `Transport` sends them: `sidestream.wire` over HTTP,
`sidestream.replay` from a recording. Pass your own to `Agent(transport=...)`.
"""

from collections.abc import Callable, Mapping
from inspect import signature
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
"""Event types that only keep a connection open, as providers and gateways send them."""


def is_keep_alive(event: Any) -> bool:
    """Return whether an event's type marks it as a keep-alive."""
    fields = as_object(event)
    return fields.get("type", fields.get("event_type")) in KEEP_ALIVES


FRAMES: Final = "application/vnd.amazon.eventstream"
"""Content type of a stream of AWS frames."""

DONE: Final = b"[DONE]"
"""Data of the last event on many servers. It is not JSON."""

_PLAIN: Final = frozenset(name.encode() for name in KEEP_ALIVES)
_MAX_PLAIN: Final = 32


def is_plain_keep_alive(data: bytes) -> bool:
    """Return whether data that is not JSON is only a keep-alive or the end-of-stream marker."""
    if len(data) > _MAX_PLAIN:
        return False
    text = data.strip()
    return not text or text == DONE or text.strip(b": ").lower() in _PLAIN


class FileBody(Struct, frozen=True, kw_only=True, gc=False):
    """A request body that is read while it is sent: a range of a file or of bytes, between `head` and `tail`."""

    source: "Path | bytes"
    start: int
    end: int
    head: bytes = b""
    tail: bytes = b""
    sent: Callable[[int], None] | None = None
    """Called with the number of body bytes written so far. The count restarts if the request is retried."""

    @property
    def size(self) -> int:
        """Length of the whole body, in bytes."""
        return len(self.head) + self.end - self.start + len(self.tail)

    def __repr__(self) -> str:
        return f"FileBody({self.size} bytes)"


class HttpCall(Struct, frozen=True, kw_only=True, gc=False):
    """An HTTP request. `stream` requests server-sent events."""

    method: str = "POST"
    url: str
    headers: dict[str, str] = {}
    body: bytes | None = None
    file: FileBody | None = None
    """Body of an upload, in place of `body`."""
    stream: bool = False
    key_variable: str | None = None
    """Environment variable that holds the key. The error for a refused key names it."""
    sign: "Callable[[HttpCall], Mapping[str, str]] | None" = None
    """Returns more headers for each try, such as a signature, from the call with all other headers. Runs in a
    thread."""
    has_untrusted_host: bool = False
    """Whether the host came from data, e.g. a redirect, rather than configuration. It must then have a public
    address."""

    def __repr__(self) -> str:
        # Headers and queries may hold a key, and bodies hold the conversation: keep them out of logs.
        size = self.file.size if self.file is not None else len(self.body or b"")
        return f"HttpCall({self.method} {redact_url(self.url)}, {size} bytes)"

    def __rich_repr__(self) -> list[Any]:
        return [self.method, redact_url(self.url)]  # msgspec's default would show all fields


Auth = Callable[[], Mapping[str, str]] | Callable[[HttpCall], Mapping[str, str]]
"""Returns auth headers, either any time or for one request."""


def signer_of(auth: Auth) -> Callable[[HttpCall], Mapping[str, str]] | None:
    """Return the function if it requires the request as its argument, else None."""
    try:
        parameters = signature(auth).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None
    takes_request = any(
        parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL for parameter in parameters
    )
    return cast("Callable[[HttpCall], Mapping[str, str]]", auth) if takes_request else None


class Opening(Struct, frozen=True, kw_only=True, gc=False):
    """Telemetry about opening a request. A response has it as `opening` if its transport provides it."""

    attempts: int = 1
    causes: tuple[str, ...] = ()
    """Reasons why all attempts but the last failed, each a status or an error code."""
    retry_wait_s: float = 0.0
    """Total wait between attempts, in seconds."""
    limiter_wait_s: float = 0.0
    """Time spent waiting for the limiter, in seconds."""
    fallback: str = ""
    """Reason why a fallback transport sent the request. Set only on the first such request."""

    @property
    def message(self) -> str:
        """Readable reason for the delay."""
        if self.attempts == 1:
            return f"The request waited {self.limiter_wait_s:.3g} s for its turn."
        return f"The request was sent {self.attempts} times. Earlier attempts failed with {', '.join(self.causes)}."


class HttpResponse(Protocol):
    """A response with a status below 400 whose headers have arrived."""

    @property
    def status(self) -> int:
        """HTTP status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers. Lookup ignores case."""
        ...

    @property
    def is_stream(self) -> bool:
        """Whether to read `events` (true) or `body` (false)."""
        ...

    async def events(self) -> list[bytes]:
        """Return the data of the events that have arrived, waiting for at least one.

        Returns an empty list at the end of the stream. Raises StreamTimeoutError, StreamTruncatedError, ProtocolError
        or LimitError if the stream fails.
        """
        ...

    def ignored(self) -> None:
        """Keep the idle timeout running because the last events carried no content."""
        ...

    async def body(self) -> bytes:
        """Return the whole body."""
        ...

    async def aclose(self) -> None:
        """Stop reading, and close the connection unless everything was read. Safe to call twice."""
        ...

    async def complete(self) -> None:
        """Close the response after its terminal event, so that the connection may be reused."""
        ...


SteerProgress = Literal["sent", "accepted", "pending", "applied", "failed"]


class SentSteer(Struct, gc=False):
    """A message sent to a response in progress, with its status. The transport updates it."""

    status: SteerProgress = "sent"
    """Progress of the message.

    `accepted` means that the server holds it, `pending` that the server will add it to the next request, and `applied`
    that a successor response answers it."""
    code: str | None = None
    """Error code if it failed."""
    message: str = ""
    """Readable reason if it failed."""

    def fail(self, code: str | None, message: str) -> None:
        """Mark the message as failed."""
        self.status, self.code, self.message = "failed", code, message


class SteerableResponse(HttpResponse, Protocol):
    """A stream that accepts messages while it is read.

    Responses whose `is_steerable` is not true may lack these methods.
    """

    @property
    def is_steerable(self) -> bool:
        """Whether the server accepts messages to this response."""
        ...

    async def steer(self, response_id: str, message: bytes) -> SentSteer:
        """Send a message to this response."""
        ...

    async def successor(self) -> "HttpResponse | None":
        """Return the response that the server starts by itself to answer messages, or None if it starts none.

        Call it once everything was read.
        """
        ...

    async def proceed(self, call: HttpCall) -> "HttpResponse":
        """Send the request to which the server adds `pending` messages.

        The request is not retried. Raises RunError if it fails.
        """
        ...


class FrameHead(Struct, kw_only=True, gc=False):
    """Fields of a WebSocket message that are needed to route it."""

    type: str = ""
    lane: str | None = None
    """Lane of the response that the message belongs to. None means that the message names none."""


class LaneFailure(Struct, frozen=True, kw_only=True, gc=False):
    """An event that refuses a response, translated to its HTTP equivalent."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    ends_connection: bool = False
    """Whether the connection cannot be used further. A new connection can serve the request."""


class SteerReport(Struct, frozen=True, kw_only=True, gc=False):
    """A server's report about a message to a response in progress."""

    status: SteerProgress
    id: str | None = None
    """The server's id for the message. None means that it was never accepted."""
    response_id: str | None = None
    """Id of the response that the message was sent to."""
    code: str | None = None
    message: str = ""


class SocketCodec(Protocol):
    """A provider's protocol for sending several responses over one WebSocket. Pure.

    Each response in progress has its own lane, a multiplexed stream within the connection.
    """

    @property
    def max_lanes(self) -> int:
        """Maximum number of lane names that a connection may use during its life."""
        ...

    @property
    def max_active(self) -> int:
        """Maximum number of responses in progress on a connection. Further requests wait."""
        ...

    @property
    def max_age_s(self) -> float:
        """Age in seconds after which a connection gets no further requests, since the server is about to close it."""
        ...

    @property
    def last_types(self) -> frozenset[str]:
        """Event types that end a response."""
        ...

    @property
    def steer_types(self) -> frozenset[str]:
        """Event types that report the progress of a message to a response."""
        ...

    def steer_report(self, message: bytes) -> SteerReport | None:
        """Parse an event whose type is in `steer_types`, or return None if it is malformed."""
        ...

    def request(self, call: HttpCall) -> Callable[[str], bytes] | None:
        """Return a function from a lane to the message that requests a response there, or None if it needs HTTP."""
        ...

    @property
    def plain_heads(self) -> tuple[bytes, ...]:
        """First bytes of the most frequent events, none of which ends a response. They are routed by `tails` alone."""
        ...

    def tails(self, lane: str) -> tuple[bytes, ...]:
        """Return the byte strings with which an event of this lane may end."""
        ...

    def head(self, message: bytes) -> FrameHead:
        """Return a message's type and lane, both empty if it is not an event. Never raises."""
        ...

    def failure(self, message: bytes) -> LaneFailure | None:
        """Return the refusal that this event represents, or None for any other event."""
        ...


class WrappedResponse:
    """A response that delegates everything to another one. Subclasses override what they need."""

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
    """A way to send calls. Only the opening of a request is ever retried."""

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Send the call and return at the first event of a stream, or at the headers of a non-streaming response.

        Raises RunError if the call fails.
        """
        ...

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Return the body of a deliverable. Raises RunError if the download fails."""
        ...


class OpensHttp(Protocol):
    """A factory of HTTP transports. Providers get it from the agent, so that none of them imports `wire`."""

    def __call__(self, *, uses_proxies: bool = True) -> Transport: ...


def response_object(body: bytes) -> JsonObject:
    """Parse a response body as a JSON object. Raises ProtocolError if it is anything else."""
    try:
        value = jsontext.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the response is not JSON") from error
    if not is_object(value):
        raise ProtocolError("the response is not a JSON object")
    return value

"""HTTP transport: the official client's, with our headers and a limit on response size."""

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sidestream.logs import redact_logger
from sidestream.mcp.process.stdio import MAX_MESSAGE_BYTES
from sidestream.text.redaction import hidden

if TYPE_CHECKING:
    from httpx2 import URL, AsyncClient, Auth, Request, Response

SIGN_IN = "sidestream_sign_in"
"""Request extension that marks requests to an authorization server."""
_CONNECT_TIMEOUT_S = 10.0
_LOGGERS_OF_URLS = ("httpx2", "mcp.client.sse", "mcp.client.streamable_http")
"""Loggers that print whole URLs, whose queries may hold a key."""


class HttpDiagnostics:
    """Details of HTTP failures that the protocol layer does not report."""

    def __init__(self) -> None:
        self.status: int | None = None
        """Last error status."""
        self.sign_in: str | None = None
        """Reason for a failed sign-in, and what to do."""

    def report_sign_in(self, problem: str) -> None:
        """Store the reason for a failed sign-in."""
        self.sign_in = problem


def auth_headers(headers: dict[str, str], authorization: str | None) -> dict[str, str]:
    """Add `Authorization` to the headers. A token without a scheme is a bearer token."""
    if authorization is None:
        return headers
    has_scheme = authorization.partition(" ")[0].lower() in ("bearer", "basic", "token", "digest")
    return {**headers, "Authorization": authorization if has_scheme else f"Bearer {authorization}"}


def http_client(
    url: str, headers: dict[str, str], diagnostics: HttpDiagnostics, auth: "Auth | None" = None
) -> "AsyncClient":
    """Create a client for the URL's origin that limits response sizes and keeps the last error status.

    Another origin, which a redirect, an event or the server's metadata may name, gets no requests. The exception is an
    authorization server, which gets those of `auth`, without the headers.
    """
    import httpx2

    allowed = _origin(httpx2.URL(url))

    class SizeLimitedStream(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            async for chunk in self._inner:
                total += len(chunk)
                if total > MAX_MESSAGE_BYTES:
                    raise httpx2.StreamError("the response is too large")
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def check_origin(request: "Request") -> None:
        if _origin(request.url) != allowed and SIGN_IN not in request.extensions:
            raise httpx2.RequestError("the server named a URL at another origin", request=request)

    async def inspect(response: "Response") -> None:
        if response.status_code >= 400:
            diagnostics.status = response.status_code
        # Stream events have their own limit. A compressed body could be a bomb, so none is accepted.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = SizeLimitedStream(response.stream)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError(
                "the response is compressed, although compression was not accepted", request=response.request
            )

    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_TIMEOUT_S, read=None),
        auth=auth,
        event_hooks={"request": [check_origin], "response": [inspect]},
    )


def _origin(url: "URL") -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def without_user(url: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Move a URL's user and password to a header, which no library logs.

    An `Authorization` header of the caller takes precedence.
    """
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return url, headers
    user, _, password = login.partition(":")
    token = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    given = any(name.lower() == "authorization" for name in headers)
    basic = {} if given else hidden({"Authorization": f"Basic {token}"})
    return urlunsplit(parts._replace(netloc=host)), {**headers, **basic}


@asynccontextmanager
async def http_transport(
    url: str,
    kind: str,
    headers: dict[str, str],
    diagnostics: HttpDiagnostics,
    new_auth: "Callable[[str], Auth] | None" = None,
) -> AsyncGenerator[Any, None]:
    """Open message streams to and from the URL. `kind` is `http`, or `sse` for the older protocol."""
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    for name in _LOGGERS_OF_URLS:
        redact_logger(name)
    url, headers = without_user(url, headers)
    client = http_client(url, headers, diagnostics, None if new_auth is None else new_auth(url))
    if kind == "sse":
        # sse_client closes the HTTP client itself.
        async with sse_client(
            url, httpx_client_factory=lambda headers=None, timeout=None, auth=None: client
        ) as streams:
            yield streams
        return
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams:
        yield streams

"""The transport to a server by URL: the official client's, with our headers and a cap on what it reads."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sidestream.mcp.stdio import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

_CONNECT_S = 10.0


class HttpFacts:
    """What the HTTP room saw and the protocol does not say."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The last status that was an error."""


def auth_headers(headers: dict[str, str], authorization: str | None) -> dict[str, str]:
    """The headers with the token in its place; a bare token is a bearer token."""
    if authorization is None:
        return headers
    is_whole = authorization.partition(" ")[0].lower() in ("bearer", "basic", "token", "digest")
    return {**headers, "Authorization": authorization if is_whole else f"Bearer {authorization}"}


def http_client(headers: dict[str, str], facts: HttpFacts) -> "AsyncClient":
    """A client that sends the headers, reads no body beyond the cap, and notes refusals."""
    import httpx2

    class Capped(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            async for chunk in self._inner:
                total += len(chunk)
                if total > MAX_MESSAGE_BYTES:
                    raise httpx2.StreamError("the answer is too long")
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def inspect(response: "Response") -> None:
        if response.status_code >= 400:
            facts.status = response.status_code
        # Single events of a stream have a cap of their own. A compressed body could be a bomb, so none is asked for.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = Capped(response.stream)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the answer is compressed, which was not asked for", request=response.request)

    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_S, read=None),
        event_hooks={"response": [inspect]},
    )


@asynccontextmanager
async def http_transport(url: str, kind: str, headers: dict[str, str], facts: HttpFacts) -> AsyncGenerator[Any, None]:
    """Streams of messages to and from the URL; `kind` is `http`, or `sse` for the older protocol."""
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    client = http_client(headers, facts)
    if kind == "sse":
        # This one closes the client itself.
        async with sse_client(
            url, httpx_client_factory=lambda headers=None, timeout=None, auth=None: client
        ) as streams:
            yield streams
        return
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams:
        yield streams

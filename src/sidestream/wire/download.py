"""Non-streaming responses, and downloads whose redirects never forward credentials."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urljoin

import aiohttp
from msgspec.structs import replace
from yarl import URL

from sidestream.errors import LimitError, ProviderError, RunError
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall, Opening
from sidestream.wire.egress import is_same_origin, parsed_url
from sidestream.wire.failures import first_byte_timeout, origin_of, status_error, truncated

MAX_REDIRECTS: Final = 5
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FOREIGN_HEADERS: Final = frozenset({"accept", "accept-language", "user-agent"})
"""Headers that may be sent to another origin. An allowlist, since gateways use headers of any name for credentials."""


class WholeAnswer:
    """A non-streaming response. Its body must be read before the deadline, unless `body` has it already."""

    is_stream = False
    opening = Opening()

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        call: HttpCall,
        limits: Limits,
        deadline_s: float,
        body: bytes | None = None,
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._call = call
        self._limits = limits
        self._deadline_s = deadline_s
        self._body = body

    async def events(self) -> list[bytes]:
        raise RuntimeError("this response is not a stream; call body()")

    def ignored(self) -> None:
        """Do nothing, since there is no idle timeout."""

    async def body(self) -> bytes:
        if self._body is None:
            self._body = await self._read()
        return self._body

    async def aclose(self) -> None:
        self._response.close()

    complete = aclose

    async def _read(self) -> bytes:
        call, limits = self._call, self._limits
        timer = asyncio.timeout_at(self._deadline_s)
        try:
            async with timer:
                return await read_whole(self._response.content, call, "max_response_bytes", limits.max_response_bytes)
        except RunError:
            self._response.close()
            raise
        except (aiohttp.ClientError, OSError):
            self._response.close()
        # Raise outside `except`, so that the library's exception is not chained.
        raise first_byte_timeout(call, limits) if timer.expired() else truncated(call)


async def download(
    send: Callable[[HttpCall], Awaitable[aiohttp.ClientResponse]], call: HttpCall, limits: Limits
) -> bytes:
    """Try once to download the body, following at most five redirects.

    `send` makes one request and follows no redirects.
    """
    first = call
    for _ in range(MAX_REDIRECTS + 1):
        response = await send(call)
        try:
            if response.status in REDIRECTS:
                call = redirected(call, response.status, response.headers.get("location", ""), first)
                continue
            if response.status >= 300:
                body = await read_start(response.content, limits)
                raise status_error(call, response.status, response.headers, body)
            if (response.content_length or 0) > limits.max_download_bytes:
                raise too_large(call, "max_download_bytes", limits.max_download_bytes)
            return await read_whole(response.content, call, "max_download_bytes", limits.max_download_bytes)
        finally:
            response.close()
    raise ProviderError(f"{origin_of(first.url)} redirects more than {MAX_REDIRECTS} times", code="too-many-redirects")


def redirected(call: HttpCall, status: int, location: str, first: HttpCall) -> HttpCall:
    """Return the call to a redirect's target. `first` is the call that started the redirects.

    Another origin gets no header that may contain a credential. Any host but the configured one is untrusted.
    """
    try:
        url = urljoin(call.url, location)
        source, target = parsed_url(call.url), parsed_url(url)
    except ValueError:
        raise _not_followed(call, status, location) from None
    schemes = ("https",) if source.scheme == "https" else ("https", "http")
    if not location or target.scheme not in schemes or not target.raw_host:
        raise _not_followed(call, status, location)
    headers, sign = call.headers, call.sign
    if not is_same_origin(source, target):
        sign = None
        headers = {name: value for name, value in headers.items() if name.lower() in _FOREIGN_HEADERS}
    configured = None if first.has_untrusted_host else parsed_url(first.url)
    is_configured = configured is not None and is_same_origin(target, configured) and not _userinfo(target)
    return replace(call, url=url, headers=headers, sign=sign, has_untrusted_host=not is_configured)


def _not_followed(call: HttpCall, status: int, location: str) -> ProviderError:
    return ProviderError(
        f"{origin_of(call.url)} redirects ({status}) to {origin_of(location, call.url)}, which is not followed: "
        "redirects must use http or https, and never change from https to http",
        code="redirect",
        status=status,
    )


def _userinfo(url: URL) -> bool:
    return url.raw_user is not None or url.raw_password is not None


async def read_whole(content: aiohttp.StreamReader, call: HttpCall, limit_name: str, max_bytes: int) -> bytes:
    """Read the rest of a body. Raises LimitError as soon as it is longer than allowed."""
    pieces: list[bytes] = []
    size = 0
    while piece := await content.readany():
        size += len(piece)
        if size > max_bytes:
            raise too_large(call, limit_name, max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


async def read_start(content: aiohttp.StreamReader, limits: Limits) -> bytes:
    """Read the start of an error body. If reading breaks or stalls, return what has arrived."""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            while size < limits.max_error_body_bytes and (piece := await content.readany()):
                size += len(piece)
                pieces.append(piece)
    except (aiohttp.ClientError, OSError):
        pass
    return b"".join(pieces)[: limits.max_error_body_bytes]


def too_large(call: HttpCall, limit_name: str, max_bytes: int) -> LimitError:
    """Create the error for a body that exceeds a limit."""
    return LimitError(
        f"the response of {origin_of(call.url)} is larger than {max_bytes} bytes; "
        f"if that is expected, raise Limits.{limit_name}",
        code=limit_name,
    )

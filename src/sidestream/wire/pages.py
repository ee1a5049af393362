"""Requests for web pages: one GET for a URL from data, hop by hop, within limits."""

import asyncio
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urljoin

import aiohttp
from msgspec import Struct
from yarl import URL

from sidestream import __version__
from sidestream.errors import FetchError
from sidestream.limits import MIB
from sidestream.text.urls import origin_of
from sidestream.wire.download import MAX_REDIRECTS, REDIRECTS
from sidestream.wire.egress import AddressPolicy, AddressRefusedError, check_url, parsed_url, public_only, refusal_in
from sidestream.wire.failures import retry_after_s
from sidestream.wire.pool import shared_pool

MAX_URL_CHARS: Final = 2048
_ACCEPT: Final = "text/html, application/xhtml+xml, application/pdf;q=0.9, text/*;q=0.9, */*;q=0.5"


class PageLimits(Struct, frozen=True, kw_only=True):
    """Limits of one fetch."""

    max_bytes: int = 20 * MIB
    """Maximum size of the decompressed body. A larger one fails with `content_too_large`, and the rest is not read."""
    timeout_s: float = 30.0
    """Timeout in seconds for all hops together. It fails with `url_not_accessible`."""
    max_redirects: int = MAX_REDIRECTS


class FetchedPage(Struct, frozen=True, kw_only=True):
    """A fetched page, with its final URL."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    hops: tuple[str, ...] = ()
    """URLs that redirected to it, in order."""


def any_address(address: IPv4Address | IPv6Address) -> str | None:
    """Allow every address. This is the policy for hosts that the operator has named."""
    return None


async def get_page(
    url: str,
    *,
    check: Callable[[str], None],
    is_named: Callable[[URL], bool],
    headers: Mapping[str, str] | None = None,
    limits: PageLimits | None = None,
    policy: AddressPolicy = public_only,
) -> FetchedPage:
    """Fetch a page.

    `check` sees every hop and raises FetchError for a URL that must not be requested. A host for which `is_named` is
    true may have any address; all others need one that the policy allows. No cookies, credentials or proxies are used.
    A 304 is returned; any other status of 300 or above raises FetchError.
    """
    limits = limits or PageLimits()
    sent = {"User-Agent": f"sidestream/{__version__}", "Accept": _ACCEPT, **(headers or {})}
    hops: list[str] = []
    try:
        async with asyncio.timeout(limits.timeout_s):
            for _ in range(limits.max_redirects + 1):
                check(url)
                found = await _hop(_parsed(url), sent, limits, is_named, policy)
                if isinstance(found, str):
                    hops.append(url)
                    url = found
                    continue
                return FetchedPage(url=url, status=found[0], headers=found[1], body=found[2], hops=tuple(hops))
    except TimeoutError:
        raise FetchError(
            f"{origin_of(url)} did not answer in {limits.timeout_s:g} s", code="url_not_accessible"
        ) from None
    raise FetchError(
        f"{origin_of(hops[0])} redirects more than {limits.max_redirects} times", code="url_not_accessible"
    )


def _parsed(url: str) -> URL:
    if len(url) > MAX_URL_CHARS:
        raise FetchError(f"the address has more than {MAX_URL_CHARS} characters", code="url_too_long")
    try:
        parsed = parsed_url(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise FetchError("only complete addresses with http:// or https:// can be fetched", code="invalid_tool_input")
    return parsed


async def _hop(
    url: URL, headers: Mapping[str, str], limits: PageLimits, is_named: Callable[[URL], bool], policy: AddressPolicy
) -> str | tuple[int, Mapping[str, str], bytes]:
    """Request one URL, and return a redirect's target, or the status, headers and body."""
    pool = await shared_pool()
    origin = origin_of(str(url))
    try:
        if is_named(url):
            session = pool.data_sessions.get(any_address, None)
        else:
            check_url(url, policy)
            session = pool.data_sessions.get(policy, None)
        response = await session.request("GET", url, headers=headers, allow_redirects=False, raise_for_status=False)
    except (aiohttp.ClientError, AddressRefusedError) as error:
        why = refusal_in(error)
        refused = FetchError(f"{origin} is refused: {why}", code="url_not_allowed") if why else None
        failed = refused or FetchError(f"{origin} cannot be reached", code="url_not_accessible", retryable=True)
    except (OSError, ValueError):
        failed = FetchError(f"{origin} cannot be reached", code="url_not_accessible", retryable=True)
    else:
        try:
            return await _answer(response, url, limits)
        except (aiohttp.ClientError, OSError):
            failed = FetchError(f"the connection to {origin} broke", code="url_not_accessible", retryable=True)
        finally:
            response.close()
    # Raise outside `except`, so that the library's exception is not chained.
    raise failed


async def _answer(
    response: aiohttp.ClientResponse, url: URL, limits: PageLimits
) -> str | tuple[int, Mapping[str, str], bytes]:
    origin = origin_of(str(url))
    if response.status in REDIRECTS:
        location = response.headers.get("location", "")
        if not location:
            raise FetchError(f"{origin} redirects to nowhere", code="url_not_accessible")
        return urljoin(str(url), _percent_encoded(location))
    if response.status >= 400 or (response.status >= 300 and response.status != 304):
        codes = {429: "too_many_requests", 503: "unavailable"}
        raise FetchError(
            f"{origin} answered {response.status}",
            code=codes.get(response.status, "url_not_accessible"),
            status=response.status,
            retry_after=retry_after_s(response.headers, time.time()) if response.status == 429 else None,
        )
    if (response.content_length or 0) > limits.max_bytes:
        raise _too_large(origin, limits)
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > limits.max_bytes:
            raise _too_large(origin, limits)
        pieces.append(piece)
    return response.status, response.headers, b"".join(pieces)


def _percent_encoded(location: str) -> str:
    """Percent-encode the raw bytes that a header may hold, as browsers do."""
    raw = location.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in raw)


def _too_large(origin: str, limits: PageLimits) -> FetchError:
    return FetchError(f"what {origin} sends is larger than {limits.max_bytes} bytes", code="content_too_large")

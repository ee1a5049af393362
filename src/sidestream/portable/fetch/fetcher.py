"""A fetcher of web pages with a cache that follows the servers' freshness and validators."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from sidestream.errors import DocumentError, FetchError
from sidestream.limits import MIB
from sidestream.portable.documents import PAGE_LIMITS, Document, DocumentLimits, read
from sidestream.portable.fetch.policy import EgressPolicy
from sidestream.wire.egress import AddressPolicy, public_only
from sidestream.wire.pages import FetchedPage, PageLimits, get_page

MAX_CACHED_BYTES = 32 * MIB
"""Maximum size of cached pages in memory. The least recently used are evicted."""
MAX_FRESH_S = 3600.0
"""Maximum seconds for which a page is used without revalidation, even if its server allows longer."""
_MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,9})")


class Fetched(Struct, frozen=True, kw_only=True):
    """A page as a document."""

    url: str
    """Requested URL."""
    final_url: str
    """URL that answered, after redirects."""
    document: Document
    body: bytes
    retrieved: datetime
    is_cached: bool = False

    @property
    def retrieved_at(self) -> str:
        """Time at which its server last confirmed it, in RFC 3339 format."""
        return self.retrieved.isoformat(timespec="seconds").replace("+00:00", "Z")


class _Entry(Struct, frozen=True, kw_only=True):
    page: Fetched
    etag: str | None
    last_modified: str | None
    fresh_until: float


class Fetcher:
    """Fetches pages, with one cache per instance."""

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        limits: PageLimits | None = None,
        documents: DocumentLimits | None = None,
        addresses: AddressPolicy = public_only,
        check: Callable[[str], None] | None = None,
    ) -> None:
        """Fetch within the policy. `check` sees every hop too, and raises FetchError to refuse one."""
        self.policy = policy
        self._check = check
        self._limits = limits or PageLimits()
        self._documents = documents or PAGE_LIMITS
        self._addresses = addresses
        self._cache: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0

    async def fetch(self, url: str) -> Fetched:
        """Fetch a page, or return it from the cache.

        Raises FetchError if it cannot be fetched or read, and MissingExtraError if the library for its format is not
        installed.
        """
        entry = self._cache.get(url)
        if entry is not None and time.monotonic() < entry.fresh_until:
            self._cache.move_to_end(url)
            return replace(entry.page, is_cached=True)
        page = await self.get(url, _validators(entry))
        if page.status == 304 and entry is not None:
            fetched = replace(entry.page, retrieved=datetime.now(UTC))
            self._keep(url, fetched, page.headers, entry)
            return replace(fetched, is_cached=True)
        fetched = Fetched(
            url=url,
            final_url=page.url,
            document=await self._document(page),
            body=page.body,
            retrieved=datetime.now(UTC),
        )
        self._keep(url, fetched, page.headers, None)
        return fetched

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> FetchedPage:
        """Request a URL within the policy, without cache and conversion. Raises FetchError if that fails."""
        return await get_page(
            url,
            check=self._check_hop,
            is_named=self._is_named,
            headers=headers,
            limits=self._limits,
            policy=self._addresses,
        )

    def _check_hop(self, url: str) -> None:
        self.policy.check(url)
        if self._check is not None:
            self._check(url)

    def _is_named(self, url: URL) -> bool:
        return self.policy.is_named(str(url))

    async def _document(self, page: FetchedPage) -> Document:
        mime_type, charset = _content_type(page.headers.get("content-type", ""))
        name = URL(page.url).path
        try:
            return await read(
                page.body, mime_type=mime_type, name=name, charset=charset, url=page.url, limits=self._documents
            )
        except DocumentError as error:
            codes = {"too-large": "content_too_large", "format": "unsupported_content_type"}
            message = f"{URL(page.url).host} sent a document that cannot be read: {error}"
            raise FetchError(message, code=codes.get(error.reason, "unavailable")) from None

    def _keep(self, url: str, page: Fetched, headers: Mapping[str, str], known: _Entry | None) -> None:
        self._forget(url)
        control = headers.get("cache-control", "").lower()
        etag = headers.get("etag") or (known.etag if known else None)
        modified = headers.get("last-modified") or (known.last_modified if known else None)
        found = _MAX_AGE.search(control)
        age_s = 0.0 if found is None or "no-cache" in control else min(float(found[1]), MAX_FRESH_S)
        if "no-store" in control or not (etag or modified or age_s):
            return
        self._cache[url] = _Entry(page=page, etag=etag, last_modified=modified, fresh_until=time.monotonic() + age_s)
        self._size += _size(page)
        while self._size > MAX_CACHED_BYTES and self._cache:
            self._forget(next(iter(self._cache)))

    def _forget(self, url: str) -> None:
        entry = self._cache.pop(url, None)
        if entry is not None:
            self._size -= _size(entry.page)


def _size(page: Fetched) -> int:
    return len(page.body) + len(page.document.text)


def _validators(entry: _Entry | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if entry is not None and entry.etag:
        headers["If-None-Match"] = entry.etag
    if entry is not None and entry.last_modified:
        headers["If-Modified-Since"] = entry.last_modified
    return headers


def _content_type(header: str) -> tuple[str | None, str | None]:
    header = header.encode("utf-8", "replace").decode()  # Headers may hold lone surrogates.
    mime_type, _, rest = header.partition(";")
    found = re.search(r"charset\s*=\s*[\"']?([^\s;\"']+)", rest, re.I)
    return mime_type.strip().lower() or None, found[1] if found else None

"""A fetcher of web pages with a cache that follows the servers' freshness and validators."""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar
from urllib.robotparser import RobotFileParser

from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from sidestream.errors import DocumentError, FetchError, SidestreamError
from sidestream.evidence import Evidence, judge
from sidestream.jsontext import Json
from sidestream.limits import MIB
from sidestream.portable.documents import PAGE_LIMITS, Document, DocumentLimits, read
from sidestream.portable.fetch.policy import EgressPolicy
from sidestream.results.citations import claims_of, with_evidence
from sidestream.results.results import ChatResult
from sidestream.store.records import CheckedClaim, EvidenceChecked, PageSnapshot
from sidestream.text.html import is_web
from sidestream.wire.download import MAX_REDIRECTS
from sidestream.wire.egress import AddressPolicy, public_only
from sidestream.wire.pages import FetchedPage, PageLimits, get_page

T = TypeVar("T")
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


AGENT_NAME = "sidestream"
"""Name under which robots.txt files are read."""
MAX_PARALLEL_CHECKS = 4
_LINK_TARGET = re.compile(r"\]\([^()\s]*\)")
_PDF = "application/pdf"
_NOT_FREE = re.compile(rb"[\"']isAccessibleForFree[\"']\s*:\s*[\"']?(?:https?://schema\.org/)?false\b", re.I)
"""Mark with which publishers declare a paywall in their structured data."""
_REFUSALS = {
    401: "the page needs a sign-in",
    402: "the page is behind a paywall",
    403: "the site refuses to show the page; it may need a sign-in or a subscription",
    404: "the page does not exist any more",
    410: "the page was removed",
    451: "the page is blocked for legal reasons",
}
"""Status → words for people."""


async def check_evidence(result: ChatResult[T], *, allow_hosts: Sequence[str] = ()) -> ChatResult[T]:
    """Fetch the pages that an answer cites, and return the answer with the evidence of each citation.

    Citations that were checked keep their evidence. Pages that cannot be fetched, or that their robots.txt closes, are
    `unreachable`; so are all pages of a site whose robots.txt fails. `allow_hosts` are hosts, or `host:port`, that may
    have a private address.
    """
    return (await check_citations(result, allow_hosts))[0]


async def check_citations(
    result: ChatResult[T], allow_hosts: Sequence[str]
) -> tuple[ChatResult[T], EvidenceChecked, dict[str, bytes]]:
    """Check a result as `check_evidence` does, and return it with the record of the check and its pages, by digest."""
    claims = [claim for claim in claims_of(result) if claim.source.evidence.state == "unchecked"]
    urls = dict.fromkeys(claim.source.url for claim in claims if claim.source.url and is_web(claim.source.url))
    reader = _CitedPages(EgressPolicy(allow_hosts=allow_hosts))
    pages = dict(zip(urls, await asyncio.gather(*map(reader.read, urls)), strict=True))
    evidence: dict[tuple[int, str], Evidence] = {}
    marks: dict[tuple[int, str], Mapping[str, Json]] = {}
    snapshots: dict[str, PageSnapshot] = {}
    bodies: dict[str, bytes] = {}
    passages: dict[tuple[int, str], str] = {}
    for claim in claims:
        page = pages.get(claim.source.url or "")
        if page is None:
            continue
        key = claim.step, claim.source.id
        if isinstance(page, Fetched) and not page.document.text.strip():
            is_pdf = page.document.mime_type == _PDF
            page = "the PDF has no text; it may be a scan" if is_pdf else "the page has no text to read"
        if isinstance(page, str):
            evidence[key] = Evidence("unreachable", page)
            continue
        text = _LINK_TARGET.sub("]", page.document.text)
        found = judge(claim.text, text)
        passages[key] = text[slice(*found.place)] if found.place is not None else ""
        evidence[key] = replace(found, reason="; ".join([found.reason, *_remarks(page, found)]))
        snapshot = snapshots.setdefault(page.url, _snapshot(page))
        bodies[snapshot.sha256] = page.body
        about = {"sha256": snapshot.sha256, "url": snapshot.url, "retrieved_at": snapshot.retrieved_at}
        marks[key] = {"snapshot": about}
    record = EvidenceChecked(
        claims=tuple(
            CheckedClaim(
                step=claim.step,
                source=claim.source.id,
                text=claim.text,
                evidence=evidence[claim.step, claim.source.id],
                url=claim.source.url,
                title=claim.source.title,
                snapshot=snapshots[claim.source.url].sha256 if claim.source.url in snapshots else None,
                passage=passages.get((claim.step, claim.source.id), ""),
            )
            for claim in claims
            if (claim.step, claim.source.id) in evidence
        ),
        snapshots=tuple(snapshots.values()),
    )
    return with_evidence(result, evidence, marks), record, bodies


def _remarks(page: Fetched, found: Evidence) -> list[str]:
    """Return what a reader must know about the page to understand what was found."""
    remarks: list[str] = []
    asked, answered = URL(page.url), URL(page.final_url)
    if answered != asked:
        if asked.path not in ("", "/") and answered.path in ("", "/"):
            remarks.append(f"the page was replaced by the site's home page {page.final_url}")
        elif answered.host != asked.host:
            remarks.append(f"the page has moved to another site: {page.final_url}")
        else:
            remarks.append(f"the page has moved to {page.final_url}")
    if page.document.mime_type == _PDF:
        remarks.append("the source is a PDF, whose line breaks and columns may hide a sentence")
    if found.state == "not-found" and _NOT_FREE.search(page.body):
        remarks.append("the page is behind a paywall, and only its public part was read")
    return remarks


def _snapshot(page: Fetched) -> PageSnapshot:
    return PageSnapshot(
        sha256=hashlib.sha256(page.body).hexdigest(),
        url=page.final_url,
        retrieved_at=page.retrieved_at,
        mime_type=page.document.mime_type,
        size=len(page.body),
    )


class _UnknownRulesError(FetchError):
    """The robots.txt of a site must be read before its pages."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"the robots.txt of {origin} was not read", code="url_not_allowed")
        self.origin = origin


class _CitedPages:
    """Reads cited pages, a few at a time, as far as the robots.txt files of all sites on the way allow."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._fetcher = Fetcher(policy, check=self._check)
        self._robots_fetcher = Fetcher(policy)
        self._robots: dict[str, RobotFileParser] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._gate = asyncio.Semaphore(MAX_PARALLEL_CHECKS)

    async def read(self, url: str) -> Fetched | str:
        """Return the page, or the reason why it cannot be read."""
        async with self._gate:
            try:
                for _ in range(MAX_REDIRECTS + 1):
                    try:
                        return await self._fetcher.fetch(url)
                    except _UnknownRulesError as unknown:
                        await self._learn(unknown.origin)
                return "the page redirects to too many sites"
            except FetchError as error:
                words = _REFUSALS.get(error.status or 0)
                return str(error) if words is None else f"{words}: {error}"
            except (SidestreamError, ValueError) as error:
                return str(error)

    def _check(self, url: str) -> None:
        origin = str(URL(url).origin())
        rules = self._robots.get(origin)
        if rules is None:
            raise _UnknownRulesError(origin)
        if not rules.can_fetch(AGENT_NAME, url):
            raise FetchError("the site's robots.txt does not allow reading the page", code="url_not_allowed")

    async def _learn(self, origin: str) -> None:
        async with self._locks.setdefault(origin, asyncio.Lock()):
            if origin not in self._robots:
                self._robots[origin] = await self._rules(origin)

    async def _rules(self, origin: str) -> RobotFileParser:
        """Return the rules of a site. Raises FetchError if they cannot be read.

        As in RFC 9309, a site whose robots.txt answers 4xx has no rules, and any other failure closes the site.
        """
        rules = RobotFileParser()
        try:
            text = (await self._robots_fetcher.get(f"{origin}/robots.txt")).body.decode("utf-8", "replace")
        except FetchError as error:
            if error.status is None or not 400 <= error.status < 500:
                raise FetchError(f"the site's robots.txt cannot be read: {error}", code=error.code) from error
            text = ""
        rules.parse(text.splitlines())
        return rules


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

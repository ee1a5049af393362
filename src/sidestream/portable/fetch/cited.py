"""The pages and files that an answer cites, and the comparison of its claims with them."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from urllib.robotparser import RobotFileParser

from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from sidestream.errors import DocumentError, FetchError, SidestreamError
from sidestream.evidence import Evidence, judge, quotes
from sidestream.evidence.judgement import MAX_PASSAGE_CHARS
from sidestream.jsontext import Json, as_object, objects, text_in
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.parts import File, Source, StreamPart, ToolResult
from sidestream.portable.documents import PAGE_LIMITS, is_readable, read
from sidestream.portable.fetch.fetcher import Fetched, Fetcher
from sidestream.portable.fetch.policy import EgressPolicy
from sidestream.results.citations import CitedClaim, claims_of, with_evidence
from sidestream.results.results import ChatResult
from sidestream.store.records import CheckedClaim, EvidenceChecked, PageSnapshot
from sidestream.text.html import is_web, without_tracking
from sidestream.wire.download import MAX_REDIRECTS

T = TypeVar("T")
AGENT_NAME = "sidestream"
"""Name under which robots.txt files are read."""
MAX_PARALLEL_CHECKS = 4
MAX_CHECKED_PAGES = 32
"""Maximum pages that are read to check one answer. Claims that cite others are `unreachable`."""
MAX_CHECK_S = 60.0
"""Maximum seconds in which the pages of one answer are read."""
EXCERPT_CHARS = 1500
"""Characters before and after what was found that a model is shown."""
_LINK_TARGET = re.compile(r"\]\([^()\s]*\)")
_PDF = "application/pdf"
_PDF_REMARK = "the source is a PDF, whose line breaks and columns may hide a sentence"
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
    """Read the pages and files that an answer cites, and return the answer with the evidence of each citation.

    Citations that were checked keep their evidence, unless their page was `unreachable`. Pages that cannot be
    fetched, or that their robots.txt closes, are `unreachable`; so are all pages of a site whose robots.txt fails.
    Files are read only if the answer has their passages; `chat.check_evidence` reads others too. `allow_hosts` are
    hosts, or `host:port`, that may have a private address.
    """
    checked = await compare(claims_of(result), allow_hosts, CitedFiles(result.parts, result.messages))
    return with_evidence(result, checked.evidence, checked.marks)


class CheckedCitations(Struct, kw_only=True):
    """The claims in an answer after their pages and files were read. The dicts have the keys step and source id."""

    claims: Sequence[CitedClaim]
    """Claims that the check is about. Those that stay unchecked have a reason in `evidence` only."""
    evidence: dict[tuple[int, str], Evidence] = {}
    marks: dict[tuple[int, str], Mapping[str, Json]] = {}
    """`sidestream` metadata of the sources."""
    passages: dict[tuple[int, str], str] = {}
    """Words or sentence of the page that decided."""
    excerpts: dict[tuple[int, str], str] = {}
    """Text around them, for a model that is asked too."""
    snapshots: dict[str, PageSnapshot] = {}
    """Pages and files that were read, by digest."""
    digests: dict[tuple[int, str], str] = {}
    """Digests of what the claims were compared with."""
    bodies: dict[str, bytes] = {}
    """Bytes of these pages, by digest."""

    @property
    def record(self) -> EvidenceChecked:
        """The record of the check."""
        return EvidenceChecked(tuple(map(self._entry, self.claims)), tuple(self.snapshots.values()))

    def _entry(self, claim: CitedClaim) -> CheckedClaim:
        key, source = (claim.step, claim.source.id), claim.source
        return CheckedClaim(
            step=claim.step,
            source=source.id,
            text=claim.text,
            evidence=self.evidence[key],
            url=source.url,
            title=source.title,
            snapshot=self.digests.get(key),
            passage=self.passages.get(key, ""),
        )


async def compare(
    claims: Iterable[CitedClaim], allow_hosts: Sequence[str], files: "CitedFiles | None" = None
) -> CheckedCitations:
    """Read the pages and files of the unchecked claims, and compare each claim with its page or file."""
    unchecked = [claim for claim in claims if claim.source.evidence.state in ("unchecked", "unreachable")]
    files = files or CitedFiles()
    in_files = [claim for claim in unchecked if claim.source.kind == "document" and not files.is_page(claim.source)]
    others = [claim for claim in unchecked if claim not in in_files]
    urls: dict[str, str] = {}
    for claim in others:
        if claim.source.url and is_web(claim.source.url):
            urls.setdefault(_page_of(claim.source.url), claim.source.url)
    reader = _CitedPages(EgressPolicy(allow_hosts=allow_hosts))
    read_pages, read_files = await asyncio.gather(
        asyncio.gather(*map(reader.read, urls.values())), asyncio.gather(*map(files.read, in_files))
    )
    pages = dict(zip(urls, map(_cited_page, read_pages), strict=True))
    texts = {(claim.step, claim.source.id): text for claim, text in zip(in_files, read_files, strict=True)}
    checked = CheckedCitations(claims=[])
    found: list[CitedClaim] = []
    for claim in unchecked:
        key = claim.step, claim.source.id
        text = texts.get(key) or pages.get(_page_of(claim.source.url or ""))
        if text is None or isinstance(text, Evidence):
            checked.evidence[key] = text or Evidence("unchecked", "only web pages and files are read")
        else:
            _compare(checked, claim, text)
        if checked.evidence[key].state != "unchecked":
            found.append(claim)
    checked.claims = found
    return checked


def _page_of(url: str) -> str:
    """Return a URL without what does not change the page, so that the same page is read once."""
    return without_tracking(url.partition("#")[0])


class _CitedContent(Struct, frozen=True, kw_only=True):
    """A page or a file that claims are compared with."""

    text: str
    body: bytes
    snapshot: PageSnapshot
    remarks: Callable[[Evidence], list[str]]
    """Function that returns what a reader must know about it."""


def _compare(checked: CheckedCitations, claim: CitedClaim, content: _CitedContent) -> None:
    key = claim.step, claim.source.id
    text, snapshot = content.text, content.snapshot
    words = _cited_words(claim)
    cited = quotes.near(words, text) if words else None
    found = _located(claim.text, text, cited)
    checked.passages[key] = text[slice(*found.place)] if found.place is not None else ""
    place = found.place or cited or (0, 0)
    checked.excerpts[key] = text[max(0, place[0] - EXCERPT_CHARS) : place[1] + EXCERPT_CHARS]
    is_missing = words is not None and cited is None and found.state == "not-found"
    missing = ["the words that the provider cites are not in it either"] if is_missing else []
    if found.state == "not-found" and len(text) > MAX_PASSAGE_CHARS:
        missing.append(f"only its first {MAX_PASSAGE_CHARS:,} characters were compared")
    checked.evidence[key] = replace(found, reason="; ".join([found.reason, *missing, *content.remarks(found)]))
    checked.snapshots.setdefault(snapshot.sha256, snapshot)
    checked.bodies[snapshot.sha256], checked.digests[key] = content.body, snapshot.sha256
    about = {"sha256": snapshot.sha256, "url": snapshot.url, "retrieved_at": snapshot.retrieved_at}
    checked.marks[key] = {"snapshot": about}


def _cited_words(claim: CitedClaim) -> str | None:
    """Return the words of the source that the provider cites. Some providers repeat those of the answer instead."""
    words = claim.source.cited_text
    return None if not words or words.strip() == claim.text.strip() else words


def _located(claim: str, text: str, cited: tuple[int, int] | None) -> Evidence:
    """Judge a claim by the whole text and, if that does not decide, by the passage that the provider cites.

    A long text has more sentences than are compared, so that the passage may decide alone.
    """
    found = judge(claim, text)
    if cited is None or found.state in ("quoted", "supported"):
        return found
    local = judge(claim, text[slice(*cited)])
    if local.state not in ("quoted", "supported"):  # Only the whole text shows whether another sentence has the value.
        return found
    place = local.place
    return local if place is None else replace(local, place=(place[0] + cited[0], place[1] + cited[0]))


def _cited_page(page: Fetched | str) -> _CitedContent | Evidence:
    if isinstance(page, Fetched) and not page.document.text.strip():
        page = _EMPTY_PDF if page.document.mime_type == _PDF else "the page has no text to read"
    if isinstance(page, str):
        return Evidence("unreachable", page)
    text = _LINK_TARGET.sub("]", page.document.text)
    return _CitedContent(text=text, body=page.body, snapshot=_snapshot(page), remarks=partial(_remarks, page))


FetchFile = Callable[[str], Awaitable[File]]
"""Function that downloads a file from the provider by its id, or raises SidestreamError."""


class CitedFiles:
    """Reads cited files: passages that the answer has, documents of the history, or the provider's copies."""

    def __init__(
        self,
        parts: Iterable[StreamPart] = (),
        messages: Iterable[ChatMessage] = (),
        fetch: FetchFile | None = None,
    ) -> None:
        """Read from the results of file search among the parts, and from files in the user's messages."""
        self._fetch = fetch
        self._hits: dict[str, dict[str, None]] = {}
        for part in parts:
            if isinstance(part, ToolResult) and part.tool == "file_search" and part.provider_executed:
                for hit in objects(as_object(part.result).get("results")):
                    if (file_id := text_in(hit, "file_id")) and (text := text_in(hit, "text")):
                        self._hits.setdefault(file_id, {})[text] = None
        given = [
            part
            for message in messages
            for part in (message.parts if message.role == "user" else ())
            if isinstance(part, DataPart) and part.to == "model" and is_readable(part.mime_type)
        ]
        self._given = [*{(part.name, part.data): part for part in given}.values()]
        self._read: dict[str, asyncio.Future[_CitedContent | Evidence]] = {}
        self._gate = asyncio.Semaphore(MAX_PARALLEL_CHECKS)

    def is_page(self, source: Source) -> bool:
        """Return whether a document is to be read at its URL, because the answer has no passage of it."""
        return source.url is not None and is_web(source.url) and not self._passages(source)

    async def read(self, claim: CitedClaim) -> _CitedContent | Evidence:
        """Return the file of a claim, or why it cannot be compared."""
        source = claim.source
        if passages := self._passages(source):
            return _retrieved(source, passages)
        key = source.file_id or f"{source.title}\n{source.cited_text}"
        if (reading := self._read.get(key)) is None:
            if len(self._read) >= MAX_CHECKED_PAGES:
                return Evidence("unreachable", f"only {MAX_CHECKED_PAGES} files of an answer are read")
            reading = self._read[key] = asyncio.ensure_future(self._timed(source))
        return await reading

    def _passages(self, source: Source) -> Sequence[str]:
        """Return the passages of the file that the search gave the model."""
        own = [
            text
            for details in (source.provider_metadata or {}).values()
            if (text := text_in(as_object(details), "text"))
        ]
        return own or tuple(self._hits.get(source.file_id or "", ()))

    async def _timed(self, source: Source) -> _CitedContent | Evidence:
        try:
            async with asyncio.timeout(MAX_CHECK_S), self._gate:
                return await (self._stored(source.file_id) if source.file_id else self._in_history(source))
        except TimeoutError:
            return Evidence("unreachable", f"the file was not read within {MAX_CHECK_S:g} s")
        except (SidestreamError, ValueError) as error:
            return Evidence("unreachable", f"the file cannot be read: {error}")

    async def _stored(self, file_id: str) -> _CitedContent | Evidence:
        if self._fetch is None:
            return Evidence("unchecked", f"the provider has the file; {_WITH_AGENT}")
        file = await self._fetch(file_id)
        return await _content(file_id, file.data or b"", file.mime_type, file.name)

    async def _in_history(self, source: Source) -> _CitedContent | Evidence:
        """Return the given document with the cited words."""
        named = [part for part in self._given if part.name == source.title] if source.title else []
        given = named or self._given
        readable: list[_CitedContent] = []
        failed: Evidence | None = None
        for part in given[:MAX_CHECKED_PAGES]:
            try:
                found = await _content(part.name or "a document of the request", part.data, part.mime_type, part.name)
            except DocumentError as error:
                found = Evidence("unreachable", f"the document cannot be read: {error}")
            if isinstance(found, Evidence):
                failed = found
            elif source.cited_text and quotes.near(source.cited_text, found.text) is not None:
                return found
            else:
                readable.append(found)
        if len(given) == 1:
            return readable[0] if readable else failed or Evidence("unreachable", "the document has no text")
        if given:
            return Evidence(
                "unreachable", "the request has several documents, and none that can be read has the cited words"
            )
        if self._fetch is None:
            return Evidence("unchecked", f"the document is not in the result; {_WITH_AGENT}")
        return Evidence("unreachable", "the provider does not say which file it is, and the request has none")


_WITH_AGENT = "chat.check_evidence or Agent(evidence=EvidenceCheck()) can read it"
_EMPTY_PDF = "the PDF has no text; it may be a scan"
_CUT_CHARS = 300
"""Characters of the shortest passage that may begin or end within a sentence."""
_BEGUN = re.compile(r"[^.!?\n]*(?:[.!?](?=\s)|\n)\s*")
_UNENDED = re.compile(r"(?<=[.!?\n])[^.!?\n]*$")


def _retrieved(source: Source, passages: Sequence[str]) -> _CitedContent:
    """Return the passages of a file. Sentences that a passage may have cut are not compared."""
    remark = "compared with the passages that the search returned, not with the whole file"
    body = "\n\n".join(passages)
    snapshot = _file_snapshot(
        source.file_id or source.title or source.id, body.encode("utf-8", "replace"), "text/plain"
    )
    return _CitedContent(
        text="\n\n".join(map(_whole_sentences, passages)),
        body=body.encode("utf-8", "replace"),
        snapshot=snapshot,
        remarks=lambda found: [remark],
    )


def _whole_sentences(passage: str) -> str:
    if len(passage) < _CUT_CHARS:
        return passage
    if passage[:1].islower() and (begun := _BEGUN.match(passage)) is not None:
        passage = passage[begun.end() :]
    return passage if passage.rstrip()[-1:] in (".", "!", "?") else _UNENDED.sub("", passage)


async def _content(place: str, data: bytes, mime_type: str, name: str | None) -> _CitedContent | Evidence:
    """Return the text of a file. Raises DocumentError if it cannot be read."""
    document = await read(data, mime_type=mime_type, name=name or "", limits=PAGE_LIMITS)
    if not document.text.strip():
        return Evidence("unreachable", _EMPTY_PDF if document.mime_type == _PDF else "the file has no text to read")
    remarks = [_PDF_REMARK] if document.mime_type == _PDF else []
    return _CitedContent(
        text=document.text,
        body=data,
        snapshot=_file_snapshot(place, data, document.mime_type),
        remarks=lambda found: remarks,
    )


def _file_snapshot(place: str, body: bytes, mime_type: str) -> PageSnapshot:
    return PageSnapshot(
        sha256=hashlib.sha256(body).hexdigest(),
        url=place,
        retrieved_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        mime_type=mime_type,
        size=len(body),
    )


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
        remarks.append(_PDF_REMARK)
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
        self._count = 0

    async def read(self, url: str) -> Fetched | str:
        """Return the page, or the reason why it cannot be read."""
        self._count += 1
        if self._count > MAX_CHECKED_PAGES:
            return f"only {MAX_CHECKED_PAGES} pages of an answer are read"
        try:
            async with asyncio.timeout(MAX_CHECK_S):
                return await self._read(url)
        except TimeoutError:
            return f"the page was not read within {MAX_CHECK_S:g} s"

    async def _read(self, url: str) -> Fetched | str:
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
            except SidestreamError as error:
                return str(error)
            except ValueError as error:
                return f"the page's address, or one that it redirects to, is invalid: {error}"

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

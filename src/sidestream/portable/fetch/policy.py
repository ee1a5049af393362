"""Egress policy: which URLs may be fetched, by domain and by where they were found. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from sidestream.errors import FetchError
from sidestream.jsontext import as_object
from sidestream.messages.message import ChatMessage, LinkPart, TextPart, ToolResultPart
from sidestream.messages.provenance import provenance_of
from sidestream.text.urls import host_of, is_allowed, is_blocked, normal_host, plain_url, urls_in, urls_of

Verdict = Literal["known", "linked", "ask"]
"""Origin of a URL: given by the user or a search (`known`), linked from a page on the same host (`linked`), or neither,
so that the user must decide (`ask`)."""

MAX_HOPS = 3
"""Maximum links from page to page that are followed unasked. A page whose links spell out data letter by letter needs
many."""


class EgressPolicy(Struct, frozen=True, kw_only=True):
    """Domains that may or must not be fetched, including subdomains. A path after a domain narrows it."""

    allowed_domains: Sequence[str] = ()
    blocked_domains: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    """Hosts, or `host:port`, that may have a private address. They are always allowed."""
    max_hops: int = MAX_HOPS

    def check(self, url: str) -> None:
        """Raise FetchError if the URL's domain is blocked or not allowed."""
        if self.is_named(url):
            return
        host = host_of(url)
        if is_blocked(url, self.blocked_domains):
            raise FetchError(f"{host} is one of the blocked domains", code="url_not_allowed")
        if self.allowed_domains and not is_allowed(url, self.allowed_domains):
            raise FetchError(f"{host} is none of the allowed domains", code="url_not_allowed")

    def is_named(self, url: str) -> bool:
        """Return whether the operator has named the URL's host, which may then have any address."""
        if not self.allow_hosts:
            return False
        from yarl import URL

        try:
            port = URL(url).port
        except ValueError:
            return False
        host = host_of(url)
        return host is not None and any(
            named in ((host, None), (host, port)) for named in map(_named, self.allow_hosts)
        )


def _named(entry: str) -> tuple[str | None, int | None]:
    """Parse an entry into host and port: `host`, `host:port`, an IPv6 address, or `[address]:port`."""
    bare = entry.strip()
    host, colon, port = bare.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.endswith("]")):
        host, port = bare, ""
    host = host.strip("[]")
    return normal_host(f"[{host}]" if ":" in host else host), int(port) if port else None


class KnownAddresses:
    """The URLs known in a conversation, and how each became known."""

    def __init__(self, history: Iterable[ChatMessage] = ()) -> None:
        self._given: set[str] = set()
        self._linked: dict[str, tuple[int, str]] = {}
        """URL → hops from a given URL, and the host on which it was found."""
        self._hops: dict[str, int] = {}
        """URL of a fetched page → its hops."""
        for message in history:
            self._read(message)

    def give(self, urls: Iterable[str]) -> None:
        """Add URLs given by the user or a search."""
        self._given |= {plain_url(url) for url in urls}

    def fetched(self, url: str, final_url: str, links: Iterable[str]) -> None:
        """Add a page's links. They count only on the page's own host."""
        hops = self.hops_of(url)
        host = host_of(final_url) or ""
        self._hops[plain_url(final_url)] = hops
        for link in links:
            plain = plain_url(link)
            known = self._linked.get(plain)
            if known is None or known[0] > hops + 1:
                self._linked[plain] = (hops + 1, host)

    def verdict(self, url: str, max_hops: int) -> Verdict:
        """Return whether a URL may be fetched unasked, and why."""
        plain = plain_url(url)
        if plain in self._given:
            return "known"
        found = self._linked.get(plain)
        if found is not None and found[1] == host_of(url) and found[0] <= max_hops:
            return "linked"
        return "ask"

    def hops_of(self, url: str) -> int:
        """Return the number of links that lead to a URL from a given one."""
        plain = plain_url(url)
        if plain in self._given:
            return 0
        return self._linked[plain][0] if plain in self._linked else self._hops.get(plain, 0)

    def _read(self, message: ChatMessage) -> None:
        known = provenance_of(message)
        self.give(known.urls)
        # A user message may have been written by a model or this program: a task for a subagent, a summary.
        is_given = message.role in ("user", "system") and not known.is_written
        for part in message.parts:
            if isinstance(part, TextPart) and is_given:
                self.give(urls_in(part.text))
            elif isinstance(part, LinkPart) and is_given:
                self.give([part.url])
            elif isinstance(part, ToolResultPart) and part.id in known.pages:
                self._read_page(part.result)

    def _read_page(self, result: Any) -> None:
        """Add the links of a page that `web_fetch` returned."""
        page = as_object(result)
        url = str(page.get("url") or "")
        self.fetched(url, str(page.get("final_url") or url), urls_of(page.get("content")))

"""Which addresses may be fetched: by domain, and by where they were found. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal
from urllib.parse import urldefrag, urlsplit

from msgspec import Struct

from sidestream.errors import FetchError
from sidestream.jsontext import is_array, is_object
from sidestream.messages.message import ChatMessage, LinkPart, TextPart, ToolResultPart

Verdict = Literal["known", "linked", "ask"]
"""Given by the user or found by a tool; linked from a page on the same host; neither, so that a person must decide."""

MAX_HOPS = 3
"""Links from page to page that are followed unasked. A page whose links spell out data letter by letter needs many."""
_URL = re.compile(r"https?://[^\s<>\"'`\\^{|}\x00-\x20]+", re.I)
_TRAILING = ".,;:!?)]}>*_'\""
_FETCH_TYPE = "web_fetch_result"


class EgressPolicy(Struct, frozen=True, kw_only=True):
    """Domains that may, or must not, be fetched; subdomains included. A path after a domain narrows it."""

    allowed_domains: Sequence[str] = ()
    blocked_domains: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    """Hosts, or `host:port`, that may have a private address. They are allowed besides."""
    max_hops: int = MAX_HOPS

    def check(self, url: str) -> None:
        """Raises FetchError for an address that its domain rules out."""
        if self.is_named(url):
            return
        host, path = _place(url)
        if any(_is_under(host, path, entry) for entry in self.blocked_domains):
            raise FetchError(f"{host} is one of the blocked domains", code="url_not_allowed")
        if self.allowed_domains and not any(_is_under(host, path, entry) for entry in self.allowed_domains):
            raise FetchError(f"{host} is none of the allowed domains", code="url_not_allowed")

    def is_named(self, url: str) -> bool:
        """True for a host that the operator has named, wherever it is."""
        try:
            parts = urlsplit(url)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            return False
        host = (parts.hostname or "").lower()
        names = {entry.lower().strip("[]") for entry in self.allow_hosts}
        return bool(host) and (host in names or f"{host}:{port}" in names or f"[{host}]:{port}" in names)


class KnownAddresses:
    """The addresses of a conversation, and how each became known."""

    def __init__(self, history: Iterable[ChatMessage] = ()) -> None:
        self._given: set[str] = set()
        self._linked: dict[str, tuple[int, str]] = {}
        """Address → hops from one that was given, and the host that it was found on."""
        self._hops: dict[str, int] = {}
        """Address of a fetched page → its hops."""
        for message in history:
            self._read(message)

    def give(self, urls: Iterable[str]) -> None:
        """Adds addresses that the user or a search gave."""
        self._given |= {_plain(url) for url in urls}

    def fetched(self, url: str, final_url: str, links: Iterable[str]) -> None:
        """Adds what a page links to: it counts on the page's own host."""
        hops = self.hops_of(url)
        host = _place(final_url)[0]
        self._hops[_plain(final_url)] = hops
        for link in links:
            plain = _plain(link)
            known = self._linked.get(plain)
            if known is None or known[0] > hops + 1:
                self._linked[plain] = (hops + 1, host)

    def verdict(self, url: str, max_hops: int) -> Verdict:
        """Whether an address may be fetched unasked."""
        plain = _plain(url)
        if plain in self._given:
            return "known"
        found = self._linked.get(plain)
        if found is not None and found[1] == _place(url)[0] and found[0] <= max_hops:
            return "linked"
        return "ask"

    def hops_of(self, url: str) -> int:
        """How many links lead to an address from one that was given."""
        plain = _plain(url)
        if plain in self._given:
            return 0
        return self._linked[plain][0] if plain in self._linked else self._hops.get(plain, 0)

    def _read(self, message: ChatMessage) -> None:
        for part in message.parts:
            if message.role in ("user", "system") and isinstance(part, TextPart):
                self.give(urls_in(part.text))
            elif isinstance(part, LinkPart) and message.role == "user":
                self.give([part.url])
            elif isinstance(part, ToolResultPart):
                self._read_result(part.result)

    def _read_result(self, result: Any) -> None:
        """What a tool returned: a search's hits are given, a page's links are links."""
        if is_object(result) and result.get("type") == _FETCH_TYPE:
            url = str(result.get("url") or "")
            final = str(result.get("final_url") or url)
            self.fetched(url, final, _urls_of(result.get("content")))
        else:
            self.give(_urls_of(result))


def urls_in(text: str) -> list[str]:
    """The addresses in a text, without the punctuation after them."""
    return [_cut(found) for found in _URL.findall(text)]


def _cut(url: str) -> str:
    while url and url[-1] in _TRAILING:
        # A parenthesis that the address itself opened belongs to it.
        if url[-1] == ")" and url.count("(") >= url.count(")"):
            break
        url = url[:-1]
    return url


def _urls_of(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from urls_in(value)
    elif is_object(value):
        for content in value.values():
            yield from _urls_of(content)
    elif is_array(value):
        for content in value:
            yield from _urls_of(content)


def _plain(url: str) -> str:
    """The address without its fragment, its host in lower case, and a path."""
    bare = urldefrag(url.strip()).url
    scheme, separator, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{separator}{host.lower()}{slash or '/'}{path}"


def _place(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").lower().rstrip("."), parts.path or "/"
    except ValueError:
        return "", "/"


def _is_under(host: str, path: str, entry: str) -> bool:
    entry = entry.lower().removeprefix("https://").removeprefix("http://")
    domain, slash, prefix = entry.partition("/")
    domain = domain.removeprefix("*.").rstrip(".")
    is_host = host == domain or host.endswith(f".{domain}")
    return is_host and (not slash or path.lower().startswith(f"/{prefix}"))

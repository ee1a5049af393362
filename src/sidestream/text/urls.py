"""URL parsing, normalisation and domain-list matching. Pure.

A host is read as the HTTP client reads it, after IDNA; a path in every way in which a server may read it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from sidestream.jsontext import is_array, is_object

_URL = re.compile(r"https?://[^\s<>\"'`\\^{|}\x00-\x20]+", re.I)
_PLAIN = re.compile(r"https?://[a-z0-9.:-]+/[^#\s]*")
_TRAILING = ".,;:!?)]}>*_'\""
_MAX_UNQUOTED = 3
"""Maximum times that a path is unquoted, since servers behind proxies may do so more than once."""


def urls_in(text: str) -> list[str]:
    """Return the URLs in a string, without the punctuation after them."""
    # The test is cheap, and most strings of a long result have no URL.
    return [_cut(found) for found in _URL.findall(text)] if "://" in text else []


def urls_of(value: Any) -> Iterator[str]:
    """Yield the URLs in all strings of a JSON value, including field names."""
    if isinstance(value, str):
        yield from urls_in(value)
    elif is_object(value):
        for name, content in value.items():
            yield from urls_in(name)
            yield from urls_of(content)
    elif is_array(value):
        for content in value:
            yield from urls_of(content)


def origin_of(url: str, base: str = "") -> str:
    """Return scheme, host and port, the only parts of a URL that a message may show."""
    try:
        parts = urlsplit(urljoin(base, url))
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host:
        return "an invalid URL"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"


def plain_url(url: str) -> str:
    """Normalise a URL for comparison: no fragment, scheme and host in lower case, and a path."""
    if _PLAIN.fullmatch(url):  # Nearly all are.
        return url
    bare = urldefrag(url.strip()).url
    scheme, separator, rest = bare.partition("://")
    end = next((at for at, letter in enumerate(rest) if letter in "/?"), len(rest))
    host, path = rest[:end], rest[end:]
    host = host.lower() if host.isascii() else normal_host(host) or host
    return f"{scheme.lower()}{separator}{host}{path if path.startswith('/') else f'/{path}'}"


def normal_host(host: str) -> str | None:
    """Normalise a host as it is looked up: ASCII, lower case, no final dot, no brackets.

    Returns None if it is not valid.
    """
    from yarl import URL

    try:
        return _bare(URL(f"http://{unquote(host)}/").raw_host)
    except (ValueError, UnicodeError):
        return None


def host_of(url: str) -> str | None:
    """Return the host that a request for this URL goes to, in normal form, or None if there is none."""
    from yarl import URL

    try:
        # As `wire.egress.parsed_url` does, so that the compared host is the one that is connected to.
        host = URL(url.strip()).raw_host
    except (ValueError, UnicodeError):
        return None
    return _bare(host) if host is None or "%" not in host else normal_host(host)


def _bare(host: str | None) -> str | None:
    return (host or "").lower().rstrip(".") or None


def is_blocked(url: str, entries: Sequence[str]) -> bool:
    """Return whether a domain list blocks a URL, under any reading of its path.

    Every list blocks a URL without a valid host.
    """
    if not entries:
        return False
    host, paths = host_of(url), _paths(url)
    return host is None or any(
        _is_under(host, domain) and any(_is_below(path.lower(), prefix.lower()) for path in paths)
        for domain, prefix in map(_entry, entries)
    )


def is_allowed(url: str, entries: Sequence[str]) -> bool:
    """Return whether a domain list allows a URL, under every reading of its path."""
    host, paths = host_of(url), _paths(url)
    return host is not None and any(
        _is_under(host, domain) and all(_is_below(path, prefix) for path in paths)
        for domain, prefix in map(_entry, entries)
    )


@lru_cache(maxsize=256)
def _entry(entry: str) -> tuple[str | None, str]:
    """Split an entry into its domain and the path that narrows it.

    Subdomains are included, with and without `*.`.
    """
    bare = re.sub(r"^[a-z][a-z0-9+.-]*://", "", entry.strip(), flags=re.I)
    domain, _, path = bare.partition("/")
    return normal_host(domain.removeprefix("*.").removeprefix(".")), _resolved(path)


def _is_under(host: str, domain: str | None) -> bool:
    return domain is not None and (host == domain or host.endswith(f".{domain}"))


def _is_below(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(f"{prefix}/")


def _paths(url: str) -> set[str]:
    """Return the readings of a URL's path by different servers, which may unquote it or cut it off at a `;`."""
    rest = url.strip().partition("://")[2]
    start = next((at for at, letter in enumerate(rest) if letter in "/\\?#"), len(rest))
    path = re.split(r"[?#]", rest[start:], maxsplit=1)[0]
    found: set[str] = set()
    for _ in range(_MAX_UNQUOTED + 1):
        found |= {_resolved(path), _resolved(re.sub(r";[^/\\]*", "", path))}
        path = unquote(path)
    return found


def _resolved(path: str) -> str:
    """Normalise a path: remove `.`, `..` and empty segments, and unquote the names."""
    kept: list[str] = []
    for segment in re.split(r"[/\\]", path):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(_unquoted(segment))
    return "/" + "/".join(kept)


def _unquoted(text: str) -> str:
    for _ in range(_MAX_UNQUOTED):
        text = unquote(text)
    return text


def _cut(url: str) -> str:
    while url and url[-1] in _TRAILING:
        # A parenthesis that the URL itself opened belongs to it.
        if url[-1] == ")" and url.count("(") >= url.count(")"):
            break
        url = url[:-1]
    return url

"""Base URLs of providers: what can be called, and what is on this machine."""

import re
from urllib.parse import urlsplit

from sidestream.errors import ConfigurationError

_LOOPBACK = re.compile(r"localhost|.*\.localhost|127(\.\d+){3}|::1")


def checked_base_url(url: str) -> str:
    """The URL without a slash at its end. Raises ConfigurationError where it is none that can be called."""
    given = url.strip().rstrip("/")
    try:
        parts = urlsplit(given)
        host = parts.hostname
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError as error:
        raise ConfigurationError(f"the base URL {url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"the base URL {url!r} must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ConfigurationError("the base URL holds a user or password; pass auth= or headers= to Agent instead")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the base URL {url!r} must have no query: paths are added at its end")
    return given


def is_loopback(url: str) -> bool:
    """True for this machine, where servers rarely want a key."""
    return _LOOPBACK.fullmatch(urlsplit(url).hostname or "") is not None

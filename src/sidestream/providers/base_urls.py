"""Validation of base URLs."""

import re
from urllib.parse import urlsplit

from sidestream.errors import ConfigurationError

_LOOPBACK = re.compile(r"localhost|.*\.localhost|127(\.\d+){3}|::1")


def checked_base_url(url: str) -> str:
    """The URL without a trailing slash. Raises ConfigurationError if it is invalid."""
    given = url.strip().rstrip("/")
    try:
        parts = urlsplit(given)
        host = parts.hostname
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError as error:
        raise ConfigurationError(f"the base URL {url!r} is invalid: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"the base URL {url!r} must start with http:// or https:// and have a host")
    if parts.username or parts.password:
        raise ConfigurationError("the base URL contains a user or password; pass auth or headers to Agent instead")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the base URL {url!r} must not have a query or fragment: paths are appended to it")
    return given


def is_loopback(url: str) -> bool:
    """True for a server on this machine, which rarely requires a key."""
    return _LOOPBACK.fullmatch(urlsplit(url).hostname or "") is not None

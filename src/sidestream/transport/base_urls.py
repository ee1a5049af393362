"""Validation of base URLs."""

import os
import re
from urllib.parse import urlsplit

from sidestream.errors import ConfigurationError
from sidestream.text.redaction import hidden_url, redact, redact_url

_LOOPBACK = re.compile(r"localhost|.*\.localhost|127(\.\d+){3}|::1")


def checked_base_url(url: str) -> str:
    """Return the URL without a trailing slash. Raises ConfigurationError if the URL is invalid."""
    # Validate in another function, so that a traceback with locals never shows parts of a URL that contains a key.
    url = hidden_url(url)
    if problem := _problem_of(url):
        raise ConfigurationError(problem)
    return str(url).strip().rstrip("/")


def base_url_in(variable: str | None) -> str | None:
    """Return the base URL from an environment variable, or None if it is unset or empty."""
    url = os.environ.get(variable) if variable else None
    return url and hidden_url(url)


def _problem_of(url: str) -> str | None:
    shown = repr(redact_url(url))
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname
        _ = parts.port  # raises if it is not a number
    except ValueError as error:
        return f"the base URL {shown} is invalid: {redact(str(error))}"
    if parts.scheme not in ("http", "https") or not host:
        return f"the base URL {shown} must start with http:// or https:// and have a host"
    if parts.username or parts.password:
        return "the base URL contains a user or password; pass auth or headers to Agent instead"
    if parts.query or parts.fragment:
        return f"the base URL {shown} must not have a query or fragment: paths are appended to it"
    return None


def is_loopback(url: str) -> bool:
    """Return whether the URL points to this machine, where servers rarely require a key."""
    return _LOOPBACK.fullmatch(urlsplit(url).hostname or "") is not None

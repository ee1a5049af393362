"""Base URLs: their validation, and those that environment variables complete."""

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from sidestream.errors import ConfigurationError
from sidestream.text.redaction import hidden_url, redact, redact_url

_LOOPBACK = r"localhost|.*\.localhost|127(\.\d+){3}|::1"


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
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname
        _ = parts.port  # raises if it is not a number
    except ValueError as error:
        return f"the base URL {_shown(url)} is invalid: {redact(str(error))}"
    if parts.scheme not in ("http", "https") or not host:
        return f"the base URL {_shown(url)} must start with http:// or https:// and have a host"
    if parts.username or parts.password:
        return "the base URL contains a user or password; pass auth or headers to Agent instead"
    if parts.query or parts.fragment:
        return f"the base URL {_shown(url)} must not have a query or fragment: paths are appended to it"
    return None


def _shown(url: str) -> str:
    return repr(redact_url(url))


def is_loopback(url: str) -> bool:
    """Return whether the URL points to this machine, where servers rarely require a key."""
    return re.fullmatch(_LOOPBACK, urlsplit(url).hostname or "") is not None


def has_variable(names: Sequence[str]) -> bool:
    """Return whether one of the environment variables is set."""
    return any(os.environ.get(name, "").strip() for name in names)


def url_from_variables(template: str, *, who: str) -> str:
    """Fill names such as `{AWS_REGION}` in a URL from environment variables.

    `{A|B}` takes the first variable that is set, and `{A|=global}` falls back to a value. Raises ConfigurationError if
    no variable of a place is set, or if its value would change the rest of the URL.
    """

    def value(place: re.Match[str]) -> str:
        names, default = _variables_of(place)
        name = next((name for name in names if has_variable([name])), "")
        found = os.environ[name].strip() if name else default
        if not found:
            raise ConfigurationError(f"{who} needs a base URL: set {' or '.join(names)}, or pass base_url to Agent")
        if not re.fullmatch(r"[\w.-]+", found, re.ASCII):
            raise ConfigurationError(f"{name} must be letters, digits, '.', '_' and '-', not {found!r:.80}")
        return found

    return re.sub(_PLACE, value, template)


def missing_variables(*templates: str) -> tuple[str, ...]:
    """Return the variables that these URLs need and that are not set, as in `A or B`."""
    places = [_variables_of(place) for template in templates for place in re.finditer(_PLACE, template)]
    return tuple(
        dict.fromkeys(" or ".join(names) for names, default in places if not default and not has_variable(names))
    )


_PLACE = r"\{([^}]+)\}"


def _variables_of(place: re.Match[str]) -> tuple[list[str], str]:
    """Return the variables of a place, and its default."""
    names = place[1].split("|")
    return names, names.pop()[1:] if names[-1].startswith("=") else ""

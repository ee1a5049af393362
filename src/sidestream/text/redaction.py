"""Redaction of secrets in messages and logs, by their shape, value, type or header name."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import SupportsIndex

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8
"""Shorter values would match ordinary words."""
MAX_SECRETS = 1024
"""Maximum registered values. Beyond it the oldest is dropped, since some tokens change every hour."""

_SECRET_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "x-goog-api-key",
        "api-key",
        "cookie",
        "set-cookie",
    }
)
_SECRET_HEADER_ENDINGS = ("api-key", "apikey", "-authorization", "-token", "-secret", "-subscription-key")
_PLAIN_HEADER = (
    r"accept(-.*)?|content-.*|cache-control|user-agent|host|origin|(http-)?referer|x-title|idempotency-key|baggage"
    r"|traceparent|tracestate|.*-(betas?|version|organization|project|region|id)"
)
"""Headers that callers set without keeping them secret. Gateways use headers of any other name for credentials."""
_SECRET_NAME = r"(?i)key|token|secret|passw|credential"
_PLAIN_VALUE = r"(?is)[a-z ,._-]*|[\d.:-]*|[~.]*/.*|\w:\\.*|https?://[^@?]*"
"""Values of variables and queries that are not secrets: words, numbers, paths and URLs."""
_SCHEME = r"(?i)(?:bearer|basic|token|digest|apikey)\s+"

_TOKEN = r"[^\s\"'&,;<>(){}\[\]\\]+"
_RULES = (
    # https://user:password@host
    (r"://[^/\s?#\"'<>]+@", rf"://{REDACTED}@"),
    # Authorization: Bearer x, "authorization": "Basic x"
    (
        rf"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?(?:{_TOKEN}|\[redacted\])",
        rf"\1{REDACTED}",
    ),
    (r"(?i)(cookie[\"']?\s*[:=]\s*[\"']?)[^\r\n\"']+", rf"\1{REDACTED}"),
    # A single word is prose ("Bearer token"), so the token must look like one.
    (rf"(?i)\b(bearer|basic)\s+(?=\S*[\d._~+/=-]|\S{{16}}){_TOKEN}", rf"\1 {REDACTED}"),
    # x-api-key: x, api_key=x, "apiKey": "x", ?key=x, access_token=x
    (
        r"(?i)((?:api[-_]?key|access[-_]?token|client[-_]?secret|password)[\"']?\s*[:=]\s*[\"']?|\bkey=)"
        rf"{_TOKEN}",
        rf"\1{REDACTED}",
    ),
    # Keys with the prefixes of vendors; some servers echo them with asterisks in the middle.
    (
        r"\b(?:sk|pk|rk)-[\w*.-]{6,}|\bAIza[\w-]{16,}|\bya29\.[\w.-]{8,}|\b(?:gsk|hf|xai)[-_][\w-]{16,}",
        REDACTED,
    ),
)

_secrets: dict[str, tuple[str, ...]] = {}
"""Registered value → forms in which it may occur."""


class Secret(str):
    """A string whose repr is `[redacted]`, which keeps it out of tracebacks with locals.

    Headers and comparisons use its value.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{REDACTED}'"

    def __getitem__(self, key: SupportsIndex | slice) -> "Secret":
        return Secret(super().__getitem__(key))  # keep a shortened repr redacted


def hidden(headers: Mapping[str, str]) -> dict[str, str]:
    """Mark the caller's header values as secrets, and register them.

    Headers whose name shows that they are not secret keep plain values.
    """
    kept = {
        name: str(value) if re.fullmatch(_PLAIN_HEADER, name.lower()) else Secret(value)
        for name, value in headers.items()
    }
    for value in secrets_in(kept):
        register_secret(value)
    return kept


def secrets_in(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets among header values, found by the header's name or the value's type."""
    for name, value in headers.items():
        if "cookie" in name.lower():
            yield from (pair.partition("=")[2] for pair in value.split(";"))
        elif isinstance(value, Secret) or is_secret_header(name):
            yield re.sub(_SCHEME, "", value, count=1)


def register_secret(value: str) -> None:
    """Register a value that `redact` replaces wherever it occurs. Short values are ignored."""
    value = str(value).strip()
    if len(value) < MIN_SECRET_LENGTH:
        return
    _secrets[value] = _secrets.pop(value, ()) or _forms(value)
    if len(_secrets) > MAX_SECRETS:
        _secrets.pop(next(iter(_secrets)), None)


def register_credentials(authorization: str | None, headers: Mapping[str, str]) -> None:
    """Register the secrets in a request's authorization and in the caller's headers."""
    hidden({"Authorization": authorization or "", **headers})


def hidden_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Mark the values of environment variables as secrets.

    Registers all but plain words, numbers, paths and URLs.
    """
    for name, value in variables.items():
        if _may_be_secret(name, value):
            register_secret(value)
            register_url(value)
    return {name: Secret(value) for name, value in variables.items()}


def hidden_url(url: str) -> str:
    """Mark a URL as a secret if it may contain one, i.e. a user, a password or a query.

    The values in it are registered.
    """
    if not re.search(r"[?#@]", url):
        return url
    register_url(url)
    return Secret(url)


def register_url(url: str) -> None:
    """Register the secrets that a URL may contain.

    These are its password, or a user without one, and the values of its query.
    """
    from urllib.parse import parse_qsl, unquote, urlsplit

    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query)
    except ValueError:
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    for name, value in (("password", password), ("user", "" if password else user), *query):
        if _may_be_secret(name, value):
            register_secret(value)
            register_secret(unquote(value))


def _may_be_secret(name: str, value: str) -> bool:
    return re.search(_SECRET_NAME, name) is not None or not re.fullmatch(_PLAIN_VALUE, value)


def redact(text: str) -> str:
    """Replace every registered value, and everything that looks like a secret, with `[redacted]`."""
    text = without_registered(str(text))
    for pattern, replacement in _compiled_rules():
        text = pattern.sub(replacement, text)
    return text


def without_registered(text: str) -> str:
    """Replace every registered value with `[redacted]`, and leave everything else unchanged."""
    spans = list[tuple[int, int]]()
    for forms in list(_secrets.values()):
        for form in forms:
            start = text.find(form)
            while start >= 0:
                spans.append((start, start + len(form)))
                start = text.find(form, start + 1)
    return _without(text, spans) if spans else text


def redact_url(url: str) -> str:
    """Return the URL without its user, query and fragment, for display."""
    url = re.sub(r"//[^/?#]*@", f"//{REDACTED}@", str(url), count=1)
    return redact(re.sub(r"(?s)([?#]).*", rf"\1{REDACTED}", url, count=1))


def _forms(secret: str) -> tuple[str, ...]:
    import json
    from urllib.parse import quote

    in_urls = (quote(secret, safe=safe, errors="replace") for safe in ("", "/"))
    in_json = (json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return tuple({secret, *in_urls, *in_json, repr(secret)[1:-1]})


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Replace the spans with `[redacted]`. Overlapping spans are merged."""
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += (text[done:start], REDACTED)
        done = max(done, end)
    return "".join((*pieces, text[done:]))


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for display, with credentials replaced by `[redacted]`."""
    return {
        name: REDACTED if is_secret_header(name) or isinstance(value, Secret) else redact(value)
        for name, value in headers.items()
    }


def is_secret_header(name: str) -> bool:
    """Return whether a header's value is a credential, by standard or vendor-specific names."""
    name = name.lower()
    return name in _SECRET_HEADERS or name.endswith(_SECRET_HEADER_ENDINGS)


@functools.cache
def _compiled_rules() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in _RULES]

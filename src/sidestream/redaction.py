"""Keeps secrets out of messages and logs: by the shape of a secret, by its value, and by a header's name."""

import functools
import re
from collections.abc import Mapping

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8
"""Shorter values would match ordinary words."""
MAX_SECRETS = 1024
"""Registered values that are kept; beyond it the oldest is dropped. Some tokens change every hour."""

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

_secrets: dict[str, None] = {}


def register_secret(value: str) -> None:
    """Registers a value that `redact` replaces wherever it occurs. Short values are ignored."""
    value = value.strip()
    if len(value) < MIN_SECRET_LENGTH:
        return
    _secrets.pop(value, None)
    _secrets[value] = None
    if len(_secrets) > MAX_SECRETS:
        _secrets.pop(next(iter(_secrets)), None)


def register_credentials(authorization: str | None, headers: Mapping[str, str]) -> None:
    """Registers the secrets among what a request carries: its authorization, and headers that are credentials."""
    if authorization is not None:
        register_secret(authorization.rpartition(" ")[2])
    for name, value in headers.items():
        if is_secret_header(name):
            register_secret(value.rpartition(" ")[2])


def redact(text: str) -> str:
    """The text with `[redacted]` in place of every registered value and everything that looks like a secret."""
    from urllib.parse import quote

    # Longest first: one secret may be part of another.
    for secret in sorted(_secrets, key=len, reverse=True):
        for form in {secret, quote(secret, safe="")}:
            if form in text:
                text = text.replace(form, REDACTED)
    for pattern, replacement in _compiled_rules():
        text = pattern.sub(replacement, text)
    return text


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they may be shown: those that carry credentials hold `[redacted]`."""
    return {name: REDACTED if is_secret_header(name) else redact(value) for name, value in headers.items()}


def is_secret_header(name: str) -> bool:
    """True for a header whose value is a credential, be it standard or of a vendor."""
    name = name.lower()
    return name in _SECRET_HEADERS or name.endswith(_SECRET_HEADER_ENDINGS)


@functools.cache
def _compiled_rules() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in _RULES]

"""Conversion of errors to stream parts and back, and detection of context overflows."""

import re
from math import isfinite

from msgspec.structs import replace

from sidestream.errors import (
    AuthenticationError,
    ContextOverflowError,
    LimitError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
    RunError,
    StreamTimeoutError,
    StreamTruncatedError,
    ToolRaisedError,
)
from sidestream.jsontext import Json, as_list, as_object
from sidestream.parts import Error
from sidestream.text.redaction import redact

_BY_KIND: dict[str, type[RunError]] = {
    "truncated": StreamTruncatedError,
    "timeout": StreamTimeoutError,
    "rate-limit": RateLimitedError,
    "context-overflow": ContextOverflowError,
    "protocol": ProtocolError,
    "limit": LimitError,
    "tool-raised": ToolRaisedError,
}

OVERFLOW_ADVICE = (
    "Send less: a shorter prompt, history or tool result, or fewer tools and files. "
    "Agent(context=Context()) shortens long histories automatically."
)
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500, None})  # None means in the stream; some local servers use 500.
_OVERFLOW = (
    r"(?is)context_length_exceeded|exceed_context_size|context_window_exceeded"  # codes: OpenAI and kin, llama.cpp
    r"|prompt is too long|exceed context limit"  # Anthropic
    r"|input is too long for requested model"  # Amazon Bedrock
    r"|token count\b.{0,40}\bexceeds the maximum"  # Google
    r"|maximum (context|prompt) length|exceeds the (available |model's )?context|the context window of this model"
    r"|inputs?`? tokens \+ `?max_new_tokens"  # servers of open models
)


def is_context_overflow(status: int | None, code: str | None, message: str) -> bool:
    """Return whether a provider's error says that the request exceeds the context window."""
    return status in _OVERFLOW_STATUSES and re.search(_OVERFLOW, f"{code or ''} {message}") is not None


def violated_field(error: Json) -> str | None:
    """Return the first field that a Google error object names in `details[].fieldViolations[].field`."""
    details = [as_object(detail) for detail in as_list(as_object(error).get("details"))]
    violations = [as_object(one) for detail in details for one in as_list(detail.get("fieldViolations"))]
    fields = [violation.get("field") for violation in violations]
    return next((field for field in fields if isinstance(field, str) and field), None)


def redacted(error: Error) -> Error:
    """Return the error without secrets, because a server may repeat a key in any string."""
    code, param = error.code and redact(error.code), error.param and redact(error.param)
    return replace(error, message=redact(error.message), code=code, param=param)


def classified(error: Error) -> Error:
    """Mark a provider's error as a context overflow if it is one."""
    if error.kind != "provider" or not is_context_overflow(error.status, error.code, error.message):
        return error
    message = f"{error.message.rstrip('. ')}. {OVERFLOW_ADVICE}"
    return replace(error, kind="context-overflow", message=message, retryable=False)


_ORIGIN = r"https?://[^\s/]+?"
_PUBLIC: tuple[tuple[str, str], ...] = (
    # Messages of `wire.failures`, without the provider's base URL and the status, which a response has anyway.
    (rf"{_ORIGIN} answered \d{{3}}(?: with an error)?: (?=.)", ""),
    (rf"{_ORIGIN} answered \d{{3}}", "the provider failed"),
    (rf"{_ORIGIN} refused the key \(\d{{3}}[^)]*\)", "the provider refused the server's key"),
    (rf"the rate limit of {_ORIGIN} is reached \(\d{{3}}\)", "the provider's rate limit is reached"),
    (
        rf"(cannot reach|the response from|the connection to|no event arrived from) {_ORIGIN}(?=[\s:])",
        r"\1 the provider",
    ),
    (rf"{_ORIGIN} (?=did not answer)", "the provider "),
)
"""Start of a message → its replacement. The first match counts."""
_STATUS_OF_KIND = {"context-overflow": 400, "rate-limit": 429, "timeout": 504}


def public(error: Error) -> Error:
    """Return the error as a server's clients may see it: with a status, and without the provider's base URL."""
    status = _STATUS_OF_KIND.get(error.kind, error.status)
    code = "context_length_exceeded" if error.kind == "context-overflow" else error.code
    for start, replacement in _PUBLIC:
        if found := re.match(start, error.message):
            if "refused the key" in found[0]:  # Google and xAI use status 400.
                status = status if status in (401, 403) else 401
            message = found.expand(replacement) + error.message[found.end() :]
            return replace(error, message=message, status=status, code=code)
    return replace(error, status=status, code=code)


def part_of_error(error: RunError) -> Error:
    """Convert an exception to an error part."""
    return Error(
        error.kind,
        error.message,
        code=error.code,
        status=error.status,
        retryable=error.retryable,
        param=error.param,
        retry_after=error.retry_after if error.retry_after is not None and isfinite(error.retry_after) else None,
    )


def error_from_part(part: Error) -> RunError:
    """Convert an error part to an exception."""
    kind = _BY_KIND.get(part.kind, ProviderError)
    if kind is ProviderError and part.status in (401, 403):
        kind = AuthenticationError
    return kind(
        part.message,
        code=part.code,
        status=part.status,
        param=part.param,
        retryable=part.retryable,
        retry_after=part.retry_after,
    )

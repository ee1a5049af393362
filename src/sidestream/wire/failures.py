"""Conversion of exceptions, statuses and error bodies to `RunError`s. `retry` decides which are retried."""

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import aiohttp
from msgspec import Struct

from sidestream import errors
from sidestream.jsontext import as_list, as_object
from sidestream.limits import Limits
from sidestream.stream.errors import OVERFLOW_ADVICE, is_context_overflow, violated_field
from sidestream.text.redaction import redact
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall
from sidestream.wire.retry import CAUSES, is_retryable

_NUMBER: Final = r"(?i)\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)\s*"
EXCERPT_CHARS: Final = 500
"""Maximum length of a server's text in a message."""


class _ConnectFailure(Struct, frozen=True):
    code: str
    """A key of `retry.CAUSES`, which describes the failure and whether it is retried."""
    advice: str


_PROXY_ADVICE = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
_CONNECT_FAILURES: Final[tuple[tuple[type[BaseException], _ConnectFailure], ...]] = (
    # The first match counts, so narrow types come before wide ones.
    (aiohttp.ClientConnectorDNSError, _ConnectFailure("dns", "check the base URL and the network")),
    (aiohttp.ClientProxyConnectionError, _ConnectFailure("proxy", _PROXY_ADVICE)),
    (
        aiohttp.ClientConnectorCertificateError,
        _ConnectFailure(
            "certificate",
            "check this machine's clock and root certificates, or set SSL_CERT_FILE behind a company proxy",
        ),
    ),
    (aiohttp.ClientSSLError, _ConnectFailure("tls", "check the scheme and the port of the base URL")),
    (
        aiohttp.ConnectionTimeoutError,
        _ConnectFailure("connect-timeout", "check the network, or raise Limits.connect_timeout_s"),
    ),
    (aiohttp.ClientConnectorError, _ConnectFailure("connect", "check the base URL and that the server is running")),
    (aiohttp.InvalidURL, _ConnectFailure("invalid-url", "check the base URL")),
    (aiohttp.NonHttpUrlClientError, _ConnectFailure("invalid-url", "check the base URL")),
)
_RESET = _ConnectFailure("reset", "try again")


_ADVICE: Final = (
    (
        frozenset({400, 404}),
        r"(?is)model_not_found|not_found_error model\b|\bmodels?\b.*\b(not exist|not found|not a valid)",
        "Check the model's name: `sidestream models -m PROVIDER` and Agent.list_models list the known ones.",
    ),
    (
        frozenset({400, 413, 422}),
        r"(?i)context[_ ](length|window|size)|too long|token count .*exceeds|request_too_large",
        "Send less: a shorter prompt, history or tool result, or fewer tools and files.",
    ),
)
"""Statuses and a pattern in the server's text → advice. The first match counts."""


def excerpt(text: str) -> str:
    """Redact and truncate a server's text for a message, without control characters."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", redact(text)).strip()
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def status_error(call: HttpCall, status: int, headers: Mapping[str, str], body: bytes) -> errors.ProviderError:
    """Create the error for a response with a status of 400 or above."""
    text, code = _message_and_code(body)
    origin = origin_of(call.url)
    kind: type[errors.ProviderError] = errors.ProviderError
    message = f"{origin} answered {status}"
    if status in (401, 403) or _is_about_key(body):
        kind = errors.AuthenticationError
        hint = f", check {call.key_variable}" if call.key_variable else ""
        message = f"{origin} refused the key ({status}{hint})"
    elif status == 429:
        kind = errors.RateLimitedError
        message = f"the rate limit of {origin} is reached (429)"
    elif call.body is not None and is_context_overflow(status, code, text):
        kind = errors.ContextOverflowError
    if text:
        message = f"{message}: {text}"
    advice = OVERFLOW_ADVICE if kind is errors.ContextOverflowError else _advice(status, f"{code} {text}")
    if advice and call.body is not None:
        message = f"{message.rstrip('. ')}. {advice}"
    return kind(
        message,
        code=code,
        status=status,
        param=_param(body),
        retryable=kind is not errors.ContextOverflowError and is_retryable(status, headers),
        retry_after=_first_of(retry_after_s(headers, time.time()), _delay_in_body(body)),
    )


def _advice(status: int, text: str) -> str:
    return next(
        (advice for statuses, pattern, advice in _ADVICE if status in statuses and re.search(pattern, text)),
        "",
    )


def _param(body: bytes) -> str | None:
    """Return the request field that an error body names."""
    document = _json(body)
    error = as_object(as_object(next(iter(as_list(document)), document)).get("error"))
    named = error.get("param") or violated_field(error)
    return excerpt(named) if isinstance(named, str) else None


def _first_of(*waits: float | None) -> float | None:
    return next((wait for wait in waits if wait is not None), None)


def _delay_in_body(body: bytes) -> float | None:
    """Return the wait in seconds that some servers put into `error.details[].retryDelay`, as in "34.4s"."""
    for delay in (detail.get("retryDelay") for detail in _details(body)):
        seconds = _number(delay.removesuffix("s")) if isinstance(delay, str) else None
        if seconds is not None:
            return max(seconds, 0.0)
    return None


def _is_about_key(body: bytes) -> bool:
    """Return whether the body reports an invalid key, as Google and xAI do with status 400."""
    text = as_object(_json(body)).get("error")
    if isinstance(text, str):
        return re.match(r"(?i)(incorrect|invalid) api key\b", text) is not None
    return any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(body))


def _details(body: bytes) -> list[dict[str, Any]]:
    document = _json(body)
    first = next(iter(as_list(document)), document)
    return [as_object(detail) for detail in as_list(as_object(as_object(first).get("error")).get("details"))]


def error_in_body(call: HttpCall, status: int, body: bytes) -> errors.ProviderError | None:
    """Return the error that a JSON body reports despite a success status, or None."""
    document = _json(body)
    if not isinstance(document, dict) or not cast("dict[str, Any]", document).get("error"):
        return None
    text, code = _message_and_code(body)
    kind = errors.ContextOverflowError if is_context_overflow(None, code, text) else errors.ProviderError
    message = f"{origin_of(call.url)} answered {status} with an error: {text}"
    return kind(message, code=code, status=status, param=_param(body))


def connect_error(exc: BaseException, url: str) -> errors.RunError:
    """Create the error for a connection that could not be made, or that broke before the response."""
    origin = origin_of(url)
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        # Its text and fields hold the request's headers, so keep only the status.
        return errors.ConnectError(
            f"cannot reach {origin}: the proxy answered {exc.status}; {_PROXY_ADVICE}",
            code="proxy",
            status=exc.status,
            retryable=is_retryable(exc.status, {}),
        )
    if isinstance(exc, aiohttp.ClientResponseError):
        return errors.ProtocolError(f"the response from {origin} is not HTTP; check the base URL", code="not-http")
    row = next((row for kind, row in _CONNECT_FAILURES if isinstance(exc, kind)), _RESET)
    # The operating system's error holds only addresses. aiohttp's wrapper also holds the proxy's password.
    cause: OSError | None = getattr(exc, "os_error", None)
    detail = f" ({redact(cause.strerror)})" if cause and cause.strerror else ""
    what, is_retried = CAUSES[row.code]
    error = errors.ConnectError(
        f"cannot reach {origin}: {what}{detail}; {row.advice}", code=row.code, retryable=is_retried
    )
    error.__cause__ = cause
    return error


def address_refused(call: HttpCall, why: str) -> errors.ProviderError:
    """Create the error for a host from data that must not be contacted."""
    return errors.ProviderError(
        f"{origin_of(call.url)} is not fetched: {why}; a host that a server names must have a public address, unless "
        "it is the base URL or HttpTransport(address_policy=...) allows it",
        code="address-refused",
    )


def broken_upload(kind: type[errors.RunError], call: HttpCall, sent_bytes: int, size: int) -> errors.RunError:
    """Create the error for an upload that failed midway."""
    return kind(
        f"the upload to {origin_of(call.url)} broke after {sent_bytes} of {size} bytes and is not retried, since the "
        "server may have stored the file; list the files there before you upload it again",
        code="upload",
    )


def first_byte_timeout(call: HttpCall, limits: Limits) -> errors.StreamTimeoutError:
    """Create the error for a response that did not begin in time."""
    return errors.StreamTimeoutError(
        f"{origin_of(call.url)} did not answer within {limits.first_byte_timeout_s:g} s; "
        "if the model needs longer, raise Limits.first_byte_timeout_s",
        code="first-byte",
        retryable=CAUSES["first-byte"].is_retried,
    )


def idle_timeout(call: HttpCall, limits: Limits) -> errors.StreamTimeoutError:
    """Create the error for a stream whose next event did not arrive in time."""
    return errors.StreamTimeoutError(
        f"no event arrived from {origin_of(call.url)} for {limits.idle_timeout_s:g} s; "
        "if the model needs longer, raise Limits.idle_timeout_s",
        code="idle",
        retryable=True,
    )


def truncated(call: HttpCall) -> errors.StreamTruncatedError:
    """Create the error for a response that ended early."""
    return errors.StreamTruncatedError(
        f"the connection to {origin_of(call.url)} broke before the response was complete",
        code="reset",
        retryable=True,
    )


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the wait in seconds that the headers request, or None if they hold no valid one.

    The wait is never negative, but may be infinite.
    """
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return max(seconds / 1000, 0.0)
    requested = headers.get("retry-after")
    seconds = _number(requested)
    if seconds is None:
        then_s = _date_s(requested)
        if then_s is None:
            return None
        # Relative to the server's own clock if it sends one: ours may be wrong or jump.
        seconds = then_s - (_date_s(headers.get("date")) or now_s)
    return max(seconds, 0.0)


def _number(text: str | None) -> float | None:
    # `float` alone would also accept 1_0, nan and digits of other scripts.
    return float(text) if text and re.fullmatch(_NUMBER, text) else None


def _date_s(text: str | None) -> float | None:
    try:
        date = parsedate_to_datetime(text or "")
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message_and_code(body: bytes) -> tuple[str, str | None]:
    """Return the message and code of an error body in one of the usual shapes, else its text."""
    document = _json(body)
    if isinstance(document, list) and document:
        document = cast("list[object]", document)[0]
    if isinstance(document, dict):
        fields = cast("dict[str, Any]", document)
        error: object = fields.get("error") or fields
        if isinstance(error, str):
            error = {**fields, "message": error}
        if isinstance(error, dict):
            inner = cast("dict[str, Any]", error)
            # Anthropic specifies a general type such as invalid_request_error in `details`.
            candidates = (
                as_object(inner.get("details")).get("error_code"),
                *map(inner.get, ("code", "status", "type")),
            )
            code = next((value for value in candidates if isinstance(value, str)), None)
            for key in ("message", "detail", "error_description"):
                if isinstance(inner.get(key), str) and inner[key]:
                    return excerpt(inner[key]), code and excerpt(code)
            return excerpt(body.decode("utf-8", "replace")), code and excerpt(code)
    return excerpt(body.decode("utf-8", "replace")), None

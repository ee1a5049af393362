"""A try that failed: its typed error, whether it is made again, and after what wait.

The rules follow the vendors' own clients. Only an opening request is ever tried again, so a stream that has
delivered something never comes here.
"""

import json
import logging
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, cast
from urllib.parse import urljoin, urlsplit

import aiohttp

from sidestream.errors import (
    AuthenticationError,
    ConnectError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
    RunError,
    StreamTimeoutError,
    StreamTruncatedError,
)
from sidestream.jsontext import as_list, as_object
from sidestream.limits import Limits
from sidestream.providers.calls import HttpCall
from sidestream.redaction import redact

T = TypeVar("T")

RETRIED_STATUSES: Final = frozenset({408, 409, 429})
"""Besides every status from 500 on."""
EXCERPT_CHARS: Final = 500
"""How much of what a server said reaches a message."""

log = logging.getLogger("sidestream.wire")
# stamina reports each retry to its own logger as well; where no logging is set up, Python would print that.
logging.getLogger("stamina").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait before a retry if the server does not say. How often is `Limits.max_retries`."""

    wait_initial_s: float = 0.5
    wait_max_s: float = 8.0
    jitter: float = 0.25
    """The share of a wait that chance may take off, so that many clients do not come back at once."""

    def backoff_s(self, retries: int, chance: float) -> float:
        """The wait before the next retry when there were `retries` already; `chance` is from 0 to 1."""
        doubled = self.wait_initial_s * 2 ** min(retries, 32)
        return min(doubled, self.wait_max_s) * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True)
class _Failure:
    code: str
    what: str
    advice: str
    retryable: bool = True


_PROXY_ADVICE = "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY."
_FAILURES: Final[tuple[tuple[type[BaseException], _Failure], ...]] = (
    # The first row that fits counts, so narrow types stand before wide ones.
    (
        aiohttp.ClientConnectorDNSError,
        _Failure("dns", "the host name was not found", "Check the base URL and the network."),
    ),
    (aiohttp.ClientProxyConnectionError, _Failure("proxy", "the proxy cannot be reached", _PROXY_ADVICE)),
    (
        aiohttp.ClientConnectorCertificateError,
        _Failure(
            "certificate",
            "its TLS certificate is not trusted",
            "Check this machine's clock and root certificates; behind a company proxy, set SSL_CERT_FILE.",
            retryable=False,
        ),
    ),
    (
        aiohttp.ClientSSLError,
        _Failure("tls", "no TLS connection was agreed on", "Check the scheme and the port of the base URL."),
    ),
    (
        aiohttp.ConnectionTimeoutError,
        _Failure(
            "connect-timeout",
            "no connection came about in time",
            "Check the network, or raise Limits.connect_timeout_s.",
        ),
    ),
    (
        aiohttp.ClientConnectorError,
        _Failure("connect", "the connection was refused", "Check the base URL and that the server runs."),
    ),
    (
        aiohttp.InvalidURL,
        _Failure("invalid-url", "the URL is not valid", "Check the base URL.", retryable=False),
    ),
    (
        aiohttp.NonHttpUrlClientError,
        _Failure("invalid-url", "the URL is not http or https", "Check the base URL.", retryable=False),
    ),
)
_RESET = _Failure("reset", "the connection broke before an answer came", "Try again.")


_ADVICE: Final = (
    (
        frozenset({400, 404}),
        re.compile(
            r"model_not_found|not_found_error model\b|\bmodels?\b.*\b(not exist|not found|not a valid)",
            re.IGNORECASE | re.DOTALL,
        ),
        "Check the model's name: `sidestream models -m PROVIDER` and Agent.list_models tell which there are.",
    ),
    (
        frozenset({400, 413, 422}),
        re.compile(r"context[_ ](length|window|size)|too long|token count .*exceeds|request_too_large", re.IGNORECASE),
        "Send less: a shorter prompt, history or tool result, or fewer tools and files.",
    ),
)
"""Status and what the server says → what to do. The first row that fits counts."""


def origin_of(url: str, base: str = "") -> str:
    """Scheme, host and port: all of a URL that a message may show."""
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


def excerpt(text: str) -> str:
    """The start of a server's text as a message may show it: redacted, cut, without control characters."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", redact(text)).strip()
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def refusal(call: HttpCall, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """The error for an answer with a status from 400 on."""
    said, code = _said(body)
    origin = origin_of(call.url)
    kind: type[ProviderError] = ProviderError
    message = f"{origin} answered {status}"
    if status in (401, 403) or _is_about_key(body):
        kind = AuthenticationError
        hint = f", check {call.key_variable}" if call.key_variable else ""
        message = f"{origin} refused the key ({status}{hint})"
    elif status == 429:
        kind = RateLimitedError
        message = f"{origin} limits the rate (429)"
    if said:
        message = f"{message}: {said}"
    advice = next((advice for known, what, advice in _ADVICE if status in known and what.search(f"{code} {said}")), "")
    if advice and call.body is not None:
        message = f"{message.rstrip('. ')}. {advice}"
    return kind(
        message,
        code=code,
        status=status,
        retryable=is_retryable(status, headers),
        retry_after=_first_of(asked_wait_s(headers, time.time()), _delay_in_body(body)),
    )


def _first_of(*waits: float | None) -> float | None:
    return next((wait for wait in waits if wait is not None), None)


def _delay_in_body(body: bytes) -> float | None:
    """The wait that some servers name in the body: `error.details[].retryDelay`, as in "34.4s"."""
    for delay in (detail.get("retryDelay") for detail in _details(body)):
        seconds = _number(delay.removesuffix("s")) if isinstance(delay, str) else None
        if seconds is not None:
            return max(seconds, 0.0)
    return None


def _is_about_key(body: bytes) -> bool:
    """Whether the body says that the key is wrong, as Google's do with the status 400."""
    return any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(body))


def _details(body: bytes) -> list[dict[str, Any]]:
    document = _json(body)
    first = next(iter(as_list(document)), document)
    return [as_object(detail) for detail in as_list(as_object(as_object(first).get("error")).get("details"))]


def error_in_body(call: HttpCall, status: int, body: bytes) -> ProviderError | None:
    """The error that a body of JSON reports although the status is good, if it does."""
    document = _json(body)
    if not isinstance(document, dict) or not cast("dict[str, Any]", document).get("error"):
        return None
    said, code = _said(body)
    return ProviderError(f"{origin_of(call.url)} answered {status} with an error: {said}", code=code, status=status)


def failure(exc: BaseException, url: str) -> RunError:
    """The error for a connection that did not come about, or broke before anything came."""
    origin = origin_of(url)
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        # Its text and its fields hold the request's headers, so nothing of it is kept but the status.
        return ConnectError(
            f"Cannot reach {origin}: the proxy answered {exc.status}. {_PROXY_ADVICE}",
            code="proxy",
            status=exc.status,
            retryable=is_retryable(exc.status, {}),
        )
    if isinstance(exc, aiohttp.ClientResponseError):
        return ProtocolError(f"What {origin} answered is not HTTP. Check the base URL.", code="not-http")
    row = next((row for kind, row in _FAILURES if isinstance(exc, kind)), _RESET)
    # The operating system's own error knows only addresses; aiohttp's around it knows the proxy's password.
    cause: OSError | None = getattr(exc, "os_error", None)
    detail = f" ({redact(cause.strerror)})" if cause and cause.strerror else ""
    error = ConnectError(
        f"Cannot reach {origin}: {row.what}{detail}. {row.advice}", code=row.code, retryable=row.retryable
    )
    error.__cause__ = cause
    return error


def late(call: HttpCall, limits: Limits) -> StreamTimeoutError:
    """The error for an answer that did not come in time."""
    return StreamTimeoutError(
        f"{origin_of(call.url)} did not answer within {limits.first_byte_timeout_s:g} s. "
        "If the model needs longer, raise Limits.first_byte_timeout_s.",
        code="first-byte",
        retryable=True,
    )


def idle(call: HttpCall, limits: Limits) -> StreamTimeoutError:
    """The error for a stream whose next event did not come in time."""
    return StreamTimeoutError(
        f"No event came from {origin_of(call.url)} for {limits.idle_timeout_s:g} s. "
        "If the model needs longer, raise Limits.idle_timeout_s.",
        code="idle",
        retryable=True,
    )


def cut(call: HttpCall) -> StreamTruncatedError:
    """The error for an answer that broke off."""
    return StreamTruncatedError(
        f"The connection to {origin_of(call.url)} broke before the answer was complete.",
        code="reset",
        retryable=True,
    )


def is_retryable(status: int, headers: Mapping[str, str]) -> bool:
    """Whether trying again may help. The server's own word counts more than its status."""
    told = headers.get("x-should-retry", "").strip().lower()
    if told in ("true", "false"):
        return told == "true"
    return status in RETRIED_STATUSES or status >= 500


def asked_wait_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """The wait that a server asks for: never negative, perhaps infinite; None if it says nothing of use."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return max(seconds / 1000, 0.0)
    asked = headers.get("retry-after")
    seconds = _number(asked)
    if seconds is None:
        then_s = _date_s(asked)
        if then_s is None:
            return None
        # Against the server's own clock if it shows it: ours may be wrong or jump.
        seconds = then_s - (_date_s(headers.get("date")) or now_s)
    return max(seconds, 0.0)


def next_wait_s(error: BaseException, retries: int, policy: RetryPolicy, limits: Limits, chance: float) -> float | None:
    """The wait before the next try, or None if the error stands. `retries` is how many there were."""
    if not isinstance(error, RunError) or not error.retryable or retries >= limits.max_retries:
        return None
    if error.retry_after is None:
        return policy.backoff_s(retries, chance)
    return error.retry_after if error.retry_after <= limits.max_retry_wait_s else None


async def with_retries(send: Callable[[], Awaitable[T]], call: HttpCall, limits: Limits, policy: RetryPolicy) -> T:
    """What `send` returns, tried again by the rules above; else its last error."""
    retries = 0

    def wait_s(error: Exception) -> bool | float:
        nonlocal retries
        wait = next_wait_s(error, retries, policy, limits, random.random())
        if wait is None:
            return False
        retries += 1
        cause = getattr(error, "status", None) or getattr(error, "code", None) or type(error).__name__
        log.info(
            "retrying in %.3g s after %s from %s (retry %d of %d)",
            wait,
            cause,
            origin_of(call.url),
            retries,
            limits.max_retries,
        )
        return wait

    # The machinery for retries costs as much as a request: it is set up once there is something to try again.
    try:
        return await send()
    except RunError as error:
        failed = [error]
        if next_wait_s(error, 0, policy, limits, 0.0) is None:
            raise

    import stamina

    async for attempt in stamina.retry_context(wait_s, attempts=None, timeout=None):
        with attempt:
            if failed:
                raise failed.pop()
            return await send()
    raise AssertionError("stamina always returns or raises")


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _date_s(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _said(body: bytes) -> tuple[str, str | None]:
    """Message and code out of the usual shapes of error bodies; of others their text."""
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
            code = next((inner[key] for key in ("code", "status", "type") if isinstance(inner.get(key), str)), None)
            for key in ("message", "detail", "error_description"):
                if isinstance(inner.get(key), str) and inner[key]:
                    return excerpt(inner[key]), code and excerpt(code)
            return excerpt(body.decode("utf-8", "replace")), code and excerpt(code)
    return excerpt(body.decode("utf-8", "replace")), None

"""Retry rules for opening a request: which failures, after what wait, how often.

The rules follow the vendors' own clients. A stream that has delivered events is never retried here.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall, Opening
from sidestream.transport.waits import report_wait

T = TypeVar("T")

log = get_logger(__name__)


class Cause(NamedTuple):
    """A reason for a failed try."""

    what: str
    is_retried: bool


RETRIED_STATUSES: Final = frozenset({408, 409, 429})
"""Statuses below 500 that are retried, besides all from 500 on. The header `x-should-retry` overrides the status."""

CAUSES: Final[Mapping[str, Cause]] = {
    "dns": Cause("the host name was not found", True),
    "connect": Cause("the connection was refused", True),
    "connect-timeout": Cause("the connection timed out", True),
    "tls": Cause("the TLS handshake failed", True),
    "proxy": Cause("the proxy cannot be reached", True),
    "reset": Cause("the connection broke before the response", True),
    "first-byte": Cause("the response did not begin in time", True),
    "certificate": Cause("its TLS certificate is not trusted", False),
    "invalid-url": Cause("the URL is not a valid http or https URL", False),
    "not-http": Cause("the response is not HTTP", False),
    "content-type": Cause("the response is not a model response", False),
    "redirect": Cause("the server redirects to another URL", False),
    "upload": Cause("an upload broke midway", False),
}
"""Error code → cause and whether it is retried. For errors without a status, or with a success status."""


def is_retryable(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a retry may help. The header `x-should-retry` overrides the status."""
    override = headers.get("x-should-retry", "").strip().lower()
    if override in ("true", "false"):
        return override == "true"
    return status in RETRIED_STATUSES or status >= 500


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Waits between retries, used if the server does not request one. `Limits.max_retries` sets their number."""

    wait_initial_s: float = 0.5
    wait_max_s: float = 8.0
    jitter: float = 0.25
    """Random share of a wait, so that many clients do not retry at once."""

    def backoff_s(self, retries: int, chance: float) -> float:
        """Return the wait in seconds after `retries` retries. `chance` is from 0 to 1."""
        doubled = self.wait_initial_s * 2 ** min(retries, 32)
        return min(doubled, self.wait_max_s) * (1 - self.jitter * chance)


class Attempts(Struct, gc=False):
    """Failed tries of one request so far."""

    causes: tuple[str, ...] = ()
    """Reasons why earlier tries failed, each a status or an error code."""
    wait_s: float = 0.0

    @property
    def opening(self) -> Opening:
        """The tries as a response reports them."""
        return Opening(attempts=len(self.causes) + 1, causes=self.causes, retry_wait_s=self.wait_s)


def next_wait_s(error: RunError, retries: int, policy: RetryPolicy, limits: Limits, chance: float) -> float | None:
    """Return the wait in seconds before the next try, or None if the error is final.

    `retries` counts those made so far.
    """
    if not error.retryable or retries >= limits.max_retries:
        return None
    if error.retry_after is None:
        return policy.backoff_s(retries, chance)
    return error.retry_after if error.retry_after <= limits.max_retry_wait_s else None


async def with_retries(
    send: Callable[[], Awaitable[T]],
    call: HttpCall,
    limits: Limits,
    policy: RetryPolicy,
    attempts: Attempts | None = None,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock_s: Callable[[], float] = monotonic,
) -> T:
    """Return the result of `send`, retrying it by this module's rules.

    Raises the last error, with the number of attempts, if no retry is left.
    """
    attempts = attempts or Attempts()
    deadline_s: float | None = None  # most requests succeed at once and need none
    started_s = clock_s()
    while True:
        try:
            return await send()
        except RunError as error:
            retries = len(attempts.causes)
            error.attempts = retries + 1
            wait_s = next_wait_s(error, retries, policy, limits, random.random())
            deadline_s = started_s + limits.max_retrying_s
            if wait_s is None or clock_s() + wait_s > deadline_s:
                raise
            cause = str(error.status or error.code or type(error).__name__)
            why = f"answered {error.status}" if error.status else "did not answer"
        attempts.causes += (cause,)
        attempts.wait_s += wait_s
        # Log outside `except`, so that the next error is not chained to this one.
        log.info(
            "retrying in %.3g s after %s from %s (retry %d of %d)",
            wait_s,
            cause,
            origin_of(call.url),
            len(attempts.causes),
            limits.max_retries,
        )
        report_wait(
            "retry",
            f"The provider {why}. Trying again in {wait_s:.3g} s.",
            wait_s,
            cause=cause,
            attempt=len(attempts.causes) + 1,
            attempts=limits.max_retries + 1,
        )
        await sleep(wait_s)

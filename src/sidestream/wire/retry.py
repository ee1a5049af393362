"""Retries of an opening request: when, after what wait, how often.

The rules follow the vendors' own clients. A stream that has delivered events is never retried here.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.providers.calls import HttpCall
from sidestream.wire.failures import origin_of

T = TypeVar("T")

"""The name under which `replay.transport` imports it."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits before retries, where the server does not send one. Their number is `Limits.max_retries`."""

    wait_initial_s: float = 0.5
    wait_max_s: float = 8.0
    jitter: float = 0.25
    """The share of a wait that is random, so that many clients do not retry at once."""

    def backoff_s(self, retries: int, chance: float) -> float:
        """The wait before the next retry after `retries` of them; `chance` is from 0 to 1."""
        doubled = self.wait_initial_s * 2 ** min(retries, 32)
        return min(doubled, self.wait_max_s) * (1 - self.jitter * chance)


def next_wait_s(error: RunError, retries: int, policy: RetryPolicy, limits: Limits, chance: float) -> float | None:
    """The wait before the next try, or None if the error is final. `retries` counts those made so far."""
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
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """The result of `send`, retried by the rules above; raises its last error."""
    retries = 0
    while True:
        try:
            return await send()
        except RunError as error:
            wait_s = next_wait_s(error, retries, policy, limits, random.random())
            if wait_s is None:
                raise
            cause = error.status or error.code or type(error).__name__
        retries += 1
        # Outside of `except`, so that the next error is not chained to this one.
        log.info(
            "retrying in %.3g s after %s from %s (retry %d of %d)",
            wait_s,
            cause,
            origin_of(call.url),
            retries,
            limits.max_retries,
        )
        await sleep(wait_s)

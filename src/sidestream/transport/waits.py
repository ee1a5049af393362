"""Waits of a request that a run reports while they last: retries, limiters, queues and compaction."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sidestream.parts import Custom

WAITING: Final = "sidestream.waiting"
"""Kind of the custom part that reports a wait: when it begins, when it changes, and when it ends."""

MIN_REPORTED_S: Final = 1.0
"""Seconds below which a wait is not reported. Shorter ones would only flicker."""

Reason = Literal["retry", "limiter", "queue", "compaction"]


class RequestWait(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A wait, as the data of its part."""

    reason: Reason
    since: float
    """Start of the wait, in seconds since 1970."""
    until: float | None = None
    """End of the wait, in seconds since 1970. None means unknown."""
    message: str = ""
    cause: str | None = None
    """Status or error code of the try that failed."""
    attempt: int | None = None
    """Number of the try that follows."""
    attempts: int | None = None
    """Maximum number of tries."""

    def part(self, *, is_over: bool = False) -> Custom:
        """Return the part that reports this wait, or its end."""
        wait = replace(self, until=None, message="") if is_over else self
        return Custom(WAITING, {**to_builtins(wait), "over": is_over})


REPORT: Final[ContextVar[Callable[[RequestWait], None] | None]] = ContextVar("sidestream_wait", default=None)
"""Function that reports the waits of the current request."""


def report_wait(
    reason: Reason,
    message: str,
    wait_s: float | None = None,
    *,
    cause: str | None = None,
    attempt: int | None = None,
    attempts: int | None = None,
) -> None:
    """Report a wait of about `wait_s` seconds to the run that makes the current request, if there is one.

    Ignores waits that are shorter than `MIN_REPORTED_S`.
    """
    report = REPORT.get()
    if report is None or (wait_s is not None and wait_s < MIN_REPORTED_S):
        return
    now = time.time()
    until = None if wait_s is None else now + wait_s
    wait = RequestWait(
        reason=reason, since=now, until=until, message=message, cause=cause, attempt=attempt, attempts=attempts
    )
    report(wait)

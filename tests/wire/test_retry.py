"""When a failed request is retried, and after what wait."""

import asyncio
import logging
import math
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.errors import ConnectError, ProviderError, RateLimitedError, RunError, StreamTimeoutError
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall
from sidestream.wire.retry import CAUSES, RETRIED_STATUSES, Attempts, RetryPolicy, next_wait_s, with_retries
from support.places import ROOT

CALL = HttpCall(url="https://host.example/v1?key=abc")
QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_backoff_doubles_from_half_second_to_eight_with_jitter(retries: int, chance: float):
    full_s = min(0.5 * 2 ** min(retries, 10), 8.0)
    assert 0.75 * full_s <= RetryPolicy().backoff_s(retries, chance) <= full_s


def test_too_long_wait_or_spent_budget_makes_error_final():
    limits = Limits(max_retries=2, max_retry_wait_s=120)

    def wait_s(error: RunError, retries: int = 0) -> float | None:
        return next_wait_s(error, retries, RetryPolicy(jitter=0), limits, 0.5)

    assert wait_s(ProviderError("", retryable=True)) == 0.5
    assert wait_s(ProviderError("", retryable=True), 1) == 1.0
    assert wait_s(ProviderError("", retryable=True), 2) is None
    assert wait_s(ProviderError("")) is None
    assert wait_s(RateLimitedError("", retryable=True, retry_after=120)) == 120
    assert wait_s(RateLimitedError("", retryable=True, retry_after=121)) is None
    assert wait_s(RateLimitedError("", retryable=True, retry_after=math.inf)) is None
    assert wait_s(RateLimitedError("", retryable=True, retry_after=0.0)) == 0


async def test_request_is_retried_until_success_and_retries_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "sidestream.wire")
    errors: list[RunError] = [
        ProviderError("", status=503, retryable=True),
        ConnectError("", code="dns", retryable=True),
    ]

    async def send() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    assert await with_retries(send, CALL, Limits(), QUICK) == "answer"
    first, second = (record.getMessage() for record in caplog.records if record.name == "sidestream.wire")
    assert first.endswith("s after 503 from https://host.example (retry 1 of 2)")
    assert second.endswith("s after dns from https://host.example (retry 2 of 2)")


@pytest.mark.parametrize("max_retries", [0, 2, 4])
async def test_last_error_is_raised_after_all_tries(max_retries: int):
    raised: list[RunError] = []

    async def send() -> None:
        raised.append(StreamTimeoutError("", retryable=True))
        raise raised[-1]

    with pytest.raises(StreamTimeoutError) as caught:
        await with_retries(send, CALL, Limits(max_retries=max_retries), QUICK)
    assert len(raised) == max_retries + 1
    assert caught.value is raised[-1]


async def test_requested_wait_overrides_backoff():
    errors: list[RunError] = [RateLimitedError("", retryable=True, retry_after=0.0)]

    async def send() -> str:
        if errors:
            raise errors.pop()
        return "answer"

    forever = RetryPolicy(wait_initial_s=3600, wait_max_s=3600)
    assert await asyncio.wait_for(with_retries(send, CALL, Limits(), forever), 10) == "answer"


async def test_waits_double_with_jitter_unless_server_requests_one():
    errors: list[RunError] = [
        ProviderError("", status=500, retryable=True),
        ConnectError("", code="reset", retryable=True),
        RateLimitedError("", status=429, retryable=True, retry_after=99.5),
        StreamTimeoutError("", retryable=True),
    ]
    waits_s: list[float] = []

    async def send() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    async def sleep(wait_s: float) -> None:
        waits_s.append(wait_s)

    assert await with_retries(send, CALL, Limits(max_retries=4), RetryPolicy(), sleep=sleep) == "answer"
    first, second, requested, fourth = waits_s
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1.0
    assert requested == 99.5
    assert 3.0 <= fourth <= 4.0


@requirement("F19")
@pytest.mark.parametrize(("asked_s", "tries"), [(0.0, 3), (119.999, 3), (120.0, 3), (120.001, 1), (math.inf, 1)])
async def test_requested_wait_is_respected_up_to_120_s(asked_s: float, tries: int):
    waits_s: list[float] = []
    raised: list[RunError] = []

    async def send() -> None:
        raised.append(RateLimitedError("", status=429, retryable=True, retry_after=asked_s))
        raise raised[-1]

    async def sleep(wait_s: float) -> None:
        waits_s.append(wait_s)

    with pytest.raises(RateLimitedError) as caught:
        await with_retries(send, CALL, Limits(), RetryPolicy(), sleep=sleep)
    assert caught.value.retry_after == asked_s
    assert (len(raised), caught.value.attempts) == (tries, tries)
    assert waits_s == [asked_s] * (tries - 1)


async def test_no_retry_begins_after_total_deadline():
    now_s = 1000.0

    async def send() -> None:
        nonlocal now_s
        now_s += 40  # one try
        raise RateLimitedError("", status=429, retryable=True, retry_after=30)

    async def sleep(wait_s: float) -> None:
        nonlocal now_s
        now_s += wait_s

    async def attempts(max_retrying_s: float) -> int:
        limits = Limits(max_retries=9, max_retrying_s=max_retrying_s)
        with pytest.raises(RateLimitedError) as caught:
            await with_retries(send, CALL, limits, RetryPolicy(), sleep=sleep, clock_s=lambda: now_s)
        return caught.value.attempts

    # Tries begin after 0, 70, 140, 210 … seconds.
    assert [await attempts(limit_s) for limit_s in (0, 69, 70, 139, 140, 10_000)] == [1, 1, 2, 2, 3, 10]


async def test_attempts_are_counted_with_their_causes_and_waits():
    errors: list[RunError] = [
        ProviderError("", status=503, retryable=True),
        RateLimitedError("", retryable=True, retry_after=2.5, code="slow"),
    ]

    async def send() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    async def sleep(wait_s: float) -> None: ...

    attempts = Attempts()
    await with_retries(send, CALL, Limits(), RetryPolicy(jitter=0), attempts, sleep=sleep)
    assert (attempts.opening.attempts, attempts.opening.causes) == (3, ("503", "slow"))
    assert attempts.opening.retry_wait_s == 3.0


def test_docs_show_retry_table():
    page = (ROOT / "docs/retries.md").read_text("utf-8")
    shown = {line for line in page.partition("## Retries")[2].splitlines() if line.startswith("| `")}
    rows = {f"| `{code}` | {cause.what} | {'yes' if cause.is_retried else 'no'} |" for code, cause in CAUSES.items()}
    statuses = ", ".join(map(str, sorted(RETRIED_STATUSES)))
    rows |= {f"| `{statuses}` and from `500` on | the status of the response | yes |", "| `4xx` | any other | no |"}
    assert shown == rows


async def test_earlier_errors_are_not_chained_to_last():
    async def send() -> None:
        raise ConnectError("", retryable=True)

    with pytest.raises(ConnectError) as caught:
        await with_retries(send, CALL, Limits(), QUICK)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyError("a fault of ours")])
async def test_other_exceptions_are_not_retried(error: BaseException):
    tries = 0

    async def send() -> None:
        nonlocal tries
        tries += 1
        raise error

    with pytest.raises(type(error)):
        await with_retries(send, CALL, Limits(), QUICK)
    assert tries == 1


async def test_retry_wait_can_be_cancelled():
    has_failed = asyncio.Event()

    async def send() -> None:
        has_failed.set()
        raise RateLimitedError("", retryable=True, retry_after=100)

    task = asyncio.create_task(with_retries(send, CALL, Limits(), QUICK))
    await has_failed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_retry_prints_no_output_without_logging():
    program = """
import asyncio, sys
from sidestream.transport.calls import HttpCall
from sidestream.errors import ProviderError
from sidestream.limits import Limits
from sidestream.wire.retry import RetryPolicy, with_retries
tries = []
async def send():
    tries.append(1)
    if len(tries) < 3:
        raise ProviderError("", status=503, retryable=True)
asyncio.run(with_retries(send, HttpCall(url="https://host.example"), Limits(), RetryPolicy(wait_initial_s=0.001)))
assert len(tries) == 3
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout + done.stderr == ""

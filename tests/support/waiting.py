"""Wait for a condition that no event announces."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

WITHIN_S = 30.0
PAUSE_S = 0.01


async def eventually(check: Callable[[], Any], *, within_s: float = WITHIN_S, pause_s: float = PAUSE_S) -> Any:
    """Return the first true result of `check`, which may be asynchronous.

    Raises AssertionError, with the source of the check, if there is none within `within_s` seconds. A pause of 0 lets
    every other task of the loop run once between two checks.
    """
    bound = asyncio.timeout(within_s)
    try:
        async with bound:
            while True:
                found = check()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(pause_s)
    except TimeoutError:
        if not bound.expired():
            raise
    raise AssertionError(_not_met(check, within_s))


def wait_until(
    check: Callable[[], T | None],
    *,
    within_s: float = WITHIN_S,
    pause_s: float = PAUSE_S,
    explain: Callable[[], str] | None = None,
) -> T:
    """Return the first true result of `check`, and block until there is one.

    Raises AssertionError, with the source of the check and the text of `explain`, if there is none within `within_s`
    seconds.
    """
    deadline_s = time.monotonic() + within_s
    while not (found := check()):
        if time.monotonic() > deadline_s:
            raise AssertionError("\n".join([_not_met(check, within_s), *([explain()] if explain else [])]))
        time.sleep(pause_s)
    return found


def _not_met(check: Callable[[], object], within_s: float) -> str:
    try:
        condition = " ".join(inspect.getsource(check).split())
    except OSError:
        condition = repr(check)
    return f"not met within {within_s:g} s: {condition}"

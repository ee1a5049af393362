"""Waiting in tests ends with a result, or names the condition that was not met."""

import asyncio

import pytest

from support.waiting import eventually, wait_until


async def test_eventually_returns_first_true_result():
    values = iter([None, 0, 3, 4])
    assert await eventually(lambda: next(values), pause_s=0) == 3


async def test_eventually_awaits_asynchronous_checks():
    is_set = asyncio.Event()

    async def check() -> bool:
        is_set.set()
        return is_set.is_set()

    assert await eventually(check)


async def test_eventually_names_unmet_condition():
    with pytest.raises(AssertionError, match=r"not met within 0\.01 s: .*len\(\"\"\) == 1"):
        await eventually(lambda: len("") == 1, within_s=0.01, pause_s=0)


async def test_eventually_ends_hanging_check():
    with pytest.raises(AssertionError, match=r"asyncio\.Event"):
        await eventually(lambda: asyncio.Event().wait(), within_s=0.01)


async def test_eventually_passes_on_timeout_of_check():
    def check() -> None:
        raise TimeoutError("the server is slow")

    with pytest.raises(TimeoutError, match="the server is slow"):
        await eventually(check)


def test_wait_until_returns_first_true_result():
    values = iter([None, "", "a"])
    assert wait_until(lambda: next(values), pause_s=0) == "a"


def test_wait_until_names_unmet_condition_and_explains():
    with pytest.raises(AssertionError, match=r"not met within 0 s: .*len\(\"\"\) == 1(.|\n)*the end of the log"):
        wait_until(lambda: len("") == 1, within_s=0, explain=lambda: "the end of the log")

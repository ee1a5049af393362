"""The short form of `make soak`."""

import asyncio

from hostile.soak import CASES, server, soaked
from requirements import requirement


@requirement("F01", "F02", "F20", "F22", "F26", "F27")
def test_soak_of_failing_provider_gives_right_text_without_leaks() -> None:
    with server() as (port, pid):
        figures, problems = asyncio.run(soaked(port, pid, streams=28, seconds=2, seed=7))
    assert problems == [], figures
    assert all(f"{case} " in figures for case in CASES)

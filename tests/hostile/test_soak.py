"""The short form of `make soak`."""

import asyncio

from hostile.soak import CASES, server, soaked
from requirements import requirement


@requirement("F01", "F02", "F20", "F22", "F26", "F27")
def test_agents_side_by_side_whose_provider_fails_in_every_way_get_the_right_texts_and_leave_nothing_behind() -> None:
    with server() as (port, pid):
        figures, problems = asyncio.run(soaked(port, pid, streams=28, seconds=2, seed=7))
    assert problems == [], figures
    assert all(f"{case} " in figures for case in CASES)

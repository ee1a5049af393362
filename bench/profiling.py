"""Where our time goes: `python -m bench.profiling stream responses tools-800`, or `… loop` for the tool loop.

A profile makes many small calls look dearer than they are; compare profiles with profiles, and trust the bench.
"""

import asyncio
import cProfile
import pstats
import sys
import time

from bench.runner import Bench
from bench.ways import ours

PROGRAMS = {
    "loop": ("calls-get_weather-20", {}),
    "history": ("history", {"messages": 1000}),
    "history-session": ("history", {"messages": 1000}),
}
ROUNDS = 20
LINES = 35


async def measured(bench: Bench, arguments: list[str]) -> cProfile.Profile:
    """The profile of many rounds, after some to warm up."""
    if arguments[0] in PROGRAMS:
        payload, task = PROGRAMS[arguments[0]]
        program = ours.PROGRAMS[arguments[0]]
        events, unit = 1, "run"

        async def once() -> None:
            await program(f"{bench.url}/{payload}", dict(task))
    else:
        player, wire, payload = arguments
        play = ours.PLAYERS[player][wire]
        events, unit = bench.about(wire, payload)["events"], "event"
        pieces: list[str] = []

        async def once() -> None:
            await play(f"{bench.url}/{payload}", pieces.append)
            pieces.clear()

    for _ in range(3):
        await once()
    begin = time.process_time()
    for _ in range(ROUNDS):
        await once()
    spent_us = (time.process_time() - begin) * 1e6
    print(f"without the profile: {spent_us / ROUNDS / events:.1f} µs per {unit}; the profile is of {ROUNDS} rounds")
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(ROUNDS):
        await once()
    profile.disable()
    await ours.close()
    return profile


def main() -> None:
    with Bench({}, print) as bench:
        profile = asyncio.run(measured(bench, sys.argv[1:]))
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()

"""Profile our code: `python -m bench.profiling stream responses tools-800`, or `… loop` for the tool loop.

`… streams` profiles a thousand concurrent streams: the cost of each event while they run, and the objects that each
stream keeps. `… streams floor` does the same for the floor. A profile exaggerates the cost of many small calls, so
compare it only with other profiles, and trust the bench.
"""

import asyncio
import cProfile
import gc
import pstats
import sys
import time
from collections import Counter

from bench.processes import allow_many_files
from bench.runner import Bench
from bench.ways import floor, ours
from bench.worker import Play, Take

PROGRAMS = {
    "loop": ("calls-get_weather-20", {}),
    "history": ("history", {"messages": 1000}),
    "history-session": ("history", {"messages": 1000}),
}
ROUNDS = 20
LINES = 35
STREAMS = 1000
DELTAS = 21


async def measured(bench: Bench, arguments: list[str]) -> cProfile.Profile:
    """Return the profile of many rounds, after some warm-up rounds."""
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


async def many(bench: Bench, play: Play) -> None:
    """Profile streams from the last one's first event to the first one's last, and count the objects they keep."""
    url = f"{bench.url}/paced-{STREAMS}-10-{DELTAS}"
    bench.about("responses", f"paced-{STREAMS}-10-{DELTAS}")
    await play(f"{bench.url}/text-20", lambda piece: None)
    profile, opened, events, is_running = cProfile.Profile(), 0, 0, False

    def kept() -> Counter[str]:
        gc.collect()
        return Counter(type(value).__qualname__ for value in gc.get_objects())

    def taker() -> Take:
        seen = 0

        def take(piece: str) -> None:
            nonlocal seen, opened, events, is_running
            count = len(piece.split())
            opened += seen == 0
            seen += count
            if opened == STREAMS and seen == count and not is_running:
                more = kept() - before
                print(f"{sum(more.values()) / STREAMS:.0f} objects per stream tracked by the garbage collector:")
                print(", ".join(f"{number / STREAMS:.0f} {kind}" for kind, number in more.most_common(12)))
                is_running = True
                profile.enable()
            elif is_running:
                events += count
                if seen == DELTAS:
                    profile.disable()
                    is_running = False

        return take

    before = kept()
    await asyncio.gather(*(play(url, taker()) for _ in range(STREAMS)))
    print(f"{events} events; µs and calls are per event")
    rows = pstats.Stats(profile).strip_dirs().stats.items()  # type: ignore[attr-defined]
    for (file, line, name), (calls, _, own_s, *_) in sorted(rows, key=lambda row: -row[1][2])[:LINES]:
        print(f"{own_s / events * 1e6:8.2f} µs {calls / events:6.2f} calls  {file}:{line} {name}")


def main() -> None:
    allow_many_files()
    with Bench({}, print) as bench:
        if sys.argv[1] == "streams":
            is_floor = sys.argv[2:] == ["floor"]
            play = (floor.PLAYERS["bytes"] if is_floor else ours.PLAYERS["stream"])["responses"]
            asyncio.run(many(bench, play))
            return
        profile = asyncio.run(measured(bench, sys.argv[1:]))
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()

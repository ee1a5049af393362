"""Measure one library in a separate process: `python -m bench.worker MODULE`.

It reads tasks as JSON lines, runs each, and writes one JSON line with the CPU and wall seconds and what was received.
It uses only the standard library, and counts only the measured section.
"""

import asyncio
import gc
import importlib
import json
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from bench.lags import lag_figures
from bench.processes import allow_many_files, peak_kb

Take = Callable[[str], object]
Play = Callable[[str, Take], Awaitable[object]]


class Clock:
    """Measures the CPU time of all threads of the process, and the wall time, since its creation."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the CPU and wall seconds so far."""
        cpu_s, wall_s = time.process_time() - self.cpu_s, time.perf_counter() - self.wall_s
        return {"cpu_s": cpu_s, "wall_s": wall_s}


async def streamed(play: Play, task: dict[str, Any]) -> dict[str, Any]:
    """Measure a whole stream."""
    pieces: list[str] = []
    clock = Clock()
    await play(task["url"], pieces.append)
    return {**clock.stop(), "chars": sum(map(len, pieces)), "pieces": len(pieces)}


async def bulky(play: Play, task: dict[str, Any]) -> dict[str, Any]:
    """Measure a stream whose text is not kept, and its peak memory."""
    chars = pieces = 0

    def take(piece: str) -> None:
        nonlocal chars, pieces
        chars += len(piece)
        pieces += 1

    before_kb = peak_kb()
    clock = Clock()
    await play(task["url"], take)
    spent, memory_kb = clock.stop(), peak_kb() - before_kb
    return {**spent, "chars": chars, "pieces": pieces, "memory_kb": memory_kb, "above_kb": memory_kb - chars / 1024}


async def first(play: Play, task: dict[str, Any]) -> dict[str, Any]:
    """Measure the time from the call to the first piece of text. The rest is read but not counted."""
    spent: list[dict[str, float]] = []
    clock = Clock()
    await play(task["url"], lambda piece: spent or spent.append(clock.stop()))
    return {**spent[0]}


async def paced(play: Play, task: dict[str, Any]) -> dict[str, Any]:
    """Measure many concurrent streams, each piece of which is the time at which it was sent.

    Opening, running and ending are measured separately: from the first request to the last stream's first event, from
    there to the first stream's last event, and from there to the end.
    """
    streams, deltas = task["streams"], task["deltas"]
    lags: list[int] = []
    opened = before = ran = 0
    opening: dict[str, float] = {}
    running: dict[str, float] = {}
    clock = Clock()

    def taker() -> Take:
        seen = 0

        def take(piece: str) -> None:
            nonlocal seen, opened, opening, running, before, ran, clock
            now = time.monotonic_ns() // 1000
            stamps = piece.split()
            if seen:
                lags.extend(now - int(stamp) for stamp in stamps)
            else:
                opened += 1
                if opened == streams:
                    opening, clock, before = clock.stop(), Clock(), len(lags)
            seen += len(stamps)
            if seen == deltas and opening and not running:
                running, clock, ran = clock.stop(), Clock(), len(lags) - before

        return take

    await asyncio.gather(*(play(task["url"], taker()) for _ in range(streams)))
    ending = clock.stop()
    rest = len(lags) - before - ran
    if ran > rest:
        event_s = running["cpu_s"] / ran
        # Events of streams that still run while the first ones end are not part of the ending.
        apart = {"end_cpu_s": ending["cpu_s"] - event_s * rest}
    else:
        # The library cannot keep up: streams end while others have hardly started, so the phases overlap.
        event_s, apart = (running.get("cpu_s", 0.0) + ending["cpu_s"]) / max(ran + rest, 1), {}
    return {
        **apart,
        **lag_figures(lags),
        "event_cpu_s": event_s,
        "open_cpu_s": opening["cpu_s"],
        "open_wall_s": opening["wall_s"],
        "lag_max_ms": max(lags) / 1000,
    }


TIMES = ("cpu_s", "wall_s")

MODES: dict[str, Callable[[Play, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "streamed": streamed,
    "bulky": bulky,
    "first": first,
    "paced": paced,
}


async def program(run: Callable[..., Awaitable[dict[str, Any]]], task: dict[str, Any]) -> dict[str, Any]:
    """Measure a library's own program. Times that it reports override those measured around it."""
    before_kb = peak_kb()
    clock = Clock()
    seen = await run(task["url"], task)
    return {**clock.stop(), "memory_kb": peak_kb() - before_kb, **seen}


async def run_once(module: Any, task: dict[str, Any]) -> dict[str, Any]:
    if "program" in task:
        return await program(module.PROGRAMS[task["program"]], task)
    return await MODES[task["mode"]](module.PLAYERS[task["player"]][task["wire"]], task)


async def run_task(module: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Run a task, and return the last result with the mean times of all repeats."""
    async with asyncio.timeout(task.get("timeout_s", 120)):
        results = [await run_once(module, task) for _ in range(task.get("repeats", 1))]
    return {**results[-1], **{key: sum(r[key] for r in results) / len(results) for key in TIMES if key in results[-1]}}


def main() -> None:
    allow_many_files()
    warnings.simplefilter("ignore")
    # A library's output must not mix with the results.
    results, sys.stdout = sys.stdout, sys.stderr
    module = importlib.import_module(f"bench.ways.{sys.argv[1]}")
    print(json.dumps({"ready": True}), file=results, flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            gc.collect()
            try:
                result = runner.run(run_task(module, json.loads(line)))
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(json.dumps(result), file=results, flush=True)
        if hasattr(module, "close"):
            runner.run(module.close())


if __name__ == "__main__":
    main()

"""Measure the time to the first piece of an answer in a new process: `python -m bench.cold MODULE …`.

Prints the CPU and wall seconds since the program's first line, without the start of the interpreter.
"""

import time

_CPU_S, _WALL_S = time.process_time(), time.perf_counter()

import asyncio  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402


async def main() -> None:
    name, player, wire, url = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    play = importlib.import_module(f"bench.ways.{name}").PLAYERS[player][wire]

    def take(piece: str) -> None:
        spent = {"cpu_s": time.process_time() - _CPU_S, "wall_s": time.perf_counter() - _WALL_S}
        print(json.dumps(spent), file=answers, flush=True)
        # Skip the rest of the stream and the shutdown.
        os._exit(0)

    await play(url, take)


if __name__ == "__main__":
    asyncio.run(main())

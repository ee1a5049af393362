"""`make chaos`: runs over several workers, of which one is killed or stopped every second, for minutes.

Every run must end once, every follower's stream be gapless and without repetition, every tool run as its policy says,
and what a worker left be taken over within twice the lease. Otherwise the exit code is 1.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

from msgspec import Struct

from durable_scenes import Reader, Scene, WorkerProcess, is_waiting
from engines import Fleet, until_stats
from postgres import binaries, shared_server
from sidestream.durable.opening import open_engine
from sidestream.durable.protocol import Engine
from sidestream.jsontext import as_object
from sidestream.store import open_store
from sidestream.store.protocol import SharedStore
from sidestream.store.records import unpack
from sidestream.store.wrapped import shared
from sidestream.testing import FakeProvider, Received, Reply, ResponsesScript, sse

TOOLS = ("look", "book", "note", "look")
"""The tool that each step of a run calls: retried after an interruption, decided on by a person, or failed."""
LAST = "All is done."
PACE_S = 0.1
STOPPED = 0.25
"""The share of workers that are stopped for longer than their lease, instead of killed."""
ENDING_S = 90.0
"""What is left when the killing ends must be over by then."""
SLACK_S = 1.5
"""What a busy machine adds to a takeover."""


class Left(Struct):
    """A run whose worker was killed or stopped."""

    talk: str
    worker: int
    at_s: float
    taken_s: float | None = None


def answer(request: Received) -> Reply:
    """The next step of a run; the id of each response says which run and step it belongs to."""
    body = as_object(request.json)
    previous = str(body.get("previous_response_id") or "")
    if previous:
        _, talk, before = previous.split("_")
        step = int(before) + 1
    else:
        talk, step = str(body.get("input")).partition("talk")[2].partition("'")[0], 0
        talk = f"talk{talk}"
    script = ResponsesScript(id=f"resp_{talk}_{step}")
    if step >= len(TOOLS):
        return sse(script.text(LAST).events(), pace_s=PACE_S)
    call = script.function_call(TOOLS[step], {"value": f"{talk}-{step}"}, f"call_{talk}_{step}")
    return sse(call.events(), pace_s=PACE_S)


class Chaos:
    """One experiment."""

    def __init__(self, scene: Scene, random: Random, *, lease_s: float) -> None:
        self.scene = scene
        self.random = random
        self.lease_s = lease_s
        self.workers: list[WorkerProcess] = []
        self.left: list[Left] = []
        self.kills: Counter[str] = Counter()
        self.decided = 0
        self.durations_s: list[float] = []
        self.failed: list[str] = []
        self.ended_s: dict[int, float] = {}
        """When each worker was killed or stopped, by process id."""
        self.unwitnessed = 0
        """Takeovers that came later, since no worker lived long enough to see that the other was silent."""

    async def run(self, count: int, workers: int, seconds: float) -> None:
        """Begins the runs one after the other, while workers are killed; then lets them end."""
        self.workers = [await self.scene.worker(lease_s=self.lease_s) for _ in range(workers)]
        began_s = time.monotonic()
        killing = asyncio.create_task(self._kill(began_s + seconds))
        runs: list[asyncio.Task[None]] = []
        for number in range(count):
            runs.append(asyncio.create_task(self._one(f"talk{number}")))
            await asyncio.sleep(max(0.0, began_s + seconds * 0.9 * (number + 1) / count - time.monotonic()))
        await killing
        async with asyncio.timeout(ENDING_S):
            await asyncio.gather(*runs)
        await until_stats(self.scene.engine, queued=0, running=0, waiting=0)
        self._note_takeovers()

    async def _one(self, talk: str) -> None:
        began_s = time.monotonic()
        reader = await self.scene.begin(talk, talk)
        deciding = asyncio.create_task(self._decide(talk, reader))
        try:
            await reader.over(3600.0)
        finally:
            deciding.cancel()
            await asyncio.wait([deciding])
        self.durations_s.append(time.monotonic() - began_s)

    async def _decide(self, talk: str, reader: Reader) -> None:
        """A person, who denies what may have run already."""
        count = 0
        while True:
            count += 1
            await reader.saw(lambda row: row.kind == "finish" and is_waiting(row), count, within_s=3600.0)
            chat = self.scene.chat(talk)
            await chat.load()
            if chat.status != "waiting":
                continue
            waited_at = chat.head
            run = chat.resume_stream([approval.deny("it may have been done") for approval in chat.approvals])
            await run.begin()
            await self.scene.engine.wake(talk, waited_at)
            self.decided += 1

    async def _kill(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until_s:
                await asyncio.sleep(1.0)
                if len(self.workers) < 2:
                    continue  # The others are still starting: somebody must be left to take over.
                worker, is_stopped = self.random.choice(self.workers), self.random.random() < STOPPED
                self.workers.remove(worker)
                self._leave(worker)
                self.ended_s[worker.pid] = time.monotonic()
                worker.signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
                self.kills["stopped" if is_stopped else "killed"] += 1
                if is_stopped:
                    loop.call_later(3 * self.lease_s, worker.signal, signal.SIGCONT)
                    loop.call_later(4 * self.lease_s, worker.signal, signal.SIGTERM)
                group.create_task(self._start())

    async def _start(self) -> None:
        self.workers.append(await self.scene.worker(lease_s=self.lease_s))

    def _leave(self, worker: WorkerProcess) -> None:
        """Notes what the worker drives."""
        held: dict[str, bool] = {}
        for event in worker.events:
            if "talk" in event and event["event"] in ("claimed", "driven", "lost", "failed"):
                held[event["talk"]] = event["event"] == "claimed"
        at_s = time.monotonic()
        self.left += [Left(talk, worker.pid, at_s) for talk, is_held in held.items() if is_held]

    def _has_witness(self, from_s: float, to_s: float) -> bool:
        """Whether a worker lived all the time: one that is new must see a claim stand still for a lease."""
        return any(
            began_s <= from_s and self.ended_s.get(pid, to_s) >= to_s
            for pid, began_s in ((worker.pid, worker.events[0]["at_s"]) for worker in self.scene.workers)
        )

    def _note_takeovers(self) -> None:
        claims = [
            (event["talk"], worker.pid, event["at_s"])
            for worker in self.scene.workers
            for event in worker.events
            if event["event"] == "claimed"
        ]
        for left in self.left:
            times = [
                at_s for talk, pid, at_s in claims if talk == left.talk and pid != left.worker and at_s > left.at_s
            ]
            left.taken_s = min(times, default=None)

    async def problems(self, count: int) -> list[str]:
        """What is not as it must be."""
        found: list[str] = []
        calls = Counter(line.rpartition(" ")[0] for line in self.scene.effects.read_text().splitlines())
        for number in range(count):
            talk = f"talk{number}"
            rows = await self.scene.store.read(talk)
            ends = [row for row in rows if row.kind == "finish" and not is_waiting(row)]
            if len(ends) != 1 or rows[-1] != ends[0]:
                found.append(f"{talk} ended {len(ends)} times")
            if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
                found.append(f"{talk} has a gap")
            errors = [unpack(row).body for row in rows if row.kind == "error"]
            if errors:
                self.failed.append(f"{talk}: {errors[0].parts[0].message}")  # type: ignore[union-attr]
                continue
            if not ends:
                found.append(f"{talk} is left: {' '.join(row.kind for row in rows[-12:])}")
                continue
            if await self.scene.said(talk) != LAST:
                found.append(f"{talk} ended with another text")
            for step, tool in enumerate(TOOLS):
                times = calls[f"{tool} {talk}-{step}"]
                # One that is not retried may have been interrupted before it did anything.
                if (tool == "look" and times < 1) or (tool != "look" and times > 1):
                    found.append(f"{talk}: {tool} of step {step} ran {times} times")
        bound_s = 2 * self.lease_s + SLACK_S
        late = [it for it in self.left if it.taken_s is not None and it.taken_s - it.at_s > bound_s]
        witnessed = [it for it in late if self._has_witness(it.at_s, it.at_s + bound_s)]
        found += [f"{it.talk} was taken over after {(it.taken_s or 0.0) - it.at_s:.1f} s" for it in witnessed]
        self.unwitnessed = len(late) - len(witnessed)
        return found

    def figures(self, seconds: float) -> str:
        """What happened, in a line."""
        times = sorted(it.taken_s - it.at_s for it in self.left if it.taken_s is not None)
        durations = sorted(self.durations_s)
        text = f"{len(durations)} runs in {seconds:.0f} s; {self.kills['killed']} workers killed, "
        text += f"{self.kills['stopped']} stopped; {len(self.left)} runs left by them, {len(times)} taken over"
        if times:
            text += f" after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (most"
            text += f", {self.unwitnessed} late since every other worker was killed meanwhile)"
        text += f"; {self.decided} decisions of a person; {len(self.failed)} runs given up"
        return text + (f"; a run took {durations[len(durations) // 2]:.1f} s (median)" if durations else "")


@asynccontextmanager
async def fleet_at(where: str, engine: str, lease_s: float) -> AsyncGenerator[Fleet]:
    """A store and its engine."""
    store: SharedStore = shared(open_store(where))
    made: list[Engine] = []

    def another() -> Engine:
        made.append(open_engine(engine, store, lease_s=lease_s))
        return made[-1]

    try:
        yield Fleet(store, another, where, engine)
    finally:
        for one in made:
            await one.aclose()
        await store.aclose()


async def main(given: argparse.Namespace, where: str, folder: Path) -> int:
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeProvider())
        fake.on("POST", "*", answer)
        fleet = await stack.enter_async_context(fleet_at(where, given.engine, given.lease))
        scene = Scene(fleet, fleet.another(), fake, folder, stack)
        chaos = Chaos(scene, Random(given.seed), lease_s=given.lease)
        began_s = time.monotonic()
        problems: list[str] = []
        try:
            await chaos.run(given.runs, given.workers, given.seconds)
        except (TimeoutError, AssertionError) as error:
            problems.append(f"{type(error).__name__}: {error}; {await scene.engine.stats()}")
        seconds = time.monotonic() - began_s
        problems += await chaos.problems(given.runs)
        print(chaos.figures(seconds))
        for line in (*chaos.failed, *problems):
            print(f"  {line}")
        print(f"seed {given.seed}, {given.engine} on {where.partition(':')[0]}: {len(problems)} problems")
        return 1 if problems else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--engine", default="embedded", help="as `sidestream worker --engine` takes it")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
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
        with suppress(KeyboardInterrupt):
            sys.exit(asyncio.run(main(given, place, folder)))

"""`make simulate`: simulate a million runs on sharded databases, with lost machines and a slow database.

A discrete simulation in steps of a second, in pure Python and seeded, so that its results are reproducible. The
capacity of one database comes from `bench/results/scale.json` (`make scale`).

Each run has at most one append in progress, so a slow database makes appends larger, not more numerous. With N runs, a
capacity of C appends per second, and Z seconds between two appends of a run, an append takes max(0, N / C - Z).
"""

import argparse
import json
import random
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

FIGURES = Path(__file__).with_name("results") / "scale.json"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parameters of a simulation."""

    name: str = "quiet"
    runs: int = 1_000_000
    """Runs in progress at any time. As many start as finish."""
    appends_per_s: float = 5000.0
    """Measured appends per second of one database."""
    interval_s: float = 0.25
    """Seconds between two appends of a streaming run."""
    streaming: float = 0.2
    """Fraction of its time in which a run streams. The rest of the time it waits for a provider or a tool."""
    mean_s: float = 120.0
    lease_s: float = 15.0
    headroom: float = 0.6
    """Fraction of a database's capacity that is used."""
    machines: int = 2000
    spare: float = 0.5
    """Additional slots, as a fraction of the runs in progress."""
    claims_per_s: float = 300.0
    """Tasks that the workers of one database claim per second."""
    lost: float = 0.0
    """Fraction of the machines lost after 60 s."""
    slow: float = 1.0
    """Remaining fraction of one database's capacity from 60 s to 120 s."""
    seconds: int = 180
    seed: int = 20

    @property
    def load(self) -> float:
        """Writes of one run per second, which are its increments and three heartbeats per lease."""
        return self.streaming / self.interval_s + 3 / self.lease_s

    @property
    def databases(self) -> int:
        """Number of databases needed."""
        return max(2, -int(-self.runs * self.load // (self.appends_per_s * self.headroom)))


@dataclass
class Outcome:
    """The results of a simulation."""

    databases: int
    ended: int = 0
    takeovers: int = 0
    ended_twice: int = 0
    longest_queue: int = 0
    left_in_queue: int = 0
    worst_append_s: float = 0.0
    takeover_s: list[float] = field(default_factory=list[float])

    @property
    def worst_takeover_s(self) -> float:
        return max(self.takeover_s, default=0.0)

    @property
    def median_takeover_s(self) -> float:
        return sorted(self.takeover_s)[len(self.takeover_s) // 2] if self.takeover_s else 0.0


class Simulation:
    """A simulation whose runs are numbers. For each second, the calendar lists the runs that finish or lose a lease."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = random.Random(setup.seed)
        self.databases = setup.databases
        self.outcome = Outcome(self.databases)
        self.ends: list[list[int]] = [[] for _ in range(setup.seconds + 1)]
        self.expiries: list[list[int]] = [[] for _ in range(setup.seconds + 1)]
        self.machine = array("i")
        self.ends_at = array("d")
        """Second in which each run finishes, unless its machine is lost before."""
        self.silent_since: dict[int, float] = {}
        self.over = bytearray()
        self.queues: list[deque[int]] = [deque() for _ in range(self.databases)]
        """Tasks without a worker, for each database."""
        self.driven = [0] * self.databases
        self.alive = list(range(setup.machines))
        self.slots = int(setup.runs * (1 + setup.spare))
        self.used = 0

    def run(self) -> Outcome:
        """Simulate from full load to the last second, and return the results."""
        setup, out = self.setup, self.outcome
        for _ in range(setup.runs):
            self._drive(self._new(), 0, self.random.expovariate(1 / setup.mean_s))
        for now in range(setup.seconds):
            if now == 60 and setup.lost:
                self._lose(now)
            ended = self._end(self.ends[now], now)
            for run in self.expiries[now]:
                self.queues[run % self.databases].append(run)
            for _ in range(ended):
                run = self._new()
                self.queues[run % self.databases].append(run)
            self._claim(now)
            out.longest_queue = max(out.longest_queue, sum(map(len, self.queues)))
            out.worst_append_s = max(
                out.worst_append_s, max(self._append_s(each, now) for each in range(self.databases))
            )
        out.left_in_queue = sum(map(len, self.queues))
        return out

    def _new(self) -> int:
        self.machine.append(-1)
        self.ends_at.append(0.0)
        self.over.append(0)
        return len(self.machine) - 1

    def _drive(self, run: int, now: int, left_s: float) -> None:
        """Have a worker execute the run until it finishes, unless its machine is lost before."""
        self.machine[run] = self.alive[self.random.randrange(len(self.alive))]
        self.driven[run % self.databases] += 1
        self.used += 1
        self.ends_at[run] = now + left_s
        at = now + int(left_s) + 1
        if at <= self.setup.seconds:
            self.ends[at].append(run)

    def _end(self, runs: Iterable[int], now: int) -> int:
        count = 0
        for run in runs:
            if self.machine[run] < 0 or self.ends_at[run] >= now:
                continue  # Its machine was lost, so another worker finishes it.
            self.outcome.ended_twice += self.over[run]
            self.over[run], self.machine[run] = 1, -1
            self.driven[run % self.databases] -= 1
            self.used -= 1
            count += 1
        self.outcome.ended += count
        return count

    def _lose(self, now: int) -> None:
        """Lose machines with all of their runs, which stay unresponsive until their leases expire."""
        setup = self.setup
        gone = set(self.random.sample(self.alive, int(len(self.alive) * setup.lost)))
        self.slots -= int(self.slots * len(gone) / len(self.alive))
        self.alive = [each for each in self.alive if each not in gone]
        for run, machine in enumerate(self.machine):
            if machine in gone:
                self.machine[run] = -1
                self.driven[run % self.databases] -= 1
                self.used -= 1
                self.silent_since[run] = now
                expires = now + setup.lease_s - self.random.uniform(0, setup.lease_s / 3)
                self.expiries[min(int(expires) + 1, setup.seconds)].append(run)

    def _claim(self, now: int) -> None:
        for database, queue in enumerate(self.queues):
            wait_s = self._append_s(database, now)
            claims = int(self.setup.claims_per_s * (self._capacity(database, now) / self.setup.appends_per_s))
            while queue and claims and self.used < self.slots:
                run = queue.popleft()
                claims -= 1
                since = self.silent_since.pop(run, None)
                if since is None:
                    self._drive(run, now, self.random.expovariate(1 / self.setup.mean_s))
                    continue
                self.outcome.takeovers += 1
                self.outcome.takeover_s.append(now + wait_s - since)
                # The step is repeated, so at most half a minute of work is lost.
                self._drive(run, now, max(self.ends_at[run] - since, 1.0) + self.random.uniform(0, 30))

    def _capacity(self, database: int, now: int) -> float:
        is_slow = database == 0 and 60 <= now < 120
        return self.setup.appends_per_s * (self.setup.slow if is_slow else 1.0)

    def _append_s(self, database: int, now: int) -> float:
        """Return the seconds that an append takes in addition to its time on an idle database."""
        busy_s = self.driven[database] / self._capacity(database, now)
        return max(0.0, busy_s - 1 / self.setup.load)


def scenarios(runs: int, appends_per_s: float) -> list[Setup]:
    """Return the scenarios that the design must handle."""
    machines = max(100, runs // 500)

    def setup(name: str, *, lost: float = 0.0, slow: float = 1.0) -> Setup:
        return Setup(name=name, runs=runs, appends_per_s=appends_per_s, machines=machines, lost=lost, slow=slow)

    return [
        setup("nothing happens"),
        setup("1 % of the machines is lost", lost=0.01),
        setup("a third of the machines is lost", lost=1 / 3),
        setup("one database at half speed for a minute", slow=0.5),
        setup("one database at a tenth of its speed", slow=0.1),
        setup("a third lost, and a database at a tenth", lost=1 / 3, slow=0.1),
    ]


def table(setups: Iterable[Setup]) -> str:
    """Run the simulations, and format their results as a Markdown table."""
    lines = [
        "| scenario | runs ended | takeovers | takeover: median, worst | longest queue | queue at the end | append |",
        "|---|---|---|---|---|---|---|",
    ]
    for setup in setups:
        out = Simulation(setup).run()
        assert not out.ended_twice
        taken = f"{out.median_takeover_s:.0f} s, {out.worst_takeover_s:.0f} s" if out.takeovers else "none"
        cells = [setup.name, f"{out.ended:,}", f"{out.takeovers:,}", taken, f"{out.longest_queue:,}"]
        lines.append(f"| {' | '.join([*cells, f'{out.left_in_queue:,}', f'+ {out.worst_append_s:.1f} s'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs in flight")
    parser.add_argument("--appends", type=float, help="appends per second of one database; else as measured")
    args = parser.parse_args()
    appends = args.appends or float(json.loads(FIGURES.read_text("utf-8"))["appends_per_s_200"])
    setups = scenarios(args.runs, appends)
    first = setups[0]
    print(f"{first.runs:,} runs in flight, {first.load:.1f} writes per run and second,", end=" ")
    print(
        f"{first.databases} databases of {appends:,.0f} appends/s at {first.headroom:.0%}, lease {first.lease_s:g} s\n"
    )
    print(table(setups))


if __name__ == "__main__":
    main()

"""Many runs over workers that are killed and stopped, and what must be true of them. `make chaos`, and its short form."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from msgspec import Struct

from sidestream.durable.log.jobs import MAX_ATTEMPTS, Job
from sidestream.durable.log.open_runs import refusal
from sidestream.jsontext import as_object
from sidestream.store.records import Row, unpack
from sidestream.testing import Received, Reply, ResponsesScript, sse
from support.durable_scenes import Reader, Scene, Template, WorkerProcess, is_waiting
from support.durable_worker import AGENT
from support.waiting import eventually

TOOLS = ("look", "book", "note", "look")
"""The tool that each step of a run calls: retried after an interruption, decided on by a person, or failed."""
LAST = "All is done."
ENDED = ("driven", "lost", "failed")
"""What a worker reports at the end of a claim."""
END_S = 3600.0
"""Whoever waits for all runs has a shorter timeout."""


class Left(Struct):
    """A run whose worker was killed or stopped."""

    talk: str
    worker: int
    at_s: float
    taken_s: float | None = None
    free_s: float = 0.0
    """Since when a live worker with a free slot was there at every moment, until it was taken over."""

    @property
    def after_s(self) -> float | None:
        """How long it was left, in the presence of a worker that could have it."""
        return None if self.taken_s is None else self.taken_s - max(self.at_s, self.free_s)


class Findings(Struct):
    """What is not as it must be: each is a list of sentences."""

    lost: list[str] = []
    """Runs without an end."""
    doubled: list[str] = []
    """Runs that ended twice, and tools that ran although their policy says no."""
    gaps: list[str] = []
    wrong: list[str] = []
    """Another text, or an error."""
    late: list[str] = []
    given_up: list[str] = []
    """Runs that ended with an error, since their workers died too often at the same place: as it should be."""

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.gaps, *self.wrong, *self.late]

    def counts(self) -> str:
        text = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.gaps)} gaps, {len(self.wrong)} wrong, "
        return text + f"{len(self.late)} late; {len(self.given_up)} given up after {MAX_ATTEMPTS} interruptions"


class Chaos:
    """Runs of four tools each, their readers, the person who decides, and the workers that may be lost."""

    def __init__(self, scene: Scene, template: Template, *, lease_s: float, pace_s: float) -> None:
        scene.fake.on("POST", "*", self._answer)
        self.scene = scene
        self.lease_s = lease_s
        self.workers: list[WorkerProcess] = []
        """Those that work."""
        self.left: list[Left] = []
        self.losses: Counter[str] = Counter()
        self.decided = 0
        self.durations_s: list[float] = []
        self.calm = asyncio.Event()
        """No run ends before it is set."""
        self._template = template
        self._pace_s = pace_s
        self._talks: list[str] = []
        self._away_s: dict[int, float] = {}
        """When each worker was killed or stopped, by process id."""

    async def start_worker(self) -> WorkerProcess:
        """One more worker, once it works."""
        worker = await self.scene.forked_worker(self._template, lease_s=self.lease_s, tool_s=2 * self._pace_s)
        self.workers.append(worker)
        return worker

    async def run(self, talk: str) -> None:
        """Begins a run, follows it to its end, and decides where it waits."""
        self._talks.append(talk)
        began_s = time.monotonic()
        reader = await self.scene.begin(talk, talk)
        deciding = asyncio.create_task(self._decide(talk, reader))
        try:
            await reader.over(END_S)
        finally:
            deciding.cancel()
            await asyncio.wait([deciding])
        self.durations_s.append(time.monotonic() - began_s)

    async def busy_worker(self) -> WorkerProcess:
        """One that drives something."""

        async def find() -> WorkerProcess | None:
            return (
                max(self.workers, key=lambda worker: len(held_by(worker))) if any(map(held_by, self.workers)) else None
            )

        return await eventually(find)

    async def taken_from(self, worker: WorkerProcess) -> None:
        """Waits until other workers have all that a lost one drove."""
        at_s = self._away_s[worker.pid]
        talks = set(held_by(worker, at_s))

        async def is_taken() -> bool:
            others = [other.events for other in self.scene.workers if other is not worker]
            return talks <= {it["talk"] for it in chain(*others) if it["event"] == "claimed" and it["at_s"] > at_s}

        await eventually(is_taken)

    async def lose(self, worker: WorkerProcess, number: signal.Signals) -> None:
        """Kills or stops a worker."""
        self.workers.remove(worker)
        self._away_s[worker.pid] = time.monotonic()
        if number == signal.SIGSTOP:
            await self.scene.stop(worker)
        else:
            worker.signal(number)
        self.losses[number.name] += 1

    def note_takeovers(self) -> None:
        """Find the abandoned runs, and when another worker claimed each."""
        by_pid = {worker.pid: worker for worker in self.scene.workers}
        claims = [
            (event["talk"], worker.pid, event["at_s"])
            for worker in self.scene.workers
            for event in worker.events
            if event["event"] == "claimed"
        ]
        for pid, at_s in self._away_s.items():
            # One that was silent, and lost a run to another before it was lost itself, leaves none.
            holders = {talk: claimer for talk, claimer, when_s in sorted(claims, key=itemgetter(2)) if when_s <= at_s}
            talks = {talk for talk in held_by(by_pid[pid], at_s) if holders[talk] == pid}
            self.left += [Left(talk, pid, at_s) for talk in sorted(talks)]
        free = [span for worker in self.scene.workers for span in self._free(worker)]
        for left in self.left:
            times = [at_s for talk, pid, at_s in claims if talk == left.talk and pid != left.worker]
            left.taken_s = min((at_s for at_s in times if at_s > left.at_s), default=None)
            if left.taken_s is not None:
                left.free_s = covered_since(free, left.at_s, left.taken_s)

    async def findings(self, bound_s: float) -> Findings:
        """What is not as it must be; a takeover must not take longer than the bound."""
        found = Findings()
        calls = Counter(line.rpartition(" ")[0] for line in self.scene.effects.read_text().splitlines())
        for talk in self._talks:
            await self._check(talk, calls, found)
        for left in self.left:
            if left.after_s is not None and left.after_s > bound_s:
                found.late.append(f"{left.talk} was taken over after {left.after_s:.1f} s: {self._story(left)}")
        return found

    def figures(self, seconds: float) -> str:
        """What happened, in a line."""
        times = sorted(left.after_s for left in self.left if left.after_s is not None)
        durations = sorted(self.durations_s)
        killed, stopped = self.losses["SIGKILL"], self.losses["SIGSTOP"]
        text = f"{len(durations)} runs in {seconds:.0f} s; {killed} workers killed, {stopped} stopped"
        text += f"; {len(self.left)} runs left by them, {len(times)} taken over"
        if times:
            excused = sum(left.free_s > left.at_s for left in self.left if left.taken_s is not None)
            text += f" after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (most)"
            text += f"; {excused} of them had to wait for a worker with a free slot"
        text += f"; {self.decided} decisions of a person"
        return text + (f"; a run took {durations[len(durations) // 2]:.1f} s (median)" if durations else "")

    async def _decide(self, talk: str, reader: Reader) -> None:
        """A person, who denies what may have run already."""
        count = 0
        while True:
            count += 1
            await reader.saw(lambda row: row.kind == "finish" and is_waiting(row), count, within_s=END_S)
            chat = self.scene.chat(talk)
            await chat.load()
            if chat.status != "waiting":
                continue
            waited_at = chat.head
            run = chat.resume_stream([approval.deny("it may have been done") for approval in chat.approvals])
            await run.begin()
            await self.scene.engine.wake(talk, waited_at)
            self.decided += 1

    async def _check(self, talk: str, calls: Counter[str], found: Findings) -> None:
        rows = await self.scene.store.read(talk)
        ends = [row for row in rows if row.kind == "finish" and not is_waiting(row)]
        if not ends:
            found.lost.append(f"{talk} is left: {' '.join(row.kind for row in rows[-12:])}")
            return
        if len(ends) > 1 or rows[-1] != ends[0]:
            found.doubled.append(f"{talk} ended {len(ends)} times")
        if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
            found.gaps.append(f"{talk} has a gap")
        reason = _error(rows)
        for step, tool in enumerate(TOOLS):
            times = calls[f"{tool} {talk}-{step}"]
            # One that is not retried may have been interrupted before it did anything.
            if times > 1 and tool != "look":
                found.doubled.append(f"{talk}: {tool} of step {step} ran {times} times")
            if times < 1 and tool == "look" and not reason:
                found.wrong.append(f"{talk}: {tool} of step {step} did not run")
        if reason:
            is_given_up = str(refusal(Job(agent=AGENT), MAX_ATTEMPTS + 1)) in reason
            (found.given_up if is_given_up else found.wrong).append(f"{talk}: {reason}")
        elif await self.scene.said(talk) != LAST:
            found.wrong.append(f"{talk} ended with another text")

    def _free(self, worker: WorkerProcess) -> list[tuple[float, float]]:
        """From when to when a worker lived and had a free slot."""
        spans: list[tuple[float, float]] = []
        away_s = self._away_s.get(worker.pid, float("inf"))
        slots, held, since_s = worker.slots, 0, None
        for event in worker.events:
            if event["at_s"] >= away_s:
                break
            held += (event["event"] == "claimed") - (event["event"] in ENDED)
            if held < slots and since_s is None:
                since_s = event["at_s"]
            elif held >= slots and since_s is not None:
                spans.append((since_s, event["at_s"]))
                since_s = None
        return [*spans, (since_s, away_s)] if since_s is not None else spans

    def _story(self, left: Left) -> str:
        """What workers did with the run in the meantime, and which of them lived."""
        until_s = left.taken_s or float("inf")
        events = [
            (event["at_s"], f"{worker.pid} {event['event']}")
            for worker in self.scene.workers
            for event in worker.events
            if (event.get("talk") == left.talk or event["event"] == "ready") and event["at_s"] <= until_s
        ]
        events += [(at_s, f"{pid} away") for pid, at_s in self._away_s.items()]
        began_s = left.at_s - 2 * self.lease_s
        return ", ".join(
            f"{at_s - left.at_s:+.1f} {what}" for at_s, what in sorted(events) if began_s <= at_s <= until_s
        )

    def _answer(self, request: Received) -> Reply:
        """The next step of a run; the id of each response says which run and step it belongs to."""
        body = as_object(request.json)
        previous = str(body.get("previous_response_id") or "")
        if previous:
            _, talk, before = previous.split("_")
            step = int(before) + 1
        else:
            talk, step = "talk" + str(body.get("input")).partition("talk")[2].partition("'")[0], 0
        script = ResponsesScript(id=f"resp_{talk}_{step}")
        if step >= len(TOOLS):
            events: list[Any] = script.text(LAST).events()
            return sse([*events[:-1], self.calm, events[-1]], pace_s=self._pace_s)
        call = script.function_call(TOOLS[step], {"value": f"{talk}-{step}"}, f"call_{talk}_{step}")
        return sse(call.events(), pace_s=self._pace_s)


def held_by(worker: WorkerProcess, until_s: float = float("inf")) -> list[str]:
    """The conversations that a worker drives, or drove at that time, as far as it has said."""
    held: dict[str, bool] = {}
    for event in worker.events:
        if event["event"] in ("claimed", *ENDED) and event["at_s"] <= until_s:
            held[event["talk"]] = event["event"] == "claimed"
    return [talk for talk, is_held in held.items() if is_held]


def covered_since(spans: Sequence[tuple[float, float]], from_s: float, to_s: float) -> float:
    """The moment since which the spans cover every moment until `to_s`; `from_s` if they cover all since then."""
    since_s = to_s
    while earlier := [began_s for began_s, ended_s in spans if began_s < since_s <= ended_s]:
        since_s = min(earlier)
        if since_s <= from_s:
            return from_s
    return since_s


def _error(rows: Sequence[Row]) -> str:
    bodies: list[Any] = [unpack(row).body for row in rows if row.kind == "error"]
    return bodies[0].parts[0].message if bodies else ""

"""Count what eight cases execute: `python -m bench.instructions` compares the counts with `instructions.json`.

A count is the number of bytecodes and of calls in the thread of the event loop. It does not depend on the machine or
its load, only on the Python version, so the tests fail when a case costs more than 3 % more than its number. The cases
are those of `bench.cases`, answered in this process instead of over HTTP.

`--accept` writes the measured numbers. `--top 20` lists the functions of each case by count. `--callgrind` counts
machine instructions with valgrind instead, C code and all threads included; it takes minutes and compares nothing.
"""

import argparse
import asyncio
import gc
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bench.cases import CASES, Case
from bench.counting import Count, Counter
from bench.payloads import Payload, answer
from bench.processes import environment
from bench.runner import ROOT, FailedError, check_seen
from bench.ways import ours
from bench.worker import run_once
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall
from sidestream.wire.sse import Splitter

NUMBERS = Path(__file__).with_name("instructions.json")
VERSION = "{}.{}{}".format(*sys.version_info[:2], getattr(sys, "abiflags", ""))
ACCEPT = "python -m bench.instructions --accept"
TOLERANCE = 0.03

COUNTED: Mapping[str, str] = {
    "text-responses": "stream",
    "tools-responses": "stream",
    "text-messages": "stream",
    "text-generate": "stream",
    "text-chat": "stream",
    "loop": "ours",
    "history": "ours",
    "log": "chat_log",
}
"""Cases of `bench.cases`, with the way that is counted."""

WARM_UPS = 2
PIECE_BYTES = 64 * 1024
CALLGRIND_ROUNDS = 10

_ASYNCIO = Path(asyncio.__file__).parent
_UNCOUNTED = (
    f"{ROOT / 'bench'}{os.sep}",
    selectors.__file__,
    # The number of loop iterations depends on when a thread finishes.
    *(str(_ASYNCIO / f"{name}.py") for name in ("base_events", "events", "selector_events", "runners")),
)


Counts = Mapping[str, Count]


class StoppedLoop(asyncio.SelectorEventLoop):
    """An event loop with a stopped clock, since what a log writes after 250 ms would depend on the load."""

    def time(self) -> float:
        return 0.0


class MemoryTransport:
    """Answers the requests of a case from memory."""

    def __init__(self, wire: str, name: str) -> None:
        self._wire = wire
        self._name = name

    async def open(self, call: HttpCall, limits: Limits) -> "_MemoryResponse":
        return _MemoryResponse(_pieces(self._wire, self._name, call.body or b""), limits)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        raise NotImplementedError


class _MemoryResponse:
    status = 200
    is_stream = True
    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self, pieces: Iterator[bytes], limits: Limits) -> None:
        self._pieces = pieces
        self._splitter = Splitter(limits.max_event_bytes)

    async def events(self) -> list[bytes]:
        await asyncio.sleep(0)  # as reading from a socket would
        for piece in self._pieces:
            if events := self._splitter.feed(piece):
                return events
        return self._splitter.flush()

    def ignored(self) -> None:
        pass

    async def body(self) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass

    complete = aclose


# The warm-ups render what the counted run reads.
_answer: Callable[[str, str, bytes], Payload] = cache(answer)


def _pieces(wire: str, name: str, body: bytes) -> Iterator[bytes]:
    data = b"".join(_answer(wire, name, body).frames)
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


class Program:
    """A case that runs in one process, without a network."""

    def __init__(self, name: str) -> None:
        case = next(case for case in CASES if case.name == name)
        way = next(way for way in case.ways if way.key == COUNTED[name])
        url = f"http://{name}.bench"
        ours.transports[url] = MemoryTransport(case.wire, case.payload)
        self._case: Case = case
        self._task: dict[str, Any] = {**case.task, "url": url}
        if case.kind == "play":
            self._task |= {"player": way.player, "wire": case.wire, "mode": case.mode}

    async def run(self) -> None:
        """Run the case once. Raises FailedError if it did not receive everything."""
        seen = await run_once(ours, self._task)
        if self._case.kind == "program":
            check_seen(self._task, seen)
        elif seen["chars"] != (chars := _answer(self._case.wire, self._case.payload, b"").chars):
            raise FailedError(f"it saw {seen['chars']} of {chars} characters")


async def counted(name: str) -> Counter:
    """Count a case in this process."""
    program, counter = Program(name), Counter(_UNCOUNTED)
    for _ in range(WARM_UPS):
        await program.run()
    gc.collect()
    gc.disable()
    counter.start()
    try:
        await program.run()  # Python 3.13 traces a function's bytecodes from its second call on
        counter.reset()
        await program.run()
    finally:
        counter.stop()
        gc.enable()
    return counter


def known(version: str = VERSION) -> Counts:
    """Return the accepted counts of a Python version, or none if it has no counts yet."""
    found = json.loads(NUMBERS.read_text("utf-8")).get(version, {})
    return {name: Count(**count) for name, count in found.items()}


def accept(counts: Counts) -> None:
    """Write these counts as the numbers of this Python version."""
    every = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    merged = {**every.get(VERSION, {}), **{name: count._asdict() for name, count in counts.items()}}
    every[VERSION] = {name: merged[name] for name in COUNTED if name in merged}
    ordered = sorted(every.items(), key=lambda item: [int(digits) for digits in re.findall(r"\d+", item[0])])
    NUMBERS.write_text(json.dumps(dict(ordered), indent=2) + "\n", "utf-8")


def compared(measured: Counts, numbers: Counts) -> tuple[list[str], list[str]]:
    """Return a line for each count that is too high, and one for each number that can be lowered."""
    above: list[str] = []
    below: list[str] = []
    for name, counts in measured.items():
        if name not in numbers:
            above.append(f"{name} has no number. Write it with `{ACCEPT}`.")
            continue
        for unit, number, count in zip(Count._fields, numbers[name], counts, strict=True):
            more = count - number
            said = f"{name}: measured {count:,} {unit}, {abs(more) / number:.1%}"
            if more > TOLERANCE * number:
                above.append(
                    f"{said} above its number of {number:,} (at most {TOLERANCE:.0%}). "
                    f"Save them, or accept the cost with `{ACCEPT}` and say why in the commit."
                )
            elif -more > TOLERANCE * number:
                below.append(f"{said} below its number of {number:,}. Lower the number with `{ACCEPT}`.")
    return above, below


def _table(measured: Counts, numbers: Counts) -> str:
    lines = [f"Python {VERSION}       bytecodes     number   change     calls   number   change"]
    for name, counts in measured.items():
        cells = f"{name:16}"
        for width, number, count in zip((12, 10), numbers.get(name, (0, 0)), counts, strict=True):
            change = f"{count / number - 1:+8.1%}" if number else "     new"
            cells += f"{count:{width},}{number:{width - 1},} {change}"
        lines.append(cells)
    return "\n".join(lines)


def _top(counter: Counter, count: int) -> str:
    lines = ["  bytecodes    called   C calls   function"]
    for tally in counter.tallies()[:count]:
        place = tally.code.co_filename.rpartition("/sidestream/")[2]
        lines.append(f"{tally.bytecodes:11,}{tally.calls:10,}{tally.c_calls:10,}   {place} {tally.code.co_qualname}")
    return "\n".join(lines)


def _callgrind(name: str) -> int:
    """Return the machine instructions of one run, without start-up and warm-ups."""
    executed: list[int] = []
    for rounds in (0, CALLGRIND_ROUNDS):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
        command += ["-m", "bench.instructions", "--case", name, "--rounds", str(rounds)]
        done = subprocess.run(command, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, timeout=1800)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode or found is None:
            raise SystemExit(f"{name}: valgrind failed: {done.stderr[-500:]}")
        executed.append(int(found[1]))
    return (executed[1] - executed[0]) // CALLGRIND_ROUNDS


async def _rounds(names: list[str], rounds: int) -> None:
    for program in map(Program, names):
        for _ in range(WARM_UPS + rounds):
            await program.run()


async def _all(names: list[str]) -> dict[str, Counter]:
    return {name: await counted(name) for name in names}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", action="append", choices=list(COUNTED), help="only this case")
    parser.add_argument("--accept", action="store_true", help="write the measured numbers")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON and compare nothing")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="list the N functions with the most bytecodes")
    parser.add_argument("--callgrind", action="store_true", help="count machine instructions with valgrind")
    parser.add_argument("--rounds", type=int, help="run the cases so often and count nothing")
    return parser


def main() -> int:
    args = _parser().parse_args()
    names = args.case or list(COUNTED)
    if args.callgrind:
        if shutil.which("valgrind") is None:
            raise SystemExit("'valgrind' not found on PATH")
        for name in names:
            print(f"{name:16}{_callgrind(name):14,} instructions", flush=True)
        return 0
    with asyncio.Runner(loop_factory=StoppedLoop) as runner:
        try:
            if args.rounds is not None:
                runner.run(_rounds(names, args.rounds))
                return 0
            counters = runner.run(_all(names))
        finally:
            runner.run(ours.close())
    measured = {name: counter.total() for name, counter in counters.items()}
    if args.json:
        print(json.dumps({name: count._asdict() for name, count in measured.items()}))
        return 0
    numbers = known()
    print(_table(measured, numbers))
    for name, counter in counters.items() if args.top else ():
        print(f"\n{name}\n{_top(counter, args.top)}")
    if args.accept:
        accept(measured)
        print(f"written to {NUMBERS.relative_to(ROOT)}")
        return 0
    if not numbers:
        print(f"Python {VERSION} has no numbers. Write them with `{ACCEPT}`.")
        return 0
    above, below = compared(measured, numbers)
    print(*above, *below, sep="\n", end="\n" if above or below else "")
    return 1 if above else 0


if __name__ == "__main__":
    # The order of a set and asyncio's debug mode change the counts.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "bench.instructions", *sys.argv[1:]], environment(ROOT))
    sys.exit(main())

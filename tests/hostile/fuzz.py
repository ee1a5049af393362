"""`make fuzz`: mutates the answers of every API and checks that their runs stay legal and their conversations can be
loaded, for as long as it is told.

Some streams lie: an event does not parse, another answer begins, parts have other numbers, the end is missing, a result
comes with the next response. Of those the answer must be the true one, or an error.

What fails is made as small as it can be and saved as a recording, with the command that plays it again.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random

from hostile.corpus import MORE_RECORDINGS, RECORDINGS, events_of, recorded, scripted, with_body, with_events
from hostile.judge import Judged, judge, stored
from hostile.lies import LIES, Lied, told
from hostile.mutations import MUTATIONS, Events, mangled
from sidestream.replay.recording import Exchange, Recording
from sidestream.store import Store, open_store

FAILURES = Path(".fuzz")
MAX_FAILURES = 20
MINIMISE_S = 20.0
BYTES = "bytes"
LYING = 5
"""Every fifth answer is one that lies."""


class Fuzz:
    """One fuzzing run: what was tried, and what failed."""

    def __init__(self, seed: int, answers: dict[str, list[Exchange]], store: Store) -> None:
        self.store = store
        self.seed = seed
        self.answers = answers
        self.streams: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.lies: Counter[str] = Counter()
        self.kinds: dict[str, Path] = {}
        """What went wrong, without its values → the smallest case of it."""
        self._events = {api: [events_of(e) for e in exchanges] for api, exchanges in answers.items()}

    async def one(self, number: int) -> None:
        """Tries one answer. Its number and the seed say which."""
        if number % LYING == 0:
            await self._lie(number)
            return
        api, exchange = self.mutant(number)
        self.streams[api] += 1
        self.events[api] += len(events_of(exchange))
        error = await failure(exchange, self.store)
        if isinstance(error, Judged):
            self.parts[api] += len(error.parts)
            return
        self.failures[api] += 1
        kind = signature(error)
        if kind in self.kinds:
            return
        print(f"\nFAILED {api}, stream {number} of seed {self.seed}: {kind}")
        smallest, error = await minimised(exchange, error, self.store)
        self.kinds[kind] = save(self.seed, number, smallest, error)
        print(f"  {len(events_of(smallest))} events, {len(smallest.body_bytes())} bytes; to see it again:")
        print(f"  make fuzz REPLAY={self.kinds[kind]}")

    async def _lie(self, number: int) -> None:
        """Tries a stream that lies: its answer must be the true one, or an error."""
        random = Random(f"{self.seed}/{number}")
        api, name = random.choice(sorted(self.answers)), random.choice(sorted(LIES))
        exchange, other = random.choice(self.answers[api]), random.choice(self.answers[api])
        try:
            lying = await told(random, name, exchange, [other])
        except Exception as error:
            self.failures[api] += 1
            kind = f"{name}: {signature(error)}"
            if kind not in self.kinds:
                print(f"\nFAILED {api}, stream {number} of seed {self.seed}: {kind}: {str(error)[:1000]}")
                lying = error.exchange if isinstance(error, Lied) else exchange
                self.kinds[kind] = save(self.seed, number, lying, error)
                print(f"  what was sent: make fuzz REPLAY={self.kinds[kind]}")
            return
        if lying is not None:
            self.streams[api] += 1
            self.lies[name] += 1

    def mutant(self, number: int) -> tuple[str, Exchange]:
        """A mutated answer, always the same one for a number."""
        random = Random(f"{self.seed}/{number}")
        apis = sorted(self.answers)
        api = apis[number % len(apis)]
        place = random.randrange(len(self.answers[api]))
        exchange = self.answers[api][place]
        names = [*random.sample(sorted(MUTATIONS), random.choice((1, 1, 2, 3)))]
        # Now and then an answer is interleaved with one of another API.
        others = self._events[random.choice(apis) if random.random() < 0.1 else api]
        events: Events = self._events[api][place]
        names = names if random.random() < 0.75 else []
        # Values of another type come through to the store most often where nothing else is wrong.
        for name in names if random.random() < 0.6 else [random.choice(("recount", "retype"))]:
            events = MUTATIONS[name](random, events, others)
        exchange = with_events(exchange, events)
        return api, with_body(exchange, mangled(random, exchange.body_bytes())) if random.random() < 0.35 else exchange

    def report(self, seconds: float) -> str:
        rows = [f"{'API':<22}{'streams':>9}{'events':>11}{'parts':>11}{'failures':>10}"]
        for api in [*sorted(self.answers), "all"]:
            counts = [c.total() if api == "all" else c[api] for c in (self.streams, self.events, self.parts)]
            failed = self.failures.total() if api == "all" else self.failures[api]
            rows.append(f"{api:<22}{counts[0]:>9,}{counts[1]:>11,}{counts[2]:>11,}{failed:>10,}")
        lies = ", ".join(f"{name} {count:,}" for name, count in sorted(self.lies.items()))
        return "\n".join(
            [
                *rows,
                f"streams that lie: {lies}",
                f"seed {self.seed}, {seconds:.0f} s, {len(self.kinds)} kinds of failure",
            ]
        )


async def failure(exchange: Exchange, store: Store) -> Judged | Exception:
    """What goes wrong with an answer, or its run."""
    try:
        judged = await judge(exchange)
        await stored(exchange, store, "talk")
        return judged
    except Exception as error:
        return error
    finally:
        await store.delete("talk")


def signature(error: Exception) -> str:
    """What went wrong, and where, without the values of the case."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return f"{type(error).__name__} at {place}"


async def minimised(exchange: Exchange, error: Exception, store: Store) -> tuple[Exchange, Exception]:
    """The smallest answer found that fails in the same way: fewer events, then fewer fields."""
    until, kind, events = time.monotonic() + MINIMISE_S, signature(error), events_of(exchange)

    async def fails(fewer: Events) -> bool:
        nonlocal exchange, error, events
        smaller = with_events(exchange, fewer)
        outcome = await failure(smaller, store)
        if not isinstance(outcome, Exception) or signature(outcome) != kind:
            return False
        exchange, error, events = smaller, outcome, fewer
        return True

    if not await fails(events):
        return exchange, error  # It is not the events, but the bytes around them.
    size = len(events)
    while size := size // 2:
        start = 0
        while start < len(events) and time.monotonic() < until:
            start += 0 if await fails(events[:start] + events[start + size :]) else size
    for place in range(len(events)):
        for smaller in fewer_fields(events[place]) if time.monotonic() < until else ():
            await fails([*events[:place], smaller, *events[place + 1 :]])
    return exchange, error


def fewer_fields(event: bytes) -> Sequence[bytes]:
    """The event without one of its fields, once for each."""
    try:
        value = json.loads(event)
    except (ValueError, RecursionError):
        return ()
    names = [*value] if isinstance(value, dict) else ()
    return [json.dumps({k: v for k, v in value.items() if k != name}).encode() for name in names]


def save(seed: int, number: int, exchange: Exchange, error: Exception) -> Path:
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{seed}-{number}.json"
    Recording((exchange,), source=f"make fuzz SEED={seed}", exercises=f"{type(error).__name__}: {error}"[:500]).save(
        path
    )
    return path


async def replayed(path: Path, store: Store) -> int:
    """Plays a failure again."""
    for exchange in Recording.load(path).exchanges:
        outcome = await failure(exchange, store)
        for data in events_of(exchange):
            print(data.decode("utf-8", "replace")[:2000])
        if isinstance(outcome, Exception):
            traceback.print_exception(outcome)
            return 1
        print(f"\n{path}: a legal run of {len(outcome.parts)} parts")
    return 0


async def fuzzed(seed: int, seconds: float, store: Store) -> int:
    answers = {api: [exchange] for api, exchange in scripted().items()}
    for folder in (RECORDINGS, MORE_RECORDINGS):
        for api, exchanges in recorded(folder).items():
            answers.setdefault(api, []).extend(exchanges.values())
        if not folder.is_dir():
            print(f"skipped: {folder} is not there; other answers are mutated")
    fuzz, began, number = Fuzz(seed, answers, store), time.monotonic(), 0
    print(f"seed {seed}: {sum(map(len, answers.values()))} answers of {len(answers)} APIs, {seconds:.0f} s", flush=True)
    while time.monotonic() - began < seconds and len(fuzz.kinds) < MAX_FAILURES:
        await fuzz.one(number)
        number += 1
    print("\n" + fuzz.report(time.monotonic() - began))
    return 1 if fuzz.kinds else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--replay", type=Path, help="play a saved failure again")
    return asyncio.run(run(parser.parse_args()))


async def run(options: argparse.Namespace) -> int:
    # Values are what is tried here, so the store may be in memory.
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sidestream-fuzz-", dir=place) as folder:
        async with aclosing(open_store(Path(folder) / "talks.db")) as store:
            if options.replay:
                return await replayed(options.replay, store)
            return await fuzzed(options.seed, options.seconds, store)


if __name__ == "__main__":
    sys.exit(main())

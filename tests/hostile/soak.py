"""`make soak`: many agents at once against a fake provider that fails in every way, for minutes.

Every text is compared with what was sent. Tasks, sockets, descriptors and memory must stay flat, or the exit code is 1.
"""

import argparse
import asyncio
import gc
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from random import Random
from statistics import median

from msgspec import Struct

from hostile.corpus import SCRIPTS
from sidestream import Agent, Limits
from sidestream.errors import ProtocolError, ProviderError, RunError, StreamTimeoutError, StreamTruncatedError
from sidestream.parts import TextDelta
from sidestream.testing import FakeProvider, Received, Reply, dropped, encode_events, error_reply
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy
from support.places import TESTS

MODELS = {
    "openai-responses": ("openai-responses:gpt-5.6", "/v1"),
    "openai-chat": ("openai:gpt-5.6", "/v1"),
    "anthropic": ("anthropic:claude-opus-5", "/v1"),
    "google": ("google:gemini-3-flash-preview", ""),
    "google-interactions": ("google:interactions/gemini-3-flash-preview", ""),
}
CASES = {
    "plain": None,
    "pieces": None,
    "slow_reader": None,
    "tool": None,
    "strange": None,
    "rate_limited": None,
    "overloaded": None,
    "dropped": None,
    "leaving": None,
    "cancelled": None,
    "broken_json": ProtocolError,
    "cut": StreamTruncatedError,
    "reset": RunError,
    "refused": ProviderError,
    "stalled": StreamTimeoutError,
}
"""What happens → the error that the user must see; None: the whole answer."""
WORDS = 24
IDLE_S = 1.0
GROWTH, GROWTH_MB = 1.1, 16
"""From early to late, memory may grow by this factor and so much."""
PATIENT = Limits(first_byte_timeout_s=120, idle_timeout_s=120)
IMPATIENT = Limits(first_byte_timeout_s=120, idle_timeout_s=IDLE_S)
AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.01)
_PROMPT = re.compile(rb"case:(\w+):([\w-]+):(\d+)")


def words_of(number: int) -> list[str]:
    """The deltas of an answer; no two answers have a word in common."""
    return [f"w{number}x{place} " for place in range(WORDS)]


# The server's process


def served(attempts: Counter[bytes], request: Received) -> Reply:
    """The reply to a prompt, which says what is to happen."""
    found = _PROMPT.search(request.body)
    assert found is not None
    case, api, number = found[1].decode(), found[2].decode(), int(found[3])
    attempts[found[0]] += 1
    is_first = attempts[found[0]] == 1
    if is_first and case in ("rate_limited", "overloaded", "dropped"):
        headers = {"retry-after-ms": "1"}
        return dropped() if case == "dropped" else error_reply(429 if case == "rate_limited" else 503, headers=headers)
    if not (is_first and case == "tool"):
        del attempts[found[0]]
    if case == "refused":
        return error_reply(400, "invalid_request_error", "no")
    script = type(SCRIPTS[api][1])()
    if is_first and case == "tool":
        call = next(
            getattr(script, name) for name in ("function_call", "tool_call", "tool_use") if hasattr(script, name)
        )
        return call("look_up", {"prompt": found[0].decode()}).reply()
    reply = script.text(words_of(number)).reply()
    return faulty(case, number, reply)


def faulty(case: str, number: int, reply: Reply) -> Reply:
    frames = reply.body
    match case:
        case "pieces":
            return Reply(body=frames, chunk_sizes=(1, 3, 50, 7))
        case "broken_json":
            junk = [b"data: {\n\n", b"data: [1,\n\n", b"data: \xff\n\n"]
            return Reply(body=[*frames[:4], junk[number % len(junk)], *frames[4:]])
        case "strange":
            junk = [b": ping\n\n", b'data: {"type":"new"}\n\n']
            return Reply(body=[*frames[:4], junk[number % len(junk)], *frames[4:]])
        case "cut" | "reset" | "stalled":
            middle = encode_events(frames).index(words_of(number)[WORDS // 2].strip().encode()) + 2
            if case == "stalled":
                return Reply(body=frames, stall_after_bytes=middle)
            return Reply(body=frames, cut_after_bytes=middle, cut="reset" if case == "reset" else "close")
        case "slow_reader" | "leaving" | "cancelled":
            return Reply(body=frames, pace_s=0.002)
        case _:
            return reply


async def serve() -> None:
    """Serves until standard input ends. The first line of standard output is the port."""
    attempts: Counter[bytes] = Counter()
    async with FakeProvider() as fake:

        def answer(request: Received) -> Reply:
            fake.requests.clear()
            return served(attempts, request)

        fake.on("POST", "*", answer)
        print(fake.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


# The users' process


class Sample(Struct, frozen=True):
    """What is held at one moment."""

    tasks: int
    sockets: int
    descriptors: int
    memory_mb: float
    server_memory_mb: float


class Soak:
    """One soak: what was run, what came out wrong, and what was held meanwhile."""

    def __init__(self, port: int, server_pid: int, seed: int) -> None:
        self.runs: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[Sample] = []
        self._looked_up: Counter[str] = Counter()
        self._server_pid = server_pid
        self._random = Random(seed)
        self._number = 0

        def look_up(prompt: str) -> str:
            """Looks something up. Where a session goes on, the next request has only this result, and no prompt."""
            self._looked_up[prompt] += 1
            return prompt

        self._agents = {
            api: Agent(
                model,
                base_url=f"http://127.0.0.1:{port}{base_path}",
                api_key="unused",
                transport=HttpTransport(retry=AT_ONCE),
                tools=[look_up],
            )
            for api, (model, base_path) in MODELS.items()
        }

    async def user(self, until: float) -> None:
        """Sends one prompt after the other, each with another fate."""
        while time.monotonic() < until:
            self._number += 1
            number = self._number
            # In turn, so that every case occurs however short the time is.
            case, api = [*CASES][number % len(CASES)], self._random.choice([*MODELS])
            problem = await self._send(case, api, number)
            self.runs[case] += 1
            if problem:
                self.wrong.append(f"{case} of {api}, number {number}: {problem}")

    async def _send(self, case: str, api: str, number: int) -> str | None:
        """Sends one prompt. Returns what is wrong with the answer."""
        prompt = f"case:{case}:{api}:{number}"
        received: list[str] = []
        error: Exception | None = None
        try:
            async with asyncio.timeout(0.001 * (number % 50) if case == "cancelled" else None):
                await self._read(self._agents[api], prompt, case, received)
        except (RunError, TimeoutError) as caught:
            error = caught
        text, expected, kind = "".join(received), "".join(words_of(number)), CASES[case]
        if case == "tool" and self._looked_up.pop(prompt, 0) != 1:
            return "the tool did not run exactly once"
        if not expected.startswith(text):
            return f"text that was not sent: {text!r}"
        if case in ("leaving", "cancelled"):
            return None
        if kind is not None:
            return None if isinstance(error, kind) else f"ended with {error!r}, not with {kind.__name__}"
        return None if error is None and text == expected else f"{error!r} after {len(received)} of {WORDS} words"

    async def _read(self, agent: Agent[str], prompt: str, case: str, received: list[str]) -> None:
        async with agent.stream(prompt, limits=IMPATIENT if case == "stalled" else PATIENT) as run:
            async for part in run:
                if isinstance(part, TextDelta):
                    received.append(part.delta)
                    if case == "slow_reader":
                        await asyncio.sleep(0.005)
                    if case == "leaving" and len(received) == WORDS // 3:
                        return

    async def watch(self, interval_s: float, until: float) -> None:
        while time.monotonic() < until - interval_s:
            await asyncio.sleep(interval_s)
            self.samples.append(self.sample())

    def sample(self) -> Sample:
        names = os.listdir("/proc/self/fd")
        targets = [target for name in names if (target := _target(name))]
        sockets = sum(target.startswith("socket:") for target in targets)
        tasks = len(asyncio.all_tasks())
        return Sample(tasks, sockets, len(targets), _memory_mb("self"), _memory_mb(str(self._server_pid)))

    def drifts(self, streams: int, before: Sample, after: Sample) -> list[str]:
        """What was not flat."""
        found = [
            f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
            for name in ("tasks", "sockets", "descriptors")
            if getattr(after, name) > getattr(before, name)
        ]
        for name in ("memory_mb", "server_memory_mb"):
            early, late = self.medians(name)
            if late > early * GROWTH + GROWTH_MB:
                found.append(f"{name}: {early:.0f} early, {late:.0f} late")
        # Each stream has one connection, one task of its own and one of its user.
        for name, most in (("sockets", 2 * streams), ("tasks", 3 * streams)):
            if max(getattr(sample, name) for sample in self.samples) > most + 50:
                found.append(f"{name}: more than {most} at a time")
        return found

    def medians(self, name: str) -> tuple[float, float]:
        """The second quarter of the time, when everything is warm, and the last."""
        values = [getattr(sample, name) for sample in self.samples]
        quarter = max(len(values) // 4, 1)
        return median(values[quarter : 2 * quarter] or values), median(values[-quarter:])

    def report(self, streams: int, seconds: float, before: Sample, after: Sample) -> str:
        lines = [
            f"{self.runs.total():,} runs, {streams} at a time, in {seconds:.0f} s; {len(self.wrong)} wrong",
            ", ".join(f"{case} {count:,}" for case, count in sorted(self.runs.items())),
            f"{'':<18}{'before':>9}{'early':>9}{'late':>9}{'peak':>9}{'after':>9}",
        ]
        for name in Sample.__struct_fields__:
            early, late = self.medians(name)
            peak = max(getattr(sample, name) for sample in self.samples)
            figures = (getattr(before, name), early, late, peak, getattr(after, name))
            lines.append(f"{name:<18}" + "".join(f"{figure:>9.0f}" for figure in figures))
        return "\n".join(lines)


def _target(descriptor: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None  # The descriptor of the listing itself.


def _memory_mb(process: str) -> float:
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


@contextmanager
def server() -> Generator[tuple[int, int]]:
    """A fake provider in its own process: its port and its process id."""
    command = [sys.executable, "-m", "hostile.soak", "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


async def soaked(port: int, server_pid: int, *, streams: int, seconds: float, seed: int) -> tuple[str, list[str]]:
    """Soaks for so long. Returns the figures, and what is wrong with them."""
    soak = Soak(port, server_pid, seed)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: soak.wrong.append(context["message"]))
    before, began = soak.sample(), time.monotonic()
    until = began + seconds
    await asyncio.gather(soak.watch(min(1.0, seconds / 20), until), *(soak.user(until) for _ in range(streams)))
    await close_session()
    gc.collect()
    for _ in range(100):  # Connections that were reset take a moment to be gone.
        if soak.sample().sockets <= before.sockets:
            break
        await asyncio.sleep(0.05)
    after = soak.sample()
    figures = soak.report(streams, time.monotonic() - began, before, after)
    return figures, [*soak.wrong, *soak.drifts(streams, before, after)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.serve:
        asyncio.run(serve())
        return 0
    print(f"seed {options.seed}, {options.streams} streams at a time, {options.seconds:.0f} s", flush=True)
    with server() as (port, pid):
        figures, problems = asyncio.run(
            soaked(port, pid, streams=options.streams, seconds=options.seconds, seed=options.seed)
        )
    print(figures)
    for problem in problems[:20]:
        print(f"WRONG {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

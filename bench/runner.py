"""Runs cases: starts the server and the workers, runs all ways in interleaved rounds, and checks their results."""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.cases import Case, Way
from bench.environments import ROOT
from bench.processes import environment

PATHS = {
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/v1beta/models/bench:streamGenerateContent?alt=sse",
    "chat": "/v1/chat/completions",
}
TIMEOUT_S = 120.0
_GRACE_S = 20.0
"""Seconds beyond its timeout after which a task's process is killed."""

Sample = dict[str, Any]


class FailedError(Exception):
    """A way failed or returned a wrong result."""


class Worker:
    """A process that runs the tasks of one way."""

    def __init__(self, python: Path, module: str) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "bench.worker", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(ROOT),
        )
        self._errors: list[str] = []
        self._reading = threading.Thread(target=self._read_errors, daemon=True)
        self._reading.start()
        self._read_result(TIMEOUT_S)

    def run(self, task: dict[str, Any]) -> Sample:
        """Run a task and return its result. Raises FailedError if the task fails."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise FailedError("its process has ended") from None
        result = self._read_result(task.get("timeout_s", TIMEOUT_S) + _GRACE_S)
        if "error" in result:
            raise FailedError(result["error"])
        return result

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        # A child of the worker may outlive it and keep its stderr open, which must not block this process.
        self._reading.join(_GRACE_S)
        if not self._reading.is_alive() and self.process.stderr is not None:
            self.process.stderr.close()

    def _read_result(self, within_s: float) -> Sample:
        assert self.process.stdout is not None
        timer = threading.Timer(within_s, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        if not line:
            self.process.wait()
            raise FailedError(f"its process has ended: {' '.join(self._errors[-3:])[-300:]}")
        return json.loads(line)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors = [*self._errors[-20:], line.strip()]


def _repeats(case: Case, way: Way, *, is_warm_up: bool) -> int:
    return 1 if is_warm_up or way.peer is not None else case.repeats


class Bench:
    """The replay server and the workers that it serves."""

    def __init__(self, peers: dict[str, Path], report: Callable[[str], None], *, is_quick: bool = False) -> None:
        self._peers = peers
        self._report = report
        self._is_quick = is_quick
        self._workers: dict[tuple[str | None, str, str], Worker] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="sidestream-bench-")
        self._store: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "bench.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(ROOT),
        )
        assert self._server.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._server.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._folder.cleanup()

    def run(self, case: Case) -> tuple[dict[str, list[Sample]], dict[str, str]]:
        """Run a case, and return the samples of each way and the errors of failed ways."""
        ways = [way for way in case.ways if way.peer is None or way.peer in self._peers]
        samples: dict[str, list[Sample]] = {way.key: [] for way in ways}
        failed: dict[str, str] = {}
        measure = _KINDS[case.kind]
        rounds = min(case.rounds, 2) if self._is_quick else case.rounds
        # Rounds up to 0 are warm-ups. If each measurement has its own process, it warms up itself.
        for number in range(1 if case.is_fresh else 1 - case.warm_ups, rounds + 1):
            for way in ways:
                most = rounds if way.peer is None else min(rounds, case.peer_rounds)
                if way.key in failed or number > most or (way.peer is not None and number < 0):
                    continue
                self._report(f"{case.name}: {f'round {number} of {most}' if number > 0 else 'warming up'}, {way.key}")
                try:
                    sample = measure(self, case, way, is_warm_up=number <= 0)
                except FailedError as error:
                    failed[way.key] = str(error)
                    self._discard_worker(way)
                    continue
                if number > 0:
                    samples[way.key].append(sample)
        return samples, failed

    def play(self, case: Case, way: Way, *, is_warm_up: bool) -> Sample:
        """Have a worker play one or many streams."""
        wire = way.task.get("wire", case.wire)
        name = self._payload(case, way)
        if is_warm_up and case.warm_payload:
            name = case.warm_payload
        task = {**case.task, "player": way.player, "wire": wire, "mode": case.mode, "url": f"{self.url}/{name}"}
        task["repeats"] = _repeats(case, way, is_warm_up=is_warm_up)
        if case.mode == "paced":
            task["streams"], task["deltas"] = int(name.split("-")[1]), int(name.split("-")[3])
        expected = self.about(wire, name)
        if case.is_fresh:
            result = self._in_new_process(way, task, f"{self.url}/{case.warm_payload}")
        else:
            result = self._worker(way).run(task)
        result.setdefault("events", expected["events"])
        if "chars" in result and result["chars"] != expected["chars"]:
            raise FailedError(f"it saw {result['chars']} of {expected['chars']} characters")
        if case.mode == "paced":
            due = task["streams"] * (task["deltas"] - 1)
            if result["events"] != due:
                raise FailedError(f"it saw {result['events']} of {due} events")
        return result

    def program(self, case: Case, way: Way, *, is_warm_up: bool) -> Sample:
        """Have a worker run a way's own program."""
        task = {**case.task, **way.task, "url": f"{self.url}/{self._payload(case, way)}"}
        task["repeats"] = _repeats(case, way, is_warm_up=is_warm_up)
        if task["program"] == "open-log":
            task |= self._filled_store(task)
        elif task["program"] == "relay":
            task |= self.about(case.wire, self._payload(case, way))
        elif task["program"] in ("relay-lag", "worker-lag"):
            task["streams"], task["deltas"] = (int(self._payload(case, way).split("-")[place]) for place in (1, 3))
        result = self._in_new_process(way, task) if case.is_fresh else self._worker(way).run(task)
        check_seen(task, result)
        return result

    def import_(self, case: Case, way: Way, *, is_warm_up: bool) -> Sample:
        """Measure an import in a new process."""
        around = (
            "import time; cpu, wall = time.process_time(), time.perf_counter(); {}; "
            "cpu, wall = time.process_time() - cpu, time.perf_counter() - wall; "
            "import json; print(json.dumps({{'cpu_s': cpu, 'wall_s': wall}}))"
        )
        return self._spawned(way, ["-W", "ignore", "-c", around.format(way.statement)])

    def cold(self, case: Case, way: Way, *, is_warm_up: bool) -> Sample:
        """Measure a program in a new process, from its first line to the first text."""
        url = f"{self.url}/{self._payload(case, way)}"
        return self._spawned(way, ["-W", "ignore", "-m", "bench.cold", way.module, way.player, case.wire, url])

    def command(self, case: Case, way: Way, *, is_warm_up: bool) -> Sample:
        """Measure a whole process: a Python statement, or the command line with a prompt."""
        if way.key == "floor":
            return self._whole([sys.executable, "-c", way.statement])
        name = self._payload(case, way)
        command = [str(Path(sys.executable).with_name("sidestream")), "--log", "--model", "openai-responses"]
        command += ["--base-url", f"{self.url}/{name}/v1", "--store", f"{self._folder.name}/command.db", way.statement]
        result = self._whole(command)
        if result["chars"] != (chars := self.about(case.wire, name)["chars"]):
            raise FailedError(f"it printed {result['chars']} of {chars} characters")
        return result

    def _whole(self, command: list[str]) -> Sample:
        """Run a process, and return its CPU and wall time and the number of characters that it printed."""
        before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = self._finished(command, {**environment(ROOT), "HOME": self._folder.name})
        wall_s, after = time.perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return {"cpu_s": cpu_s, "wall_s": wall_s, "chars": len(done.stdout.removesuffix("\n"))}

    def about(self, wire: str, name: str) -> dict[str, int]:
        """Return the numbers of events and characters of a payload, and make the server render it."""
        with urllib.request.urlopen(f"{self.url}/about/{name}{PATHS[wire]}", timeout=TIMEOUT_S) as response:
            return json.load(response)

    def _payload(self, case: Case, way: Way) -> str:
        return way.payload or (case.quick_payload if self._is_quick and case.quick_payload else case.payload)

    def _python(self, way: Way) -> Path:
        return Path(sys.executable) if way.peer is None else self._peers[way.peer]

    def _worker(self, way: Way) -> Worker:
        key = (way.peer, way.module, way.player)
        if key not in self._workers:
            self._workers[key] = Worker(self._python(way), way.module)
        return self._workers[key]

    def _discard_worker(self, way: Way) -> None:
        """Close the worker of a failed way, whose process must not be measured again."""
        worker = self._workers.pop((way.peer, way.module, way.player), None)
        if worker is not None:
            worker.close()

    def _in_new_process(self, way: Way, task: dict[str, Any], warm_url: str = "") -> Sample:
        worker = Worker(self._python(way), way.module)
        try:
            if warm_url:
                worker.run({**task, "url": warm_url})
            return worker.run(task)
        finally:
            worker.close()

    def _spawned(self, way: Way, arguments: list[str]) -> Sample:
        done = self._finished([str(self._python(way)), *arguments], environment(ROOT))
        if not done.stdout.strip():
            raise FailedError("no output")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def _finished(self, command: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        """Run a process to its end. Raises FailedError if it fails or takes too long."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise FailedError("it took too long") from None
        if done.returncode:
            raise FailedError(done.stderr.strip()[-300:] or f"it exited with {done.returncode}")
        return done

    def _filled_store(self, task: dict[str, Any]) -> dict[str, Any]:
        if not self._store:
            path = f"{self._folder.name}/log.db"
            names = [f"talk-{number}" for number in range(5)]
            fill = {**task, "program": "fill-log", "store": path, "conversations": names}
            made = self._in_new_process(Way("fill", "", "ours"), fill)
            self._store = {"store": path, "records": made["records"], "messages": made["messages"]}
        return self._store


_KINDS: dict[str, Callable[..., Sample]] = {
    "play": Bench.play,
    "program": Bench.program,
    "import": Bench.import_,
    "cold": Bench.cold,
    "command": Bench.command,
}


def check_seen(task: dict[str, Any], result: Sample) -> None:
    """Check that a program received everything. Raises FailedError if it did not."""
    match task["program"]:
        case "loop" | "adding" | "mcp-bare":
            if result["calls"] != 20:
                raise FailedError(f"it made {result['calls']} of 20 calls")
        case "history":
            if f"messages={task['messages'] + 1} " not in result["said"]:
                raise FailedError(f"the server saw other messages: {result['said']}")
        case "history-session":
            if "messages=1 " not in result["said"]:
                raise FailedError(f"the session was not used: {result['said']}")
        case "relay":
            if result["chars"] != task["chars"]:
                raise FailedError(f"it passed on {result['chars']} of {task['chars']} characters")
        case "relay-lag" | "worker-lag":
            seen = min(result["events"], result.get("safe_events", result["events"]))
            if seen != (due := task["streams"] * (task["deltas"] - 1)):
                raise FailedError(f"it passed on {seen} of {due} events")
        case "claims":
            if result["runs"] != task["runs"]:
                raise FailedError(f"it drove {result['runs']} of {task['runs']} runs")
        case "sandbox-cold" | "sandbox-warm":
            if result["logs"] != (due := "1\n" if task["program"] == "sandbox-cold" else f"{task['cells']}\n"):
                raise FailedError(f"the code printed {result['logs']!r}, not {due!r}")
        case "sandbox-many":
            if result["worked"] != task["containers"]:
                raise FailedError(f"{result['worked']} of {task['containers']} containers worked")
        case "open-log":
            if result["records"] != task["records"] or result.get("messages", task["messages"]) != task["messages"]:
                raise FailedError(f"it read {result['records']} records and {result.get('messages')} messages")

"""`sidestream worker` and `sidestream runs`, as processes that share a store."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from cli.command import COMMAND, KEY, Run
from requirements import requirement
from sidestream import Agent
from sidestream.durable.client import RunClient
from sidestream.durable.engines import open_engine
from sidestream.parts import TextDelta
from sidestream.store import open_store
from sidestream.store.protocol import SharedStore
from sidestream.store.records import Segment
from sidestream.store.wrapped import shared
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.places import ROOT
from support.serving import printed_address
from support.warm import Warm

BOUND_S = 60.0
AGENT = """
import os
from sidestream import Agent

agent = Agent("openai-responses:gpt-5", base_url=os.environ["FAKE"], api_key="none")
"""

LOOK = """
def look() -> str:
    '''Looks.'''
    return "seen"
"""

Start = Callable[..., "Worker"]


class Worker:
    """A worker's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stderr is not None
        self.health = process.stderr.readline().strip()
        self.announcement = process.stderr.readline().strip()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.health.replace("/health", path), timeout=BOUND_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
async def fake() -> AsyncGenerator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SharedStore]:
    opened = shared(open_store(tmp_path / "runs.db"))
    yield opened
    await opened.aclose()


@pytest.fixture
async def client(store: SharedStore, fake: FakeProvider) -> AsyncGenerator[RunClient]:
    engine = open_engine("embedded", store, lease_s=2.0)
    agent = Agent("openai-responses:gpt-5", base_url=fake.base_url, api_key="none")
    yield RunClient(agent, "support@2", store=store, engine=engine)
    await engine.aclose()
    await agent.aclose()


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str], fake: FakeProvider):
    """Starts a worker that knows one agent."""
    (tmp_path / "shop.py").write_text(AGENT)
    started: list[Worker] = []

    def one(*args: str) -> Worker:
        options = ["--store", "runs.db", "--agent", "support@2=shop:agent", "--lease", "2s", "--health-port", "0"]
        process = Warm(
            [*COMMAND, "worker", *options, *args],
            env={**environment, "FAKE": fake.base_url},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Worker(process))
        return started[-1]

    yield one
    for worker in started:
        worker.process.kill()
        worker.process.wait(BOUND_S)
        assert worker.process.stderr is not None
        assert KEY not in worker.process.stderr.read()
        worker.process.stderr.close()


async def text_of(client: RunClient, conversation: str = "talk") -> str:
    """The text of a run, followed to its end. The last attempt of a step counts."""
    text = ""
    async with asyncio.timeout(BOUND_S):
        async for record in client.follow(conversation):
            if record.kind == "step-start":
                text = ""
            parts = record.body.parts if isinstance(record.body, Segment) else ()
            text += "".join(part.delta for part in parts if isinstance(part, TextDelta))
    return text


async def in_thread(call: Callable[..., object], *args: object, **options: object):
    return await asyncio.to_thread(call, *args, **options)


@requirement("R160")
async def test_worker_executes_queued_runs_and_reports_health(start: Start, client: RunClient, fake: FakeProvider):
    fake.add(ResponsesScript().text("Two to four days.").reply())
    worker = await in_thread(start)
    assert worker.announcement == "executing support@2; up to 50 runs at once; press Ctrl-C to stop"
    run = await client.start("talk", "How long does it take?")
    assert await text_of(client) == "Two to four days."

    status, body = await in_thread(worker.ask, "/health")
    found = json.loads(body)
    assert (status, found["status"], found["queues"], found["slots"]) == (200, "ok", ["support@2"], 50)
    assert found["engine"]["queued"] == 0
    for path in ("/readyz", "/healthz"):
        status, body = await in_thread(worker.ask, path)
        assert (status, json.loads(body)) == (200, {"status": "ok"})
    status, body = await in_thread(worker.ask, "/metrics")
    assert status == 200
    assert "# TYPE sidestream_takeovers gauge\nsidestream_takeovers 0\n" in body
    assert run.startswith("run_")
    worker.process.send_signal(signal.SIGTERM)
    assert await in_thread(worker.process.wait, BOUND_S) == 0


@requirement("R161")
async def test_stopped_worker_hands_off_its_runs(start: Start, client: RunClient, fake: FakeProvider):
    script, gate = ResponsesScript().text(["Two ", "to ", "four ", "days."]), asyncio.Event()
    events = script.events()
    fake.add(sse([*events[:6], gate, *events[6:]]), script.reply())
    worker = await in_thread(start, "--drain", "0.1s")
    await client.start("talk", "How long does it take?")
    async with asyncio.timeout(BOUND_S):
        async for record in client.follow("talk"):
            if record.kind == "text-delta":
                break
    worker.process.send_signal(signal.SIGTERM)
    assert await in_thread(worker.process.wait, BOUND_S) == 0
    await in_thread(start)
    assert await text_of(client) == "Two to four days."
    assert len(fake.requests) == 2


@requirement("R161")
async def test_second_signal_hands_off_runs_at_once(start: Start, client: RunClient, fake: FakeProvider):
    script, gate = ResponsesScript().text(["Two ", "to ", "four ", "days."]), asyncio.Event()
    fake.add(sse([*script.events()[:6], gate]), script.reply())
    worker = await in_thread(start, "--drain", "1h")
    await client.start("talk", "How long does it take?")
    async with asyncio.timeout(BOUND_S):
        async for record in client.follow("talk"):
            if record.kind == "text-delta":
                break
    worker.process.send_signal(signal.SIGINT)
    said = await in_thread(worker.process.stderr.readline)
    assert said == "stopping: runs in progress (1) have 3600 s to finish; a second signal hands them off now\n"
    status, body = await in_thread(worker.ask, "/health")
    assert (status, json.loads(body)["status"]) == (503, "draining")
    worker.process.send_signal(signal.SIGTERM)
    assert await in_thread(worker.process.wait, BOUND_S) == 0
    await in_thread(start)
    assert await text_of(client) == "Two to four days."


async def test_runs_are_listed_shown_tailed_stopped_and_resumed(
    start: Start, client: RunClient, fake: FakeProvider, sidestream: Run
):
    script, gate = ResponsesScript().text(["Two ", "days."]), asyncio.Event()
    fake.add(sse([*script.events()[:6], gate]), script.reply())
    at = ("--store", "runs.db")
    done = await in_thread(sidestream, "runs", "list", *at)
    assert (done.returncode, done.stdout) == (0, "")
    assert "No runs in progress" in done.stderr

    worker = await in_thread(start)
    run = await client.start("talk", "How long does it take?")
    async with asyncio.timeout(BOUND_S):
        async for record in client.follow("talk"):
            if record.kind == "text-delta":
                break
    done = await in_thread(sidestream, "runs", "list", *at)
    assert re.fullmatch(
        rf"{run}  \S+ \S+  unfinished  support@2 +\S+:{worker.process.pid} +openai-responses:gpt-5 +How long does it take\?\n",
        done.stdout,
    )
    done = await in_thread(sidestream, "runs", "show", run, "--json", *at)
    shown = json.loads(done.stdout)
    assert (shown["id"], shown["status"], shown["starts"]) == (run, "unfinished", 2)
    assert shown["job"] == {"agent": "support@2", "attempt": 1}

    done = await in_thread(sidestream, "runs", "cancel", run, *at)
    assert (done.returncode, done.stdout) == (0, f"{run} was stopped\n")
    done = await in_thread(sidestream, "runs", "show", "talk", *at)
    assert re.search(r"^status: +cancelled: it was stopped before its end$", done.stdout, re.MULTILINE)
    done = await in_thread(sidestream, "runs", "cancel", run, *at)
    assert "The run is already cancelled." in done.stderr

    done = await in_thread(sidestream, "runs", "resume", run, *at)
    assert done.stdout == f"{run} is queued for a worker with the agent support@2\n"
    assert await text_of(client) == "Two days."
    done = await in_thread(sidestream, "runs", "resume", run, *at)
    assert done.returncode == 2
    assert "there is nothing to resume" in done.stderr
    shown = await in_thread(sidestream, "runs", "tail", run, *at)
    assert (shown.returncode, "Two days." in shown.stdout) == (0, True)
    last = await in_thread(sidestream, "runs", "tail", run, "--after", "10000", *at)
    assert (last.returncode, last.stdout) == (0, "")


async def test_tail_ends_with_run_in_progress(start: Start, client: RunClient, fake: FakeProvider, sidestream: Run):
    fake.add(ResponsesScript().text("Two days.").reply())
    run = await client.start("talk", "How long does it take?")
    tail = asyncio.create_task(in_thread(sidestream, "runs", "tail", run, "--store", "runs.db", "--json"))
    await in_thread(start)
    done = await tail
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, records[-1]["kind"]) == (0, "finish")


@pytest.mark.parametrize(("verb", "output"), [(["approve"], "seen"), (["deny", "--reason", "Not now."], "Not now.")])
async def test_pending_call_is_decided_and_run_continues(
    start: Start,
    client: RunClient,
    fake: FakeProvider,
    sidestream: Run,
    tmp_path: Path,
    verb: list[str],
    output: str,
):
    (tmp_path / "shop.py").write_text(LOOK + AGENT.replace("none", 'none", tools=[look], approval="ask'))
    fake.add(ResponsesScript().function_call("look", {}, "c1").reply(), ResponsesScript().text("Done.").reply())
    at = ("--store", "runs.db")
    await in_thread(start)
    run = await client.start("talk", "Look.")
    done = await in_thread(sidestream, "runs", "tail", run, *at)
    assert (done.returncode, f"sidestream runs approve {run}" in done.stderr) == (3, True)
    done = await in_thread(sidestream, "runs", "approve", run, "approval_0", *at)
    assert (done.returncode, "does not wait for 'approval_0'" in done.stderr) == (2, True)
    done = await in_thread(sidestream, "runs", verb[0], run, *verb[1:], *at)
    word = "approved" if verb[0] == "approve" else "denied"
    assert re.fullmatch(rf"{word}: look \(approval_\w+\)\n", done.stdout), done.stderr
    assert await text_of(client) == "Done."
    assert output in json.dumps(fake.requests[-1].json)
    done = await in_thread(sidestream, "runs", *verb, run, *at)
    assert (done.returncode, "does not wait for a decision" in done.stderr) == (2, True)


async def test_unclaimed_run_is_shown_as_queued_or_scheduled(client: RunClient, sidestream: Run):
    at = ("--store", "runs.db")
    queued = await client.start("now", "How long does it take?")
    scheduled = await client.start("later", "And now?", at=4e9)
    done = await in_thread(sidestream, "runs", "list", *at)
    assert [line.split()[0::3][:2] for line in done.stdout.splitlines()] == [
        [scheduled, "scheduled"],
        [queued, "queued"],
    ]
    done = await in_thread(sidestream, "runs", "list", "-n", "1", *at)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "There are more than 1 runs. Use -n to show more.\n")
    done = await in_thread(sidestream, "runs", "show", scheduled, *at)
    assert re.search(r"^status: +scheduled: it starts at 2096-10-02 \S+$", done.stdout, re.MULTILINE)
    done = await in_thread(sidestream, "runs", "show", scheduled, "--json", *at)
    assert json.loads(done.stdout)["job"] == {"agent": "support@2", "attempt": 0, "at": 4e9}
    done = await in_thread(sidestream, "runs", "resume", scheduled, *at)
    assert (done.stdout, "is scheduled" in done.stderr) == ("", True)
    for run in (queued, scheduled):
        done = await in_thread(sidestream, "runs", "cancel", run, *at)
        assert done.stdout == f"{run} was stopped\n"


@requirement("R160")
async def test_run_awaiting_decision_is_cancelled(
    start: Start, client: RunClient, fake: FakeProvider, sidestream: Run, tmp_path: Path
):
    (tmp_path / "shop.py").write_text(LOOK + AGENT.replace("none", 'none", tools=[look], approval="ask'))
    fake.add(ResponsesScript().function_call("look", {}, "c1").reply())
    await in_thread(start)
    run = await client.start("talk", "Look.")
    assert await text_of(client) == ""
    done = await in_thread(sidestream, "runs", "show", run, "--store", "runs.db")
    assert re.search(r"^waits for approval_\w+: look", done.stdout, re.MULTILINE)
    done = await in_thread(sidestream, "runs", "cancel", run, "--store", "runs.db")
    assert done.stdout == f"{run} was stopped\n"
    done = await in_thread(sidestream, "runs", "show", run, "--store", "runs.db")
    assert "status:        cancelled" in done.stdout
    assert "waits for" not in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["worker", "--engine", "rabbits"], "is not an engine"),
        (["worker", "--agent", "nothing:agent"], "no module 'nothing'"),
        (["worker", "--agent", "json:loads"], "not an Agent"),
        (["worker", "--agent", "json:loads=x"], "x"),
        (["worker", "--drain", "soon"], "is not a number with a unit"),
        (["runs", "show", "run_1"], "no conversation 'run_1'"),
    ],
)
def test_invalid_worker_or_runs_argument_is_named(sidestream: Run, args: list[str], message: str):
    done = sidestream(*args, "--store", "runs.db")
    assert done.returncode == 2
    assert message in done.stderr


@requirement("R161")
async def test_example_survives_kill_during_answer():
    command = [sys.executable, str(ROOT / "examples" / "durable.py")]
    done = await in_thread(subprocess.run, command, capture_output=True, text=True, timeout=BOUND_S)
    assert re.fullmatch(r"gapless: \d+ parts, 1 takeover, 3 processes", done.stdout.splitlines()[-1]), done.stderr


def test_server_offers_each_given_model(tmp_path: Path, environment: dict[str, str]):
    models = ["openai-responses:gpt-a", "openai:gpt-b"]
    options = [word for model in models for word in ("-m", model)]
    command = [*COMMAND, "serve", *options, "--port", "0", "--store", "runs.db"]
    process = Warm(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address, token = printed_address(process.stdout.readline())
        assert process.stderr.readline() == f"models: {', '.join(models)}; press Ctrl+C to stop the server\n"
        request = urllib.request.Request(f"{address}api/models", headers=token)
        with urllib.request.urlopen(request, timeout=BOUND_S) as response:
            offered = json.load(response)["models"]
        assert set(models) <= {entry["name"] for entry in offered}
        assert [entry["name"] for entry in offered if entry["default"]] == models[:1]
    finally:
        process.kill()
        process.communicate(timeout=BOUND_S)


def test_server_serves_given_agents(tmp_path: Path, environment: dict[str, str]):
    (tmp_path / "shop.py").write_text(AGENT)
    command = [*COMMAND, "serve", "--agent", "support@2=shop:agent", "--port", "0", "--store", "runs.db"]
    process = Warm(
        command,
        env={**environment, "FAKE": "http://127.0.0.1:9/v1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address, token = printed_address(process.stdout.readline())
        assert process.stderr.readline() == "agents: support@2; press Ctrl+C to stop the server\n"
        request = urllib.request.Request(f"{address}v1/models", headers=token)
        with urllib.request.urlopen(request, timeout=BOUND_S) as response:
            assert [entry["id"] for entry in json.load(response)["data"]] == ["support@2"]
    finally:
        process.kill()
        process.communicate(timeout=BOUND_S)

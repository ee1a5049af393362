"""The engine on Temporal, beyond what every engine must do."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from requirements import requirement
from sidestream.durable.engines.protocol import EngineError, Outcome, Task
from sidestream.durable.engines.temporal import TemporalEngine, engine as figures, workflow
from sidestream.durable.engines.temporal.address import parse_address
from sidestream.durable.engines.temporal.engine import SANDBOX
from sidestream.errors import ConfigurationError
from sidestream.text.redaction import redact
from support.children import started
from support.engines import SLACK_S, Driven, until_stats, working
from support.temporal_server import arguments, await_server, free_port

CHILD = Path(__file__).with_name("temporal_child.py")
HISTORIES = Path(__file__).with_name("histories")
LEASE_S = 6.0
"""Of the processes that are killed. On a busy machine they are silent for a second or two now and then."""
TASK = Task(conversation="someone/talk", position=1)


@pytest.fixture
def url(temporal_server: str) -> str:
    return f"temporal://{temporal_server}/default?prefix=test-{secrets.token_hex(6)}"


@asynccontextmanager
async def engine_at(url: str, lease_s: float = 4.0) -> AsyncGenerator[TemporalEngine]:
    engine = TemporalEngine(None, url, lease_s=lease_s)
    try:
        yield engine
    finally:
        await engine.aclose()


# Processes that die


class Said(NamedTuple):
    word: str
    conversation: str
    token: str
    is_takeover: bool
    at_s: float


class Child(NamedTuple):
    process: subprocess.Popen[str]

    def says(self, word: str) -> Said:
        """The next line that begins with this word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found, conversation, token, is_takeover, at_s = line.split()
            if found == word:
                return Said(found, conversation, token, is_takeover == "1", float(at_s))
        raise AssertionError(f"the worker has ended without {word!r}")


@contextmanager
def child(url: str) -> Generator[Child]:
    with started(
        sys.executable, str(CHILD), url, str(LEASE_S), stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        yield Child(process)


@requirement("R161")
@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGSTOP])
async def test_task_of_dead_or_hung_process_moves_within_two_leases(url: str, ends_by: signal.Signals):
    async with engine_at(url, LEASE_S) as engine:
        with child(url) as first:
            await engine.enqueue(TASK)
            old = await asyncio.to_thread(first.says, "claimed")
            with child(url) as second:
                await asyncio.to_thread(first.says, "beat")
                await until_stats(engine, running=1)
                first.process.send_signal(ends_by)
                ended_s = time.monotonic()
                new = await asyncio.to_thread(second.says, "claimed")
                assert new.at_s - ended_s < 2 * LEASE_S + SLACK_S
                assert new.is_takeover
                assert new.token > old.token
                assert new.conversation == old.conversation == TASK.conversation
                if ends_by == signal.SIGSTOP:
                    first.process.send_signal(signal.SIGCONT)
                    lost = await asyncio.to_thread(first.says, "lost")
                    assert lost.token == old.token
                await asyncio.to_thread(second.says, "beat")


@requirement("R160")
async def test_terminated_process_hands_off_its_task_at_once(url: str):
    async with engine_at(url, 60.0) as engine:
        first, second = Driven(), Driven()
        await engine.enqueue(TASK)
        async with working(engine, first):
            await first.claimed()
        async with engine_at(url, 60.0) as other, working(other, second):
            [new] = await second.claimed()
            assert new.token > first.claims[0].token
            second.end(Outcome(position=2))
            await until_stats(engine, running=0, queued=0, waiting=0)


# What the workflow does


@requirement("R160")
async def test_history_stays_bounded_without_losing_state(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workflow, "MAX_EVENTS", 30)
    async with engine_at(url) as engine:
        driven = Driven()
        await engine.enqueue(TASK)
        async with working(engine, driven):
            for number in range(1, 8):
                await driven.claimed(number)
                driven.end(Outcome(position=number * 10, is_waiting=True))
                await until_stats(engine, waiting=1)
                await engine.wake(TASK.conversation, number * 10)
            *_, last = await driven.claimed(8)
            tokens = [claim.token for claim in driven.claims]
            assert tokens == sorted({*tokens})
            assert last.task.position == 70
            runs = {run async for run in _runs(engine, url)}
            assert len(runs) > 1
            driven.end(Outcome(position=71))
            await until_stats(engine, running=0, queued=0, waiting=0)


async def _runs(engine: TemporalEngine, url: str) -> AsyncGenerator[str]:
    client = await engine._client()
    async for run in client.list_workflows(f"WorkflowId = '{parse_address(url).prefix}:{TASK.conversation}'"):
        yield run.run_id


@requirement("R160")
async def test_later_task_does_not_wait_for_missing_workers(url: str):
    async with engine_at(url) as engine:
        driven = Driven()
        async with working(engine, driven, "support@2"):
            await engine.enqueue(Task(conversation="talk", position=1, queue="support@1"))
            await until_stats(engine, queued=1)
            await engine.enqueue(Task(conversation="talk", position=4, queue="support@2"))
            [claim] = await driven.claimed()
            assert claim.task == Task(conversation="talk", position=4, queue="support@2")
            driven.end(Outcome(position=5))
            await until_stats(engine, running=0, queued=0, waiting=0)


@requirement("R160")
async def test_worker_with_one_slot_serves_all_its_queues(url: str):
    async with engine_at(url) as engine:
        driven = Driven()
        async with working(engine, driven, "sales", "support", "other", slots=1):
            for number, queue in enumerate(["support", "sales", "other", "support"]):
                await engine.enqueue(Task(conversation=f"talk-{number}", position=1, queue=queue))
            for number in range(1, 5):
                await driven.claimed(number)
                driven.end(Outcome(position=2))
            await until_stats(engine, running=0, queued=0, waiting=0)
        assert driven.most_at_once == 1


@requirement("R160")
async def test_recreated_conversation_is_executed(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.durable.engines.temporal.engine.OVER_S", 0.0)
    async with engine_at(url) as engine:
        driven = Driven()
        async with working(engine, driven):
            await engine.enqueue(Task(conversation="talk", position=9))
            await driven.claimed()
            driven.end(Outcome(position=12))
            await until_stats(engine, running=0, queued=0, waiting=0)
            await engine.enqueue(Task(conversation="talk", position=2))
            _, second = await driven.claimed(2)
            assert second.task.position == 2
            driven.end(Outcome(position=3))
            await until_stats(engine, running=0, queued=0, waiting=0)


@pytest.mark.parametrize(
    "history", [path.read_text() for path in sorted(HISTORIES.glob("*.json"))], ids=lambda text: str(len(text))
)
async def test_histories_of_released_versions_are_replayed(history: str, temporal_server: str):
    from temporalio.client import WorkflowHistory
    from temporalio.worker import Replayer

    with ThreadPoolExecutor(1) as executor:  # The replayer leaves its own one to the garbage collector.
        replayer = Replayer(
            workflows=[workflow.ConversationWorkflow], workflow_runner=SANDBOX, workflow_task_executor=executor
        )
        await replayer.replay_workflow(WorkflowHistory.from_json("talk", history))


def test_histories_to_replay_exist():
    assert {path.stem for path in HISTORIES.glob("*.json")} == {"driven-woken-handed-over", "scheduled-and-moved"}


@requirement("R162")
async def test_stats_count_more_tasks_than_are_described(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "MAX_DESCRIBED", 2)
    async with engine_at(url) as engine:
        for number in range(4):
            await engine.enqueue(Task(conversation=f"talk-{number}", position=1))
        await until_stats(engine, queued=4, running=0, waiting=0)
        for number in range(3):
            await engine.cancel(f"talk-{number}")
        await until_stats(engine, queued=1, running=0, waiting=0)
        await engine.cancel("talk-3")


# Servers


@requirement("R160")
async def test_worker_and_its_run_survive_service_restart(temporal_server: str, tmp_path: Path):
    port = free_port()
    command = arguments(port, "--db-filename", str(tmp_path / "temporal.db"))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    driven = Driven()
    async with engine_at(f"temporal://127.0.0.1:{port}", 2.0) as engine:
        with started(*command, **quiet):
            await asyncio.to_thread(await_server, f"127.0.0.1:{port}")
            await engine.enqueue(TASK)
            work = asyncio.create_task(engine.work(_patient(driven), queues=["models"], slots=2))
            await driven.claimed()
        with started(*command, **quiet):
            await asyncio.to_thread(await_server, f"127.0.0.1:{port}")
            await engine.enqueue(Task(conversation="second", position=1))
            await driven.claimed(2)
            assert not work.done()
            work.cancel()
            await asyncio.wait([work])


def _patient(driven: Driven) -> Any:
    """Drives like a worker: a service that does not answer costs a heartbeat, not the run."""

    class Patient:
        def __init__(self, claim: Any) -> None:
            self._claim = claim

        def __getattr__(self, name: str) -> Any:
            return getattr(self._claim, name)

        async def heartbeat(self) -> None:
            with suppress(EngineError):
                await self._claim.heartbeat()

    return lambda claim: driven(Patient(claim))  # type: ignore[arg-type]


async def test_unresponsive_service_is_named_with_command_to_run(temporal_server: str):
    port = free_port()
    async with engine_at(f"temporal://127.0.0.1:{port}/shop") as engine:
        with pytest.raises(EngineError) as caught:
            await engine.enqueue(TASK)
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert "shop" in str(caught.value)
        assert "temporal server start-dev" in str(caught.value)


async def test_unknown_namespace_fails_every_request(temporal_server: str):
    async with engine_at(f"temporal://{temporal_server}/missing") as engine:
        for request in (engine.enqueue(TASK), engine.wake("talk", 1), engine.cancel("talk"), engine.stats()):
            with pytest.raises(EngineError):
                await request


async def test_environment_key_is_sent_and_redacted(monkeypatch: pytest.MonkeyPatch, temporal_server: str):
    monkeypatch.setenv("TEMPORAL_API_KEY", "temporal-canary-51")
    async with engine_at(f"temporal://{temporal_server}?tls=false") as engine:
        await engine.stats()
    assert "canary" not in redact("the key temporal-canary-51")


# Addresses


@pytest.mark.parametrize(
    ("url", "host", "namespace"),
    [
        ("temporal://127.0.0.1:7400/shop", "127.0.0.1:7400", "shop"),
        ("temporal://temporal.internal", "temporal.internal:7233", None),
        ("temporal://[::1]/a.b", "[::1]:7233", "a.b"),
        ("temporal:///shop", None, "shop"),
    ],
)
def test_url_names_host_and_namespace(url: str, host: str | None, namespace: str | None):
    address = parse_address(url)
    assert (address.host, address.namespace) == (host, namespace)
    assert (address.prefix, address.tls) == ("sidestream", None)


def test_url_has_options():
    address = parse_address("temporal://h/n?prefix=blue&lease=12.5&tls=true")
    assert (address.prefix, address.lease_s, address.tls) == ("blue", 12.5, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7233",
        "temporal://h:port/n",
        "temporal://key-canary-7@h/n",
        "temporal://h/n?lease=0",
        "temporal://h/n?lease=soon",
        "temporal://h/n?tls=maybe",
        "temporal://h/n?api_key=key-canary-7",
    ],
)
def test_invalid_url_is_rejected_without_repeating_secrets(url: str):
    with pytest.raises(ConfigurationError) as caught:
        parse_address(url)
    assert "canary" not in str(caught.value)

"""What only the embedded engine does: direct claims, dead processes, and what it does with rows of its table."""

import subprocess
import sys
from pathlib import Path

import pytest

from sidestream.durable.engines import open_engine
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.embedded.table import Held
from sidestream.durable.engines.embedded.work import LeaseWatch, is_dead, new_owner
from sidestream.durable.engines.protocol import Engine, EngineError, LeaseLostError, Outcome, Task, TaskHeldError
from sidestream.errors import ConfigurationError
from sidestream.store import open_store
from sidestream.store.protocol import SharedStore
from support.engines import LEASE_S, Driven, Fleet, talk, until_stats, working

FLEETS = ("embedded-sqlite", "embedded-postgresql")
TASK = Task(conversation="talk", position=1)
FLEETS = ("embedded-sqlite", "embedded-postgresql")


@pytest.fixture
def engine(fleet: Fleet) -> EmbeddedEngine:
    engine = fleet.another()
    assert isinstance(engine, EmbeddedEngine)
    return engine


@pytest.fixture
def dead_owner() -> str:
    """The name of a worker whose process has ended."""
    program = "from sidestream.durable.engines.embedded.work import new_owner; print(new_owner())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


async def test_process_executing_own_run_holds_claim(fleet: Fleet, engine: EmbeddedEngine, store: SharedStore):
    await talk(store)
    claim = await engine.claim(TASK)
    driven = Driven()
    async with working(fleet.another(), driven):
        await until_stats(engine, running=1)
        await claim.heartbeat()
        with pytest.raises(TaskHeldError):
            await engine.claim(TASK)
        await engine.release(claim, Outcome(position=3, is_waiting=True))
        again = await engine.claim(Task(conversation="talk", position=5))
        assert again.token > claim.token
        with pytest.raises(LeaseLostError):
            await claim.heartbeat()
        await engine.release(again)
        [other] = await driven.claimed()
        assert other.token > again.token
        driven.end(Outcome(position=6))
        await until_stats(engine, running=0, queued=0, waiting=0)


async def test_missing_conversation_cannot_be_executed(engine: EmbeddedEngine, store: SharedStore):
    await talk(store, "other")
    with pytest.raises(EngineError, match="'talk'"):
        await engine.enqueue(TASK)
    with pytest.raises(EngineError, match="'talk'"):
        await engine.claim(TASK)


async def test_deleted_conversation_has_no_task(engine: EmbeddedEngine, store: SharedStore):
    await talk(store)
    claim = await engine.claim(TASK)
    await store.delete("talk")
    with pytest.raises(LeaseLostError):
        await claim.heartbeat()
    await talk(store)
    await engine.enqueue(TASK)
    await until_stats(engine, queued=1)


async def test_token_is_greater_than_fence_of_another_engine(engine: EmbeddedEngine, store: SharedStore):
    await talk(store)
    fence = "fff00000-0000-7000-8000-000000000000"
    await store.fence("talk", fence)
    claim = await engine.claim(TASK)
    assert claim.token > fence
    await store.fence("talk", claim.token)


async def test_tasks_of_dead_local_process_are_taken_over_at_once(
    fleet: Fleet, engine: EmbeddedEngine, store: SharedStore, dead_owner: str
):
    await talk(store)
    claim = await engine.claim(TASK)
    await store.execute("UPDATE {tasks} SET worker = :worker, lease = 1e9", {"worker": dead_owner})
    driven = Driven()
    async with working(fleet.another(), driven):
        [new] = await driven.claimed()
        assert new.is_takeover
        assert (await engine.stats()).takeovers == 1
        with pytest.raises(LeaseLostError):
            await claim.heartbeat()
        driven.end(Outcome(position=2))
        await until_stats(engine, running=0, queued=0)


async def test_always_failing_task_is_abandoned_and_can_be_requeued(engine: EmbeddedEngine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    await store.execute("UPDATE {tasks} SET failures = 11")
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        driven.end(RuntimeError("poison"))
        await until_stats(engine, running=0, queued=0, waiting=0)
        await engine.enqueue(TASK)
        await driven.claimed(2)
        driven.end(RuntimeError("poison"))
        await until_stats(engine, running=0, queued=0, waiting=0)
        await engine.enqueue(Task(conversation="talk", position=2))
        await driven.claimed(3)
        driven.end(Outcome(position=3))
        await until_stats(engine, running=0, queued=0, waiting=0)


async def test_claim_forgotten_by_its_process_is_taken_over(fleet: Fleet, store: SharedStore):
    engine = fleet.another(lease_s=fleet.lease_s)
    assert isinstance(engine, EmbeddedEngine)
    await talk(store)
    claim = await engine.claim(TASK)
    engine.forget(claim)
    driven = Driven()
    async with working(engine, driven):
        [new] = await driven.claimed()
        assert new.is_takeover
        driven.end(Outcome(position=2))
        await until_stats(engine, running=0, queued=0)


def test_owner_is_dead_only_if_its_local_process_ended():
    own = new_owner()
    assert own != new_owner()
    assert not is_dead(own)
    machine, pid, started, random = own.split(":")
    assert is_dead(f"{machine}:{pid}:{int(started) - 1}:{random}")
    assert not is_dead(f"another:{pid}:{int(started) - 1}:{random}")
    assert not is_dead("-:-:-:1")
    assert not is_dead("")


def test_claim_is_unresponsive_when_counter_stalls_for_lease():
    def held(beats: int, lease_s: float = 10.0) -> Held:
        return Held("talk", "t", beats, "w", lease_s)

    leases = LeaseWatch()
    assert leases.silent([held(5)], 100.0, 101.0) == []
    assert leases.silent([held(5)], 110.9, 111.0) == []
    assert leases.silent([held(5)], 111.0, 111.0) == [held(5)]
    assert leases.silent([held(6)], 200.0, 200.0) == []
    assert leases.silent([held(6, 60.0)], 259.0, 260.0) == []
    leases.reset()
    assert leases.silent([held(6)], 300.0, 300.0) == []
    assert leases.silent([], 301.0, 301.0) == []
    assert leases.silent([held(6)], 400.0, 400.0) == []
    assert leases.silent([held(6)], 410.0, 410.0) == [held(6)]


def test_half_lease_suffices_when_database_reports_expiry():
    def held(beats: int, age_s: float) -> Held:
        return Held("talk", "t", beats, "w", 10.0, age_s=age_s)

    leases = LeaseWatch()
    assert leases.silent([held(5, 99.0)], 100.0, 100.0) == []  # A clock that was set forward.
    assert leases.silent([held(6, 3.0)], 104.0, 104.0) == []
    assert leases.silent([held(6, 9.0)], 110.0, 110.0) == []
    assert leases.silent([held(6, 12.0)], 110.0, 110.0) == [held(6, 12.0)]
    assert leases.silent([held(7, 12.0)], 111.0, 111.0) == []
    assert leases.silent([held(7, 15.0)], 115.9, 116.0) == []
    assert leases.silent([held(7, 15.1)], 116.0, 116.0) == [held(7, 15.1)]


def test_engines_are_opened_by_name(tmp_path):
    store = open_store(tmp_path / "talks.db")
    engine = open_engine("embedded", store, lease_s=LEASE_S)
    assert isinstance(engine, EmbeddedEngine)
    assert isinstance(engine, Engine)
    assert engine.lease_s == LEASE_S
    for wrong in ("", "redis://127.0.0.1", "embedded://here", "temporal"):
        with pytest.raises(ConfigurationError, match="is not an engine"):
            open_engine(wrong, store)
    with pytest.raises(ConfigurationError) as refused:
        open_engine("nonsense://me:hunter2@host", store)
    assert "hunter2" not in str(refused.value)


def test_engine_of_another_package_is_opened_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ours.py").write_text(
        "from sidestream.durable.engines.embedded import EmbeddedEngine\n"
        "class Ours(EmbeddedEngine):\n"
        "    def __init__(self, store, url, lease_s):\n"
        "        super().__init__(store, lease_s=lease_s or 7.0)\n"
        "        self.url = url\n"
    )
    package = tmp_path / "ours-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sidestream.engines]\nours = ours:Ours\n")
    monkeypatch.syspath_prepend(tmp_path)
    store = open_store(tmp_path / "talks.db")
    engine = open_engine("ours://me:hunter2@host", store)
    assert (type(engine).__name__, engine.lease_s, engine.url) == ("Ours", 7.0, "ours://me:hunter2@host")
    assert open_engine("ours://host", store, lease_s=LEASE_S).lease_s == LEASE_S
    with pytest.raises(ConfigurationError, match="ours://…"):
        open_engine("theirs://host", store)

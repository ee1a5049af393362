"""A worker as a process runs it: it enqueues what the engine never heard of, and carries out what expires."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from requirements import requirement
from sidestream import Agent, Chat, Tool, ToolContext
from sidestream.durable.beginning import begin_again
from sidestream.durable.client import RunClient
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import LeaseLostError, Task
from sidestream.durable.log.approval_deadlines import OnExpiry
from sidestream.durable.log.jobs import Job, job_in
from sidestream.durable.log.run_control import RunControl
from sidestream.durable.log.summaries import summary_of
from sidestream.durable.outages import Outage
from sidestream.durable.worker.reconciler import SETTLING_S, Reconciler
from sidestream.durable.worker.service import Agents, WorkerService
from sidestream.durable.worker.worker import until_lost
from sidestream.errors import StoreError, ToolRaisedError
from sidestream.jsontext import as_object, objects
from sidestream.parts import Error, Finish
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.fold import stream_of
from sidestream.store.opening import open_store
from sidestream.store.protocol import SharedStore
from sidestream.store.records import RunStarted, unpack
from sidestream.store.sqlite.store import SqliteStore
from sidestream.store.wrapped import shared
from sidestream.stream.errors import error_from_part
from sidestream.telemetry import Telemetry
from sidestream.testing import FakeProvider, Received, Reply, ResponsesScript
from support.engines import Fleet
from support.stores import BOUND_S, rows
from support.waiting import eventually

FLEETS = ("embedded-sqlite", "embedded-postgresql")
"""What is tested here is the same on every engine; the statements of turns are those of a database."""


class Deaf(EmbeddedEngine):
    """Counts what it is to do, and does nothing."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__(store)
        self.heard: list[Task] = []

    async def enqueue(self, task: Task) -> None:
        self.heard.append(task)


def agent_of(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789", **settings)


async def left(store: SharedStore, agent: Agent[Any], name: str = "main", talk: str = "talk") -> None:
    """A run whose process died before the engine had heard of it, a while ago."""
    chat = Chat(agent, store=store, id=talk)
    await chat.load()
    chat.run_details = Job(agent=name, attempt=0).as_details()
    await chat.stream("Count.").begin()
    sql = "UPDATE {conversations} SET updated = updated - :age"
    await store.execute(sql, {"age": 2 * SETTLING_S})


@asynccontextmanager
async def serving(fleet: Fleet, agent: Agent[Any], **settings: Any) -> AsyncGenerator[None]:
    service = WorkerService(fleet.store, fleet.another(), {"main": agent}, allows_models=False, drain_s=0.0, **settings)
    working = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(BOUND_S):
            yield
    finally:
        service.stop()
        await working


async def last_kinds(fleet: Fleet, kind: str) -> list[str]:
    """The kinds of the records, up to the first of this kind."""
    found: list[str] = []
    async with aclosing(fleet.store.tail("talk")) as rows:
        async for row in rows:
            found.append(row.kind)
            if row.kind == kind:
                break
    return found


@requirement("R160", "R161")
async def test_worker_alone_executes_run_unknown_to_engine(fleet: Fleet):
    async with FakeProvider([ResponsesScript().text("One.").reply()]) as fake:
        agent = agent_of(fake)
        await left(fleet.store, agent)
        async with serving(fleet, agent):
            assert (await last_kinds(fleet, "finish")).count("run-started") == 2


@requirement("R160", "R161")
async def test_reconciler_finds_every_lost_run_in_bounded_passes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.durable.worker.reconciler.PAGE", 2)
    monkeypatch.setattr("sidestream.durable.worker.reconciler.MAX_RUNS", 2)
    async with FakeProvider([]) as fake:
        agent, engine = agent_of(fake), Deaf(fleet.store)
        for number in range(5):
            await left(fleet.store, agent, "other", f"other {number}")
            await left(fleet.store, agent, "main", f"talk {number}")
        agents = Agents({"main": agent}, allows_models=False)
        reconciler = Reconciler(fleet.store, engine, agents.queue_of, agents.queues)
        assert [await reconciler.reconcile() for _ in range(3)] == [2, 2, 1]
        assert {task.conversation for task in engine.heard} == {f"talk {number}" for number in range(5)}
        assert await reconciler.reconcile() == 2


@requirement("R160", "R161")
async def test_damaged_log_does_not_block_other_lost_runs(fleet: Fleet):
    async with FakeProvider([ResponsesScript().text("One.").reply()]) as fake:
        agent = agent_of(fake)
        await left(fleet.store, agent, talk="damaged talk")
        sql = "UPDATE {records} SET body = :body WHERE kind = 'run-started'"
        await fleet.store.execute(sql, {"body": b"{garbage"})
        await left(fleet.store, agent)
        async with serving(fleet, agent):
            assert (await last_kinds(fleet, "finish")).count("run-started") == 2


@requirement("R160")
async def test_one_worker_reconciles_only_runs_of_its_agents(fleet: Fleet):
    async with FakeProvider([]) as fake:
        agent = agent_of(fake)
        await left(fleet.store, agent)
        await left(fleet.store, agent, "other", "another talk")
        await left(fleet.store, agent, "openai-responses:gpt-5", "model talk")
        engine = Deaf(fleet.store)

        def reconciler(**known: Any) -> Reconciler:
            agents = Agents({"main": agent} if not known else {}, allows_models=bool(known))
            return Reconciler(fleet.store, engine, agents.queue_of, agents.queues)

        turns = [await reconciler().take_turn() for _ in range(3)]
        assert turns == [True, False, False]
        # The clock was set back by an hour.
        await fleet.store.execute("UPDATE {posts} SET body = :body", {"body": b"%017.3f" % (time.time() + 3600.0)})
        assert [await reconciler().take_turn() for _ in range(2)] == [True, False]
        assert [(task.conversation, task.queue) for task in engine.heard] == [("talk", "main")] * 2
        assert await reconciler(models=True).take_turn()
        assert [(task.conversation, task.queue) for task in engine.heard[2:]] == [("model talk", "models")]


@requirement("R160")
async def test_worker_can_cancel_run_with_expired_approval(fleet: Fleet):
    def look() -> str:
        """Looks."""
        return "seen"

    expires: OnExpiry = "stop"
    async with FakeProvider([ResponsesScript().function_call("look", {}, "c1").reply()]) as fake:
        agent = agent_of(fake, tools=[look], approval="ask")
        await RunClient(agent, "main", store=fleet.store, engine=fleet.another()).start("talk", "Look.")
        async with serving(fleet, agent, approval_s=0.05, on_expiry=expires):
            assert "finish" in await last_kinds(fleet, "cancelled")


async def test_worker_records_typed_error_when_tool_raises(fleet: Fleet):
    def look() -> str:
        """Looks."""
        raise KeyError("seat")

    async with FakeProvider([ResponsesScript().function_call("look", {}, "c1").reply()]) as fake:
        agent = agent_of(fake, tools=[look], tool_errors="raise")
        client = RunClient(agent, "main", store=fleet.store, engine=fleet.another())
        await client.start("talk", "Look.")
        async with serving(fleet, agent):
            records = [record async for record in client.follow("talk")]
    *_, error, finish = stream_of(records)
    assert isinstance(error, Error)
    assert isinstance(error_from_part(error), ToolRaisedError)
    assert isinstance(finish, Finish)
    assert finish.reason == "error"


def model(request: Received) -> Reply:
    """Calls a tool, then answers; the agent that has a helper calls that."""
    body = as_object(request.json)
    names = [str(tool["name"]) for tool in objects(body.get("tools"))]
    if any(item.get("type") == "function_call_output" for item in objects(body.get("input"))):
        return ResponsesScript().text("Done.").reply()
    if "helper" in names:
        return ResponsesScript().function_call("helper", {"task": "Look."}, "c1").reply()
    return ResponsesScript().function_call("look", {}, "c2").reply()


@requirement("R160", "R161", "F32")
@pytest.mark.parametrize("nested", [False, True], ids=["a tool", "a tool of an agent that is a tool"])
async def test_waiting_run_can_be_taken_over_after_each_record(fleet: Fleet, nested: bool):
    seen: list[str] = []

    def look(context: ToolContext) -> str:
        """Looks."""
        seen.append(context.name)
        return "seen"

    async with FakeProvider([]) as fake:
        fake.on("POST", "/v1/responses", model)
        agent = agent_of(fake, tools=[Tool.from_function(look, approval=lambda _: "ask", on_interruption="retry")])
        if nested:
            agent = agent_of(fake, tools=[agent.as_tool("helper", "Helps.", on_interruption="retry")])
        engine = fleet.another()
        client = RunClient(agent, "main", store=fleet.store, engine=engine)
        await client.start("talk", "Look.")

        async with serving(fleet, agent):
            await drain(client.follow("talk"))
            await client.decide("talk", [entry.approve() for entry in await client.approvals("talk")])
            await drain(client.follow("talk"))
        assert seen == ["look"]
        whole = await fleet.store.read("talk")
        ends = {row.seq: row.kind for row in whole}
        cuts = {
            f"cut {count}": count for count in ends if whole[0].seq < count < len(whole) and ends[count] != "finish"
        }
        for cut, count in cuts.items():
            await fleet.store.append(cut, 0, whole[:count])
            await engine.enqueue(Task(conversation=cut, position=count, queue="main"))
        async with serving(fleet, agent):
            for cut in cuts:
                await drain(client.follow(cut, cuts[cut]))
        asked = next(row.seq for row in whole if row.kind == "approval-decided")
        for cut, count in cuts.items():
            state = await Conversation(fleet.store, cut).state()
            # An agent that is a tool begins anew, and requests its approval once more.
            expected = {"waiting"} if count < asked else {"complete", "waiting"} if nested else {"complete"}
            assert state.status in expected, cut
            assert len(await client.approvals(cut)) == (state.status == "waiting")


async def drain(records: AsyncGenerator[Any]) -> None:
    async for _ in records:
        pass


@requirement("R160")
async def test_waiting_run_stopped_then_resumed_waits_again(fleet: Fleet):
    def look() -> str:
        """Looks."""
        return "seen"

    async with FakeProvider([]) as fake:
        fake.on("POST", "/v1/responses", model)
        agent, engine = agent_of(fake, tools=[look], approval="ask"), fleet.another()
        client = RunClient(agent, "main", store=fleet.store, engine=engine)
        await client.start("talk", "Look.")
        async with serving(fleet, agent):
            await drain(client.follow("talk"))
            control = RunControl(fleet.store, engine)
            assert await control.stop_waiting("talk")
            assert not await control.stop_waiting("talk")
            (info,) = await fleet.store.conversations()
            run = await summary_of(fleet.store, info)
            assert run is not None
            assert (run.status, run.waiting) == ("cancelled", ())
            position = await begin_again(fleet.store, run)
            await engine.enqueue(Task(conversation="talk", position=position, queue="main"))
            await drain(client.follow("talk", position))
            (approval,) = await client.approvals("talk")
            await client.decide("talk", [approval.approve()])
            await drain(client.follow("talk", position))
        assert (await Conversation(fleet.store, "talk").state()).messages[-1].text == "Done."


@requirement("R160", "F35")
async def test_worker_on_newer_store_version_is_unhealthy(tmp_path: Path):
    class NewerStore(SqliteStore):
        migrations = (*SqliteStore.migrations, ("CREATE TABLE moods (name TEXT)",))

    newer = NewerStore(tmp_path / "runs.db")
    await newer.append("talk", 0, rows(1, 1))
    await newer.aclose()
    store = open_store(tmp_path / "runs.db")
    service = WorkerService(store, EmbeddedEngine(shared(store)), drain_s=0.0)
    working = asyncio.create_task(service.run())

    async def is_refused() -> bool:
        health = await service.health()
        return health["status"] == "error" and "newer version" in str(health["error"])

    await eventually(is_refused)
    service.stop()
    await working
    await store.aclose()


async def test_enqueued_run_has_no_attempt_yet(fleet: Fleet):
    async with FakeProvider([]) as fake:
        await RunClient(agent_of(fake), "main", store=fleet.store, engine=fleet.another()).start("talk", "Look.")
    [started] = [record.body for record in map(unpack, await fleet.store.read("talk")) if record.kind == "run-started"]
    assert isinstance(started, RunStarted)
    job = job_in(started.details)
    assert job is not None
    assert job.attempt == 0


class Unresponsive:
    """A claim on a database that no longer answers."""

    task = Task(conversation="talk", position=1)
    token = "1"
    is_takeover = False
    lease_s = 0.05
    is_cancelled = False

    async def heartbeat(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # Not `finally`, which the garbage collector runs too.
            self.is_cancelled = True
            raise


async def test_unresponsive_heartbeat_loses_lease_and_is_cancelled():
    claim = Unresponsive()
    assert isinstance(await until_lost(claim), LeaseLostError)
    await eventually(lambda: claim.is_cancelled)


async def test_lasting_failure_and_recovery_are_reported_once(caplog: pytest.LogCaptureFixture):
    outage = Outage("cannot claim tasks")
    outage.worked()
    for _ in range(2):
        for _ in range(100):
            outage.failed(StoreError("no route to postgresql://app:hunter2hunter2@db/chats"))
        outage.worked()
        outage.worked()
    said = [record.getMessage() for record in caplog.records]
    assert said[1::2] == ["recovered: cannot claim tasks"] * 2
    assert [line.startswith("cannot claim tasks: no route") for line in said[::2]] == [True, True]
    assert "hunter2" not in caplog.text


async def test_gauges_show_engine_metrics_until_it_closes(fleet: Fleet):
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)

    def gauges() -> dict[str, Any]:
        data = reader.get_metrics_data()
        found = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return {
            f"{metric.name}{''.join(f' {value}' for value in point.attributes.values())}": point.value
            for metric in found
            for point in metric.data.data_points
        }

    async def shown() -> dict[str, Any]:
        return gauges()

    async with FakeProvider([]) as fake:
        agent = agent_of(fake)
        client = RunClient(agent, "another", store=fleet.store, engine=fleet.another())
        await client.start("talk", "Nobody drives it.")
        async with serving(fleet, agent, slots=7, telemetry=Telemetry(meter_provider=meters)):
            found = await eventually(shown)
        assert found.pop("sidestream.engine.oldest_queued") >= 0
        assert found == {
            "sidestream.engine.tasks queued": 1,
            "sidestream.engine.tasks running": 0,
            "sidestream.engine.tasks waiting": 0,
            "sidestream.engine.oldest_lease": 0,
            "sidestream.engine.takeovers": 0,
            "sidestream.worker.runs": 0,
            "sidestream.worker.slots": 7,
        }
        assert not gauges()
        meters.shutdown()

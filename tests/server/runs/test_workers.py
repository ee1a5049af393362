"""Servers whose runs are driven by workers elsewhere: clients reconnect to any server and continue at the next part."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from requirements import requirement
from server.chat_client import paused, serving
from server.engine_places import Place
from server.node_driver import driving
from server.processes import server_process, worker_process
from server.serving import agent_of
from sidestream import Agent
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import Claim
from sidestream.durable.log.jobs import Job
from sidestream.durable.worker.worker import Worker
from sidestream.server import create_app
from sidestream.server.errors import RequestError
from sidestream.server.server import Server
from sidestream.server.settings import Caps, ServerSettings
from sidestream.store import open_store
from sidestream.store.records import RunStarted
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.npm_packages import cannot_run, installed_version
from support.places import ROOT
from support.response_events import check_events
from support.stores import BOUND_S

PACKAGES = ROOT / "page" / "node_modules"
JOB = Job(agent="main")
COUNT = ["One, ", "two, ", "three."]
PROCESSES_S = 2 * BOUND_S
"""For tests that start processes, which take seconds on a busy machine."""

Json = Any


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "talks.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def events_until(stream: Any, word: str) -> list[Json]:
    events: list[Json] = []
    async for event in stream:
        events.append(event.to_dict())
        if word in str(events[-1].get("delta", "")):
            break
    return events


@requirement("R140", "R160", "R161", "R162")
async def test_openai_client_survives_worker_kill_at_another_server(place: Place) -> None:
    interrupted = sse(paused(ResponsesScript().text(COUNT), asyncio.Event(), "two"))
    replies = [interrupted, *(ResponsesScript().text(text).reply() for text in (COUNT, "Four."))]
    async with asyncio.timeout(PROCESSES_S), AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeProvider(replies))
        given = (fake, place.where, place.engine)
        first = await stack.enter_async_context(server_process(*given))
        app = create_app({"main": agent_of(fake)}, store=place.where, engine=place.engine)
        second = await stack.enter_async_context(serving(app))
        worker = await stack.enter_async_context(worker_process(*given))
        one = await stack.enter_async_context(openai.AsyncOpenAI(base_url=f"{first}/v1", api_key="any"))
        two = await stack.enter_async_context(openai.AsyncOpenAI(base_url=f"{second}/v1", api_key="any"))
        stream = await one.responses.create(model="main", input="Count.", stream=True)
        seen = await events_until(stream, "two")
        await stream.close()
        worker.kill()
        await stack.enter_async_context(worker_process(*given))
        id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        rest = [event.to_dict() async for event in await two.responses.retrieve(id, stream=True, starting_after=number)]
        assert rest[0]["sequence_number"] == number + 1
        response = check_events([*seen, *rest])
        assert response["output"][0]["content"][0]["text"] == "One, two, three."
        following = await two.responses.create(model="main", input="And?", previous_response_id=id)
        assert following.output_text == "Four."


@requirement("R141", "R160")
async def test_use_chat_gets_whole_answer_from_another_server(postgres_url: str) -> None:
    if installed_version(PACKAGES / "ai") is None:
        cannot_run("the page's packages are not installed: make page")
    gate = asyncio.Event()
    async with (
        asyncio.timeout(PROCESSES_S),
        FakeProvider([sse(paused(ResponsesScript().text(COUNT), gate, "two"))]) as fake,
        server_process(fake, postgres_url, "embedded") as first,
        server_process(fake, postgres_url, "embedded") as second,
        worker_process(fake, postgres_url, "embedded"),
    ):
        async with driving("ai_sdk.mjs", PACKAGES, first) as node:
            await node("open", chat="c1")
            await node("send", chat="c1", text="Count.", detached=True)
            seen = await node("said", chat="c1", text="two, ")
        async with driving("ai_sdk.mjs", PACKAGES, second) as node:
            await node("open", chat="c1", messages=seen["messages"][:1])
            await node("resume", chat="c1", detached=True)
            await node("said", chat="c1", text="two, ")
            fake.release(gate)
            ended = await node("rest", chat="c1")
        last = ended["messages"][-1]
        assert "".join(part["text"] for part in last["parts"] if part["type"] == "text") == "One, two, three."
        assert last["id"] == seen["messages"][-1]["id"]


@asynccontextmanager
async def fronts(fake: FakeProvider, where: str, **settings: Any) -> AsyncGenerator[Server]:
    """A server that leaves its runs to workers."""
    main = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
    given = ServerSettings(agents={"main": main}, default="main", engine="embedded", **settings)
    server = Server(given, open_store(where))
    try:
        async with asyncio.timeout(BOUND_S):
            await server.open()
            yield server
    finally:
        await server.aclose()


@asynccontextmanager
async def working(fake: FakeProvider, where: str) -> AsyncGenerator[None]:
    """A worker in this process, with a store of its own."""
    agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
    store = open_store(where)
    engine = EmbeddedEngine(store)
    worker = Worker(store, engine, lambda _: agent)
    tasks = [
        asyncio.create_task(worker.attend()),
        asyncio.create_task(engine.work(worker.drive, queues=["main"], slots=4)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await engine.aclose()
        await store.aclose()


async def kinds(server: Server, conversation: str) -> list[str]:
    return [record.kind async for record in server.runs.follow(conversation)]


@requirement("R160")
async def test_queued_run_can_be_stopped_before_worker_claims_it(where: str) -> None:
    async with FakeProvider([]) as fake, fronts(fake, where) as server:
        await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        assert await server.runs.stop("/talk")
        assert (await kinds(server, "/talk"))[-1] == "cancelled"
        async with working(fake, where):
            stats = await server.runs.execution.engine.stats()
            assert (stats.queued, stats.running) == (0, 0)
        assert not fake.requests


@requirement("R160")
async def test_quotas_count_runs_of_all_workers(where: str) -> None:
    async with FakeProvider([]) as fake, fronts(fake, where, caps=Caps(max_concurrent_runs=1)) as server:
        await server.runs.start(server.agent("main"), "anna/a", "Hi.", JOB)
        await server.runs.start(server.agent("main"), "ben/a", "Hi.", JOB)
        with pytest.raises(RequestError) as refused:
            await server.runs.start(server.agent("main"), "anna/b", "Hi.", JOB)
        assert (refused.value.status, refused.value.code) == (429, "too_many_runs")


@requirement("R160")
async def test_unresumable_run_is_executed_by_server_itself(where: str) -> None:
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake, fronts(fake, where) as server:
        await server.runs.start(server.agent("main"), "/talk", "Hi.", Job(agent="main", is_resumable=False))
        assert (await kinds(server, "/talk"))[-1] == "finish"


@requirement("R160", "R161")
async def test_run_unknown_to_engine_is_reconciled(where: str) -> None:
    class Deaf(EmbeddedEngine):
        async def enqueue(self, task: Any) -> None:
            """The process dies here."""

    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        async with fronts(fake, where) as server:
            server.runs.execution.engine = Deaf(server.store)
            await server.runs.start(server.agent("main"), "/talk", "Hi.", JOB)
        async with working(fake, where), fronts(fake, where) as server:
            assert (await kinds(server, "/talk"))[-1] == "finish"
            started = [record.body async for record in server.runs.follow("/talk")]
            assert [body.resumes for body in started if isinstance(body, RunStarted)] == [False, True]


@requirement("R160")
async def test_decision_made_at_server_is_executed_by_worker(where: str) -> None:
    carried: list[str] = []

    class Counting(Worker):
        async def carry(self, claim: Claim, *args: Any, **options: Any) -> None:
            carried.append(claim.task.conversation)
            await super().carry(claim, *args, **options)

    def look() -> str:
        """Looks."""
        return "seen"

    replies = [ResponsesScript().function_call("look", {}, "c1").reply(), ResponsesScript().text("Done.").reply()]
    async with FakeProvider(replies) as fake:
        agent = Agent(
            "openai-responses", base_url=fake.base_url, api_key="key-0123456789", tools=[look], approval="ask"
        )
        given = ServerSettings(agents={"main": agent}, default="main", engine="embedded")
        server, store = Server(given, open_store(where)), open_store(where)
        engine = EmbeddedEngine(store)
        worker = Counting(store, engine, lambda _: agent)
        working = asyncio.create_task(engine.work(worker.drive, queues=["main"], slots=4))
        try:
            async with asyncio.timeout(BOUND_S):
                await server.open()
                await server.runs.start(agent, "/talk", "Look.", JOB)
                await kinds(server, "/talk")
                state = await server.store.conversation("/talk").state()
                assert state.status == "waiting"
                assert state.run_state is not None
                decisions = [approval.approve() for approval in state.run_state.approvals]
                await server.runs.resume(agent, "/talk", decisions, JOB)
                await kinds(server, "/talk")
                state = await server.store.conversation("/talk").state()
                assert (state.status, state.messages[-1].text) == ("complete", "Done.")
        finally:
            working.cancel()
            await asyncio.wait([working])
            await engine.aclose()
            await store.aclose()
            await server.aclose()
        # One claim or two: the decision may come before the first claim is released.
        assert carried == ["/talk", "/talk"]

"""Several servers on one store: each run has one driver, any of them streams it, and one that dies loses its runs."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from requirements import requirement
from server.chat_client import paused
from sidestream import Agent
from sidestream.durable.client import RunClient
from sidestream.durable.log.jobs import Job, worker_name
from sidestream.durable.worker import reconciler
from sidestream.errors import ConflictError, SteerError
from sidestream.parts import Error, Steer, TextDelta
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.store.records import Record, RunStarted, Segment
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.children import started
from support.stores import BOUND_S

JOB = Job(agent="main")


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "talks.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@asynccontextmanager
async def server_at(
    fake: FakeProvider, where: str, name: str = "main", *, allows_models: bool = True
) -> AsyncGenerator[Server]:
    agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
    settings = ServerSettings(agents={name: agent}, default=name, allows_models=allows_models)
    server = Server(settings, open_store(where))
    try:
        async with asyncio.timeout(BOUND_S):
            await server.open()
            yield server
    finally:
        await server.aclose()


async def read(server: Server, conversation: str, after: int = 0) -> list[Record]:
    async with aclosing(server.runs.follow(conversation, after)) as records:
        return [record async for record in records]


async def read_until(server: Server, conversation: str, word: str) -> list[Record]:
    found: list[Record] = []
    async with aclosing(server.runs.follow(conversation)) as records:
        async for record in records:
            found.append(record)
            if word in text_in([record]):
                break
    return found


def text_in(records: list[Record]) -> str:
    parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


@requirement("R142", "R160")
async def test_starting_server_streams_but_never_claims_active_runs(where: str) -> None:
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, where) as first:
        await first.runs.start(first.agent("main"), "/talk", "Count.", JOB)
        seen = await read_until(first, "/talk", "two")
        async with server_at(fake, where) as second:
            rest = asyncio.create_task(read(second, "/talk", seen[-1].seq))
            whole = asyncio.create_task(read(second, "/talk"))
            with pytest.raises(ConflictError):
                await second.runs.start(second.agent("main"), "/talk", "Again.", JOB)
            fake.release(gate)
            assert [*seen, *await rest] == await whole == await read(first, "/talk")
            assert text_in(await whole) == "One, two, three."
            (start,) = [record.body for record in await whole if isinstance(record.body, RunStarted)]
            assert start.details["worker"] == worker_name()
            assert len(fake.requests) == 1


@requirement("R142", "R160")
async def test_next_message_may_go_to_another_server_at_once(where: str) -> None:
    replies = [ResponsesScript().text(f"Answer {number}.").reply() for number in range(6)]
    async with FakeProvider(replies) as fake, server_at(fake, where) as first, server_at(fake, where) as second:
        for number in range(6):
            server, other = (first, second) if number % 2 else (second, first)
            await server.runs.start(server.agent("main"), "/talk", f"Question {number}.", JOB)
            await read(other, "/talk")
        said = [message.text for message in await first.store.conversation("/talk").messages()]
        assert said[1::2] == [f"Answer {number}." for number in range(6)]


@requirement("R142", "R160")
async def test_run_is_stopped_and_steered_through_another_server(where: str) -> None:
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, where) as first, server_at(fake, where) as second:
        await first.runs.start(first.agent("main"), "/talk", "Count.", JOB)
        await read_until(second, "/talk", "One")
        id = await second.runs.steer("/talk", "Faster.")
        assert await second.runs.stop("/talk")
        records = await read(first, "/talk")
        steers = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
        assert [(part.id, part.text) for part in steers if isinstance(part, Steer)] == [(id, "Faster.")]
        assert records[-1].kind == "cancelled"
        assert not first.runs.live
        assert not await second.runs.stop("/talk")
        with pytest.raises(SteerError):
            await second.runs.steer("/talk", "Hello?")


@requirement("R142", "R160")
async def test_deleting_chat_at_another_server_ends_run_and_streams(where: str) -> None:
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, where) as first, server_at(fake, where) as second:
        await first.runs.start(first.agent("main"), "/talk", "Count.", JOB)
        await read_until(second, "/talk", "One")
        reading = asyncio.create_task(read(first, "/talk"))
        assert await second.runs.delete("/talk")
        await reading
        assert not await second.store.read("/talk")


OTHER = """
import asyncio, sys
from sidestream import Agent
from sidestream.durable.log.jobs import Job
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store

async def main(base_url, where, name):
    agent = Agent("openai-responses", base_url=base_url, api_key="key-0123456789")
    server = Server(ServerSettings(agents={name: agent}, default=name), open_store(where))
    await server.open()
    await server.runs.start(agent, "/talk", "Count.", Job(agent=name))
    async for record in server.runs.follow("/talk"):
        print(record.kind, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def other_server(
    fake: FakeProvider, where: str, name: str = "main"
) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """A server in another process, in mid-stream; yields what kills it."""
    with started(sys.executable, "-c", OTHER, fake.base_url, where, name, stdout=-1) as process:
        while (await asyncio.to_thread(process.stdout.readline)).decode().strip() != "text-delta":
            pass

        async def kill() -> None:
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait, BOUND_S)

        yield kill


@requirement("R142", "R160")
async def test_surviving_server_resumes_runs_and_streams_lose_nothing(where: str) -> None:
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One"))
    again = ResponsesScript().text("One, two, three.").reply()
    async with FakeProvider([interrupted, again]) as fake, server_at(fake, where) as server:
        async with other_server(fake, where) as kill:
            reading = asyncio.create_task(read(server, "/talk"))
            await kill()
        records = await reading
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert [record.body.resumes for record in records if isinstance(record.body, RunStarted)] == [False, True]
        state = await server.store.conversation("/talk").state()
        assert (state.status, state.messages[-1].text) == ("complete", "One, two, three.")


async def queues_of(server: Server) -> list[str]:
    """In which queues the tasks are, once the server has looked for runs that others left."""
    await server.runs.execution._reconciler.reconcile()
    return [queue for (queue,) in await server.store.execute("SELECT queue FROM {tasks}")]


@requirement("R142", "R160")
@pytest.mark.parametrize("name", ["new", "openai-responses:gpt-5.6"])
async def test_server_leaves_runs_of_unknown_agents_to_other_servers(where: str, name: str) -> None:
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One"))
    again = ResponsesScript().text("One, two, three.").reply()
    async with FakeProvider([interrupted, again]) as fake, other_server(fake, where, name) as kill:
        async with server_at(fake, where, "old", allows_models=name == "new") as old:
            assert await queues_of(old) == [name]
            await kill()
            assert await queues_of(old) == [name]
            reading = asyncio.create_task(read(old, "/talk"))
            async with server_at(fake, where, name):
                records = await reading
        starts = [record.body for record in records if isinstance(record.body, RunStarted)]
        assert [start.resumes for start in starts] == [False, True]
        assert (records[-1].kind, len(fake.requests)) == ("finish", 2)
        assert not any(record.kind == "error" for record in records)


@requirement("R142", "R160")
async def test_run_fails_when_its_agent_stays_unknown_to_all_processes(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One"))
    async with FakeProvider([interrupted]) as fake:
        async with other_server(fake, where, "new") as kill:
            await kill()
        async with server_at(fake, where, "old") as old:
            assert await queues_of(old) == ["new"]
            assert await old.runs.is_busy("/talk")
            monkeypatch.setattr(reconciler, "GONE_S", 0.0)
            await old.runs.execution._reconciler.reconcile()
            records = await read(old, "/talk")
            parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
            (error,) = [part for part in parts if isinstance(part, Error)]
            assert error.code == "server_restarted"
            assert "'new'" in error.message
            assert not await old.runs.is_busy("/talk")


@requirement("R160")
async def test_run_for_workers_waits_for_worker_with_its_agent(where: str) -> None:
    async with FakeProvider([]) as fake, server_at(fake, where) as server:
        client = RunClient(server.agent("main"), "new", store=server.store, engine=server.runs.execution.engine)
        await client.start("/talk", "Count.")
        assert await queues_of(server) == ["new"]
        assert await server.runs.is_busy("/talk")

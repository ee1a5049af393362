"""Runs belong to the server: they survive their readers, any reader resumes anywhere, and a restart leaves none open."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.serving import agent_of
from sidestream import Agent
from sidestream.durable.log.jobs import Job, job_in
from sidestream.durable.worker.worker import INTERVAL_S
from sidestream.errors import ConflictError, SteerError
from sidestream.parts import Error, Finish, TextDelta, ToolInputDelta
from sidestream.server import create_app
from sidestream.server.errors import RequestError
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import Record, open_store
from sidestream.store.log.fold import stream_of
from sidestream.store.log.follow import MAX_WAITING_ROWS
from sidestream.store.protocol import Append, Store
from sidestream.store.records import Row, RunStarted, Segment
from sidestream.store.wrapped import WrappedStore
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.children import started
from support.stores import BOUND_S
from support.waiting import eventually

JOB = Job(agent="main")


@asynccontextmanager
async def server_at(fake: FakeProvider, path: Path, **agent: Any) -> AsyncGenerator[Server]:
    main = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789", **agent)
    server = Server(ServerSettings(agents={"main": main}, default="main"), open_store(path / "talks.db"))
    try:
        async with asyncio.timeout(BOUND_S):
            await server.open()
            yield server
    finally:
        await server.aclose()


def paused(script: ResponsesScript, gate: asyncio.Event, marker: str) -> list[Any]:
    """The events of a response, with a gate behind the first delta that holds the marker."""
    events = script.events()
    index = next(i for i, event in enumerate(events) if marker in str(event.get("delta", "")))
    return [*events[: index + 1], gate, *events[index + 1 :]]


async def read(server: Server, conversation: str, after: int = 0) -> list[Record]:
    async with aclosing(server.runs.follow(conversation, after)) as records:
        return [record async for record in records]


def text_in(records: Sequence[Record]) -> str:
    parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


@requirement("R142", "F30")
async def test_subscribers_see_each_record_once_and_run_outlives_them(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, tmp_path) as server:
        info = await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        async with aclosing(server.runs.follow("/talk")) as leaving:
            async for record in leaving:
                if "two" in text_in([record]):
                    break  # This reader disconnects in mid-stream.
        first, late = (asyncio.create_task(read(server, "/talk", after)) for after in (0, info.start))
        fake.release(gate)
        one, two = await first, await late
        assert [record.seq for record in one] == list(range(1, len(one) + 1))
        assert two == one[info.start :]
        assert text_in(one) == "One, two, three."
        assert await read(server, "/talk", one[-1].seq) == []
        assert not server.runs.live


@requirement("R142")
async def test_slow_subscriber_is_bounded_and_loses_no_record(tmp_path: Path):
    gate = asyncio.Event()
    pieces = [f"{number} " for number in range(3 * MAX_WAITING_ROWS)]
    events = ResponsesScript().text(pieces).events()
    async with FakeProvider([sse([*events[:6], gate, *events[6:]])]) as fake, server_at(fake, tmp_path) as server:
        await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        slow = server.runs.follow("/talk")
        seen = [await anext(slow)]
        fake.release(gate)
        whole = await read(server, "/talk")
        seen += [record async for record in slow]
        assert seen == whole
        assert text_in(seen) == "".join(pieces)


@requirement("R142")
async def test_many_paced_runs_lose_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, names = asyncio.Event(), [f"/talk{number}" for number in range(4)]
    monkeypatch.setattr("sidestream.durable.worker.worker.PACED_RUNS", len(names))
    events = paused(ResponsesScript().text(["One, ", *(f"{number}, " for number in range(200)), "end."]), gate, "One")
    async with FakeProvider([sse(events)] * len(names)) as fake, server_at(fake, tmp_path) as server:
        for name in names:
            await server.runs.start(server.agent("main"), name, "Count.", JOB)
        reading = [asyncio.create_task(read(server, name)) for name in names]
        fake.release(gate)
        for records in await asyncio.gather(*reading):
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            assert text_in(records) == "".join(["One, ", *(f"{number}, " for number in range(200)), "end."])


@requirement("R142")
async def test_paced_run_can_be_stopped_while_stream_is_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.durable.worker.worker.PACED_RUNS", 1)
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, tmp_path) as server:
        await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        async with aclosing(server.runs.follow("/talk")) as records:
            async for record in records:
                if "One" in text_in([record]):
                    break
        assert await server.runs.stop("/talk")
        assert (await read(server, "/talk"))[-1].kind == "cancelled"


@requirement("R142")
async def test_log_keeps_tool_input_deltas_and_rebuilds_without_them(tmp_path: Path):
    script = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")

    def add(a: int, b: int) -> int:
        return a + b

    replies = [sse(script.events()), sse(ResponsesScript().text("3").events())]
    async with FakeProvider(replies) as fake, server_at(fake, tmp_path, tools=[add]) as server:
        await server.runs.start(server.agent("main"), "/talk", "Add.", JOB)
        records = await read(server, "/talk")
        parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
        assert "".join(part.delta for part in parts if isinstance(part, ToolInputDelta)) == '{"a": 1, "b": 2}'
        grammar.check(parts)
        kept = await server.store.conversation("/talk").records()
        assert not [part for part in stream_of(kept) if isinstance(part, ToolInputDelta)]
        assert [message.text for message in await server.store.conversation("/talk").messages()][-1] == "3"


@requirement("R142")
async def test_stop_ends_run_for_subscribers_and_steering_needs_run(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, tmp_path) as server:
        await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        reading = asyncio.create_task(read(server, "/talk"))
        with pytest.raises(ConflictError):
            await server.runs.start(server.agent("main"), "/talk", "Again.", JOB)
        assert await server.runs.steer("/talk", "Faster.")
        assert await server.runs.stop("/talk")
        assert (await reading)[-1].kind == "cancelled"
        assert not await server.runs.stop("/talk")
        with pytest.raises(SteerError):
            await server.runs.steer("/talk", "Hello?")


async def test_unknown_grant_is_reported_during_run(tmp_path: Path):
    events = paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One")
    async with FakeProvider([sse(events)]) as fake, server_at(fake, tmp_path) as server:
        await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        assert not await server.runs.withdraw("/talk", "grant_unknown")
        assert server.runs.live
        assert await server.runs.stop("/talk")


@requirement("R142")
async def test_run_can_be_steered_and_stopped_before_first_log_write(tmp_path: Path):
    events = paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One")
    async with FakeProvider([sse(events), sse(events)]) as fake, server_at(fake, tmp_path) as server:
        for conversation in ("/steered", "/stopped"):
            starting = asyncio.create_task(server.runs.start(server.agent("main"), conversation, "Count.", JOB))
            await eventually(lambda conversation=conversation: server.runs.is_busy(conversation), pause_s=0)
            assert not starting.done()
            if conversation == "/steered":
                assert await server.runs.steer(conversation, "Faster.")
            assert await server.runs.stop(conversation)
            await starting
            assert (await read(server, conversation))[-1].kind == "cancelled"


@requirement("R142")
@pytest.mark.parametrize("ending", ["stopped", "failed"])
async def test_next_turn_knows_output_of_unfinished_turn(tmp_path: Path, ending: str):
    def look() -> str:
        return "seen"

    gate = asyncio.Event()
    called = ResponsesScript().function_call("look", {}, "c1").reply()
    partial = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    if ending == "failed":
        partial[partial.index(gate) :] = [{"type": "error", "code": "server_error", "message": "down"}]
    replies = [called, sse(partial), ResponsesScript().text("Yes.").reply()]
    async with FakeProvider(replies) as fake, server_at(fake, tmp_path, tools=[look]) as server:
        agent = server.agent("main")
        await server.runs.start(agent, "/talk", "Count.", JOB)
        if ending == "stopped":
            async with aclosing(server.runs.follow("/talk")) as records:
                async for record in records:
                    if "One" in text_in([record]):
                        break
            await server.runs.stop("/talk")
        else:
            await read(server, "/talk")
        await server.runs.start(agent, "/talk", "Go on.", JOB)
        await read(server, "/talk")
        said = [(message.role, message.text) for message in await server.store.conversation("/talk").messages()]
        assert said == [
            ("user", "Count."),
            ("model", ""),
            ("tool", ""),
            ("model", "One, "),
            ("user", "Go on."),
            ("model", "Yes."),
        ]
        sent = str(fake.requests[2].json["input"])
        assert all(word in sent for word in ("seen", "One, ", "Go on."))  # The provider holds the rest.


@requirement("R142")
async def test_run_is_found_only_by_its_tenant(tmp_path: Path):
    script = ResponsesScript().text("Hi.")
    async with FakeProvider([sse(script.events())]) as fake, server_at(fake, tmp_path) as server:
        info = await server.runs.start(server.agent("main"), "anna/talk", "Hi.", JOB)
        await read(server, "anna/talk")
        found = await server.runs.find("anna", info.id)
        assert (found.conversation, found.start, found.job) == ("anna/talk", info.start, JOB)
        for owner, run in (("ben", info.id), ("", info.id), ("anna", "run_0")):
            with pytest.raises(RequestError) as caught:
                await server.runs.find(owner, run)
            assert caught.value.status == 404


KILLED = """
import asyncio, sys
from sidestream import Agent
from sidestream.server.server import Server
from sidestream.durable.log.jobs import Job
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store

async def main(base_url, path):
    agent = Agent("openai-responses", base_url=base_url, api_key="key-0123456789")
    server = Server(ServerSettings(agents={"main": agent}, default="main"), open_store(path))
    await server.open()
    await server.runs.start(agent, "/talk", "Count.", Job(agent=sys.argv[3], is_resumable=sys.argv[4] == "yes"))
    async for record in server.runs.follow("/talk"):
        print(record.seq, record.kind, flush=True)
    print("ended", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def killed_in_mid_stream(fake: FakeProvider, path: Path, agent: str, resumable: str) -> list[int]:
    """Runs a server in another process, kills it once a reader has seen text, and returns the numbers that it saw."""
    arguments = (fake.base_url, str(path / "talks.db"), agent, resumable)
    with started(sys.executable, "-c", KILLED, *arguments, stdout=-1) as process:
        seen: list[int] = []
        while True:
            line = (await asyncio.to_thread(process.stdout.readline)).decode().split()
            seen.append(int(line[0]))
            if line[1] == "text-delta":
                process.send_signal(signal.SIGKILL)
                return seen


@requirement("R142")
async def test_run_resumes_after_kill_9_with_continuous_numbers(tmp_path: Path):
    gate = asyncio.Event()
    interrupted = paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two")
    again = ResponsesScript().text("One, two, three.").events()
    async with FakeProvider([sse(interrupted), sse(again)]) as fake:
        seen = await killed_in_mid_stream(fake, tmp_path, "main", "yes")
        async with server_at(fake, tmp_path) as server:
            rest = await read(server, "/talk", seen[-1])
            assert rest[0].seq == seen[-1] + 1
            assert [record.seq for record in rest] == list(range(rest[0].seq, rest[0].seq + len(rest)))
            (resumed,) = [record.body for record in rest if isinstance(record.body, RunStarted)]
            assert resumed.resumes
            assert job_in(resumed.details) == Job(agent="main", attempt=2)
            state = await server.store.conversation("/talk").state()
            assert (state.status, state.messages[-1].text) == ("complete", "One, two, three.")
        async with server_at(fake, tmp_path) as server:
            assert not server.runs.live


@requirement("R142")
@pytest.mark.parametrize(
    ("agent", "resumable", "reason"),
    [("gone", "yes", "model 'gone' is not available"), ("main", "no", "held a secret")],
    ids=["its agent is gone", "it held a secret"],
)
async def test_unresumable_run_ends_with_reason(tmp_path: Path, agent: str, resumable: str, reason: str):
    gate = asyncio.Event()
    interrupted = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(interrupted)]) as fake:
        seen = await killed_in_mid_stream(fake, tmp_path, agent, resumable)
        async with server_at(fake, tmp_path) as server:
            rest = await read(server, "/talk", seen[-1])
            parts = [part for record in rest if isinstance(record.body, Segment) for part in record.body.parts]
            (error,) = [part for part in parts if isinstance(part, Error)]
            finish = parts[-1]
            assert isinstance(finish, Finish)
            assert (error.code, finish.reason) == ("server_restarted", "error")
            assert reason in error.message
            assert (await server.store.conversation("/talk").state()).status == "failed"


class CountingStore(WrappedStore):
    """Counts what is read from the log, and written to it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reads = self.writes = 0

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        self.reads += 1
        return await super().read(conversation, after)

    async def write(self, append: Append) -> None:
        self.writes += 1
        await super().write(append)


async def test_new_response_reads_its_log_once(tmp_path: Path):
    store = CountingStore(open_store(tmp_path / "talks.db"))
    async with FakeProvider([sse(ResponsesScript().text("Hello.").events()) for _ in range(2)]) as fake:
        app = create_app({"main": agent_of(fake)}, store=store)
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            for _ in range(2):  # The first one shows that the store works.
                store.reads = store.writes = 0
                started_s = time.monotonic()
                response = await client.post("/v1/responses", json={"model": "main", "input": "Hi", "stream": True})
                assert "Hello." in response.text
                worker = app.state.server.runs.execution.worker
                for conversation in [*worker.runs]:
                    await worker.ended(conversation)
            flushes = int((time.monotonic() - started_s) / INTERVAL_S)  # A slow response is written on the way, too.
            assert (store.reads, store.writes <= 2 + flushes) == (1, True)

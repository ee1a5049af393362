"""Waits of a run: retries, limiters and compaction are parts while they last, and never messages."""

import asyncio
import gc
import time
import weakref
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    CodeInterpreter,
    Context,
    DataPart,
    Limiter,
    StreamPart,
    ToolContext,
    open_store,
)
from sidestream.messages.shortening import SHORTENED
from sidestream.parts import Custom, StepStart, StreamStart
from sidestream.providers import ModelRequest
from sidestream.testing import (
    FakeProvider,
    ModelReply,
    Reply,
    ResponsesScript,
    ScriptedModel,
    check_stream,
    error_reply,
    json_reply,
    no_leaks,
    sse,
)
from sidestream.transport.waits import WAITING
from sidestream.wire.http import close_session
from support.stores import BOUND_S
from support.waiting import eventually


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789", **settings)


def busy(seconds: int) -> Reply:
    return error_reply(429, headers={"Retry-After": str(seconds)})


def said(text: str) -> Reply:
    return sse(ResponsesScript().text([text]).events())


def waits(parts: list[StreamPart]) -> list[Any]:
    return [part.data for part in parts if isinstance(part, Custom) and part.kind == WAITING]


async def until_wait(run: Any) -> list[StreamPart]:
    """The parts of a run up to its first wait."""
    parts: list[StreamPart] = []
    async with asyncio.timeout(BOUND_S):
        async for part in run:
            parts.append(part)
            if waits([part]):
                break
    return parts


@requirement("R213")
async def test_retry_is_reported_while_it_lasts() -> None:
    async with FakeProvider([busy(42)]) as fake:
        async with agent_at(fake).stream("hi") as run:
            (wait,) = waits(await until_wait(run))
            assert (wait["reason"], wait["cause"], wait["attempt"], wait["over"]) == ("retry", "429", 2, False)
            assert 41.9 < wait["until"] - wait["since"] < 42.1
            assert abs(wait["since"] - time.time()) < BOUND_S
            assert "42 s" in wait["message"]
        assert len(fake.requests) == 1
        await close_session()


@requirement("R213")
async def test_retry_leaves_no_trace_in_messages(tmp_path: Path) -> None:
    async with (
        FakeProvider([busy(1), said("One."), said("Two.")]) as fake,
        aclosing(open_store(tmp_path / "log.db")) as store,
    ):
        chat = Chat(agent_at(fake), store=store, id="c1")
        await chat.load()
        async with chat.stream("first") as run:
            parts = [part async for part in run]
        check_stream(parts)
        assert [wait["over"] for wait in waits(parts)] == [False, True]
        kinds = [part.type for part in parts]
        assert kinds.index("custom") < kinds.index("step-start")
        again = Chat(agent_at(fake), store=store, id="c1")
        await again.load()
        assert (await again.send("second")).output == "Two."
        assert [message.text for message in again.messages] == ["first", "One.", "second", "Two."]
        assert "429" not in str(fake.requests[-1].json)
        await close_session()


async def test_result_of_run_that_waited_is_unchanged() -> None:
    async with FakeProvider([busy(1), said("One."), busy(1), said("One.")]) as fake:
        agent = agent_at(fake)
        whole = await agent.send("hi")
        chunks = [chunk async for chunk in agent.send_stream("hi")]
        assert whole.output == "".join(chunk.output for chunk in chunks) == "One."
        assert [wait["over"] for wait in waits([part for chunk in chunks for part in chunk.parts])] == [False, True]
        await close_session()


async def test_stopped_wait_ends_run_without_another_request() -> None:
    async with FakeProvider([busy(42)]) as fake:
        run = agent_at(fake).stream("hi")
        await until_wait(run)
        await run.cancel()
        assert [wait["over"] for wait in waits([part async for part in run])] == [True]
        assert len(fake.requests) == 1
        await close_session()


async def test_run_stopped_in_wait_is_freed_without_collector() -> None:
    async with FakeProvider([busy(42)]) as fake:
        run = agent_at(fake).stream("hi")
        await until_wait(run)
        await run.cancel()
        assert [part async for part in run]
        driver = weakref.ref(run._driver)
        gc.collect()
        gc.disable()
        try:
            del run
            assert driver() is None
        finally:
            gc.enable()
        await close_session()


@requirement("R213")
async def test_dropped_run_ends_its_wait() -> None:
    async with no_leaks(), FakeProvider([busy(42)]) as fake:
        run = agent_at(fake).stream("hi")
        assert waits(await until_wait(run))
        del run
        gc.collect()
        await close_session()
    assert len(fake.requests) == 1


async def test_limiter_reports_rate_with_end_and_slot_without() -> None:
    gate = asyncio.Event()
    slow = Reply(body=[gate, *said("Slow.").body])
    async with FakeProvider([slow, said("Next."), said("Last.")]) as fake:
        agent = agent_at(fake, limiter=Limiter(concurrent=1))
        first = asyncio.create_task(agent.send("one"))
        await eventually(lambda: bool(fake.requests), pause_s=0)
        async with agent.stream("two") as run:
            (wait,) = waits(await until_wait(run))
            assert (wait["reason"], wait["over"], "until" in wait) == ("limiter", False, False)
            gate.set()
            rest = [part async for part in run]
        assert (await first).output == "Slow."
        assert waits(rest)[-1]["over"] is True

        rated = agent_at(fake, limiter=Limiter(requests_per_minute=1))
        await rated.send("three")
        async with rated.stream("four") as run:
            (wait,) = waits(await until_wait(run))
            assert 50 < wait["until"] - wait["since"] <= 60
        await close_session()


@requirement("R213")
@pytest.mark.parametrize("settings", [{}, {"context": Context()}], ids=["plain", "context"])
async def test_retried_upload_is_reported_before_request(settings: Any) -> None:
    sales = DataPart(b"region,units\nNorth,12\n", "text/csv", "sales.csv", to="container")
    answers = [busy(1), json_reply({"id": "file-1", "filename": "sales.csv", "bytes": 1})]
    async with FakeProvider([said("Done.")]) as fake:
        fake.on("POST", "/v1/files", lambda _: answers.pop(0))
        async with agent_at(fake, server_side_tools=[CodeInterpreter()], **settings).stream(["Count.", sales]) as run:
            begun = await until_wait(run)
            assert [request.path for request in fake.requests] == ["/v1/files"]
            parts = [*begun, *[part async for part in run]]
        check_stream(parts)
        assert [(wait["reason"], wait["over"]) for wait in waits(parts)] == [("retry", False), ("retry", True)]
        await close_session()


def asking(*tasks: str) -> Reply:
    script = ResponsesScript()
    for number, task in enumerate(tasks):
        script.function_call("clerk", {"task": task}, call_id=f"c{number}")
    return script.reply()


@requirement("R213")
async def test_wait_of_subagent_is_wait_of_its_caller(tmp_path: Path) -> None:
    async with (
        FakeProvider([asking("look"), said("Thanks."), said("Bye.")]) as fake,
        FakeProvider([busy(1), said("Found.")]) as other,
        aclosing(open_store(tmp_path / "log.db")) as store,
    ):
        boss = agent_at(fake, tools=[agent_at(other).as_tool("clerk", "Looks things up.")])
        chat = Chat(boss, store=store, id="c1")
        await chat.load()
        async with chat.stream("hi") as run:
            begun = await until_wait(run)
            assert len(other.requests) == 1
            parts = [*begun, *[part async for part in run]]
        check_stream(parts)
        (wait, over) = waits(parts)
        assert (wait["reason"], wait["cause"], wait["over"]) == ("retry", "429", False)
        assert 0.9 < wait["until"] - wait["since"] < 1.1
        assert (over["since"], over["over"]) == (wait["since"], True)
        again = Chat(boss, store=store, id="c1")
        await again.load()
        assert (await again.send("bye")).output == "Bye."
        assert "429" not in str(fake.requests[-1].json)
        await close_session()


@requirement("R213")
async def test_waits_of_parallel_subagents_end_with_last() -> None:
    gate = asyncio.Event()
    async with (
        FakeProvider([asking("one", "two"), said("Thanks.")]) as fake,
        FakeProvider([busy(1), said("First.")]) as first,
        FakeProvider([busy(42)]) as second,
    ):
        clerks = {"one": agent_at(first), "two": agent_at(second)}

        async def clerk(context: ToolContext, task: str) -> str:
            """Look things up.

            Args:
                task: What to do.
            """
            if task == "one":
                await gate.wait()
            async with clerks[task].stream(task) as run:
                async for part in run:
                    context.forward(part)
            return "done"

        async with agent_at(fake, tools=[clerk]).stream("hi") as run, asyncio.timeout(BOUND_S):
            (long,) = waits(await until_wait(run))
            gate.set()
            (short,) = waits(await until_wait(run))
            (left,) = waits(await until_wait(run))
        assert short["until"] < long["until"]
        assert left == long
        await close_session()


@requirement("R213")
async def test_wait_ends_with_call_that_gives_up() -> None:
    async with FakeProvider([asking("look"), said("Thanks.")]) as fake, FakeProvider([busy(42)]) as other:

        async def clerk(context: ToolContext, task: str) -> str:
            """Look things up.

            Args:
                task: What to do.
            """
            async with agent_at(other).stream(task) as run:
                for part in await until_wait(run):
                    context.forward(part)
            return "gave up"

        async with agent_at(fake, tools=[clerk]).stream("hi") as run, asyncio.timeout(BOUND_S):
            parts = [part async for part in run]
        check_stream(parts)
        assert [wait["over"] for wait in waits(parts)] == [False, True]
        await close_session()


@requirement("R213")
async def test_compaction_is_reported_before_its_summary() -> None:
    def respond(request: ModelRequest) -> ModelReply:
        return "They counted." if "summary" in (request.system or "") else "ok"

    long = "word " * 2000
    history = [m for n in range(3) for m in (ChatMessage.user(f"q{n} {long}"), ChatMessage.model(f"a{n} {long}"))]
    agent = Agent(ScriptedModel(respond, context_window=10_000), context=Context(keep_turns=1))
    async with agent.stream("now?", history=history) as run:
        parts = [part async for part in run]
    check_stream(parts)
    begun, over = waits(parts)
    assert (begun["reason"], begun["over"], over["over"]) == ("compaction", False, True)
    kinds = [part.kind for part in parts if isinstance(part, Custom)]
    assert kinds.index(WAITING) < kinds.index(SHORTENED)
    assert isinstance(parts[0], StreamStart)
    assert any(isinstance(part, StepStart) for part in parts)

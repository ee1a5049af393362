"""The loop: limits, empty answers, files from tools, agents as tools, and leaving at any time."""

import asyncio
import gc
import itertools
import tracemalloc
from typing import Any, Literal

import pytest

from requirements import requirement
from sidestream import Agent, DataPart, Tool, ToolContext, tool
from sidestream.limits import MIB, Limits
from sidestream.parts import File, Finish, StreamPart, TextDelta, ToolEvent, ToolResult
from sidestream.run.run import Run
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    MessagesScript,
    ResponsesScript,
    no_leaks,
    pixel_png,
    responses_text,
    sse,
)


def look(name: str) -> str:
    """Looks something up."""
    return f"{name} is there"


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


def calls(count: int = 9) -> list[Any]:
    return [ResponsesScript(id=f"r{n}").function_call("look", {"name": "a"}, f"c{n}").reply() for n in range(count)]


async def run_parts(agent: Agent[Any], prompt: str = "hi") -> list[StreamPart]:
    async with agent.stream(prompt) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@requirement("R73")
@pytest.mark.parametrize(
    ("limits", "name", "reached", "requests"),
    [
        (Limits(max_steps=2), "max_steps", 2, 2),
        (Limits(max_tool_calls=2), "max_tool_calls", 3, 3),
        (Limits(max_total_tokens=70), "max_total_tokens", 74, 2),
    ],
)
async def test_each_limit_ends_run_and_reports_reached_value(
    limits: Limits, name: str, reached: int, requests: int
) -> None:
    async with FakeProvider(calls()) as fake:
        finish = (await run_parts(agent_at(fake, tools=[look], limits=limits)))[-1]
        assert len(fake.requests) == requests
    assert isinstance(finish, Finish)
    assert finish.reason == "limit"
    assert finish.metadata["limit"] == name
    assert finish.metadata["reached"] == reached


async def test_run_time_limit_applies_in_mid_answer() -> None:
    never = asyncio.Event()
    async with no_leaks(), FakeProvider([sse([*responses_text(["Hel", "lo"])[:5], never])]) as fake:
        parts = await run_parts(agent_at(fake, limits=Limits(max_run_s=0.3)))
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.metadata["limit"]) == ("limit", "max_run_s")


async def test_run_time_limit_applies_while_tool_hangs() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        """Hangs."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    script = [ResponsesScript().function_call("hang", {}).reply()]
    async with no_leaks(), FakeProvider(script) as fake:
        parts = await run_parts(agent_at(fake, tools=[hang], limits=Limits(max_run_s=2)))
    assert started.is_set()
    assert stopped.is_set()
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "limit"


@requirement("R78", "F26")
@pytest.mark.parametrize("way", ["aclose", "cancel", "leave"])
async def test_awaited_run_waits_for_its_tools_when_closed(way: str) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        """Hangs."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            stopped.set()

    script = [ResponsesScript().function_call("hang", {}).reply()]
    async with no_leaks(), FakeProvider(script) as fake, asyncio.timeout(30):
        run = agent_at(fake, tools=[hang]).stream("hi")
        waiting = asyncio.create_task(run.result())
        await started.wait()
        await getattr(run, way)()
        assert stopped.is_set()
        result = await waiting
    assert result.finish_reason is None


async def test_awaited_run_has_same_result_as_read_one() -> None:
    async def wait(name: str) -> str:
        """Waits."""
        await asyncio.sleep(0)
        return f"{name} has waited"

    def script() -> list[Any]:
        both = ResponsesScript(id="r1").function_call("look", {"name": "a"}, "c1")
        return [
            both.function_call("wait", {"name": "b"}, "c2").reply(),
            ResponsesScript(id="r2").function_call("look", {"name": "b"}, "c3").reply(),
            ResponsesScript(id="r3").text("done").reply(),
        ]

    async with no_leaks(), FakeProvider([*script(), *script()]) as fake:
        agent = agent_at(fake, tools=[look, wait])
        awaited = await agent.send("hi")
        read = [chunk async for chunk in agent.send_stream("hi")]
    messages = [message for chunk in read for message in chunk.messages]
    assert [message.parts for message in awaited.messages] == [message.parts for message in messages]
    assert awaited.output == "done"


@requirement("R74")
async def test_empty_answer_after_tools_is_requested_once_more() -> None:
    empty = [ResponsesScript(id=f"e{n}").text("").reply() for n in range(3)]
    async with FakeProvider([calls(1)[0], empty[0], ResponsesScript().text("Here.").reply()]) as fake:
        assert (await agent_at(fake, tools=[look]).send("hi")).output == "Here."
    async with FakeProvider([calls(1)[0], *empty]) as fake:
        result = await agent_at(fake, tools=[look]).send("hi")
        assert len(fake.requests) == 3
    assert (result.output, result.finish_reason) == ("", "stop")


@requirement("R72")
async def test_tool_can_return_image_to_model() -> None:
    def draw() -> list[Any]:
        """Draws."""
        return ["a dot", DataPart(pixel_png(), "image/png", "dot.png")]

    async with FakeProvider(
        [ResponsesScript().function_call("draw", {}).reply(), ResponsesScript().text("ok").reply()]
    ) as fake:
        await agent_at(fake, tools=[draw]).send("hi")
        output = fake.requests[1].json["input"][0]["output"]
    assert [entry["type"] for entry in output] == ["input_text", "input_image"]
    assert output[1]["image_url"].startswith("data:image/png;base64,")


@requirement("R70")
async def test_call_settings_override_agent_settings() -> None:
    async with FakeProvider([ResponsesScript().text("a").reply(), ResponsesScript().text("b").reply()]) as fake:
        agent = agent_at(fake, tools=[look], system="Be brief.")
        await agent.send("hi", system="Be long.", tools=[])
        await agent.send("hi")
        first, second = (request.json for request in fake.requests)
    assert first["instructions"] == "Be long."
    assert "tools" not in first
    assert (second["instructions"], len(second["tools"])) == ("Be brief.", 1)
    with pytest.raises(TypeError, match="unknown settings"):
        agent.stream("hi", temperatur=1)  # type: ignore[call-overload]


async def test_subagent_parts_are_streamed_under_its_name() -> None:
    inner = ResponsesScript(id="i1").image(pixel_png()).text(["Pa", "ris"])
    outer = [
        ResponsesScript(id="o1").function_call("geographer", {"task": "capital of France"}, "call_1").reply(),
        ResponsesScript(id="o2").text("It is Paris.").reply(),
    ]
    async with no_leaks(), FakeProvider([inner.reply()]) as inside, FakeProvider(outer) as outside:
        child = agent_at(inside, system="You know places.").as_tool("geographer", "Knows places.")
        parts = await run_parts(agent_at(outside, tools=[child]))
        told = outside.requests[1].json["input"][0]["output"]
    events = [part for part in parts if isinstance(part, ToolEvent) and part.tool == "geographer"]
    assert {"text-delta", "finish"} <= {event.provider_stage for event in events}
    assert "".join(event.event["delta"] for event in events if event.provider_stage == "text-delta") == "Paris"
    assert told == "Paris"
    (file,) = [part for part in parts if isinstance(part, File)]
    assert (file.tool, file.call_id) == ("geographer", "call_1")
    assert isinstance(parts[-1], Finish)
    assert parts[-1].usage.input.total == 3 * 36


async def test_incomplete_subagent_is_error_result() -> None:
    outer = [
        ResponsesScript(id="o1").function_call("a", {"task": "x"}).reply(),
        ResponsesScript(id="o2").text("ok").reply(),
    ]
    async with (
        FakeProvider([ResponsesScript().text("half").incomplete().reply()]) as inside,
        FakeProvider(outer) as outside,
    ):
        parts = await run_parts(agent_at(outside, tools=[agent_at(inside).as_tool("a", "Does x.")]))
    (result,) = [part for part in parts if isinstance(part, ToolResult)]
    assert result.is_error
    assert "length" in result.result["message"]


@requirement("F41")
async def test_subagent_open_world_reads_count_for_outer_run() -> None:
    done: list[str] = []

    @tool(is_sensitive=True)
    def delete(name: str) -> str:
        """Deletes something."""
        done.append(name)
        return "gone"

    inner = ResponsesScript().web_search("x").text("found")
    outer = [
        ResponsesScript(id="o1").function_call("reader", {"task": "read"}).reply(),
        ResponsesScript(id="o2").function_call("delete", {"name": "a"}).reply(),
    ]
    async with FakeProvider([inner.reply()]) as inside, FakeProvider(outer) as outside:
        result = await agent_at(outside, tools=[agent_at(inside).as_tool("reader", "Reads."), delete]).send("hi")
    assert (result.finish_reason, done) == ("approval", [])


async def test_subagent_approvals_are_asked_by_outer_run() -> None:
    done: list[str] = []

    @tool(approval="ask")
    def delete(name: str) -> str:
        """Deletes something."""
        done.append(name)
        return f"{name} is gone"

    inner = [
        ResponsesScript(id="i1").function_call("delete", {"name": "x"}, "call_i").reply(),
        ResponsesScript(id="i2").text("Deleted.").reply(),
    ]
    outer = [
        ResponsesScript(id="o1").function_call("cleaner", {"task": "delete x"}, "call_o").reply(),
        ResponsesScript(id="o2").text("All done.").reply(),
    ]
    async with no_leaks(), FakeProvider(inner) as inside, FakeProvider(outer) as outside:
        child = agent_at(inside, tools=[delete]).as_tool("cleaner", "Cleans up.")
        agent = agent_at(outside, tools=[child])
        first = await agent.send("clean up")
        assert (first.finish_reason, done) == ("approval", [])
        (waiting,) = first.approvals
        assert (waiting.tool, waiting.input) == ("delete", {"name": "x"})
        second = await agent.resume(first.run_state.to_json(), [waiting.approve()])
        assert outside.requests[1].json["input"][0]["output"] == "Deleted."
    assert done == ["x"]
    assert second.output == "All done."


@requirement("R78", "F26")
@pytest.mark.parametrize("stop_at", range(1, 14))
async def test_leaving_run_after_any_part_leaves_no_leaks(stop_at: int) -> None:
    async with no_leaks(), FakeProvider([calls(1)[0], sse([*responses_text("on")[:5], asyncio.Event()])]) as fake:
        async with agent_at(fake, tools=[look]).stream("hi") as run:
            count = 0
            async for _ in run:
                count += 1
                if count == stop_at:
                    break
        await fake.wait_answered()


@requirement("R78", "F26")
async def test_cancelling_at_any_await_leaves_no_leaks() -> None:
    is_complete = False
    for turns in itertools.count():
        async with no_leaks(), FakeProvider([calls(1)[0], ResponsesScript().text("done").reply()]) as fake:
            task = asyncio.create_task(agent_at(fake, tools=[look]).send("hi"))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_complete = task.done()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is not is_complete
            await fake.wait_answered()
        if is_complete:  # There is no await left at which it could be cancelled.
            break
    assert task.result().output == "done"


async def test_steps_of_run_share_connection() -> None:
    # The fake sends the end of a body by itself, after the last event.
    async with no_leaks(), FakeProvider([*calls(5), ResponsesScript().text("done").reply()]) as fake:
        await agent_at(fake, tools=[look]).send("hi")
        assert (len(fake.requests), fake.connections_total) == (6, 1)


async def test_body_open_after_last_event_is_closed() -> None:
    async with no_leaks(), FakeProvider([sse([*responses_text("on"), asyncio.Event()])]) as fake:
        parts = await run_parts(agent_at(fake))
        assert isinstance(parts[-1], Finish)
        assert parts[-1].reason == "stop"
        await fake.wait_idle()


@requirement("F27")
async def test_dropped_stream_is_closed() -> None:
    async with no_leaks(), FakeProvider([sse([*responses_text("on")[:5], asyncio.Event()]) for _ in range(2)]) as fake:
        async for chunk in agent_at(fake).send_stream("hi"):
            if chunk.output:
                break
        run = agent_at(fake).stream("hi")
        await anext(run)
        await anext(run)
        del run, chunk
        gc.collect()
        await fake.wait_idle()


class OpenGate(asyncio.Event):
    """Counts how often the server has come by."""

    def __init__(self) -> None:
        super().__init__()
        self.set()
        self.passed = 0

    async def wait(self) -> Literal[True]:
        self.passed += 1
        return await super().wait()


async def until_still(gate: OpenGate) -> None:
    """Waits until the server makes no more progress. It runs on this loop: while it can send, each round sends more."""
    rounds, last = 0, -1
    while rounds < 200:
        rounds, last = rounds + 1 if gate.passed == last else 0, gate.passed
        await asyncio.sleep(0)


@requirement("F28")
async def test_slow_reader_delays_only_its_server() -> None:
    count, step = 20_000, 100
    gate = OpenGate()
    events = responses_text([f"{number:1000}" for number in range(count)])
    first = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.delta")
    body = events[:first]
    for at in range(first, first + count, step):
        body += [*events[at : at + step], gate]
    async with (
        no_leaks(),
        FakeProvider([sse([*body, asyncio.Event()])]) as fake,
        FakeProvider([ResponsesScript().text("Hello").reply()]) as another,
        agent_at(fake).stream("hi") as run,
    ):
        deltas = (part.delta async for part in run if isinstance(part, TextDelta))
        received = [await anext(deltas)]
        tracemalloc.start()
        try:
            await until_still(gate)
            held_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert gate.passed * step < count / 2  # sockets hold some of the 20 MB, the rest was not sent
        assert held_bytes < 4 * MIB
        assert (await agent_at(another).send("hi")).output == "Hello"
        while len(received) < count // 2:  # more than had been sent
            received.append(await anext(deltas))
        assert [int(delta) for delta in received] == list(range(count // 2))


@requirement("F31")
async def test_hostile_tool_does_not_end_run() -> None:
    import sys

    def leave() -> None:
        """Leaves."""
        sys.exit(3)

    def flood() -> str:
        """Floods."""
        return "x" * 5_000_000

    def strange() -> object:
        """Is strange."""
        return object()

    async def slow() -> None:
        """Hangs."""
        await asyncio.Event().wait()

    script = ResponsesScript()
    for name in ("leave", "flood", "strange", "slow"):
        script.function_call(name, {}, name)
    async with no_leaks(), FakeProvider([script.reply(), ResponsesScript().text("Still here.").reply()]) as fake:
        # Only the tool that never ends has a short time: the others must not race with it.
        tools = [leave, flood, strange, Tool.from_function(slow, timeout_s=0.2)]
        parts = await run_parts(agent_at(fake, tools=tools))
    results = {part.id: part for part in parts if isinstance(part, ToolResult)}
    assert {name: results[name].is_error for name in results} == {
        "leave": True,
        "flood": False,
        "strange": True,
        "slow": True,
    }
    assert results["leave"].result["error"] == "SystemExit"
    assert "cut" in results["flood"].result[-100:]


ARCHIVE = DataPart(b"PK\x03\x04", "application/zip", "all.zip")


@requirement("R101")
async def test_resumed_run_warns_about_omitted_content() -> None:
    @tool(approval="ask")
    def unpack() -> str:
        """Unpacks it."""
        return "unpacked"

    replies = [
        MessagesScript(id="msg_1").tool_use("unpack", {}, "toolu_1").reply(),
        MessagesScript(id="msg_2").text("Done.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, tools=[unpack])
        asked = await agent.send(["Unpack it.", ARCHIVE])
        done = await agent.resume(asked.run_state, [asked.run_state.approvals[0].approve()])
    assert done.output == "Done."
    for result in (asked, done):
        assert ["all.zip" in text for text in result.warnings] == [True]
    assert done.notices == []


@requirement("R101")
async def test_content_omitted_only_later_is_reported_once() -> None:
    replies = [MessagesScript(id=f"msg_{n}").tool_use("look", {}, f"toolu_{n}").reply() for n in range(3)]
    async with FakeProvider([*replies, MessagesScript().text("Done.").reply()]) as fake:
        runs: list[Run[str]] = []

        async def look() -> str:
            """Looks."""
            if len(fake.requests) == 1:
                await runs[0].steer([ARCHIVE])
            return "nothing"

        async with Agent("anthropic", base_url=fake.base_url, tools=[look]).stream("Look.") as run:
            runs.append(run)
            result = await run.result()
    assert result.output == "Done."
    assert ["all.zip" in text for text in result.warnings] == [True]


@requirement("F26")
async def test_tool_checkpoint_is_in_state_of_abandoned_run() -> None:
    saved, given = asyncio.Event(), list[str]()

    async def bake(context: ToolContext) -> str:
        """Bakes elsewhere."""
        if context.suspended is not None:
            given.append(context.suspended.state)
            return "baked"
        await context.checkpoint("oven-7")
        saved.set()
        await asyncio.Event().wait()
        return "never"

    replies = [
        ResponsesScript(id="r1").function_call("bake", {}, "call_1").reply(),
        ResponsesScript(id="r2").text("Baked.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[bake])
        async with asyncio.timeout(30), agent.stream("Bake.") as run:
            reading = asyncio.create_task(run.result())
            await saved.wait()
            state = run.state.to_json()
        left = await reading
        result = await agent.resume(state)
    assert (left.output, left.finish_reason) == ("", None)
    assert (result.output, given) == ("Baked.", ["oven-7"])

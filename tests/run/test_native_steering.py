"""Messages to the response that is being read, over WebSocket, which the server takes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from requirements import requirement
from sidestream import Chat, DataPart, Limiter, OpenAIResponsesOptions, TextPart, Tool
from sidestream.errors import SteerError
from sidestream.parts import Custom, Steer, StepStart, TextDelta
from sidestream.stream import grammar
from sidestream.testing import (
    AwaitedSteer,
    FakeProvider,
    ResponsesScript,
    error_reply,
    no_leaks,
    pixel_png,
    socket_close,
    sse,
    steer_report,
)
from sidestream.wire.http import close_session
from support.steered_runs import (
    FALLBACK,
    NATIVE,
    agent_at,
    input_of,
    parent,
    says,
    sent_by,
    steered,
    successor,
    told,
)


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


# The server answers by itself


@requirement("R115")
@pytest.mark.parametrize("ends", ["steered", "completed"])
async def test_steered_response_is_continued_by_its_successor(ends: str):
    script = [sse([*parent("One", AwaitedSteer(), ends=ends), *successor()]), says("Three.", "r3")]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake))
        parts = await steered(chat.stream("go"), "Hurry.")
        assert told(parts) == NATIVE
        (message,) = fake.steers
        assert sent_by(message) == {
            "type": "response.steer",
            "previous_response_id": "r1",
            "input": [{"type": "message", "role": "user", "content": "Hurry."}],
        }
        assert len(fake.requests) == 1
        # The next turn continues from the successor, over the same connection.
        await chat.send("last")
        last = sent_by(fake.requests[1])
        assert last["previous_response_id"] == "r2"
        assert last["input"] == [{"role": "user", "content": "last"}]
        assert len(fake.upgrades) == 1
        await close_session()
    assert [message.text for message in chat.messages] == ["go", "One.", "Hurry.", "Two.", "last", "Three."]


@requirement("R115")
async def test_one_successor_takes_two_messages_in_order():
    script = [sse([*parent("One", AwaitedSteer("a"), AwaitedSteer("b")), *successor()])]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        parts = await steered(run, "First.", "Second.")
        assert [input_of(message)[0]["content"] for message in fake.steers] == ["First.", "Second."]
        assert len(fake.requests) == 1
        await close_session()
    assert [part.text for part in parts if isinstance(part, Steer)] == ["First.", "Second."] * 2
    assert [message.text for message in run.turn.state.messages] == ["go", "One.", "First.", "Second.", "Two."]


@requirement("R115")
async def test_successor_can_be_steered():
    steered_again = parent("Two", AwaitedSteer("b"), id="r2")
    script = [sse([*parent("One", AwaitedSteer("a")), *steered_again, *successor("Three.", "r3", "r2")])]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        parts: list[Any] = []
        async with run:
            async for part in run:
                parts.append(part)
                if isinstance(part, TextDelta) and part.delta in ("One", "Two"):
                    await run.steer(f"after {part.delta}")
        grammar.check(parts)
        assert [sent_by(message)["previous_response_id"] for message in fake.steers] == ["r1", "r2"]
        assert len(fake.requests) == 1
        await close_session()
    assert run.output == "One.\nTwo.\nThree."


@requirement("R115")
async def test_message_before_first_event_is_offered_later():
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), *successor()])]) as fake:
        run = agent_at(fake).stream("go")
        parts: list[Any] = []
        async with run:
            async for part in run:
                parts.append(part)
                if isinstance(part, StepStart) and part.step == 0:
                    await run.steer("Hurry.")
        assert told(parts) == NATIVE
        assert len(fake.steers) == len(fake.requests) == 1
        await close_session()


@requirement("R115")
async def test_steered_files_reach_response():
    image = DataPart(pixel_png(), "image/png", "a.png")
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), *successor()])]) as fake:
        run = agent_at(fake, options=OpenAIResponsesOptions(image_detail="low")).stream("go")
        await steered(run, ["Like this:", image])
        (item,) = input_of(fake.steers[0])
        await close_session()
    assert item.keys() == {"type", "role", "content"}
    assert [part["type"] for part in item["content"]] == ["input_text", "input_image"]
    assert item["content"][1]["detail"] == "low"
    assert run.turn.state.messages[2].parts == (TextPart("Like this:"), image)


@requirement("R115")
async def test_other_runs_on_connection_keep_their_answers():
    gate = asyncio.Event()
    script = [sse([*parent("One", AwaitedSteer(), gate), *successor()]), *(says(f"{n}", f"o{n}") for n in range(3))]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake)
        run = asyncio.create_task(steered(agent.stream("go"), "Hurry."))
        await fake.wait_for_steers(1)
        assert [(await agent.send("other")).output for _ in range(3)] == ["0", "1", "2"]
        gate.set()
        assert told(await run) == NATIVE
        assert len(fake.upgrades) == 1
        await close_session()


@requirement("R115")
async def test_server_without_stream_ids_is_supported():
    none: Any = {"stream_id": None}
    events: list[Any] = [
        entry if isinstance(entry, AwaitedSteer) else {**entry, **none}
        for entry in [*parent("One", AwaitedSteer()), *successor()]
    ]
    async with FakeProvider([sse(events)]) as fake:
        assert told(await steered(agent_at(fake).stream("go"), "Hurry.")) == NATIVE
        await close_session()


@requirement("R115")
async def test_limiter_counts_successor_and_is_released():
    limiter = Limiter(concurrent=1)
    script = [
        sse([*parent("One", AwaitedSteer()), *successor()]),
        sse([*calling(AwaitedSteer()), PENDING]),
        says("Two.", "r2"),
    ]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, limiter=limiter, tools=[worker([])])
        running: list[int] = []
        async with agent.stream("go") as run:
            async for part in run:
                if isinstance(part, TextDelta):
                    running.append(limiter.running)
                    if part.delta == "One":
                        await run.steer("Hurry.")
        assert set(running) == {1}
        assert limiter.running == 0
        await steered(agent.stream("again"), "Hurry.")
        assert limiter.running == 0
        assert len(fake.requests) == 3
        await close_session()


@requirement("R115", "R107")
def test_sync_run_is_steered_natively():
    script = [sse([*parent("One", AwaitedSteer()), *successor()])]
    with FakeProvider(script).in_thread() as fake, agent_at(fake).stream_sync("go") as run:
        parts: list[Any] = []
        for part in run:
            parts.append(part)
            if isinstance(part, TextDelta) and part.delta == "One":
                run.steer("Hurry.")
        grammar.check(parts)
        assert told(parts) == NATIVE
        assert len(fake.steers) == len(fake.requests) == 1


# The server adds the message to the next request


def worker(runs: list[str]) -> Any:
    def work() -> str:
        """Works."""
        runs.append("work")
        return "worked"

    return work


def calling(*between: Any) -> list[Any]:
    """A response that calls a tool, with these entries before the call."""
    events = ResponsesScript(id="r1").text(["One", "."]).function_call("work", {}, "call_1").events()
    place = 1 + next(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return [*events[:place], *between, *events[place:]]


PENDING = steer_report(
    "pending",
    "steer_1",
    "r1",
    reason="waiting_for_required_input",
    required_input=[{"type": "function_call_output", "call_id": "call_1", "name": "work"}],
)


@requirement("R115")
async def test_message_pending_on_tool_results_is_not_resent_with_them():
    runs: list[str] = []
    script = [sse([*calling(AwaitedSteer()), PENDING]), says("Two.", "r2"), says("Three.", "r3")]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake, tools=[worker(runs)]))
        parts = await steered(chat.stream("go"), "Hurry.")
        first, second = (sent_by(request) for request in fake.requests)
        assert second["previous_response_id"] == "r1"
        assert second["stream_id"] == first["stream_id"]
        assert [item["type"] for item in second["input"]] == ["function_call_output"]
        assert FALLBACK not in told(parts)
        await chat.send("last")
        assert sent_by(fake.requests[2])["previous_response_id"] == "r2"
        assert len(fake.upgrades) == 1
        await close_session()
    assert runs == ["work"]
    assert [message.text for message in chat.messages if message.role == "user"] == ["go", "Hurry.", "last"]


@requirement("R115")
async def test_pending_message_is_resent_if_connection_breaks():
    script = [sse([*calling(AwaitedSteer()), PENDING, socket_close(1012)], cut="close"), says("Two.", "r2")]
    async with FakeProvider(script) as fake:

        async def work() -> str:
            """Works until the connection is gone."""
            await fake.wait_idle()
            return "worked"

        parts = await steered(agent_at(fake, tools=[work]).stream("go"), "Hurry.")
        items = input_of(fake.requests[1])
        await close_session()
    assert [item.get("type") or item["content"] for item in items] == ["function_call_output", "Hurry."]
    assert [status for status in told(parts) if status in ("accepted", "applied", FALLBACK)] == [
        "accepted",
        "applied",
        FALLBACK,
    ]


@requirement("R115")
async def test_refused_request_is_repeated_with_pending_message():
    runs: list[str] = []
    forgotten = error_reply(400, "previous_response_not_found", "Previous response not found.")
    script = [sse([*calling(AwaitedSteer()), PENDING]), forgotten, forgotten, says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        await steered(agent_at(fake, tools=[worker(runs)]).stream("go"), "Hurry.")
        bodies = [sent_by(request) for request in fake.requests]
        await close_session()
    assert [body.get("previous_response_id") for body in bodies] == [None, "r1", "r1", None]
    said = [[item["content"] for item in body["input"] if item.get("role") == "user"] for body in bodies]
    assert said == [["go"], [], ["Hurry."], ["go", "Hurry."]]
    assert runs == ["work"]


@requirement("R115")
async def test_request_with_full_history_includes_pending_message():
    runs: list[str] = []
    script = [sse([*calling(AwaitedSteer()), PENDING]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        options = OpenAIResponsesOptions(store=False)
        parts = await steered(agent_at(fake, tools=[worker(runs)], options=options).stream("go"), "Hurry.")
        assert [part.data["code"] for part in parts if isinstance(part, Custom)] == ["not-continued"]
        second = sent_by(fake.requests[1])
        assert "previous_response_id" not in second
        assert [item["content"] for item in second["input"] if item.get("role") == "user"] == ["go", "Hurry."]
        # The server may still hold it there, so that connection gets no further requests.
        assert len(fake.upgrades) == 2
        await close_session()


@requirement("R115")
async def test_run_awaiting_approval_keeps_pending_message():
    runs: list[str] = []
    tools = [Tool.from_function(worker(runs), approval="ask")]
    script = [sse([*calling(AwaitedSteer()), PENDING]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, tools=tools)
        run = agent.stream("go")
        parts = await steered(run, "Hurry.")
        assert [part.status for part in parts if isinstance(part, Steer)] == ["accepted"]
        with pytest.raises(SteerError) as caught:
            await run.steer("while it waits")
        assert caught.value.reason == "approval"
        state = run.state
        result = await agent.resume(state, [entry.approve() for entry in state.approvals])
        items = input_of(fake.requests[1])
        # Another connection: the old one might add the message once more.
        assert len(fake.upgrades) == 2
        await close_session()
    assert [item.get("type") or item["content"] for item in items] == ["function_call_output", "Hurry."]
    assert result.output.endswith("Two.")

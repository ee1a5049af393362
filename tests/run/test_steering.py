"""Messages that are sent while a run is in progress: when they are taken, kept for later, refused."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    ConfigurationError,
    DataPart,
    Limits,
    RunState,
    TextPart,
    Tool,
    ToolResult,
    ToolResultPart,
)
from sidestream.errors import SteerError
from sidestream.limits import MAX_PENDING_STEERS
from sidestream.parts import Finish, Steer, TextDelta
from sidestream.store import open_store
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    MessagesScript,
    ResponsesScript,
    error_reply,
    pixel_png,
    responses_text,
    sse,
)
from support.children import started
from support.waiting import wait_until

CHILD = Path(__file__).with_name("steered_child.py")
BOUND_S = 60


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


def says(text: str, id: str = "r") -> Any:
    return ResponsesScript(id=id).text(text).reply()


def pausing(gate: asyncio.Event, text: str, id: str = "r") -> Any:
    """An answer that ends only once the gate is open; the test reads its text before."""
    events = responses_text(text, id=id)
    place = 1 + next(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return sse([*events[:place], gate, *events[place:]])


def calls(name: str, id: str = "r0") -> Any:
    return ResponsesScript(id=id).function_call(name, {}, f"call_{name}").reply()


def statuses(parts: list[Any]) -> list[str]:
    return [part.status for part in parts if isinstance(part, Steer)]


def user_texts(fake: FakeProvider, number: int) -> list[Any]:
    return [item["content"] for item in fake.requests[number].json["input"] if item.get("role") == "user"]


@requirement("R115")
async def test_message_during_tool_is_sent_with_its_result() -> None:
    runs, goes_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        """Works until it is let go."""
        runs.set()
        await goes_on.wait()
        return "worked"

    async with FakeProvider([calls("work"), says("Done.")]) as fake:
        run = agent_at(fake, tools=[work]).stream("go")

        async def steer() -> str:
            await runs.wait()
            return await run.steer("Hurry.")

        steering = asyncio.create_task(steer())
        parts: list[Any] = []
        async with run:
            async for part in run:
                parts.append(part)
                if isinstance(part, Steer):
                    goes_on.set()  # Only now: the part has come while the tool was running.
    grammar.check(parts)
    told = [part for part in parts if isinstance(part, Steer | ToolResult)]
    assert [part.status if isinstance(part, Steer) else "result" for part in told] == ["accepted", "result", "applied"]
    assert {part.id for part in told if isinstance(part, Steer)} == {await steering}
    assert [item.get("type", "message") for item in fake.requests[1].json["input"]] == [
        "function_call_output",
        "message",
    ]


@requirement("R115")
async def test_chat_orders_messages_as_sent() -> None:
    gate = asyncio.Event()
    async with FakeProvider([pausing(gate, "One.", "r1"), says("Two.", "r2"), says("Three.", "r3")]) as fake:
        chat = Chat(agent_at(fake))
        async with chat.stream("first") as run:
            async for part in run:
                if isinstance(part, TextDelta) and part.delta == "One.":
                    await run.steer("and then")
                    gate.set()
        await chat.send("last")
        assert user_texts(fake, 2) == ["last"]
    assert [(message.role, message.text) for message in chat.messages] == [
        ("user", "first"),
        ("model", "One."),
        ("user", "and then"),
        ("model", "Two."),
        ("user", "last"),
        ("model", "Three."),
    ]


@requirement("R115")
async def test_result_messages_match_history() -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    async with FakeProvider([calls("look"), says("One.")]) as fake:
        run = agent_at(fake, tools=[look]).stream("go")
        await run.steer("early")
        steered = False
        messages: list[ChatMessage] = []
        async for chunk in run.chunks():
            messages += chunk.messages
            if not steered and any(isinstance(part, ToolResult) for part in chunk.parts):
                steered = True
                await run.steer("late")
    assert [message.role for message in messages] == ["user", "user", "model", "tool", "user", "model"]
    assert messages == run.turn.state.messages


@requirement("R115")
@pytest.mark.parametrize("closes", [False, True])
async def test_finished_run_refuses_messages(closes: bool) -> None:
    async with FakeProvider([says("Done.")]) as fake:
        run = agent_at(fake).stream("go")
        if closes:
            await run.__anext__()
            await run.aclose()
        else:
            # The end has been made; the reader has not seen it yet.
            async for part in run:
                if isinstance(part, TextDelta):
                    break
            while not run.turn.is_over:
                await run._driver.advance()
        with pytest.raises(SteerError) as caught:
            await run.steer("too late")
        assert caught.value.reason == (None if closes else "stop")
        parts = [part async for part in run]
        assert statuses(parts) == []
    assert len(fake.requests) == (0 if closes else 1)  # A closed run sends nothing more.


@requirement("R115")
async def test_run_awaiting_approval_accepts_messages_after_resume() -> None:
    def delete() -> str:
        """Deletes."""
        return "deleted"

    tools = [Tool.from_function(delete, approval="ask")]
    async with FakeProvider([calls("delete"), says("Done.")]) as fake:
        agent = agent_at(fake, tools=tools)
        async with agent.stream("go") as run:
            parts = []
            async for part in run:
                parts.append(part)
                if part.type == "tool-call":
                    await run.steer("before")
            assert statuses(parts) == ["accepted"]
            with pytest.raises(SteerError) as caught:
                await run.steer("while it waits")
        assert caught.value.reason == "approval"
        # What was accepted before survives as data, and what the resumed run is sent joins it.
        state = RunState.from_json(run.state.to_json())
        assert [steer.text for steer in state.turn.steers] == ["before"]
        async with agent.resume(state, [entry.approve() for entry in state.approvals]) as resumed:
            await resumed.steer("after")
            parts = [part async for part in resumed]
        assert statuses(parts) == ["accepted", "accepted", "applied", "applied"]
        items = fake.requests[1].json["input"]
    grammar.check(parts, first_step=1, known_calls=["call_delete"])
    assert [item.get("content") or item["output"] for item in items] == ["deleted", "before", "after"]


@requirement("R115", "R73")
@pytest.mark.parametrize(
    ("limits", "name"), [(Limits(max_steps=1), "max_steps"), (Limits(max_total_tokens=1), "max_total_tokens")]
)
async def test_message_beyond_limit_is_reported_as_failed(limits: Limits, name: str) -> None:
    async with FakeProvider([says("Done.")]) as fake:
        async with agent_at(fake, limits=limits).stream("go") as run:
            parts = [await run.__anext__()]
            await run.steer("more")  # The first request was made.
            parts += [part async for part in run]
        assert len(fake.requests) == 1
    grammar.check(parts)
    assert statuses(parts) == ["accepted", "failed"]
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.metadata["limit"]) == ("limit", name)
    assert [message.role for message in run.turn.state.messages] == ["user", "model"]


@requirement("R115")
async def test_message_to_failed_run_is_sent_on_resume(tmp_path: Path) -> None:
    gate = asyncio.Event()
    failing = sse([*ResponsesScript().text("Hm.").events()[:-1], gate, *ResponsesScript().failed().events()[-1:]])
    async with FakeProvider([failing, says("Better.")]) as fake:
        chat = Chat(agent_at(fake, limits=Limits(max_retries=0)), store=tmp_path / "log.db", id="talk")
        await chat.load()
        async with chat.stream("go", errors="parts") as run:
            async for part in run:
                if isinstance(part, TextDelta):
                    await run.steer("calmly")
                    gate.set()
        await chat.load()
        assert chat.status == "failed"
        assert chat.run_state is not None
        assert [steer.text for steer in chat.run_state.turn.steers] == ["calmly"]
        result = await chat.resume()
        assert user_texts(fake, 1) == ["go", "calmly"]
    assert result.output == "Better."
    assert [message.text for message in chat.messages] == ["go", "calmly", "Better."]


@requirement("R115", "R84")
@pytest.mark.parametrize("moment", ["text", "tool", "applied"])
async def test_accepted_message_survives_kill(tmp_path: Path, moment: str) -> None:
    held = asyncio.Event()
    ends = asyncio.Event()
    script = [calls("work") if moment == "tool" else pausing(ends, "Hm."), sse([held])]
    with FakeProvider(script).in_thread() as fake:
        arguments = [sys.executable, str(CHILD), str(tmp_path / "log.db"), fake.base_url, moment]
        with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"accepted\n"
            fake.release(ends)
            if moment == "applied":
                # The second request is sent once the log has what it takes.
                wait_until(lambda: len(fake.requests) == 2)
                child.kill()
            _, err = child.communicate(timeout=BOUND_S)
        assert child.returncode == -signal.SIGKILL, err.decode()
        fake.release(held)
    async with FakeProvider([says("Rebuilt.")]) as fake:

        def work() -> str:
            """Works."""
            return "worked"

        store = open_store(tmp_path / "log.db")
        chat = Chat(agent_at(fake, tools=[work]), store=store, id="talk")
        await chat.load()
        assert chat.status == "unfinished"
        state = chat.run_state
        assert state is not None
        assert [steer.text for steer in state.turn.steers] == ([] if moment == "applied" else ["Hurry."])
        result = await chat.resume([entry.approve() for entry in state.approvals])
        await store.aclose()
        assert user_texts(fake, 0)[-1] == "Hurry."
    assert result.output.endswith("Rebuilt.")
    assert [message.text for message in chat.messages if message.role == "user"] == ["go", "Hurry."]
    assert chat.messages[-2].text == "Hurry."


@requirement("R115")
async def test_paused_provider_continues_before_message_is_sent() -> None:
    script = [
        MessagesScript().text("Working").pause_turn().reply(),
        MessagesScript().text("Worked.").reply(),
        MessagesScript().text("Yes.").reply(),
    ]
    async with FakeProvider(script) as fake:
        async with Agent("anthropic", api_key="k", base_url=fake.base_url).stream("go") as run:
            await run.__anext__()
            await run.steer("sure?")  # The first request was made.
            parts = [part async for part in run]
        _, second, third = (request.json["messages"] for request in fake.requests)
    assert statuses(parts) == ["accepted", "applied"]
    assert second[-1]["role"] == "assistant"
    assert third[-1] == {"role": "user", "content": [{"type": "text", "text": "sure?"}]}


@requirement("R115")
async def test_answer_to_last_message_is_typed_output() -> None:
    async with FakeProvider([says('{"value": 1}'), says('{"value": 2}', "r2")]) as fake:
        async with agent_at(fake).stream("go", output_type=int) as run:
            async for part in run:
                if part.type == "step-finish" and part.step == 0:
                    await run.steer("another")  # The answer is about to be checked.
        assert len(fake.requests) == 2
    assert run.output == 2


@requirement("R115")
async def test_files_are_sent_and_logged(tmp_path: Path) -> None:
    image = DataPart(pixel_png(), "image/png", "a.png")
    gate = asyncio.Event()
    async with FakeProvider([pausing(gate, "One."), says("Two.", "r2")]) as fake:
        chat = Chat(agent_at(fake), store=tmp_path / "log.db", id="talk")
        await chat.load()
        async with chat.stream("go") as run:
            async for part in run:
                if isinstance(part, TextDelta) and part.delta == "One.":
                    await run.steer(["Like this:", image])
                    gate.set()
        (message,) = [item for item in fake.requests[1].json["input"] if item.get("role") == "user"]
        again = Chat(agent_at(fake), store=tmp_path / "log.db", id="talk")
        await again.load()
    assert [content["type"] for content in message["content"]] == ["input_text", "input_image"]
    assert again.messages == chat.messages
    assert again.messages[2].parts == (TextPart("Like this:"), image)


@requirement("R115")
@pytest.mark.parametrize(
    "message",
    [
        "",
        " \n",
        [],
        7,
        ChatMessage.model("I am the model."),
        [ToolResultPart("c", "f", "done")],
    ],
)
async def test_non_user_message_is_refused(message: Any) -> None:
    async with FakeProvider([says("Done.")]) as fake, agent_at(fake).stream("go") as run:
        with pytest.raises(ConfigurationError):
            await run.steer(message)
        assert statuses([part async for part in run]) == []


@requirement("R115")
async def test_pending_messages_are_bounded() -> None:
    async with FakeProvider([says("Done.")]) as fake, agent_at(fake).stream("go") as run:
        for number in range(MAX_PENDING_STEERS):
            await run.steer(f"{number}")
        with pytest.raises(SteerError):
            await run.steer("one more")
        assert statuses([part async for part in run]).count("applied") == MAX_PENDING_STEERS


@requirement("R115", "R107")
def test_sync_run_is_steered_between_parts() -> None:
    gate = asyncio.Event()
    script = [pausing(gate, "One."), says("Two.", "r2")]
    with FakeProvider(script).in_thread() as fake, agent_at(fake).stream_sync("go") as run:
        with pytest.raises(ConfigurationError):
            run.steer("before it has begun")
        parts = []
        for part in run:
            parts.append(part)
            if isinstance(part, TextDelta) and part.delta == "One.":
                run.steer("more")
                fake.release(gate)
        grammar.check(parts)
        assert statuses(parts) == ["accepted", "applied"]
        with pytest.raises(SteerError):
            run.steer("too late")
    assert user_texts(fake, 1) == ["more"]


@requirement("R115", "R107")
def test_sync_run_is_steered_from_other_thread() -> None:
    taken: list[str] = []

    def work() -> str:
        """A sync tool runs in a thread of its own."""
        assert threading.current_thread() is not threading.main_thread()
        taken.append(run.steer("from the tool"))
        return "worked"

    script = [calls("work"), says("Done.")]
    with FakeProvider(script).in_thread() as fake, agent_at(fake, tools=[work]).stream_sync("go") as run:
        parts = list(run)
    assert taken == [next(part.id for part in parts if isinstance(part, Steer))]
    assert statuses(parts) == ["accepted", "applied"]
    assert user_texts(fake, 1) == ["from the tool"]


@requirement("R115")
async def test_message_is_kept_for_retry_when_request_fails() -> None:
    async with FakeProvider([error_reply(500), says("Done.")]) as fake:
        async with agent_at(fake).stream("go") as run:
            await run.steer("please")
            parts = [part async for part in run]
        assert [user_texts(fake, number) for number in range(2)] == [["go", "please"]] * 2
    assert statuses(parts) == ["accepted", "applied"]

"""Messages to the response that is being read, over WebSocket: accepted, pending, refused, lost."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from children import started
from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    Custom,
    DataPart,
    Limits,
    OpenAIResponsesOptions,
    Recording,
    RecordingTransport,
    Steer,
    SteerError,
    StepFinish,
    StepStart,
    TextDelta,
    TextPart,
    Tool,
)
from sidestream.providers.openai_responses.websocket import RESPONSES_WEBSOCKET
from sidestream.store import open_store
from sidestream.stream import grammar
from sidestream.testing import (
    AwaitedSteer,
    FakeProvider,
    Received,
    Reply,
    ResponsesScript,
    no_leaks,
    pixel_png,
    socket_close,
    sse,
    steer_report,
)
from sidestream.wire import socket_stream
from sidestream.wire.http import close_session
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.websocket import WebSocketTransport

CHILD = Path(__file__).with_name("steered_child.py")
BOUND_S = 60
LIMITS = Limits(first_byte_timeout_s=20, idle_timeout_s=20)
FALLBACK = "sidestream.steer-fallback"


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    given = {"base_url": fake.base_url, "limits": LIMITS, "transport": "websocket", **settings}
    return Agent("openai-responses", api_key="key-4cf2", **given)


def parent(text: str = "One", *between: Any, id: str = "r1", ends: str = "steered") -> list[Any]:
    """A response whose first delta is followed by these entries; it ends steered, or with this status."""
    script = ResponsesScript(id=id).text([text, "."])
    events: list[Any] = (script.incomplete("steered") if ends == "steered" else script).events()
    place = 1 + next(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return [*events[:place], *between, *events[place:]]


def successor(text: str = "Two.", id: str = "r2", before: str = "r1") -> list[Any]:
    return ResponsesScript(id=id, previous_response_id=before).text(text).events()


def says(text: str, id: str = "r9") -> Reply:
    return ResponsesScript(id=id).text(text).reply()


def input_of(request: Received) -> list[Any]:
    body: Any = request.json
    given = body["input"]
    assert isinstance(given, list)
    return [*given]


def sent_by(request: Received) -> Any:
    return request.json


def told(parts: list[Any]) -> list[str]:
    """Steers, notices and borders of steps, in order."""
    kinds = (Steer, StepStart, StepFinish, Custom)
    names = {Steer: lambda part: part.status, Custom: lambda part: part.kind}
    return [names.get(type(part), lambda part: part.type)(part) for part in parts if isinstance(part, kinds)]


NATIVE = ["step-start", "accepted", "step-finish", "applied", "step-start", "step-finish"]
REFUSED = ["step-start", "accepted", FALLBACK, "step-finish", "applied", "step-start", "step-finish"]


async def steered(run: Any, *messages: Any, at: str = "One") -> list[Any]:
    """The parts of a run that is sent these messages after a delta."""
    parts: list[Any] = []
    async with run:
        async for part in run:
            parts.append(part)
            if isinstance(part, TextDelta) and part.delta == at:
                for message in messages:
                    await run.steer(message)
    grammar.check(parts)
    return parts


# The server answers by itself


@requirement("R115")
@pytest.mark.parametrize("ends", ["steered", "completed"])
async def test_the_response_that_is_read_takes_a_message_and_its_successor_continues_the_run(ends: str):
    script = [sse([*parent("One", AwaitedSteer(), ends=ends), *successor()]), says("Three.", "r3")]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake))
        parts = await steered(chat.stream("go"), "Hurry.")
        assert told(parts) == NATIVE
        (message,) = fake.steers
        assert sent_by(message) == {
            "type": "response.steer",
            "previous_response_id": "r1",
            "input": [{"role": "user", "content": "Hurry."}],
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
async def test_two_messages_are_taken_by_one_successor_in_their_order():
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
async def test_a_successor_is_steered_like_any_response():
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
async def test_a_message_before_the_first_event_was_read_is_offered_once_the_response_is_known():
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
async def test_files_reach_the_response_too():
    image = DataPart(pixel_png(), "image/png", "a.png")
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), *successor()])]) as fake:
        run = agent_at(fake, options=OpenAIResponsesOptions(image_detail="low")).stream("go")
        await steered(run, ["Like this:", image])
        (item,) = input_of(fake.steers[0])
        await close_session()
    assert item.keys() == {"role", "content"}
    assert [part["type"] for part in item["content"]] == ["input_text", "input_image"]
    assert item["content"][1]["detail"] == "low"
    assert run.turn.state.messages[2].parts == (TextPart("Like this:"), image)


@requirement("R115")
async def test_other_runs_on_the_connection_keep_their_own_answers():
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
async def test_a_server_that_names_no_lanes_is_understood():
    none: Any = {"stream_id": None}
    events: list[Any] = [
        entry if isinstance(entry, AwaitedSteer) else {**entry, **none}
        for entry in [*parent("One", AwaitedSteer()), *successor()]
    ]
    async with FakeProvider([sse(events)]) as fake:
        assert told(await steered(agent_at(fake).stream("go"), "Hurry.")) == NATIVE
        await close_session()


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
async def test_a_message_that_waits_for_results_of_tools_is_not_sent_again_with_them():
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
async def test_a_pending_message_whose_connection_breaks_is_sent_with_the_results():
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
async def test_a_request_that_replays_the_history_has_the_pending_message_in_it():
    runs: list[str] = []
    script = [sse([*calling(AwaitedSteer()), PENDING]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        options = OpenAIResponsesOptions(store=False)
        await steered(agent_at(fake, tools=[worker(runs)], options=options).stream("go"), "Hurry.")
        second = sent_by(fake.requests[1])
        assert "previous_response_id" not in second
        assert [item["content"] for item in second["input"] if item.get("role") == "user"] == ["go", "Hurry."]
        # The server may still hold it there, so that connection gets no further requests.
        assert len(fake.upgrades) == 2
        await close_session()


@requirement("R115")
async def test_a_run_that_waits_for_an_approval_keeps_a_pending_message_and_refuses_others():
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


# The response does not take it


@requirement("R115")
@pytest.mark.parametrize("code", ["steering_not_supported", "too_many_pending_steers", "a_code_of_tomorrow"])
async def test_a_message_that_is_refused_is_sent_with_the_next_request_and_the_stream_says_so(code: str):
    script = [sse(parent("One", AwaitedSteer(refusal=code), ends="completed")), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        parts = await steered(run, "Hurry.")
        assert told(parts) == REFUSED
        (notice,) = [part for part in parts if isinstance(part, Custom)]
        assert notice.data["code"] == code
        assert notice.data["id"] == next(part.id for part in parts if isinstance(part, Steer))
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        assert len(fake.upgrades) == 1
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_a_response_that_ends_before_the_message_arrives_is_followed_by_a_request():
    gate = asyncio.Event()
    script = [sse(parent("One", gate, ends="completed")), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        parts: list[Any] = []
        async with run:
            async for part in run:
                parts.append(part)
                if isinstance(part, TextDelta) and part.delta == "One":
                    gate.set()
                    await fake.wait_answered()
                    await run.steer("Hurry.")  # The end is on its way, or has arrived unread.
        grammar.check(parts)
        assert told(parts)[-3:] == ["applied", "step-start", "step-finish"]
        assert FALLBACK in told(parts)
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()


@requirement("R115")
async def test_an_accepted_message_for_which_no_successor_can_be_made_is_sent_with_a_request():
    failed = steer_report(
        "failed",
        "steer_1",
        "r1",
        error={"type": "invalid_request_error", "code": "successor_creation_failed", "message": "no room"},
    )
    script = [sse([*parent("One", AwaitedSteer()), failed]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        parts = await steered(agent_at(fake).stream("go"), "Hurry.")
        assert [part.data["code"] for part in parts if isinstance(part, Custom)] == ["successor_creation_failed"]
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        assert len(fake.upgrades) == 1
        await close_session()


@requirement("R115")
@pytest.mark.parametrize("error", [{"status": 500, "error": {"code": "server_error"}}, {"error": {"code": "odd"}}])
async def test_an_error_in_place_of_the_successor_is_followed_by_a_request(error: dict[str, Any]):
    script = [sse([*parent("One", AwaitedSteer()), {"type": "error", **error}]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        parts = await steered(run, "Hurry.")
        assert told(parts) == [
            "step-start",
            "accepted",
            "step-finish",
            "applied",
            FALLBACK,
            "step-start",
            "step-finish",
        ]
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_a_connection_that_is_lost_before_the_successor_is_followed_by_a_request():
    script = [sse([*parent("One", AwaitedSteer()), socket_close(1012)], cut="close"), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        await steered(run, "Hurry.")
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        assert len(fake.upgrades) == 2
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_a_server_that_never_answers_a_message_costs_a_bounded_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket_stream, "MAX_STEER_ANSWER_S", 0.05)
    script = [sse(parent("One", AwaitedSteer(says=False), ends="completed")), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        parts = await steered(agent_at(fake).stream("go"), "Hurry.")
        assert FALLBACK in told(parts)
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()


@requirement("R115")
async def test_a_successor_that_never_begins_costs_the_wait_for_a_first_event():
    limits = Limits(first_byte_timeout_s=0.3, idle_timeout_s=20)
    script = [sse([*parent("One", AwaitedSteer()), asyncio.Event()]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake, limits=limits).stream("go")
        await steered(run, "Hurry.")
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_an_error_of_a_server_that_knows_no_such_messages_refuses_only_the_message():
    """It names no lane, and must end neither the response nor requests that wait for their first event."""
    gate, other = asyncio.Event(), asyncio.Event()
    unknown: Any = {"type": "error", "status": 400, "stream_id": None}
    unknown |= {"error": {"type": "invalid_request_error", "code": "unknown_event", "message": "unknown type"}}
    first = sse(parent("One", gate, AwaitedSteer(says=False), unknown, ends="completed"))
    second = Reply(body=ResponsesScript(id="o1").text("Other.").events(), gate=other)
    async with FakeProvider([first, second, says("Two.", "r2")]) as fake:
        agent = agent_at(fake)
        run = asyncio.create_task(steered(agent.stream("go"), "Hurry."))
        await fake.wait_for_steers(1)
        waiting = asyncio.create_task(agent.send("other"))
        await fake.wait_for_requests(2)
        gate.set()
        parts = await run
        other.set()
        assert (await waiting).output == "Other."
        (notice,) = [part for part in parts if isinstance(part, Custom)]
        assert notice.data["code"] == "unknown_event"
        assert input_of(fake.requests[2]) == [{"role": "user", "content": "Hurry."}]
        await close_session()


@requirement("R115")
async def test_a_message_that_one_response_refused_is_offered_to_its_successor():
    script = [
        sse(
            [
                *parent("One", AwaitedSteer("a"), AwaitedSteer(refusal="too_many_pending_steers")),
                *parent("Two", AwaitedSteer("b"), id="r2"),
                *successor("Three.", "r3", "r2"),
            ]
        )
    ]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        await steered(run, "First.", "Second.")
        targets = [(sent_by(message)["previous_response_id"], input_of(message)) for message in fake.steers]
        await close_session()
    assert [(target, items[0]["content"]) for target, items in targets] == [
        ("r1", "First."),
        ("r1", "Second."),
        ("r2", "Second."),
    ]
    assert [message.text for message in run.turn.state.messages] == [
        "go",
        "One.",
        "First.",
        "Two.",
        "Second.",
        "Three.",
    ]


@requirement("R115")
async def test_over_http_nothing_is_offered_and_nothing_is_reported():
    gate = asyncio.Event()
    async with FakeProvider([sse(parent("One", gate, ends="completed")), says("Two.", "r2")]) as fake:
        run = agent_at(fake, transport="http").stream("go")
        parts: list[Any] = []
        async with run:
            async for part in run:
                parts.append(part)
                if isinstance(part, TextDelta) and part.delta == "One":
                    await run.steer("Hurry.")
                    gate.set()
        assert told(parts) == NATIVE
        assert not fake.steers
        await close_session()


# Ends


@requirement("R115", "R73")
async def test_a_limit_ends_the_run_and_the_successor_is_left():
    hold = asyncio.Event()
    script = [sse([*parent("One", AwaitedSteer()), *successor()[:4], hold]), says("Fresh.", "r5")]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, limits=Limits(max_steps=1))
        parts = await steered(agent.stream("go"), "Hurry.")
        assert [part.status for part in parts if isinstance(part, Steer)] == ["accepted", "failed"]
        await fake.wait_idle()  # Nobody reads the successor, so the server is not left to write it.
        assert (await agent.send("again")).output == "Fresh."
        await close_session()


@requirement("R115")
@pytest.mark.parametrize("moment", ["before the end", "before the successor"])
async def test_leaving_a_steered_run_leaves_nothing_behind(moment: str):
    hold = asyncio.Event()
    events = parent("One", AwaitedSteer(), *([hold] if moment == "before the end" else []))
    async with FakeProvider([sse([*events, hold])]) as fake:
        async with agent_at(fake).stream("go") as run:
            async for part in run:
                if isinstance(part, TextDelta) and part.delta == "One":
                    await run.steer("Hurry.")
                    if moment == "before the end":
                        break
                if isinstance(part, StepFinish):
                    break
        await fake.wait_idle()
        assert [steer.text for steer in run.state.turn.steers] == ["Hurry."]


@requirement("R115")
async def test_a_run_that_is_dropped_before_the_successor_gives_its_lane_back():
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), asyncio.Event()])]) as fake:
        run = agent_at(fake).stream("go")
        parts = aiter(run)
        while not isinstance(part := await anext(parts), StepFinish):
            if isinstance(part, TextDelta) and part.delta == "One":
                await run.steer("Hurry.")
        del run, parts
        await fake.wait_idle()


@requirement("R115")
async def test_closing_a_run_that_waits_for_a_successor_ends_the_wait():
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), asyncio.Event()])]) as fake:
        run = agent_at(fake).stream("go")
        is_over = asyncio.Event()

        async def read() -> list[Any]:
            parts: list[Any] = []
            async for part in run:
                parts.append(part)
                if isinstance(part, TextDelta) and part.delta == "One":
                    await run.steer("Hurry.")
                if isinstance(part, StepFinish):
                    asyncio.get_running_loop().call_soon(is_over.set)  # once the run waits
            return parts

        reading = asyncio.create_task(read())
        await is_over.wait()
        await run.aclose()
        parts = await reading
        assert isinstance(parts[-1], StepFinish)
        await fake.wait_idle()


# Log and recordings


@requirement("R115", "R84")
@pytest.mark.parametrize("moment", ["text", "applied"])
async def test_a_message_that_the_server_accepted_survives_a_kill(tmp_path: Path, moment: str):
    held = asyncio.Event()
    following = [held] if moment == "text" else [*successor()[:4], held]
    entries = [*parent("One", AwaitedSteer(), *([held] if moment == "text" else [])), *following]
    with FakeProvider([sse(entries)]).in_thread() as fake:
        arguments = [sys.executable, str(CHILD), str(tmp_path / "log.db"), fake.base_url, moment, "websocket"]
        with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"accepted\n"
            await fake.wait_for_steers(1)
            if moment == "applied":
                assert child.stdout.readline() == b"applied\n"
            child.kill()
            _, err = child.communicate(timeout=BOUND_S)
        assert child.returncode == -signal.SIGKILL, err.decode()
        fake.release(held)
    async with FakeProvider([says("Rebuilt.")]) as fake:
        store = open_store(tmp_path / "log.db")
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.load()
        assert chat.status == "unfinished"
        state = chat.run_state
        assert state is not None
        assert [steer.text for steer in state.turn.steers] == ([] if moment == "applied" else ["Hurry."])
        await chat.resume()
        await store.aclose()
        assert input_of(fake.requests[0])[-1] == {"role": "user", "content": "Hurry."}
        await close_session()
    said = ["go", "One.", "Hurry.", "Rebuilt."] if moment == "applied" else ["go", "Hurry.", "Rebuilt."]
    assert [message.text for message in chat.messages] == said


@requirement("R115", "R82")
async def test_a_steered_chat_is_read_from_its_log_as_it_was(tmp_path: Path):
    script = [sse([*parent("One", AwaitedSteer()), *successor()]), says("Three.", "r3")]
    async with FakeProvider(script) as fake:
        store = open_store(tmp_path / "log.db")
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.load()
        await steered(chat.stream("go"), "Hurry.")
        again = Chat(agent_at(fake), store=store, id="talk")
        await again.load()
        assert again.messages == chat.messages
        await again.send("last")
        assert sent_by(fake.requests[1])["previous_response_id"] == "r2"
        await store.aclose()
        await close_session()


@requirement("R115")
async def test_a_recording_has_the_successor_as_an_exchange_of_its_own():
    script = [sse([*parent("One", AwaitedSteer()), *successor()])]
    async with FakeProvider(script) as fake:
        transport = RecordingTransport(WebSocketTransport(RESPONSES_WEBSOCKET, retry=RetryPolicy()))
        parts = await steered(agent_at(fake, transport=transport).stream("go"), "Hurry.")
        assert told(parts) == NATIVE
        await close_session()
    recording: Recording = transport.recording
    first, second = recording.exchanges
    body: Any = second.request.body
    assert body["steers"][0]["input"] == [{"role": "user", "content": "Hurry."}]
    assert body["model"] == first.request.body["model"]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType, reportCallIssue]
    assert b"response.steer.accepted" in first.body_bytes()
    assert b'"Two."' in second.body_bytes()

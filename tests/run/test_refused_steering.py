"""Messages to the response that is being read, over WebSocket, which the server does not take, or loses."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Custom,
    Limits,
    Steer,
    TextDelta,
)
from sidestream.stream import grammar
from sidestream.testing import (
    AwaitedSteer,
    FakeProvider,
    Reply,
    ResponsesScript,
    no_leaks,
    socket_close,
    sse,
    steer_report,
)
from sidestream.wire.http import close_session
from sidestream.wire.socket import stream
from support.steered_runs import (
    FALLBACK,
    NATIVE,
    REFUSED,
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
    monkeypatch.setattr(stream, "MAX_STEER_ANSWER_S", 0.05)
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

"""Messages to the response that is being read, over WebSocket, which the server does not take, or loses."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from requirements import requirement
from sidestream import Limits
from sidestream.parts import Custom, Steer, TextDelta
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
async def test_refused_message_is_sent_with_next_request_and_notice(code: str):
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
async def test_message_after_response_end_is_sent_with_new_request():
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
async def test_accepted_message_without_successor_is_sent_with_request():
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
async def test_error_instead_of_successor_is_followed_by_request(error: dict[str, Any]):
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
async def test_connection_lost_before_successor_is_followed_by_request():
    script = [sse([*parent("One", AwaitedSteer()), socket_close(1012)], cut="close"), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake).stream("go")
        await steered(run, "Hurry.")
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        assert len(fake.upgrades) == 2
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_wait_for_unanswered_message_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "MAX_STEER_ANSWER_S", 0.05)
    script = [sse(parent("One", AwaitedSteer(says=False), ends="completed")), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        parts = await steered(agent_at(fake).stream("go"), "Hurry.")
        assert FALLBACK in told(parts)
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()


@requirement("R115")
async def test_missing_successor_times_out_at_first_byte():
    limits = Limits(first_byte_timeout_s=0.3, idle_timeout_s=20)
    script = [sse([*parent("One", AwaitedSteer()), asyncio.Event()]), says("Two.", "r2")]
    async with FakeProvider(script) as fake:
        run = agent_at(fake, limits=limits).stream("go")
        await steered(run, "Hurry.")
        assert input_of(fake.requests[1]) == [{"role": "user", "content": "Hurry."}]
        await close_session()
    assert run.output == "One.\nTwo."


@requirement("R115")
async def test_unknown_event_error_refuses_only_message():
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
async def test_message_refused_by_response_is_offered_to_successor():
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
async def test_http_run_offers_and_reports_no_native_steering():
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

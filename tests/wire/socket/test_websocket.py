"""Responses over WebSocket against the fake provider on loopback: the same scripts as over HTTP, and the same outcomes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI

from requirements import requirement
from sidestream import Agent, Limits, OpenAIResponsesOptions
from sidestream.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectError,
    ProviderError,
    RateLimitedError,
    RunError,
)
from sidestream.parts import Custom, TextDelta
from sidestream.providers.openai.responses.websocket import RESPONSES_WEBSOCKET
from sidestream.replay.provider import replay
from sidestream.testing import (
    AwaitedSteer,
    FakeProvider,
    Received,
    Recording,
    RecordingTransport,
    ReplayTransport,
    Reply,
    ResponsesScript,
    check_stream,
    error_reply,
    no_leaks,
    responses_function_call,
    responses_text,
    socket_close,
    sse,
)
from sidestream.wire.http import close_session
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.socket import connection as socket_connection, pool
from sidestream.wire.socket.transport import WebSocketTransport

QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
LIMITS = Limits(first_byte_timeout_s=20, idle_timeout_s=20)
KEY = "canary-key-51cd7e0a-secret"


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


def transport(**codec: Any) -> WebSocketTransport:
    return WebSocketTransport(replace(RESPONSES_WEBSOCKET, **codec), retry=QUICK)


def agent(fake: FakeProvider, **settings: Any) -> Agent:
    given = {"api_key": KEY, "base_url": fake.base_url, "limits": LIMITS, "transport": transport(), **settings}
    return Agent("openai-responses", **given)


def lane_of(request: Received) -> str:
    body: Any = request.json
    return body["stream_id"]


def gated(text: str, gate: asyncio.Event) -> Reply:
    """A response that stops after its first delta until the gate is set."""
    events: list[Any] = responses_text([text[:1], text[1:]])
    first = next(index for index, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return sse([*events[: first + 1], gate, *events[first + 1 :]])


# One connection


@requirement("R115")
async def test_turns_share_connection_and_omit_stream_and_background():
    async with FakeProvider([sse(responses_text("Hello")), sse(responses_text("Again"))]) as fake:
        subject = agent(fake, transport="websocket")
        assert (await subject.send("one")).text == "Hello"
        assert (await subject.send("two", options=OpenAIResponsesOptions(background=False))).text == "Again"
        assert len(fake.upgrades) == fake.connections_total == 1
        first: Any = fake.requests[0].json
        second: Any = fake.requests[1].json
        assert all(request.is_websocket for request in fake.requests)
        assert first["type"] == "response.create"
        assert first["input"]
        assert not {"stream", "background"} & (first.keys() | second.keys())
        assert fake.upgrades[0].headers["authorization"] == f"Bearer {KEY}"
        assert fake.upgrades[0].headers["user-agent"].startswith("sidestream/")
        await close_session()


async def test_tool_results_use_same_connection():
    def double(number: int) -> int:
        """Doubles."""
        return 2 * number

    script = [sse(responses_function_call("double", {"number": 4}, "call_1")), sse(responses_text("It is 8."))]
    async with FakeProvider(script) as fake:
        result = await agent(fake, tools=[double]).send("double 4")
        assert result.text == "It is 8."
        assert len(fake.upgrades) == 1
        second: Any = fake.requests[1].json
        assert second["input"][0]["output"] == "8"
        await close_session()


@requirement("R115")
async def test_parts_match_http():
    script = ResponsesScript().reasoning("Let me see.").web_search("news", sources=["https://a.example"]).text("Today")
    async with FakeProvider([script.reply(), script.reply()]) as fake:
        over_http = [part async for part in agent(fake, transport="http").stream("hi")]
        over_socket = [part async for part in agent(fake).stream("hi")]
        assert [request.is_websocket for request in fake.requests] == [False, True]
        check_stream(over_socket)
        assert [type(part) for part in over_socket] == [type(part) for part in over_http]
        texts = [[part.delta for part in parts if isinstance(part, TextDelta)] for parts in (over_http, over_socket)]
        assert texts[0] == texts[1] == ["Today"]
        await close_session()


@requirement("R115")
async def test_vendor_client_reads_same_text_from_fake():
    def answer(request: Received) -> Reply:
        return sse(responses_text(["Al", "pha"] if b'"alpha"' in request.body else ["Be", "ta"]))

    async with FakeProvider() as fake:
        fake.on("POST", "*/responses", answer)
        client = AsyncOpenAI(api_key=KEY, base_url=fake.base_url)
        theirs: dict[str, str] = {"alpha": "", "beta": ""}
        async with client, client.responses.connect() as connection:
            for lane in theirs:
                await connection.send({"type": "response.create", "model": "gpt-5.6", "input": lane, "stream_id": lane})
            over = 0
            async for event in connection:
                sent: Any = event
                if sent.type == "response.output_text.delta":
                    theirs[sent.stream_id] += sent.delta
                over += sent.type == "response.completed"
                if over == 2:
                    break
        subject = agent(fake)
        runs = await asyncio.gather(*(subject.send(prompt) for prompt in theirs))
        assert [*theirs.values()] == [run.text for run in runs] == ["Alpha", "Beta"]
        await close_session()


@requirement("R115")
async def test_vendor_client_can_steer_fake():
    answer = ResponsesScript(id="r1").text(["One", "."]).incomplete("steered").events()
    after = ResponsesScript(id="r2").text("Two.").events()
    async with FakeProvider([sse([*answer[:5], AwaitedSteer("s1"), *answer[5:], *after])]) as fake:
        client = AsyncOpenAI(api_key=KEY, base_url=fake.base_url)
        seen: list[Any] = []
        async with client, client.responses.connect() as connection:
            await connection.send({"type": "response.create", "model": "gpt-5.6", "input": "go", "stream_id": "mine"})
            async for event in connection:
                seen.append(event)
                if event.type == "response.output_text.delta" and event.delta == "One":
                    steer: Any = {"type": "response.steer", "previous_response_id": "r1", "input": "Hurry."}
                    await connection.send(steer)
                if event.type == "response.completed":
                    await connection.send({"type": "response.steer", "previous_response_id": "r2", "input": "Late."})
                if event.type == "response.steer.failed":
                    break
    told = [event.type for event in seen if event.type.split(".")[1] in ("created", "incomplete", "completed", "steer")]
    assert told == [
        "response.created",
        "response.steer.accepted",
        "response.incomplete",
        "response.created",
        "response.completed",
        "response.steer.failed",
    ]
    accepted = next(event for event in seen if event.type == "response.steer.accepted")
    assert (accepted.steer.id, accepted.steer.previous_response_id, accepted.stream_id) == ("s1", "r1", "mine")
    assert (seen[-1].error.code, seen[-1].steer.input) == ("response_already_completed", "Late.")


# Which calls go over HTTP


async def test_non_streaming_and_background_responses_use_http():
    done = ResponsesScript().text("Done")
    script = [done.reply(), sse(done.events())]
    async with FakeProvider(script) as fake:
        subject = agent(fake)
        assert (await subject.send("whole", stream=False)).text == "Done"
        assert (await subject.send("later", options=OpenAIResponsesOptions(background=True))).text == "Done"
        assert [request.is_websocket for request in fake.requests] == [False, False]
        assert not fake.upgrades
        await close_session()


def test_provider_without_websockets_is_refused_before_sending():
    with pytest.raises(ConfigurationError):
        Agent("anthropic", api_key=KEY, transport="websocket")
    with pytest.raises(ConfigurationError):
        Agent("openai-responses", api_key=KEY, transport="carrier-pigeon")  # pyright: ignore[reportCallIssue, reportArgumentType]


# Lanes


@requirement("R115")
async def test_concurrent_responses_have_separate_streams():
    first, second = asyncio.Event(), asyncio.Event()
    async with FakeProvider([gated("first", first), gated("second", second)]) as fake:
        subject = agent(fake)
        runs = [asyncio.create_task(subject.send(str(number))) for number in range(2)]
        await fake.wait_for_requests(2)
        second.set()
        assert (await runs[1]).text == "second"
        assert not runs[0].done()
        first.set()
        assert (await runs[0]).text == "first"
        assert len({lane_of(request) for request in fake.requests}) == 2
        assert fake.connections_total == 1
        await close_session()


async def test_requests_beyond_active_limit_are_queued_and_report_it():
    gates = [asyncio.Event() for _ in range(4)]
    async with FakeProvider([gated(f"{number}!", gate) for number, gate in enumerate(gates)]) as fake:
        subject = agent(fake, transport=transport(max_active=2))

        async def parts(number: int) -> list[Any]:
            return [part async for part in subject.stream(f"prompt {number}")]

        runs = [asyncio.create_task(parts(number)) for number in range(4)]
        await fake.wait_for_requests(2)
        for done, gate in enumerate(gates):
            assert len(fake.requests) == min(done + 2, 4)
            gate.set()
            await runs[done]
            await fake.wait_for_requests(min(done + 3, 4))
        prompts: list[Any] = [request.json for request in fake.requests]
        assert [body["input"][0]["content"] for body in prompts] == [f"prompt {n}" for n in range(4)]
        delays = [[part.data for part in await run if isinstance(part, Custom)] for run in runs]
        assert [len(delay) for delay in delays] == [0, 0, 1, 1]
        assert delays[3][0]["limiter_wait_s"] > 0
        assert len({lane_of(request) for request in fake.requests}) == 2
        await close_session()


async def test_many_concurrent_runs_get_their_own_answers():
    def answer(request: Received) -> Reply:
        body: Any = request.json
        return sse(responses_text([*body["input"][0]["content"]]), chunk_sizes=(3, 50, 7))

    async with FakeProvider() as fake:
        fake.on("POST", "*/responses", answer)
        subject = agent(fake)
        prompts = [f"prompt number {number}" for number in range(60)]
        results = await asyncio.gather(*(subject.send(prompt) for prompt in prompts))
        assert [result.text for result in results] == prompts
        assert fake.connections_total == 1
        assert len({lane_of(request) for request in fake.requests}) <= 16
        await close_session()


async def test_connection_without_free_streams_is_replaced():
    errors = [sse([*responses_text("x")[:3], {"type": "error", "error": {"code": "oops", "message": "m"}}])] * 2
    async with FakeProvider([*errors, sse(responses_text("fresh"))]) as fake:
        subject = agent(fake, transport=transport(max_lanes=2))
        for _ in range(2):
            with pytest.raises(RunError):
                await subject.send("hi")
        assert (await subject.send("hi")).text == "fresh"
        assert len(fake.upgrades) == 2
        await fake.wait_answered()
        await close_session()


@requirement("R115")
async def test_leaving_one_run_does_not_affect_others():
    held, other = asyncio.Event(), asyncio.Event()
    async with FakeProvider([gated("left", held), gated("kept", other), sse(responses_text("next"))]) as fake:
        subject = agent(fake)
        async with subject.stream("leave me") as run:
            await anext(part async for part in run if isinstance(part, TextDelta))
            kept = asyncio.create_task(subject.send("keep me"))
            await fake.wait_for_requests(2)
        held.set()
        other.set()
        assert (await kept).text == "kept"
        assert (await subject.send("again")).text == "next"
        assert len({request.body for request in fake.requests}) == 3
        await close_session()


async def test_leaving_only_run_closes_connection():
    async with FakeProvider([gated("left", asyncio.Event()), sse(responses_text("next"))]) as fake:
        subject = agent(fake)
        async with subject.stream("leave me") as run:
            await anext(part async for part in run if isinstance(part, TextDelta))
        await fake.wait_idle()
        assert (await subject.send("again")).text == "next"
        assert len(fake.upgrades) == 2
        await close_session()


async def test_dropped_run_releases_its_stream():
    async with FakeProvider([gated("left", asyncio.Event())]) as fake:
        run = agent(fake).stream("drop me")
        parts = aiter(run)
        while not isinstance(await anext(parts), TextDelta):
            pass
        del run, parts
        await fake.wait_idle()


async def test_idle_connections_beyond_limit_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "MAX_IDLE", 2)
    async with FakeProvider([sse(responses_text("Hello"))] * 5) as fake:
        for number in range(5):
            await agent(fake, api_key=f"another-key-{number}").send("hi")
        await fake._wait(lambda: fake.connections_open == 3, 10)
        await close_session()


async def test_connection_without_responses_is_closed_when_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket_connection, "IDLE_S", 0.01)
    async with FakeProvider([sse(responses_text("Hello"))]) as fake:
        await agent(fake).send("hi")
        await fake.wait_idle()


# Other headers, other connections


async def test_other_key_has_other_connection():
    async with FakeProvider([sse(responses_text("Hello"))] * 2) as fake:
        await agent(fake).send("one")
        await agent(fake, api_key="another-key-77ab").send("two")
        assert [upgrade.headers["authorization"] for upgrade in fake.upgrades] == [
            f"Bearer {KEY}",
            "Bearer another-key-77ab",
        ]
        await close_session()


async def test_agents_with_same_key_share_connection():
    async with FakeProvider([sse(responses_text("Hello"))] * 2) as fake:
        await agent(fake, transport="websocket").send("one")
        await agent(fake, transport="websocket").send("two")
        assert fake.connections_total == 1
        await close_session()


# Refusals


@requirement("R115")
@pytest.mark.parametrize("status", [400, 403, 404, 426, 501])
async def test_refused_upgrade_falls_back_to_http_with_one_notice(status: int):
    async with FakeProvider([sse(responses_text("Hello"))] * 2) as fake:
        fake.on("GET", "*/responses", error_reply(status))
        subject = agent(fake)
        first = [part async for part in subject.stream("one")]
        second = [part async for part in subject.stream("two")]
        notices = [[part.kind for part in parts if isinstance(part, Custom)] for parts in (first, second)]
        assert notices == [["sidestream.transport-fallback"], []]
        assert [request.method for request in fake.requests] == ["GET", "POST", "POST"]
        await close_session()


async def test_invalid_upgrade_falls_back_to_http():
    headers = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": "wrong"}
    async with FakeProvider([sse(responses_text("Hello"))]) as fake:
        fake.on("GET", "*/responses", Reply(status=101, headers=headers, cut="close"))
        assert (await agent(fake).send("hi")).text == "Hello"
        await close_session()


async def test_upgrade_redirect_is_not_followed():
    async with FakeProvider() as elsewhere, FakeProvider([sse(responses_text("Hello"))]) as fake:
        fake.on("GET", "*/responses", Reply(status=307, headers={"location": f"{elsewhere.base_url}/responses"}))
        assert (await agent(fake).send("hi")).text == "Hello"
        assert elsewhere.connections_total == 0
        await close_session()


async def test_refused_key_is_authentication_error_without_retry():
    async with FakeProvider() as fake:
        fake.on("GET", "*/responses", error_reply(401, "invalid_api_key", f"bad key {KEY}"))
        with pytest.raises(AuthenticationError) as caught:
            await agent(fake).send("hi")
        assert KEY not in str(caught.value)
        assert caught.value.status == 401
        assert len(fake.requests) == 1


async def test_overloaded_upgrade_is_retried():
    from sidestream.testing import Answer

    answers: list[Answer] = [error_reply(503), error_reply(429, headers={"retry-after": "0"})]
    async with FakeProvider() as fake:
        fake.on("GET", "*/responses", *answers, error_reply(429, headers={"retry-after": "0"}))
        with pytest.raises(RateLimitedError) as caught:
            await agent(fake).send("hi")
        assert caught.value.attempts == 3


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504])
async def test_upgrade_refused_for_now_does_not_fall_back(status: int):
    async with FakeProvider([sse(responses_text("Hello"))]) as fake:
        fake.on("GET", "*/responses", *[error_reply(status)] * 3)
        with pytest.raises(ProviderError) as caught:
            await agent(fake).send("hi")
        assert (caught.value.status, caught.value.attempts) == (status, 3)


@requirement("R115")
async def test_error_before_output_is_retried_by_status():
    limited = error_reply(429, "rate_limit_exceeded", "slow down", {"retry-after-ms": "1"})
    async with FakeProvider([limited, sse(responses_text("Hello"))]) as fake:
        parts = [part async for part in agent(fake).stream("hi")]
        delayed = [part.data for part in parts if isinstance(part, Custom)]
        assert [(data["attempts"], data["causes"]) for data in delayed] == [(2, ["429"])]
        assert fake.connections_total == 1
        await close_session()


async def test_retry_waits_as_its_policy_says():
    async with FakeProvider([error_reply(503), sse(responses_text("Hello"))]) as fake:
        parts = [part async for part in agent(fake).stream("hi")]
        [delayed] = [part.data for part in parts if isinstance(part, Custom)]
        assert 0 < delayed["retry_wait_s"] <= QUICK.wait_max_s
        await close_session()


async def test_permanent_error_is_raised_at_once_with_its_fields():
    async with FakeProvider([error_reply(403, "no_access", "not for you")]) as fake:
        with pytest.raises(AuthenticationError) as caught:
            await agent(fake).send("hi")
        assert (caught.value.status, caught.value.code) == (403, "no_access")
        assert len(fake.requests) == 1
        await close_session()


async def test_error_after_output_is_not_retried():
    events = responses_text(["Hel", "lo"])
    error = {"type": "error", "status": 500, "error": {"type": "server_error", "code": "server_error", "message": "m"}}
    async with FakeProvider([sse([*events[:5], error]), sse(responses_text("never"))]) as fake:
        with pytest.raises(RunError) as caught:
            await agent(fake).send("hi")
        assert caught.value.code == "server_error"
        assert len(fake.requests) == 1
        await close_session()


async def test_forgotten_session_is_resent_in_full():
    forgotten = error_reply(400, "previous_response_not_found", "Previous response not found.")
    async with FakeProvider([sse(responses_text("Hello")), forgotten, sse(responses_text("Again"))]) as fake:
        subject = agent(fake)
        first = await subject.send("one")
        assert (await subject.send("two", history=first.messages)).text == "Again"
        bodies: list[Any] = [request.json for request in fake.requests]
        assert "previous_response_id" in bodies[1]
        assert "previous_response_id" not in bodies[2]
        await close_session()


# The end of a connection


@requirement("R115")
async def test_server_restart_before_output_is_survived():
    async with FakeProvider([sse([socket_close(1012)], cut="close"), sse(responses_text("Hello"))]) as fake:
        assert (await agent(fake).send("hi")).text == "Hello"
        assert len(fake.upgrades) == 2
        await close_session()


async def test_server_restart_between_turns_only_reconnects():
    closing = sse([*responses_text("Hello"), socket_close(1012)], cut="close")
    async with FakeProvider([closing, sse(responses_text("Again"))]) as fake:
        subject = agent(fake)
        await subject.send("one")
        await fake.wait_idle()
        parts = [part async for part in subject.stream("two")]
        assert not [part for part in parts if isinstance(part, Custom)]
        assert len(fake.upgrades) == 2
        await close_session()


@requirement("R115")
async def test_old_connection_is_replaced_and_its_responses_finish():
    gate = asyncio.Event()
    async with FakeProvider([gated("old", gate), sse(responses_text("new"))]) as fake:
        subject = agent(fake, transport=transport(max_age_s=0.0))
        old = asyncio.create_task(subject.send("one"))
        await fake.wait_for_requests(1)
        assert (await subject.send("two")).text == "new"
        assert len(fake.upgrades) == 2
        gate.set()
        assert (await old).text == "old"
        await close_session()


@pytest.mark.parametrize("status", [{"status": 400}, {}], ids=["status", "without"])
@pytest.mark.parametrize("code", ["websocket_connection_limit_reached", "websocket_stream_limit_reached"])
async def test_connection_at_server_limit_is_replaced(status: dict[str, Any], code: str):
    used_up = {"type": "error", **status, "error": {"code": code, "message": "60 min"}}
    async with FakeProvider([sse([used_up]), sse(responses_text("Hello"))]) as fake:
        assert (await agent(fake).send("hi")).text == "Hello"
        assert len(fake.upgrades) == 2
        await close_session()


async def test_unreachable_server_is_connect_error():
    async with FakeProvider() as fake:
        subject = agent(fake)
    with pytest.raises(ConnectError) as caught:
        await subject.send("hi")
    assert (caught.value.code, caught.value.attempts) == ("connect", 3)


# Recordings


@requirement("R115")
async def test_recorded_exchange_replays_like_http(tmp_path: Path):
    async with FakeProvider([sse(responses_text(["Hel", f"lo {KEY}"])), error_reply(403, "no_access")]) as fake:
        recorder = RecordingTransport(transport())
        subject = agent(fake, transport=recorder)
        await subject.send("hi")
        with pytest.raises(AuthenticationError):
            await subject.send("hi")
        path = tmp_path / "socket.json"
        recorder.recording.save(path)
        await close_session()
    assert KEY not in path.read_text()
    recording = Recording.load(path)
    assert [exchange.response.status for exchange in recording.exchanges] == [200, 403]
    runs = [run async for run in _results(recording)]
    assert runs == ["Hello [redacted]", ""]


async def _results(recording: Recording) -> AsyncGenerator[str]:
    for run in replay(recording, ReplayTransport(recording)):
        async with run:
            yield "".join([part.delta async for part in run if isinstance(part, TextDelta)])


async def test_key_is_not_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with FakeProvider([sse([socket_close(1012)], cut="close"), sse(responses_text("Hello"))]) as fake:
        await agent(fake).send("hi")
        await close_session()
    assert caplog.records
    assert KEY not in caplog.text

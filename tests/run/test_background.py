"""Answers in the background: started, polled or streamed, taken up again here or in another process, cancelled."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from requirements import requirement
from sidestream import Agent, Chat, Limits, OpenAIResponsesOptions, ProviderError, RunError, WebSearch
from sidestream.parts import Custom, Error, Finish, StreamPart, TextDelta
from sidestream.providers.google import GoogleInteractionsOptions
from sidestream.run.background import GROWTH, grown
from sidestream.store import open_store
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    InteractionScript,
    Recording,
    ResponsesScript,
    error_reply,
    json_reply,
    no_leaks,
    recorded,
    sse,
)
from sidestream.testing.fake import Answer
from sidestream.wire.http import HttpTransport
from sidestream.wire.retry import RetryPolicy

AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
QUICK = Limits(poll_interval_s=0.001, max_poll_interval_s=0.002)
NEVER = Limits(poll_interval_s=3600, max_poll_interval_s=3600)
"""The next poll comes after the test is long over."""
BOUND_S = 30.0


class Api(Struct, frozen=True):
    """One API with work in the background: how it is named here, and what it answers."""

    model: str
    options: Any
    base_path: str
    path: str
    id: str
    after: str
    """The query parameter that says after which event a stream goes on."""
    script: Any
    start: dict[str, Any]

    @property
    def answer_path(self) -> str:
        return f"{self.path}/{self.id}"

    def text(self) -> Any:
        return self.script().text(["Hel", "lo ", "world"])

    def done(self, **fields: Any) -> Any:
        return json_reply({**self.text().response(), **fields})

    def at(self, status: str) -> Any:
        """The answer while it is worked on."""
        return json_reply({**self.start, "id": self.id, "status": status})

    def stream(self) -> list[dict[str, Any]]:
        made = self.text()
        return made.events() if isinstance(made, ResponsesScript) else made.chunks()

    def agent(self, fake: FakeProvider, **settings: Any) -> Agent[str]:
        given = {"options": self.options, "limits": QUICK, "transport": HttpTransport(retry=AT_ONCE)} | settings
        return Agent(self.model, base_url=fake.base_url, **given)

    def fake(self, *answers: Answer) -> FakeProvider:
        return FakeProvider(answers, base_path=self.base_path)


OPENAI = Api(
    model="openai-responses",
    options=OpenAIResponsesOptions(background=True),
    base_path="/v1",
    path="/v1/responses",
    id="resp_1",
    after="starting_after",
    script=lambda: ResponsesScript(id="resp_1"),
    start={"object": "response", "output": [], "background": True},
)
GOOGLE = Api(
    model="google:interactions/gemini-3",
    options=GoogleInteractionsOptions(background=True),
    base_path="",
    path="/v1/interactions",
    id="v1_a",
    after="last_event_id",
    script=lambda: InteractionScript(interaction_id="v1_a"),
    start={"object": "interaction", "model": "gemini-3"},
)
both = pytest.mark.parametrize("api", [OPENAI, GOOGLE], ids=["openai", "google"])


def asked(fake: FakeProvider) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in fake.requests]


def told(parts: list[StreamPart]) -> list[str]:
    """The statuses that the stream told of an answer in the background."""
    return [part.data["status"] for part in parts if isinstance(part, Custom) and part.kind == "sidestream.background"]


def text_of(parts: list[StreamPart]) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


async def whole_run(run: Any) -> list[StreamPart]:
    async with asyncio.timeout(BOUND_S), run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


def is_notice(part: StreamPart) -> bool:
    return isinstance(part, Custom) and part.kind == "sidestream.background"


async def left_at_notice(run: Any) -> str:
    """Reads a run until its answer is known to be in the background, writes it down, and leaves."""
    async with asyncio.timeout(BOUND_S), run:
        async for part in run:
            if is_notice(part):
                return run.state.to_json()
    raise AssertionError("the run told nothing of the background")


def ending(parts: list[StreamPart]) -> Finish:
    assert isinstance(parts[-1], Finish)
    return parts[-1]


# Polling


@both
@requirement("R47")
async def test_non_streaming_answer_is_polled_until_done(api: Api) -> None:
    replies = [api.at("queued"), api.at("queued"), api.at("in_progress"), api.done()]
    async with no_leaks(), api.fake(*replies) as fake:
        parts = await whole_run(api.agent(fake).stream("hi", stream=False))
        assert asked(fake) == [("POST", api.path)] + [("GET", api.answer_path)] * 3
        assert fake.requests[0].json["background"] is True
        assert "stream" not in fake.requests[1].query
    assert text_of(parts) == "Hello world"
    assert told(parts) == ["queued", "in_progress"]
    assert ending(parts).reason == "stop"
    assert ending(parts).metadata["response_id"] == api.id


@both
async def test_answer_done_at_once_is_not_polled(api: Api) -> None:
    async with api.fake(api.done()) as fake:
        parts = await whole_run(api.agent(fake).stream("hi", stream=False))
        assert len(fake.requests) == 1
    assert (text_of(parts), told(parts)) == ("Hello world", [])


@both
async def test_conversation_continues_from_polled_answer(api: Api) -> None:
    async with api.fake(api.at("queued"), api.done(), api.done()) as fake:
        agent = api.agent(fake)
        first = await agent.send("hi", stream=False)
        await agent.send("and now?", history=first.messages, stream=False)
        later = fake.requests[2].json
    assert later.get("previous_response_id", later.get("previous_interaction_id")) == api.id
    assert len(later["input"]) == 1


@requirement("R47")
async def test_recorded_run_with_tool_is_polled_step_by_step(recordings: Path) -> None:
    def get_weather(city: str) -> str:
        """Get current weather for a city."""
        return f"sunny in {city}"

    recording = Recording.load(recordings / "openai-responses" / "p-test_background_mode_with_tool_vcr.json")
    async with no_leaks(), FakeProvider(recorded(recording)) as fake:
        run = OPENAI.agent(fake, tools=[get_weather]).stream("What is the weather in Paris?", stream=False)
        parts = await whole_run(run)
        assert [request.method for request in fake.requests] == ["POST", "GET", "POST", "GET", "GET"]
        assert run.state.turn.background is None
    assert text_of(parts) == "The weather in Paris is currently sunny with a temperature of 72°F."
    assert told(parts) == ["queued", "queued", "in_progress"]


def test_poll_interval_grows_up_to_limit() -> None:
    limits = Limits(poll_interval_s=1, max_poll_interval_s=2)
    assert grown(1, limits) == GROWTH
    assert grown(1.9, limits) == 2
    assert grown(2, limits) == 2


@both
@pytest.mark.parametrize(("status", "reason"), [("cancelled", "other"), ("incomplete", "length"), ("expired", "other")])
async def test_cancelled_incomplete_or_expired_answer_ends_polling(api: Api, status: str, reason: str) -> None:
    async with api.fake(api.at("queued"), api.at(status)) as fake:
        parts = await whole_run(api.agent(fake).stream("hi", stream=False))
        assert len(fake.requests) == 2
    assert (ending(parts).reason, ending(parts).raw_reason) == (reason, status)


@both
async def test_failed_background_answer_fails_run(api: Api) -> None:
    failed = {"status": "failed", "error": {"code": "server_error", "message": "out of luck"}}
    if api is GOOGLE:
        failed = {"status": "failed", "errors": [{"code": 500, "message": "out of luck"}]}
    async with api.fake(api.at("in_progress"), json_reply({**api.start, "id": api.id, **failed})) as fake:
        with pytest.raises(ProviderError, match="out of luck"):
            await api.agent(fake).send("hi", stream=False)
        assert len(fake.requests) == 2


# Polls that fail


@both
@requirement("R47")
async def test_failed_poll_is_retried(api: Api) -> None:
    """By the rules for requests first; then, as long as the failure may pass, with the next poll."""
    broken = [error_reply(500), error_reply(429), error_reply(503), error_reply(502)]
    cut = json_reply(api.text().response(), cut_after_bytes=20)
    async with no_leaks(), api.fake(api.at("queued"), *broken, cut, api.done()) as fake:
        parts = await whole_run(api.agent(fake).stream("hi", stream=False))
        assert len(fake.requests) == 7
    assert (text_of(parts), ending(parts).reason) == ("Hello world", "stop")


@both
async def test_repeated_poll_failures_end_run(api: Api) -> None:
    limits = Limits(poll_interval_s=0.001, max_retries=0, max_resumptions=2)
    async with no_leaks(), api.fake(api.at("queued"), *[error_reply(500)] * 9) as fake:
        parts = await whole_run(api.agent(fake, limits=limits).stream("hi", stream=False, errors="parts"))
        assert len(fake.requests) == 4
    error = parts[-2]
    assert isinstance(error, Error)
    assert (error.kind, error.status) == ("provider", 500)


@both
async def test_only_consecutive_poll_failures_count(api: Api) -> None:
    limits = Limits(poll_interval_s=0.001, max_retries=0, max_resumptions=1)
    replies = [api.at("queued"), error_reply(500), api.at("queued"), error_reply(500), api.done()]
    async with no_leaks(), api.fake(*replies) as fake:
        parts = await whole_run(api.agent(fake, limits=limits).stream("hi", stream=False, errors="parts"))
    assert (text_of(parts), ending(parts).reason) == ("Hello world", "stop")


@both
async def test_missing_answer_is_not_polled_again(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued"), error_reply(404, "not_found", "gone")) as fake:
        with pytest.raises(ProviderError) as raised:
            await api.agent(fake).send("hi", stream=False)
        assert len(fake.requests) == 2
    assert raised.value.status == 404


@both
@pytest.mark.parametrize(
    ("limit", "limits"),
    [
        ("max_background_s", Limits(poll_interval_s=0.001, max_poll_interval_s=0.002, max_background_s=0.05)),
        ("max_run_s", Limits(poll_interval_s=0.001, max_poll_interval_s=0.002, max_run_s=1.0)),
    ],
    ids=["max_background_s", "max_run_s"],
)
async def test_waiting_ends_at_limit_and_answer_can_be_cancelled(api: Api, limit: str, limits: Limits) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        fake.on("GET", api.answer_path, api.at("in_progress"))
        fake.on("POST", f"{api.answer_path}/cancel", api.at("cancelled"))
        run = api.agent(fake, limits=limits).stream("hi", stream=False)
        parts = await whole_run(run)
        assert "cancel" not in fake.requests[-1].path
        await run.cancel()
        assert asked(fake)[-1] == ("POST", f"{api.answer_path}/cancel")
    assert run.error is None
    assert (ending(parts).reason, ending(parts).metadata["limit"]) == ("limit", limit)


# Leaving, and cancelling


@both
async def test_leaving_waiting_run_sends_no_request_to_provider(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        await left_at_notice(api.agent(fake, limits=NEVER).stream("hi", stream=False))
        assert len(fake.requests) == 1


async def read_aside(run: Any) -> asyncio.Task[list[StreamPart]]:
    """Reads a run in a task of its own; returns once its answer is known to be in the background."""
    is_known = asyncio.Event()

    async def read() -> list[StreamPart]:
        parts: list[StreamPart] = []
        async for part in run:
            parts.append(part)
            if is_notice(part):
                is_known.set()
        return parts

    reader = asyncio.create_task(read())
    await is_known.wait()
    # Turns of the loop in which the reader begins to wait.
    for _ in range(5):
        await asyncio.sleep(0)
    return reader


@asynccontextmanager
async def waiting(api: Api, *replies: Answer, stream: bool = False) -> AsyncGenerator[tuple[Any, Any, FakeProvider]]:
    """A run in the background whose reader waits for what never comes."""
    async with no_leaks(), asyncio.timeout(BOUND_S), api.fake(*replies) as fake:
        fake.on("POST", f"{api.answer_path}/cancel", api.at("cancelled"))
        run = api.agent(fake, limits=NEVER).stream("hi", stream=stream)
        yield run, await read_aside(run), fake


@both
async def test_cancelled_waiting_task_leaves_no_leaks(api: Api) -> None:
    async with waiting(api, api.at("queued")) as (_, reader, fake):
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert len(fake.requests) == 1


@both
async def test_closing_run_wakes_waiting_reader(api: Api) -> None:
    async with waiting(api, api.at("queued")) as (run, reader, fake):
        await run.aclose()
        parts = await reader
        assert len(fake.requests) == 1
    grammar.check(parts)
    assert isinstance(run.error, RunError)
    assert run.error.code == "closed"


@both
async def test_run_closed_during_poll_drops_its_answer(api: Api) -> None:
    gate = asyncio.Event()
    slow = json_reply(api.text().response(), gate=gate)
    async with no_leaks(), asyncio.timeout(BOUND_S), api.fake(api.at("queued"), slow) as fake:
        run = api.agent(fake).stream("hi", stream=False)
        reader = await read_aside(run)
        await fake.wait_for_requests(2)
        await run.aclose()
        gate.set()
        parts = await reader
    grammar.check(parts)
    assert text_of(parts) == ""
    assert isinstance(run.error, RunError)
    assert run.error.code == "closed"


@both
@requirement("R47")
async def test_cancelling_polled_run_stops_it_at_provider(api: Api) -> None:
    async with waiting(api, api.at("queued")) as (run, reader, fake):
        await run.cancel()
        await reader
        assert asked(fake) == [("POST", api.path), ("POST", f"{api.answer_path}/cancel")]
        await run.cancel()
        assert len(fake.requests) == 2
        assert run.state.turn.background is None


@both
@requirement("R47")
async def test_stream_cancelled_from_outside_is_not_resumed(api: Api) -> None:
    stalled = sse([*api.stream()[:4], asyncio.Event()])
    async with waiting(api, stalled, stream=True) as (run, reader, fake):
        await run.cancel()
        grammar.check(await reader)
        assert asked(fake) == [("POST", api.path), ("POST", f"{api.answer_path}/cancel")]


# Streams


@both
@requirement("R47")
async def test_background_stream_reports_id_and_resumes_after_cut(api: Api) -> None:
    events = api.stream()
    async with no_leaks(), api.fake(sse(events[:4], cut="reset"), sse(events[4:])) as fake:
        parts = await whole_run(api.agent(fake).stream("hi"))
        again = fake.requests[1]
    assert text_of(parts) == "Hello world"
    assert told(parts) == ["started"]
    assert (again.method, again.path, again.query["stream"]) == ("GET", api.answer_path, "true")
    assert again.query[api.after] == str(events[3].get("sequence_number", events[3].get("event_id")))


# Another process


@both
@requirement("R47")
async def test_other_process_fetches_answer_without_new_request(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        state = await left_at_notice(api.agent(fake, limits=NEVER).stream("hi", stream=False))
        fake.add(api.at("in_progress"), api.done())
        run = api.agent(fake).resume(state)
        parts = await whole_run(run)
        assert asked(fake) == [("POST", api.path)] + [("GET", api.answer_path)] * 2
        # It was not asked for as a stream, so it cannot be had as one.
        assert "stream" not in fake.requests[1].query
        assert [message.role for message in run.state.turn.messages] == ["user", "model"]
    assert text_of(parts) == "Hello world"
    assert told(parts) == ["resumed", "in_progress"]
    assert run.state.turn.background is None


@both
@requirement("R47")
async def test_other_process_streams_answer_from_start(api: Api) -> None:
    events = api.stream()
    async with no_leaks(), api.fake(sse([*events[:5], asyncio.Event()])) as fake:
        run = api.agent(fake).stream("hi")
        async with asyncio.timeout(BOUND_S), run:
            async for part in run:
                if isinstance(part, TextDelta):
                    break
            state = run.state.to_json()
        # Whoever goes on need not know that it was in the background; a break on the way is taken up too.
        fake.add(sse(events[:5], cut="reset"), sse(events[5:]))
        parts = await whole_run(api.agent(fake, options=None).resume(state))
        first, second = fake.requests[1:]
    assert text_of(parts) == "Hello world"
    assert (first.method, first.path, first.query["stream"]) == ("GET", api.answer_path, "true")
    assert api.after not in first.query
    assert second.query[api.after] == str(events[4].get("sequence_number", events[4].get("event_id")))
    assert told(parts) == ["resumed"]


@both
async def test_streamed_answer_can_be_fetched_without_streaming(api: Api) -> None:
    async with no_leaks(), api.fake(sse([*api.stream()[:4], asyncio.Event()])) as fake:
        state = await left_at_notice(api.agent(fake).stream("hi"))
        cut = json_reply(api.text().response(), cut_after_bytes=20)
        fake.add(cut, api.at("in_progress"), api.done())
        result = await api.agent(fake).resume(state, stream=False).result()
        assert asked(fake)[1:] == [("GET", api.answer_path)] * 3
    assert result.output == "Hello world"


@both
async def test_resumed_run_can_be_left_and_resumed_again(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        state = await left_at_notice(api.agent(fake, limits=NEVER).stream("hi", stream=False))
        fake.add(api.at("queued"))
        state = await left_at_notice(api.agent(fake, limits=NEVER).resume(state))
        fake.add(api.done())
        result = await api.agent(fake).resume(state).result()
        assert asked(fake)[1:] == [("GET", api.answer_path)] * 2
    assert result.output == "Hello world"


@both
async def test_tool_called_by_fetched_answer_is_run(api: Api) -> None:
    calls: list[str] = []

    def look(name: str) -> str:
        """Looks something up."""
        calls.append(name)
        return "found"

    called = json_reply(api.script().function_call("look", {"name": "x"}).response())
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        state = await left_at_notice(api.agent(fake, tools=[look], limits=NEVER).stream("hi", stream=False))
        fake.add(called, api.at("queued"), api.done())
        result = await api.agent(fake, tools=[look]).resume(state, stream=False).result()
        assert [method for method, _ in asked(fake)] == ["POST", "GET", "POST", "GET"]
    assert (calls, result.output) == (["x"], "Hello world")


@both
async def test_lost_answer_is_requested_again_with_notice(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        state = await left_at_notice(api.agent(fake, limits=NEVER).stream("hi", stream=False))
        fake.add(error_reply(404, "not_found", f"{api.id} was not found"), api.done())
        parts = await whole_run(api.agent(fake).resume(state, stream=False))
        assert asked(fake)[1:] == [("GET", api.answer_path), ("POST", api.path)]
    assert (told(parts), text_of(parts)) == (["lost"], "Hello world")


REFUSED = error_reply(400, "invalid_request_error", "this response can no longer be streamed")


@both
@requirement("R184")
async def test_broken_stream_is_polled_when_streaming_is_refused(api: Api, tmp_path: Path) -> None:
    begun = sse(api.stream()[:5])
    async with (
        no_leaks(),
        aclosing(open_store(tmp_path / "talk.db")) as store,
        api.fake(begun, REFUSED, api.at("in_progress"), api.done()) as fake,
    ):
        chat = Chat(api.agent(fake), store=store, id="talk")
        await chat.load()
        parts = await whole_run(chat.stream("hi"))
        assert [method for method, _ in asked(fake)] == ["POST", "GET", "GET", "GET"]
        assert [api.after in request.query for request in fake.requests] == [False, True, False, False]
        assert (told(parts), text_of(parts)) == (["started", "polled", "in_progress"], "Hello world")
        notice = next(part.data for part in parts if isinstance(part, Custom) and told([part]) == ["polled"])
        assert (notice["id"], notice["is_streamed"]) == (api.id, False)
        assert chat.messages[-1].text == "Hello world"
        fake.add(sse(api.stream()))
        again = Chat(api.agent(fake), store=store, id="talk")
        await again.load()
        assert (await again.send("and?")).output == "Hello world"


@both
@requirement("R184")
async def test_resumed_run_polls_when_streaming_is_refused(api: Api) -> None:
    async with no_leaks(), api.fake(sse([*api.stream()[:5], asyncio.Event()])) as fake:
        state = await left_at_notice(api.agent(fake).stream("hi"))
        fake.add(REFUSED, api.at("in_progress"), api.done())
        parts = await whole_run(api.agent(fake).resume(state))
        assert asked(fake)[1:] == [("GET", api.answer_path)] * 3
    assert (told(parts), text_of(parts)) == (["polled", "resumed", "in_progress"], "Hello world")


@both
@requirement("R184")
async def test_refused_answer_fails_when_polling_is_refused_too(api: Api) -> None:
    async with no_leaks(), api.fake(sse(api.stream()[:5]), REFUSED, REFUSED) as fake:
        with pytest.raises(ProviderError) as caught:
            await api.agent(fake).send("hi")
    assert caught.value.status == 400


async def test_answer_id_is_not_sent_to_other_provider() -> None:
    async with no_leaks(), OPENAI.fake(OPENAI.at("queued")) as fake:
        state = await left_at_notice(OPENAI.agent(fake, limits=NEVER).stream("hi", stream=False))
    async with no_leaks(), GOOGLE.fake(GOOGLE.done()) as fake:
        parts = await whole_run(GOOGLE.agent(fake).resume(state, stream=False))
        assert asked(fake) == [("POST", GOOGLE.path)]
        assert OPENAI.id.encode() not in fake.requests[0].body
    assert (told(parts), text_of(parts)) == (["lost"], "Hello world")


@both
@requirement("R47")
async def test_other_process_can_cancel_answer(api: Api) -> None:
    async with no_leaks(), api.fake(api.at("queued")) as fake:
        fake.on("POST", f"{api.answer_path}/cancel", api.at("cancelled"))
        state = await left_at_notice(api.agent(fake, limits=NEVER).stream("hi", stream=False))
        await api.agent(fake).resume(state).cancel()
        assert asked(fake)[1:] == [("POST", f"{api.answer_path}/cancel")]


async def test_polls_repeat_request_settings_with_fresh_credentials() -> None:
    tokens = iter(range(9))
    options = OpenAIResponsesOptions(background=True, organization="org-1", extra_headers={"X-Team": "blue"})
    async with OPENAI.fake(OPENAI.at("queued"), OPENAI.done()) as fake:
        agent = OPENAI.agent(fake, options=options, auth=lambda: {"Authorization": f"Bearer {next(tokens)}"})
        await agent.send("hi", stream=False, server_side_tools=[WebSearch()])
        first, second = fake.requests
    assert [request.headers["authorization"] for request in (first, second)] == ["Bearer 0", "Bearer 1"]
    assert (second.headers["openai-organization"], second.headers["x-team"]) == ("org-1", "blue")
    assert "content-type" not in second.headers
    assert second.query["include[]"] == first.json["include"][-1]


# The log


@both
@requirement("R47")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_stored_conversation_fetches_its_pending_answer(api: Api, stream: bool, tmp_path: Path) -> None:
    first = sse([*api.stream()[:4], asyncio.Event()]) if stream else api.at("queued")
    async with api.fake(first) as fake:
        store = open_store(tmp_path / "talks.db")
        chat = Chat(api.agent(fake, limits=NEVER), store=store, id="talk")
        await chat.load()
        await left_at_notice(chat.stream("hi", stream=stream))
        fake.add(sse(api.stream()) if stream else api.done())
        later = Chat(api.agent(fake), store=store, id="talk")
        await later.load()
        result = await later.resume(stream=stream)
        assert asked(fake) == [("POST", api.path), ("GET", api.answer_path)]
        assert [message.role for message in later.messages] == ["user", "model"]
        await store.aclose()
    assert result.output == "Hello world"


@both
async def test_turn_closed_from_outside_can_be_resumed(api: Api, tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), api.fake(api.at("queued")) as fake:
        store = open_store(tmp_path / "talks.db")
        chat = Chat(api.agent(fake, limits=NEVER), store=store, id="talk")
        await chat.load()
        run = chat.stream("hi", stream=False)
        reader = await read_aside(run)
        await run.aclose()
        await reader
        fake.add(api.done())
        later = Chat(api.agent(fake), store=store, id="talk")
        await later.load()
        assert later.status == "cancelled"
        assert (await later.resume(stream=False)).output == "Hello world"
        assert asked(fake)[1:] == [("GET", api.answer_path)]
        await store.aclose()


@both
async def test_stored_conversation_requests_cancelled_answer_again(api: Api, tmp_path: Path) -> None:
    async with api.fake(api.at("queued")) as fake:
        fake.on("POST", f"{api.answer_path}/cancel", api.at("cancelled"))
        store = open_store(tmp_path / "talks.db")
        chat = Chat(api.agent(fake, limits=NEVER), store=store, id="talk")
        await chat.load()
        async with chat.stream("hi", stream=False) as run:
            async for part in run:
                if is_notice(part):
                    break
            await run.cancel()
        fake.add(api.done())
        later = Chat(api.agent(fake), store=store, id="talk")
        await later.load()
        result = await later.resume(stream=False)
        assert asked(fake)[2:] == [("POST", api.path)]
        await store.aclose()
    assert result.output == "Hello world"

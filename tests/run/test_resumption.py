"""Streams that break and are taken up again, where the provider goes on without us."""

import asyncio
from typing import Any

import pytest

from sidestream import Agent, Limits, OpenAIResponsesOptions
from sidestream.parts import Custom, Error, Finish, StreamPart, TextDelta
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, InteractionScript, error_reply, json_reply, no_leaks, responses_text, sse
from sidestream.wire.http import HttpTransport
from sidestream.wire.retry import RetryPolicy

EVENTS = responses_text(["Hel", "lo ", "world"], id="resp_1")
KINDS = ["sidestream.background", "sidestream.stream-resumed", "sidestream.stream-resumed"]
BACKGROUND = OpenAIResponsesOptions(background=True)
AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)


def agent_at(fake: FakeProvider, model: str = "openai-responses", **settings: Any) -> Agent[str]:
    return Agent(model, base_url=fake.base_url, transport=HttpTransport(retry=AT_ONCE), **settings)


async def run_parts(agent: Agent[str]) -> list[StreamPart]:
    async with agent.stream("hi", errors="parts") as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


def text_of(parts: list[StreamPart]) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


@pytest.mark.parametrize("cut", ["end", "reset"])
async def test_background_response_resumes_after_last_event(cut: Any) -> None:
    async with no_leaks(), FakeProvider([sse(EVENTS[:6], cut=cut), sse(EVENTS[4:7], cut=cut), sse(EVENTS[7:])]) as fake:
        parts = await run_parts(agent_at(fake, options=BACKGROUND))
        again = [(request.method, request.path, request.query) for request in fake.requests[1:]]
    assert text_of(parts) == "Hello world"
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"
    assert [part.kind for part in parts if isinstance(part, Custom)] == KINDS
    assert [(method, path) for method, path, _ in again] == [("GET", "/v1/responses/resp_1")] * 2
    assert [query["starting_after"] for _, _, query in again] == ["5", "6"]


async def test_cut_stream_without_background_is_not_resumed() -> None:
    async with FakeProvider([sse(EVENTS[:6]), sse(EVENTS[6:])]) as fake:
        parts = await run_parts(agent_at(fake))
        assert len(fake.requests) == 1
    assert isinstance(parts[-2], Error)
    assert parts[-2].kind == "truncated"


async def test_resumptions_are_bounded_and_end_on_refusal() -> None:
    async with FakeProvider([sse(EVENTS[:6])] * 9) as fake:
        parts = await run_parts(agent_at(fake, options=BACKGROUND, limits=Limits(max_resumptions=2)))
        assert len(fake.requests) == 3
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "error"
    async with FakeProvider([sse(EVENTS[:6]), error_reply(404, "not_found", "gone")]) as fake:
        parts = await run_parts(agent_at(fake, options=BACKGROUND))
    assert text_of(parts) == "Hello "
    assert isinstance(parts[-2], Error)
    assert parts[-2].kind == "truncated"


async def test_cancelling_run_stops_it_at_provider() -> None:
    async with no_leaks(), FakeProvider([sse([*EVENTS[:6], asyncio.Event()])]) as fake:
        fake.on("POST", "/v1/responses/*/cancel", json_reply({"id": "resp_1", "status": "cancelled", "output": []}))
        async with agent_at(fake, options=BACKGROUND).stream("hi") as run:
            async for part in run:
                if isinstance(part, TextDelta):
                    break
            await run.cancel()
        paths = [request.path for request in fake.requests]
    assert paths == ["/v1/responses", "/v1/responses/resp_1/cancel"]


async def test_interaction_resumes_after_last_event() -> None:
    script = InteractionScript().text(["Hel", "lo ", "world"])
    events = script.chunks()
    async with no_leaks(), FakeProvider([sse(events[:4]), sse(events[4:])], base_path="") as fake:
        agent = Agent("google:interactions/gemini-3", base_url=fake.base_url, transport=HttpTransport(retry=AT_ONCE))
        parts = await run_parts(agent)
        second = fake.requests[1]
    assert text_of(parts) == "Hello world"
    assert second.method == "GET"
    assert second.query["last_event_id"] == events[3]["event_id"]

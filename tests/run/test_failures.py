"""A run that fails is loud: its parts come, then its error is raised."""

from collections.abc import AsyncIterable
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ConfigurationError, Limits, StreamPart
from sidestream.errors import AuthenticationError, ConnectError, ProviderError, RunError, StreamTruncatedError
from sidestream.parts import Error, Finish
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, Reply, ResponsesScript, json_reply, no_leaks, sse

REFUSED = json_reply({"error": {"message": "bad key", "code": "invalid_api_key"}}, status=401)


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


async def read(stream: AsyncIterable[Any], into: list[Any]) -> None:
    async for item in stream:
        into.append(item)  # noqa: PERF401 - what came before an error counts


def lookup() -> str:
    """Looks something up."""
    return "x"


@requirement("R102")
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (REFUSED, AuthenticationError),
        (sse(ResponsesScript().text("Hel").events()[:-1]), StreamTruncatedError),
        (ResponsesScript().text("Hel").failed().reply(), ProviderError),
    ],
)
async def test_failed_stream_raises_after_last_part(reply: Reply, error: type[RunError]) -> None:
    parts: list[StreamPart] = []
    async with no_leaks(), FakeProvider([reply]) as fake:
        async with agent_at(fake).stream("hi") as run:
            with pytest.raises(error) as caught:
                await read(run, parts)
        assert caught.value is run.error
        with pytest.raises(StopAsyncIteration):
            await anext(run)
    grammar.check(parts)
    assert isinstance(parts[-2], Error)
    assert isinstance(parts[-1], Finish)


@requirement("R102")
async def test_errors_as_parts_are_not_raised() -> None:
    async with FakeProvider([REFUSED]) as fake:
        async with agent_at(fake).stream("hi", errors="parts") as run:
            parts = [part async for part in run]
        assert isinstance(run.error, AuthenticationError)
    assert [part.type for part in parts][-2:] == ["error", "finish"]


@requirement("R102")
async def test_chats_and_resumed_runs_raise_too() -> None:
    async with FakeProvider([REFUSED] * 3 + [ResponsesScript().function_call("lookup", {}).reply(), REFUSED]) as fake:
        chat = Chat(agent_at(fake))
        with pytest.raises(AuthenticationError):
            await read(chat.stream("hi"), [])
        await read(chat.stream("hi", errors="parts"), [])
        assert chat.messages == ()
        with pytest.raises(AuthenticationError):
            await read(agent_at(fake).send_stream("hi"), [])
        agent = agent_at(fake, tools=[lookup], approval=lambda question: True)
        waiting = await agent.send("hi")
        with pytest.raises(AuthenticationError):
            await read(agent.resume(waiting.run_state, [entry.approve() for entry in waiting.approvals]), [])


@requirement("R102")
async def test_limits_and_filters_do_not_raise() -> None:
    replies = [
        ResponsesScript().function_call("lookup", {}).reply(),
        ResponsesScript().text("Hel").incomplete("content_filter").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = agent_at(fake, tools=[lookup])
        limited = [part async for part in agent.stream("hi", limits=Limits(max_steps=1))]
        filtered = [part async for part in agent.stream("hi")]
    reasons = [part.reason for parts in (limited, filtered) for part in parts if isinstance(part, Finish)]
    assert reasons == ["limit", "content-filter"]


async def test_unknown_errors_value_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'raise' or 'parts'"):
        Agent("openai-responses", base_url="http://127.0.0.1:1").stream("hi", errors="ignore")  # pyright: ignore


@requirement("R102")
async def test_unreachable_server_raises() -> None:
    agent = Agent("openai-responses", base_url="http://127.0.0.1:1", limits=Limits(max_retries=0))
    with pytest.raises(ConnectError):
        await read(agent.stream("hi"), [])

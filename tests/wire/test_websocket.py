"""Responses over WebSocket against the fake provider on loopback: the same scripts as over HTTP, and the same outcomes."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Limits
from sidestream.providers.openai_responses.websocket import RESPONSES_WEBSOCKET
from sidestream.testing import FakeProvider, no_leaks, responses_function_call, responses_text, sse
from sidestream.wire.http import close_session
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.websocket import WebSocketTransport

QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
LIMITS = Limits(first_byte_timeout_s=20, idle_timeout_s=20)
NO_RETRY = Limits(first_byte_timeout_s=20, idle_timeout_s=20, max_retries=0)
KEY = "canary-key-51cd7e0a-secret"


@pytest.fixture(autouse=True)
async def _closed() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


def transport(**codec: Any) -> WebSocketTransport:
    from msgspec.structs import replace

    return WebSocketTransport(replace(RESPONSES_WEBSOCKET, **codec), retry=QUICK)


def agent(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent(
        "openai-responses",
        **{"api_key": KEY, "base_url": fake.base_url, "limits": LIMITS, "transport": transport(), **settings},
    )


@requirement("R115")
async def test_two_turns_use_one_connection_and_send_neither_stream_nor_background():
    async with FakeProvider([sse(responses_text("Hello")), sse(responses_text("Again"))]) as fake:
        subject = agent(fake, transport="websocket")
        assert (await subject.send("one")).text == "Hello"
        assert (await subject.send("two")).text == "Again"
        assert len(fake.upgrades) == fake.connections_total == 1
        first: Any = fake.requests[0].json
        assert all(request.is_websocket for request in fake.requests)
        assert first["type"] == "response.create"
        assert first["input"]
        assert not {"stream", "background"} & first.keys()
        assert fake.upgrades[0].headers["authorization"] == f"Bearer {KEY}"
        assert fake.upgrades[0].headers["user-agent"].startswith("sidestream/")
        await close_session()


async def test_tools_continue_over_the_same_connection():
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

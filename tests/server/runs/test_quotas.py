"""Caps: what one owner may use, and when a refused request may come again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, Price
from sidestream.durable.log.jobs import Job
from sidestream.server.app import create_app
from sidestream.server.errors import RequestError
from sidestream.server.runs.quotas import DAY_S, MINUTE_S, CapKeeper
from sidestream.server.server import Server
from sidestream.server.settings import Caps, ServerSettings
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.serving import served
from support.stores import BOUND_S

JOB = Job(agent="main")
MODEL = "openai-responses:gpt-5.6"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def server_at(fake: FakeProvider, path: Path, caps: Caps, **agent: Any) -> AsyncGenerator[Server]:
    main = Agent(MODEL, base_url=fake.base_url, api_key="key-0123456789", **agent)
    settings = ServerSettings(agents={"main": main}, default="main", caps=caps)
    server = Server(settings, open_store(path / "talks.db"))
    try:
        async with asyncio.timeout(BOUND_S):
            await server.open()
            yield server
    finally:
        await server.aclose()


def answers(count: int) -> list[Any]:
    return [ResponsesScript(id=f"r{number}").text("Hi.").reply() for number in range(count)]


async def finished(server: Server, conversation: str) -> None:
    """A whole run."""
    await server.runs.start(server.agent("main"), conversation, "Hi.", JOB)
    async for _ in server.runs.follow(conversation):
        pass


def refused(keeper: CapKeeper, owner: str = "", running: dict[str, float] | None = None) -> tuple[Any, ...] | None:
    """The code of the refusal and the seconds to wait; None if the run may start."""
    try:
        keeper.admit(owner, running or {})
    except RequestError as error:
        return error.code, int(error.headers["Retry-After"])
    return None


@requirement("F25", "F46")
def test_runs_per_minute_are_limited_per_tenant(tmp_path: Path) -> None:
    wall, clock = Clock(), Clock()
    keeper = CapKeeper(Caps(requests_per_minute=2), open_store(tmp_path / "talks.db"), wall, clock)
    assert refused(keeper, "anna") is None
    clock.now_s += 20
    wall.now_s -= 3600  # set back by an hour
    assert refused(keeper, "anna") is None
    assert refused(keeper, "anna") == ("rate_limit_exceeded", 40)
    assert refused(keeper, "ben") is None, "another owner has a minute of its own"
    clock.now_s += MINUTE_S - 20 - 0.5
    assert refused(keeper, "anna") == ("rate_limit_exceeded", 1)
    clock.now_s += 0.5
    assert refused(keeper, "anna") is None
    assert refused(keeper, "anna") == ("rate_limit_exceeded", 20), "refused requests do not count"


@requirement("F46")
async def test_daily_spending_includes_active_runs(tmp_path: Path) -> None:
    clock = Clock()
    keeper = CapKeeper(Caps(max_cost_per_day=1.0), open_store(tmp_path / "talks.db"), clock)
    await keeper.prepare("anna")
    keeper.ended("anna", "run-1", 0.4)
    clock.now_s += 100
    keeper.ended("anna", "run-2", 0.3)
    assert refused(keeper, "anna", {"run-3": 0.2}) is None
    assert refused(keeper, "anna", {"run-2": 0.5}) is None, "a run that was resumed reports all of its cost"
    assert refused(keeper, "anna", {"run-3": 0.3}) == ("spend_limit_exceeded", int(DAY_S) - 100)
    assert refused(keeper, "ben") is None
    keeper.ended("anna", "run-3", 0.9)
    assert refused(keeper, "anna") == ("spend_limit_exceeded", int(DAY_S)), "the last run alone is nearly the cap"
    clock.now_s += DAY_S - 100
    assert refused(keeper, "anna") == ("spend_limit_exceeded", 100)
    clock.now_s += 100
    assert refused(keeper, "anna") is None


@requirement("F46")
async def test_active_runs_are_limited_per_tenant(tmp_path: Path) -> None:
    gate = asyncio.Event()
    held = sse([*ResponsesScript().text("Hi.").events()[:3], gate, *ResponsesScript().text("Hi.").events()[3:]])
    script = [held, held, held, *answers(1)]
    async with FakeProvider(script) as fake, server_at(fake, tmp_path, Caps(max_concurrent_runs=2)) as server:
        agent = server.agent("main")
        for conversation in ("anna/a", "anna/b", "ben/a"):
            await server.runs.start(agent, conversation, "Hi.", JOB)
        with pytest.raises(RequestError) as caught:
            await server.runs.start(agent, "anna/c", "Hi.", JOB)
        assert (caught.value.status, caught.value.code) == (429, "too_many_runs")
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert await server.store.read("anna/c") == []
        assert await server.runs.stop("anna/a")
        fake.release(gate)
        await finished(server, "anna/c")


@requirement("F46")
async def test_concurrent_starts_do_not_exceed_quota(tmp_path: Path) -> None:
    gate = asyncio.Event()
    held = sse([*ResponsesScript().text("Hi.").events()[:3], gate, *ResponsesScript().text("Hi.").events()[3:]])
    caps = Caps(max_concurrent_runs=2, max_cost_per_day=5.0)
    async with FakeProvider([held] * 2) as fake, server_at(fake, tmp_path, caps) as server:
        starts = (server.runs.start(server.agent("main"), f"anna/{number}", "Hi.", JOB) for number in range(8))
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(RequestError) == 6
        fake.release(gate)


@requirement("F46")
async def test_spending_counts_after_restart_and_deletion(tmp_path: Path) -> None:
    prices = {MODEL: Price(input=1000.0, output=1000.0)}
    caps = Caps(max_cost_per_day=0.001)
    async with FakeProvider(answers(4)) as fake:
        async with server_at(fake, tmp_path, caps, prices=prices) as server:
            await finished(server, "anna/a")
            await finished(server, "ben/a")
            with pytest.raises(RequestError):
                await finished(server, "anna/b")
            assert await server.runs.delete("anna/a")
            with pytest.raises(RequestError):
                await finished(server, "anna/b")
        async with server_at(fake, tmp_path, caps, prices=prices) as server:
            with pytest.raises(RequestError) as caught:
                await finished(server, "ben/b")
            assert caught.value.code == "spend_limit_exceeded"
            assert int(DAY_S) - 60 <= int(caught.value.headers["Retry-After"]) <= int(DAY_S)
            await finished(server, "carl/a")
    assert len(fake.requests) == 3


@requirement("F46")
async def test_vendor_sdks_get_typed_429_with_retry_after(tmp_path: Path) -> None:
    async with FakeProvider(answers(1)) as fake:
        agent = Agent(MODEL, base_url=fake.base_url, api_key="key-0123456789")
        app = create_app({"main": agent}, store=tmp_path / "talks.db", caps=Caps(requests_per_minute=1))
        async with (
            served(app) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as other,
        ):
            messages: Any = [{"role": "user", "content": "Hi."}]
            await client.chat.completions.create(model="main", messages=messages)
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="main", messages=messages, stream=True)
            assert (caught.value.type, caught.value.code) == ("rate_limit_error", "rate_limit_exceeded")
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
            with pytest.raises(anthropic.RateLimitError) as refused_too:
                await other.messages.create(model="main", messages=messages, max_tokens=9)
            assert refused_too.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index, call-overload]
            assert "retry-after" in refused_too.value.response.headers
    assert len(fake.requests) == 1


@pytest.mark.parametrize("name", Caps.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_non_positive_quota_is_rejected(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Caps(**{name: value})


@pytest.mark.parametrize("value", [0, -5.0])
def test_non_positive_retention_is_rejected(value: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="retention_s"):
        create_app("local", store=tmp_path / "talks.db", retention_s=value)

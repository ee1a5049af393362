"""agent.override: another model or other settings for the runs begun in a block."""

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from requirements import requirement
from sidestream import Agent, Chat, UnsupportedError, tool
from sidestream.testing import ScriptedModel, tool_call
from support.places import ROOT

AGENT = Agent("openai-responses", api_key="unused", system="Be brief.")
"""As in a user's program: made once, at import."""
RECORDING = ROOT / "examples/recordings/typed_output.json"


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@requirement("R110")
async def test_override_replaces_model_only_inside_block() -> None:
    own = AGENT.model
    model = ScriptedModel(["scripted"])
    with AGENT.override(model=model):
        assert AGENT.model is model
        assert (await AGENT.send("hi")).output == "scripted"
    assert AGENT.model is own
    assert model.requests[0].system == "Be brief."


@requirement("R110")
async def test_overrides_nest_and_add_to_outer_one() -> None:
    outer, inner = ScriptedModel(["a", "c"]), ScriptedModel(["b"])
    with AGENT.override(model=outer, system="outer"):
        await AGENT.send("1")
        with AGENT.override(model=inner):
            await AGENT.send("2")
        with AGENT.override(system="inner"):
            await AGENT.send("3")
    assert [request.system for request in (*outer.requests, *inner.requests)] == ["outer", "inner", "outer"]


@requirement("R110")
async def test_concurrent_tasks_have_separate_overrides() -> None:
    meeting = asyncio.Barrier(20)

    async def one(number: int) -> str:
        with AGENT.override(model=ScriptedModel([f"answer {number}"])):
            await meeting.wait()
            return (await AGENT.send("hi")).output

    assert await asyncio.gather(*map(one, range(20))) == [f"answer {number}" for number in range(20)]


async def test_task_started_in_block_keeps_override() -> None:
    async def ask() -> str:
        return (await AGENT.send("hi")).output

    with AGENT.override(model=ScriptedModel(["kept"])):
        task = asyncio.create_task(ask())
    assert await task == "kept"


async def test_stream_created_in_block_keeps_model_after_it() -> None:
    with AGENT.override(model=ScriptedModel(["kept"])):
        run = AGENT.stream("hi")
    assert (await run).output == "kept"


@requirement("R110")
async def test_chats_and_subagents_follow_override_of_their_agent() -> None:
    expert = Agent("anthropic", api_key="unused")
    host = Agent("google", api_key="unused", tools=[expert.as_tool("expert", "Knows.")])
    with (
        host.override(model=ScriptedModel([tool_call("expert", task="why?"), "He says: because."])),
        expert.override(model=ScriptedModel(["Because."])),
    ):
        chat = Chat(host)
        result = await chat.send("why?")
    assert result.messages[-1].text == "He says: because."
    assert chat.messages[2].parts[0].result == "Because."  # pyright: ignore


async def test_override_settings_take_precedence_over_call_settings() -> None:
    @tool(name="get_weather")
    def fake_weather(city: str) -> str:
        """The weather in a city."""
        return "snow"

    model = ScriptedModel([tool_call("get_weather", city="Oslo"), "ok"])
    with AGENT.override(model=model, tools=[fake_weather]):
        await AGENT.send("hi", tools=[get_weather])
    assert model.requests[1].messages[-1].parts[0].result == "snow"  # pyright: ignore


async def test_resumed_run_follows_override() -> None:
    model = ScriptedModel([tool_call("get_weather", city="Oslo"), "ok"])
    with AGENT.override(model=model, tools=[get_weather], approval=lambda question: "ask"):
        waiting = await AGENT.send("hi")
        done = await AGENT.resume(waiting.run_state, [a.approve() for a in waiting.approvals])
    assert done.messages[-1].text == "ok"


def test_override_works_without_async() -> None:
    with AGENT.override(model=ScriptedModel(["sync"])):
        assert AGENT.send_sync("hi").output == "sync"


async def test_override_accepts_model_string() -> None:
    with AGENT.override(model=f"replay:{RECORDING}"):
        assert AGENT.model.provider == "replay"
        assert "Porto" in (await AGENT.send("hi")).output


async def test_own_provider_is_not_reached_inside_block() -> None:
    with AGENT.override(model=ScriptedModel([])):
        with pytest.raises(UnsupportedError):
            await AGENT.list_models()
        with pytest.raises(UnsupportedError):
            await AGENT.embed_query("hi")
        with pytest.raises(UnsupportedError):
            await AGENT.generate_media("a dot", mime_types=["image/png"])


def test_unknown_override_setting_is_rejected() -> None:
    with pytest.raises(TypeError, match="temprature"):
        AGENT.override(temprature=1)  # pyright: ignore


@pytest.fixture
def ends_with_test() -> Generator[None]:
    """Check that the agent has its own model after the fixtures that come later in a test have ended."""
    yield
    assert AGENT.model.provider == "openai-responses"


@pytest.fixture
def in_a_fixture(ends_with_test: None) -> Generator[ScriptedModel]:
    model = ScriptedModel(["from a fixture"])
    with AGENT.override(model=model):
        yield model


@pytest.fixture
async def in_an_async_fixture(ends_with_test: None) -> AsyncGenerator[ScriptedModel]:
    model = ScriptedModel(["from an async fixture"])
    with AGENT.override(model=model):
        yield model


async def test_fixture_can_override_for_its_test_only(in_a_fixture: ScriptedModel) -> None:
    assert (await AGENT.send("hi")).output == "from a fixture"


async def test_async_fixture_can_override_for_its_test_only(in_an_async_fixture: ScriptedModel) -> None:
    assert (await AGENT.send("hi")).output == "from an async fixture"

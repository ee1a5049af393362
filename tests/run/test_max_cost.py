"""The cost guard: a run stops once it has cost as much as it may, and never starts if nobody can know."""

from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ConfigurationError, Conversation, Limits, Price, open_store
from sidestream.parts import Finish
from sidestream.store.records import Segment
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, ScriptedModel, check_stream, tool_call

PRICED = {"openai-responses:house": Price(input=1000, output=1000)}
"""A tenth of a cent per token."""


def look(name: str) -> str:
    """Looks something up."""
    return f"{name} is there"


def calls(count: int) -> list[Any]:
    return [ResponsesScript(id=f"r{n}").function_call("look", {"name": "a"}, f"c{n}").reply() for n in range(count)]


def agent_at(fake: FakeProvider, max_cost: float, **settings: Any) -> Agent[str]:
    limits = Limits(max_cost=max_cost)
    return Agent(
        "openai-responses:house", base_url=fake.base_url, api_key="k", limits=limits, **{"prices": PRICED, **settings}
    )


@requirement("R73")
async def test_no_step_begins_after_cost_limit() -> None:
    async with FakeProvider(calls(9)) as fake:
        agent = agent_at(fake, 0.07, tools=[look])
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
        assert len(fake.requests) == 2
    check_stream(parts)
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "limit"
    # A step of this script takes 37 tokens.
    assert (finish.metadata["limit"], finish.metadata["reached"]) == ("max_cost", 0.074)
    assert finish.usage.cost == 0.074


@requirement("R73")
async def test_answer_over_cost_limit_is_still_returned() -> None:
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        result = await agent_at(fake, 0.001).send("hi")
    assert (result.finish_reason, result.text) == ("stop", "Done.")


@requirement("R73")
async def test_reached_cost_is_logged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log.db")
    async with FakeProvider(calls(9)) as fake:
        chat = Chat(agent_at(fake, 0.03, tools=[look]), store=store)
        result = await chat.send("hi")
    records = await Conversation(store, chat.id).records()
    await store.aclose()
    assert result.finish_reason == "limit"
    parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert (finish.metadata["limit"], finish.metadata["reached"], finish.usage.cost) == ("max_cost", 0.037, 0.037)


@requirement("R73")
@pytest.mark.parametrize("max_cost", [0.01, 100.0])
async def test_unpriced_model_is_refused_before_sending(max_cost: float) -> None:
    async with FakeProvider(calls(1)) as fake:
        agent = agent_at(fake, max_cost, prices={})
        with pytest.raises(ConfigurationError, match="openai-responses:house"):
            await agent.send("hi")
        assert fake.requests == []


async def test_every_model_needs_price() -> None:
    models = [ScriptedModel(["one"], name="one"), ScriptedModel(["two"], name="two")]
    name = f"{models[0].provider}:one"
    agent = Agent(models=models, limits=Limits(max_cost=1), prices={name: Price(input=1, output=1)})
    with pytest.raises(ConfigurationError, match="two"):
        await agent.send("hi")


@requirement("R73")
async def test_unpriced_usage_stops_run_and_is_named() -> None:
    searching = ResponsesScript(id="r0").web_search("a question").function_call("look", {"name": "a"}, "c0").reply()
    async with FakeProvider([searching, *calls(2)]) as fake:
        result = await agent_at(fake, 100, tools=[look]).send("hi")
        assert len(fake.requests) == 1
    assert result.finish_reason == "limit"
    assert result.metadata["limit"] == "max_cost"
    assert result.metadata["reached"] is None
    assert result.parts[-1].metadata["unpriced"] == ["openai-responses:house: web_search"]  # pyright: ignore[reportAttributeAccessIssue]


@requirement("R73")
async def test_subagent_cost_counts_for_calling_run() -> None:
    child = Agent(ScriptedModel(["found"], name="child"), prices={"scripted:child": Price(input=10**6, output=10**6)})
    parent = Agent(
        ScriptedModel([tool_call("helper", task="look"), "never said"], name="parent"),
        tools=[child.as_tool("helper", "Helps.")],
        prices={"scripted:parent": Price(input=0.000001, output=0.000001)},
        limits=Limits(max_cost=1),
    )
    result = await parent.send("hi")
    assert result.finish_reason == "limit"
    assert result.usage is not None
    assert result.usage.cost is not None
    assert result.usage.cost > 1


@requirement("R73")
async def test_unpriced_subagent_stops_run_with_cost_limit() -> None:
    child = Agent(ScriptedModel(["found"], name="child"))
    parent = Agent(
        ScriptedModel([tool_call("helper", task="look"), "never said"], name="parent"),
        tools=[child.as_tool("helper", "Helps.")],
        prices={"scripted:parent": Price(input=1, output=1)},
        limits=Limits(max_cost=1),
    )
    result = await parent.send("hi")
    assert result.finish_reason == "limit"
    assert result.parts[-1].metadata["unpriced"] == ["scripted:child"]  # pyright: ignore[reportAttributeAccessIssue]


async def test_run_without_reported_usage_stops_after_first_step() -> None:
    async with FakeProvider([ChatScript(usage=None).tool_call("look", {"name": "a"}, "c0").reply()]) as fake:
        agent = Agent(
            "openai:house",
            base_url=fake.base_url,
            api_key="k",
            tools=[look],
            limits=Limits(max_cost=5),
            prices={"openai:house": Price(input=1, output=1)},
        )
        result = await agent.send("hi")
    assert (result.finish_reason, result.metadata["limit"]) == ("limit", "max_cost")

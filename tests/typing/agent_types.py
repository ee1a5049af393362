"""What a type checker must see; `make check` reads this file, nothing runs it."""

from dataclasses import dataclass
from typing import Any, assert_type

from sidestream import Agent, Chat, ChatResult, Run, RunContext, ToolContext, output_type


@dataclass
class City:
    name: str


async def outputs_are_typed(agent: Agent[str]) -> None:
    assert_type((await agent.send("hi")).output, str)
    assert_type((await agent.send("hi", output_type=City)).output, City)
    assert_type((await agent.send("hi", output_type=list[int])).output, list[int])
    assert_type((await agent.send("hi", output_type={"type": "object"})).output, Any)
    assert_type(agent.send_sync("hi", output_type=City), ChatResult[City])
    assert_type(await agent.resume("{}", []), ChatResult[str])


async def agents_are_typed() -> None:
    assert_type(Agent("openai-responses"), Agent[str])
    cities = Agent("openai-responses", output_type=City, system="Name a city.")
    assert_type(cities, Agent[City])
    assert_type(await cities.send("hi"), ChatResult[City])
    assert_type(cities.stream("hi"), Run[City])
    assert_type(await Chat(cities).send("hi"), ChatResult[City])
    assert_type(await Chat(cities).send("hi", output_type=list[int]), ChatResult[list[int]])
    assert_type(Chat(cities).stream("hi", output_type=list[int]), Run[list[int]])
    assert_type(await Chat(cities).resume(output_type=list[int]), ChatResult[list[int]])
    assert_type(Agent("openai-responses", output_type=output_type(City)), Agent[City])
    async for chunk in cities.send_stream("hi"):
        assert_type(chunk, ChatResult[str])


def deps_are_typed(context: ToolContext[City], bare: ToolContext) -> str:
    assert_type(context.deps, City)
    assert_type(bare.deps, Any)
    return context.deps.name


def _prompt(context: RunContext[City]) -> str:
    return assert_type(context.deps, City).name


async def _later(context: RunContext) -> str | None:
    return assert_type(context.deps, Any)


async def system_may_be_a_function() -> None:
    assert_type(Agent("openai-responses", system=_prompt, tools=[deps_are_typed]), Agent[str])
    agent = Agent("openai-responses", system=_later)
    await agent.send("hi", system=lambda: "Be brief.", deps=City("Oslo"))
    agent.send_sync("hi", system=lambda context: context.model, deps=City("Oslo"))

"""Typed output through the agent: schemas on the wire, partial objects, answers that are sent back."""

from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from requirements import requirement
from sidestream import Agent, OutputInvalidError
from sidestream.run.results import ChatResult
from sidestream.stream import grammar
from sidestream.stream.parts import Custom, Error, Finish
from sidestream.testing import FakeProvider, ResponsesScript
from sidestream.tools.server_side import WebSearch


@dataclass
class City:
    name: str
    people: int


def population(name: str) -> int:
    """How many people live in a city."""
    return 700_000


GOOD = '{"name": "Oslo", "people": 700000}'


@requirement("R45")
@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (City, GOOD, City("Oslo", 700_000)),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (int | str, '{"value": "x"}', "x"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1}', {"a": 1}),
    ],
)
async def test_the_answer_is_a_value_of_the_type_and_the_schema_goes_over_the_wire(
    output_type: Any, text: str, value: Any
) -> None:
    async with FakeProvider([ResponsesScript().text(text).reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi", output_type=output_type)
        form = fake.requests[0].json["text"]["format"]
    assert result.output == value
    assert form["type"] == "json_schema"
    assert form["schema"]["type"] == "object"


@requirement("R45")
async def test_typed_output_goes_with_tools_and_server_side_tools() -> None:
    script = [
        ResponsesScript().web_search("Oslo").function_call("population", {"name": "Oslo"}).reply(),
        ResponsesScript().text(GOOD).reply(),
    ]
    async with FakeProvider(script) as fake:
        agent = Agent(
            "openai-responses",
            base_url=fake.base_url,
            tools=[population],
            server_side_tools=[WebSearch()],
            output_type=City,
        )
        result = await agent.send("hi")
        assert all("text" in request.json for request in fake.requests)
    assert_type(result, ChatResult[City])
    assert result.output == City("Oslo", 700_000)


@requirement("R45")
async def test_partial_objects_grow_while_the_answer_streams() -> None:
    pieces = ['{"name": "Os', 'lo", "peo', 'ple": 700000', "}"]
    async with FakeProvider([ResponsesScript().text(pieces).reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chunks = [chunk async for chunk in agent.send_stream("hi", output_type=City)]
    seen = [chunk.partial_output for chunk in chunks if chunk.output]
    assert seen[0] == {"name": "Os"}
    assert seen[1] == {"name": "Oslo"}
    assert seen[-1] == {"name": "Oslo", "people": 700000}


@requirement("R45")
async def test_partial_objects_are_those_of_the_current_answer() -> None:
    script = [
        ResponsesScript().text("Let me see.").function_call("population", {"name": "Oslo"}).reply(),
        ResponsesScript().text(['{"name": "Os', 'lo", "people": 1}']).reply(),
    ]
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[population])
        chunks = [chunk async for chunk in agent.send_stream("hi", output_type=City)]
    assert [chunk.partial_output for chunk in chunks if chunk.output][-2:] == [
        {"name": "Os"},
        {"name": "Oslo", "people": 1},
    ]


async def test_an_answer_that_does_not_fit_is_sent_back_with_what_is_wrong() -> None:
    script = [ResponsesScript(id="r1").text('{"name": "Oslo"}').reply(), ResponsesScript(id="r2").text(GOOD).reply()]
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, output_type=City)
        async with agent.stream("hi", errors="parts") as run:
            parts = [part async for part in run]
        told = fake.requests[1].json["input"]
    grammar.check(parts)
    assert run.output == City("Oslo", 700_000)
    assert [part.kind for part in parts if isinstance(part, Custom)] == ["sidestream.output-rejected"]
    assert told[-1]["role"] == "user"
    assert "people" in str(told[-1]["content"])


async def test_typed_output_fails_after_two_retries() -> None:
    async with FakeProvider([ResponsesScript(id=f"r{n}").text("no").reply() for n in range(5)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, output_type=City)
        with pytest.raises(OutputInvalidError) as caught:
            await agent.send("hi")
        assert len(fake.requests) == 3
    async with FakeProvider([ResponsesScript(id=f"r{n}").text("no").reply() for n in range(5)]) as fake:
        run = Agent("openai-responses", base_url=fake.base_url, output_type=City).stream("hi", errors="parts")
        parts = [part async for part in run]
    grammar.check(parts)
    assert caught.value.result is not None
    assert isinstance(parts[-2], Error)
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "error"


async def test_a_refusal_of_typed_output_is_not_retried() -> None:
    async with FakeProvider([ResponsesScript().refusal("I cannot.").reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi", output_type=City)
        assert len(fake.requests) == 1
    assert result.finish_reason == "content-filter"
    assert result.output is None

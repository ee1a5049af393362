"""Typed output through the agent: schemas on the wire, partial objects, answers that are sent back."""

from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, Limits
from sidestream.errors import NoOutputError, OutputInvalidError
from sidestream.parts import Custom, Error, Finish
from sidestream.results.results import ChatResult
from sidestream.stream import grammar
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
async def test_answer_is_typed_value_and_schema_is_sent(output_type: Any, text: str, value: Any) -> None:
    async with FakeProvider([ResponsesScript().text(text).reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi", output_type=output_type)
        form = fake.requests[0].json["text"]["format"]
    assert result.output == value
    assert form["type"] == "json_schema"
    assert form["schema"]["type"] == "object"


@requirement("R45")
async def test_typed_output_works_with_local_and_hosted_tools() -> None:
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
async def test_partial_objects_grow_while_answer_streams() -> None:
    pieces = ['{"name": "Os', 'lo", "peo', 'ple": 700000', "}"]
    async with FakeProvider([ResponsesScript().text(pieces).reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chunks = [chunk async for chunk in agent.send_stream("hi", output_type=City)]
    seen = [chunk.partial_output for chunk in chunks if chunk.output]
    assert seen[0] == {"name": "Os"}
    assert seen[1] == {"name": "Oslo"}
    assert seen[-1] == {"name": "Oslo", "people": 700000}


@requirement("R45")
async def test_partial_objects_belong_to_current_answer() -> None:
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


async def test_invalid_answer_is_sent_back_with_reason() -> None:
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


async def test_refused_typed_output_is_not_retried() -> None:
    async with FakeProvider([ResponsesScript().refusal("I cannot.").reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi", output_type=City)
        assert len(fake.requests) == 1
    assert result.finish_reason == "content-filter"
    assert not result.has_output


@requirement("R103")
@pytest.mark.parametrize("reason", ["limit", "content-filter", "approval", "length"])
async def test_missing_typed_output_raises_reason_when_read(reason: str) -> None:
    call = ResponsesScript().function_call("lookup", {})
    replies = {
        "limit": call,
        "approval": call,
        "content-filter": ResponsesScript().text("{").incomplete("content_filter"),
        "length": ResponsesScript().text("{").incomplete(),
    }

    def lookup() -> str:
        """Looks something up."""
        return "x"

    async with FakeProvider([replies[reason].reply() for _ in range(2)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, output_type=City, tools=[lookup])
        policy = "ask" if reason == "approval" else "run"
        limits = Limits(max_steps=1)
        result = await agent.send("hi", approval=policy, limits=limits)
        async with agent.stream("hi", approval=policy, limits=limits) as run:
            with pytest.raises(NoOutputError) as unread:
                _ = run.output
            assert unread.value.reason is None
            async for _ in run:
                pass
    assert (result.finish_reason, result.has_output, run.has_output) == (reason, False, False)
    for read in (lambda: result.output, lambda: run.output):
        with pytest.raises(NoOutputError) as caught:
            read()
        assert caught.value.reason == reason
    assert "NO_OUTPUT" in repr(result)


@requirement("R103")
async def test_stream_output_is_typed_object_or_plain_text() -> None:
    script = ResponsesScript().text('{"name": "Oslo", "people": 700000}')
    async with FakeProvider([script.reply() for _ in range(3)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        async with agent.stream("hi", output_type=City) as typed:
            async for _ in typed:
                pass
        async with agent.stream("hi") as plain:
            async for _ in plain:
                pass
        result = await agent.send("hi", output_type=City)
    assert typed.output == result.output == City("Oslo", 700000)
    assert result.text == plain.output == '{"name": "Oslo", "people": 700000}'
    assert result.has_output
    assert not result.is_waiting
    with pytest.raises(ConfigurationError, match="nothing to resume"):
        _ = result.run_state


@requirement("R103")
async def test_none_is_valid_output() -> None:
    async with FakeProvider([ResponsesScript().text('{"value": null}').reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi", output_type=int | None)
    assert result.has_output
    assert result.output is None

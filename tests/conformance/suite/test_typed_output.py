"""Answers of a type, alone and beside tools, in the way that the provider claims."""

import json
from dataclasses import dataclass

import pytest

from conformance.suite.subjects import Subject, run_parts
from conformance.suite.wires import Call, Text
from sidestream.messages.message import ToolCallPart

PARIS = '{"name": "Paris", "country": "France"}'
FACT = "Paris is the capital of France. Tell me the city and its country."
WEATHER = "How is the weather in Paris? Answer with the city and its country."


@dataclass
class City:
    name: str
    country: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_answer_has_output_type(subject: Subject, stream: bool) -> None:
    assert subject.caps.typed_output == "native"
    async with subject.open(Text(PARIS)) as talk:
        result = await talk.agent.send(FACT, output_type=City, stream=stream)
        (body,) = talk.bodies
    assert isinstance(result.output, City)
    assert subject.setting == "embedded" or result.output == City("Paris", "France")
    schema = subject.wire.schema(body)
    assert schema is not None
    assert schema["properties"].keys() == {"name", "country"}


async def test_answer_with_tools_has_output_type(subject: Subject) -> None:
    way = subject.caps.typed_output_with_tools
    prompt = "How is the weather in Paris?" if subject.setting == "embedded" else WEATHER
    async with subject.open(Call("get_weather", {"city": "Paris"}), Text(PARIS), tools=[get_weather]) as talk:
        result = await talk.agent.send(prompt, output_type=City)
        bodies = talk.bodies
    assert isinstance(result.output, City)
    calls = [part for message in result.messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert [(call.name, call.input) for call in calls] == [("get_weather", {"city": "Paris"})]
    offered = [subject.wire.tools(body) == ["get_weather"] for body in bodies]
    typed = [subject.wire.schema(body) is not None for body in bodies]
    expected = {
        "native": ([True, True], [True, True]),
        "deferred": ([True, True, False], [False, False, True]),
    }
    assert (offered, typed) == expected[way]


async def test_typed_answer_streams_partial_values(wired: Subject) -> None:
    async with wired.open(Text(PARIS)) as talk:
        chunks = [chunk async for chunk in talk.agent.send_stream(FACT, output_type=City)]
    seen = [chunk.partial_output for chunk in chunks if chunk.partial_output]
    assert seen[0] != seen[-1] == {"name": "Paris", "country": "France"}


async def test_mismatched_typed_answer_is_retried(wired: Subject) -> None:
    async with wired.open(Text('{"name": "Paris"}'), Text(PARIS)) as talk:
        result = await talk.agent.send(FACT, output_type=City)
        second = talk.bodies[1]
    assert result.output == City("Paris", "France")
    assert wired.wire.schema(second) is not None
    assert "country" in str(second)


async def test_typed_answer_is_legal_stream(subject: Subject) -> None:
    async with subject.open(Text(PARIS)) as talk:
        parts = await run_parts(talk.agent, FACT, output_type=City)
    assert parts


OLDER = ("claude-3-5-sonnet-20241022", "gemini-2.5-flash", "interactions/gemini-2.5-flash")


async def test_typed_output_with_tools_uses_documented_fallback(wired: Subject) -> None:
    """By a tool call (Anthropic), in a second request (Google), or by instruction (servers that refuse the schema)."""
    older = next((name for name in OLDER if name.startswith(_family(wired))), None)
    model = f"{wired.row.provider}:{older}" if older else wired.model
    called, typed = Call("get_weather", {"city": "Paris"}), Text(PARIS)
    ways = {
        "anthropic": [called, Call("return_result", json.loads(PARIS))],
        "google": [called, Text("Sunny."), typed],
        "google-interactions": [called, Text("Sunny."), typed],
    }
    refused = wired.wire.refusal(400, "invalid_request_error", "response_format is not supported here")
    answers = ways.get(wired.id) or [refused, called, typed]
    if wired.id in ("openai-responses", "xai"):
        answers = [called, typed]  # Every model behind this API has it.
    async with wired._replace(model=model).open(*answers, tools=[get_weather]) as talk:
        result = await talk.agent.send(WEATHER, output_type=City)
        last = talk.bodies[-1]
    assert result.output == City("Paris", "France")
    if wired.id in ("openai", "openrouter"):
        assert wired.wire.schema(last) is None
        assert "JSON schema" in str(last["messages"][0])
    elif wired.id == "anthropic":
        assert wired.wire.tools(last) == ["get_weather", "return_result"]
    elif wired.row.provider == "google":
        assert (wired.wire.tools(last), wired.wire.schema(last) is not None) == ([], True)


def _family(subject: Subject) -> str:
    return subject.row.prefix + {"anthropic": "claude", "google": "gemini"}.get(subject.row.provider, "none")

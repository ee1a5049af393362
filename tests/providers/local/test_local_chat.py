"""The embedded model answers, calls tools and fills in schemas, through the decoders of a remote server.

The model is tiny: what is asserted is the protocol, and what it is sure of by far.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from providers.local.embedded import OPTIONS, get_weather, run_parts, skip_without
from requirements import requirement
from sidestream import Agent
from sidestream.errors import ConfigurationError, ContextOverflowError, UnsupportedError
from sidestream.messages.message import ChatMessage, DataPart, ToolCallPart, ToolResultPart
from sidestream.parts import Finish, Raw, ResponseMetadata, StepFinish, TextDelta, ToolCall, ToolResult
from sidestream.providers.openai.chat import OpenAIChatOptions
from support.streams import of, one, streamed_text

skip_without("xllamacpp", model="smollm2-135m")
pytestmark = pytest.mark.usefixtures("connections")

ANSWER = "The capital of France is Paris."
PROMPT = f"Repeat this sentence exactly: {ANSWER}"
WEATHER = "How is the weather in Paris?"
HISTORY = [
    ChatMessage.user("What is the capital of Spain?"),
    ChatMessage.model("The capital of Spain is Madrid."),
    ChatMessage.user("What is the capital of Italy?"),
    ChatMessage.model("The capital of Italy is Rome."),
]


@dataclass
class City:
    name: str
    country: str


def agent(tools: Any = ()) -> Agent[str]:
    return Agent("local", tools=tools, options=OPTIONS)


@requirement("R91")
async def test_answer_streams_by_word_without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    # What went to a proxy would not come back.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    parts = await run_parts(agent(), PROMPT)
    assert [part.delta for part in of(parts, TextDelta)] == ["The", " capital", " of", " France", " is", " Paris", "."]
    assert of(parts, Raw) == []
    metadata = one(parts, ResponseMetadata)
    assert (metadata.provider, metadata.model) == ("local", "smollm2-135m")
    finish = one(parts, Finish)
    assert finish.reason == "stop"
    assert finish.usage.input.total > len(PROMPT.split())
    assert finish.usage.output.total > len(ANSWER.split())


async def test_non_streaming_answer_is_one_delta() -> None:
    parts = await run_parts(agent(), PROMPT, stream=False)
    assert [part.delta for part in of(parts, TextDelta)] == [ANSWER]
    assert one(parts, Finish).reason == "stop"


async def test_conversation_continues() -> None:
    assert (await agent().send("What is the capital of France?", history=HISTORY)).output == ANSWER


@requirement("R91")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_tool_is_called_and_answer_uses_its_result(stream: bool) -> None:
    parts = await run_parts(agent(tools=[get_weather]), WEATHER, stream=stream)
    call, result = one(parts, ToolCall), one(parts, ToolResult)
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert (result.id, result.result, result.is_error) == (call.id, "sunny", False)
    assert [part.reason for part in of(parts, StepFinish)] == ["tool-calls", "stop"]
    assert "sunny" in streamed_text(parts)


async def test_small_talk_is_answered_without_tool_call() -> None:
    for prompt in ("Hello!", "Tell me a joke.", "Nice to meet you!"):
        parts = await run_parts(agent(tools=[get_weather]), prompt, options=OpenAIChatOptions(max_completion_tokens=12))
        assert of(parts, ToolCall) == []
        assert streamed_text(parts)


@pytest.mark.parametrize(("choice", "calls"), [("none", 0), ("required", 1)])
async def test_tool_choice_is_respected(choice: Any, calls: int) -> None:
    options = OpenAIChatOptions(tool_choice=choice, max_completion_tokens=30)
    parts = await run_parts(agent(tools=[get_weather]), "Hello! I am in Rome.", options=options)
    assert len(of(parts, ToolCall)) == calls
    assert one(parts, Finish).reason in ("stop", "length")


async def test_truncated_call_does_not_break_later_requests() -> None:
    short = OpenAIChatOptions(temperature=0, max_completion_tokens=20)
    asked = agent(tools=[get_weather])
    async with asked.stream(WEATHER, options=short) as run:
        parts = [part async for part in run]
    call = one(parts, ToolCall)
    assert call.input_error is not None
    assert call.input_text is not None
    assert one(parts, Finish).reason == "length"
    broken = ToolCallPart(call.id, call.name, None, call.input_text)
    failed = ToolResultPart(call.id, call.name, "the arguments are no JSON", is_error=True)
    history = [ChatMessage.user(WEATHER), ChatMessage.model(broken), ChatMessage("tool", (failed,))]
    assert (await asked.send("Hello!", history=history)).finish_reason == "stop"


@requirement("R91")
@pytest.mark.parametrize("tools", [[], [get_weather]], ids=["alone", "after a tool"])
async def test_typed_output_fits_its_schema(tools: list[Any]) -> None:
    prompt = WEATHER if tools else "Paris is the capital of France."
    result = await agent(tools=tools).send(prompt, output_type=City)
    assert isinstance(result.output, City)
    assert result.output.name == "Paris"
    called = [part.name for message in result.messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert called == [tool.__name__ for tool in tools]


async def test_context_overflow_raises_one_line_error_with_limit() -> None:
    with pytest.raises(ContextOverflowError) as refused:
        await agent().send("word " * 9000)
    assert refused.value.code == "context_length_exceeded"
    assert "8192" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_files_raise_unsupported_error() -> None:
    with pytest.raises(UnsupportedError):
        await agent().send(["What is this?", DataPart(b"\x89PNG", "image/png")])


async def test_both_models_are_listed_with_kinds() -> None:
    models = await agent().list_models()
    assert {model.name: model.kinds for model in models} == {
        "smollm2-135m": ("chat",),
        "all-minilm-l6-v2": ("embeddings",),
    }


@pytest.mark.parametrize(("model", "settings"), [("local:gpt-9", {}), ("local", {"base_url": "http://127.0.0.1:1/v1"})])
def test_unknown_model_or_base_url_raises(model: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Agent(model, **settings)


async def test_embedding_model_rejects_chat() -> None:
    with pytest.raises(UnsupportedError):
        await Agent("local:all-minilm-l6-v2").send("hi")

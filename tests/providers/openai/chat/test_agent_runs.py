"""The provider behind an agent, against a fake server."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.errors import AuthenticationError, ProviderError, RateLimitedError, StreamTruncatedError
from sidestream.limits import Limits
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    ToolCallPart,
    ToolResultPart,
    messages_from_json,
    messages_to_json,
)
from sidestream.parts import Custom, Finish, Raw, StepFinish, StreamPart, ToolResult
from sidestream.providers import caps_of
from sidestream.providers.openai.chat import OpenAIChatOptions
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, html_page, json_reply, no_leaks, sse
from sidestream.testing.chat_script import ChatScript
from sidestream.testing.messages_script import MessagesScript
from sidestream.tools.server_side import CustomTool
from support.streams import PNG, of, one, streamed_text


@dataclass
class City:
    name: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def agent_at(fake: FakeProvider, model: str = "openai", **settings: Any) -> Agent[str]:
    return Agent(model, base_url=fake.base_url, **settings)


async def run_parts(agent: Agent[str], prompt: str = "hi", **call: Any) -> list[StreamPart]:
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@requirement("R90")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_tool_round_sends_call_and_result(stream: bool):
    calls = ChatScript().reasoning("Hm").text("I look.").tool_call("get_weather", {"city": "Rome"}, "call_1")
    last = ChatScript().text("It is sunny.")
    replies = [script.reply() if stream else script.whole_reply() for script in (calls, last)]
    async with no_leaks(), FakeProvider(replies) as fake:
        result = await agent_at(fake, tools=[get_weather], system="Be brief.").send("hi", stream=stream)
        first, second = fake.requests
    assert first.path == "/v1/chat/completions"
    assert first.json["stream"] is stream
    assert second.json["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny in Rome"},
    ]
    assert (result.thinking, result.finish_reason) == ("Hm", "stop")
    assert result.messages[-1].text == "It is sunny."
    assert result.usage is not None
    assert result.usage.input.total == 50


@requirement("R90", "R73")
async def test_parallel_calls_are_answered_in_order():
    calls = (
        ChatScript()
        .tool_call("get_weather", {"city": "Rome"}, "call_1")
        .tool_call("get_weather", {"city": "Oslo"}, "call_2")
    )
    async with no_leaks(), FakeProvider([calls.reply(), ChatScript().text("Both.").reply()]) as fake:
        parts = await run_parts(agent_at(fake, tools=[get_weather]))
        sent = fake.requests[1].json["messages"]
    assert [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"] == [
        ("call_1", "sunny in Rome"),
        ("call_2", "sunny in Oslo"),
    ]
    assert [step.reason for step in of(parts, StepFinish)] == ["tool-calls", "stop"]


@requirement("R90")
async def test_calls_without_ids_survive_several_rounds():
    def ask(city: str) -> list[dict[str, Any]]:
        chunks = ChatScript(id="same").tool_call("get_weather", {"city": city}).chunks()
        for chunk in chunks:
            for choice in chunk["choices"]:
                for call in choice["delta"].get("tool_calls", []):
                    call.pop("id", None)
        return chunks

    replies = [sse(ask("Rome")), sse(ask("Oslo")), ChatScript().text("Both.").reply()]
    async with FakeProvider(replies) as fake:
        parts = await run_parts(agent_at(fake, tools=[get_weather]))
        sent = fake.requests[2].json["messages"]
    ids = [m["tool_call_id"] for m in sent if m["role"] == "tool"]
    assert len(set(ids)) == 2
    assert [result.id for result in of(parts, ToolResult)] == ids


@requirement("R90")
async def test_typed_output_returns_typed_value():
    async with FakeProvider([ChatScript().text('{"name": "Rome"}').reply()]) as fake:
        result = await agent_at(fake).send("hi", output_type=City)
        sent = fake.requests[0].json["response_format"]
    assert result.output == City("Rome")
    assert (sent["type"], sent["json_schema"]["strict"]) == ("json_schema", True)


@requirement("R90")
async def test_typed_output_works_without_schema_support():
    refused = error_reply(400, "invalid_request_error", "This response_format type is unavailable now")
    async with FakeProvider([refused, ChatScript().text('```json\n{"name": "Rome"}\n```').reply()]) as fake:
        result = await agent_at(fake).send("hi", output_type=City)
        second = fake.requests[1].json
    assert result.output == City("Rome")
    assert "response_format" not in second
    assert '"name"' in second["messages"][0]["content"]


@requirement("R90")
async def test_refused_parameter_is_dropped_once_and_remembered():
    refused = error_reply(400, "invalid_request_error", "Unrecognized request argument supplied: stream_options")
    calls = ChatScript().tool_call("get_weather", {"city": "Rome"})
    async with no_leaks(), FakeProvider([refused, calls.reply(), ChatScript().text("Sunny.").reply()]) as fake:
        parts = await run_parts(agent_at(fake, tools=[get_weather]))
        sent = ["stream_options" in request.json for request in fake.requests]
    assert sent == [True, False, False]
    assert one(parts, Custom).data["parameter"] == "stream_options"
    assert one(parts, Finish).reason == "stop"


async def test_parameter_refused_twice_raises():
    refused = error_reply(400, "invalid_request_error", "stream_options is not supported")
    async with FakeProvider([refused, refused]) as fake:
        with pytest.raises(ProviderError):
            await agent_at(fake).send("hi")
        assert len(fake.requests) == 2


@requirement("R90")
@pytest.mark.parametrize(
    ("status", "kind", "count"),
    [(401, AuthenticationError, 1), (404, ProviderError, 1), (429, RateLimitedError, 3), (500, ProviderError, 3)],
)
async def test_refused_requests_raise_typed_one_line_errors(status: int, kind: type[ProviderError], count: int):
    async with no_leaks(), FakeProvider() as fake:
        fake.on("POST", "*", error_reply(status, "some_code", "said so", headers={"retry-after-ms": "1"}))
        with pytest.raises(kind) as caught:
            await agent_at(fake, api_key="sk-secret-1234").send("hi")
        assert len(fake.requests) == count
    error = caught.value
    assert (error.status, error.code) == (status, "some_code")
    assert "said so" in error.message
    assert "\n" not in error.message
    assert "sk-secret" not in error.message
    assert status != 401 or "OPENAI_API_KEY" in error.message


@requirement("F16", "R90")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_html_page_error_mentions_base_url(stream: bool):
    async with no_leaks(), FakeProvider([html_page("Sign in")]) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake).send("hi", stream=stream)
    assert "base URL" in caught.value.message
    assert "\n" not in caught.value.message


@requirement("F16", "R90")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_error_with_status_200_raises(stream: bool):
    body = {"error": {"message": "no such model", "code": "model_not_found"}}
    async with no_leaks(), FakeProvider([json_reply(body)]) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake).send("hi", stream=stream)
    assert "no such model" in caught.value.message


@requirement("F03", "R90")
async def test_mid_stream_error_keeps_partial_result_without_retry():
    async with no_leaks(), FakeProvider([ChatScript().text("Half of it").error().reply()]) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake).send("hi")
        assert len(fake.requests) == 1
    assert (caught.value.code, caught.value.retryable) == ("server_error", True)
    assert caught.value.result is not None
    assert caught.value.result.output == "Half of it"


@requirement("F01", "R90")
async def test_truncated_stream_raises():
    async with no_leaks(), FakeProvider([sse(ChatScript().text("Half of it").chunks()[:-2])]) as fake:
        with pytest.raises(StreamTruncatedError):
            await agent_at(fake).send("hi")


@requirement("R90")
async def test_stream_without_done_and_usage_is_complete():
    async with no_leaks(), FakeProvider([sse(ChatScript(usage=None).text("All of it").chunks())]) as fake:
        result = await agent_at(fake).send("hi")
    assert (result.output, result.finish_reason) == ("All of it", "stop")


@requirement("R90", "F08")
async def test_non_streaming_reply_to_stream_request_is_decoded():
    async with FakeProvider([ChatScript().text("All of it").whole_reply()]) as fake:
        result = await agent_at(fake).send("hi")
    assert result.output == "All of it"


@requirement("F13", "R90")
async def test_broken_arguments_are_resent_as_json_not_executed():
    ran: list[str] = []

    def get(city: str) -> str:
        """Gets."""
        ran.append(city)
        return city

    broken = ChatScript().tool_call("get", '{"city": "Ro', "call_1")
    async with FakeProvider([broken.reply(), ChatScript().text("Sorry.").reply()]) as fake:
        await agent_at(fake, tools=[get]).send("hi")
        _, call, result = fake.requests[1].json["messages"]
    assert ran == []
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"input": '{"city": "Ro'}
    assert "not JSON" in result["content"]


@requirement("R90")
async def test_tool_calls_reason_without_calls_ends_run():
    async with FakeProvider([ChatScript().text("Done.").stop("tool_calls").reply()]) as fake:
        result = await agent_at(fake, tools=[get_weather], limits=Limits(max_steps=3)).send("hi")
        assert len(fake.requests) == 1
    assert result.finish_reason == "stop"


async def test_refusal_does_not_raise():
    async with FakeProvider([ChatScript().refusal("I cannot.").reply()]) as fake:
        result = await agent_at(fake).send("hi")
    assert (result.output, result.finish_reason) == ("I cannot.", "content-filter")


async def test_function_answers_custom_tool():
    def sql(input: str) -> str:
        """Runs SQL."""
        return f"ran {input}"

    replies = [ChatScript().custom_call("sql", "SELECT 1", "call_1").reply(), ChatScript().text("1").reply()]
    async with FakeProvider(replies) as fake:
        await agent_at(fake, tools=[sql], server_side_tools=[CustomTool(name="sql")]).send("hi")
        _, call, result = fake.requests[1].json["messages"]
    assert call["tool_calls"] == [{"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}]
    assert result["content"] == "ran SELECT 1"


async def test_tool_can_return_image_to_model():
    def draw() -> list[Any]:
        """Draws."""
        return ["a dot", DataPart(PNG, "image/png", "dot.png")]

    replies = [ChatScript().tool_call("draw", {}, "call_1").reply(), ChatScript().text("I see.").reply()]
    async with FakeProvider(replies) as fake:
        await agent_at(fake, tools=[draw]).send("hi")
        messages = fake.requests[1].json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert [entry["type"] for entry in messages[3]["content"]] == ["text", "image_url"]


@requirement("R75", "R90")
@pytest.mark.parametrize("foreign", ["openai-responses", "anthropic"])
async def test_history_from_other_provider_is_continued(foreign: str):
    scripts: dict[str, list[Any]] = {
        "openai-responses": [
            ResponsesScript().reasoning("Hm", encrypted_content="gAAA").function_call("get_weather", {"city": "Rome"}),
            ResponsesScript().text("Sunny."),
        ],
        "anthropic": [
            MessagesScript().thinking("Hm", signature="gAAA").tool_use("get_weather", {"city": "Rome"}),
            MessagesScript().text("Sunny."),
        ],
    }
    async with FakeProvider([script.reply() for script in scripts[foreign]]) as fake:
        history = (await agent_at(fake, foreign, tools=[get_weather]).send("hi")).messages
    async with FakeProvider([ChatScript().text("As I said.").reply()]) as fake:
        await agent_at(fake, tools=[get_weather]).send("Sure?", history=messages_from_json(messages_to_json(history)))
        sent = fake.requests[0].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]
    assert not [word for word in ("gAAA", "_session", "Hm") if word in json.dumps(sent)]


@requirement("R90")
async def test_preset_is_separate_provider():
    history = [
        ChatMessage.user("hi"),
        ChatMessage.model(ToolCallPart("call_1", "get", {})),
        ChatMessage("tool", (ToolResultPart("call_1", "get", "ok"),)),
    ]
    async with FakeProvider([ChatScript(model="x").text("Hi").delta(images=[{"a": 1}]).reply()]) as fake:
        agent = agent_at(
            fake, "mistral:magistral", api_key="k-1234567", options=OpenAIChatOptions(max_completion_tokens=7)
        )
        parts = await run_parts(agent, history=history)
        sent = fake.requests[0].json
    call_id = sent["messages"][2]["tool_call_id"]
    assert len(call_id) == 9
    assert sent["messages"][1]["tool_calls"][0]["id"] == call_id
    assert (sent["model"], sent["max_tokens"]) == ("magistral", 7)
    assert not sent.keys() & {"stream_options", "max_completion_tokens"}
    assert one(parts, Raw).provider == "mistral"
    assert streamed_text(parts) == "Hi"


async def test_models_and_embeddings_use_same_server():
    async with FakeProvider() as fake:
        fake.on("GET", "*/models", json_reply({"data": [{"id": "a"}]}))
        fake.on("POST", "*/embeddings", json_reply({"data": [{"index": 0, "embedding": [1.0]}]}))
        agent = agent_at(fake)
        assert caps_of(agent.model).list_models
        assert [info.name for info in await agent.list_models()] == ["a"]
        assert (await agent.embed_query("hi")).vector == (1.0,)
        assert fake.requests[1].json["model"] == "text-embedding-3-small"

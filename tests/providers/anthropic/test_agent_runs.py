"""The provider behind an agent, against a fake server."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from providers.anthropic.messages_wire import FOUND, URL
from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.errors import ProviderError, StreamTruncatedError
from sidestream.limits import Limits
from sidestream.messages.message import DataPart, LinkPart, messages_from_json, messages_to_json
from sidestream.parts import Custom, Error, Finish, StepFinish, StreamPart, ToolResult
from sidestream.providers.anthropic import AnthropicOptions, Memory
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, no_leaks, sse
from sidestream.testing.messages_script import MessagesScript
from sidestream.tools.server_side import CodeInterpreter, WebSearch
from support.streams import PNG, of, one


@dataclass
class City:
    name: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def agent_at(fake: FakeProvider, model: str = "claude", **settings: Any) -> Agent:
    return Agent(model, base_url=fake.base_url, **settings)


async def run_parts(agent: Agent, prompt: str = "hi") -> list[StreamPart]:
    async with agent.stream(prompt) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@requirement("R50", "R54")
@pytest.mark.parametrize("base_path", ["", "/v1"])
@pytest.mark.parametrize("stream", [True, False])
async def test_tool_round_resends_thinking_before_result(base_path: str, stream: bool):
    calls = MessagesScript().thinking("Hm", signature="EqQB").tool_use("get_weather", {"city": "Rome"}, "toolu_1")
    last = MessagesScript().text("It is sunny.")
    replies = [s.reply() if stream else s.whole_reply() for s in (calls, last)]
    async with no_leaks(), FakeProvider(replies, base_path=base_path) as fake:
        result = await agent_at(fake, tools=[get_weather]).send("hi", stream=stream)
        first, second = fake.requests
    assert (first.path, first.headers["anthropic-version"]) == ("/v1/messages", "2026-10-21")
    assert first.json["stream"] is stream
    assert second.json["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hm", "signature": "EqQB"}
    assert second.json["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny in Rome"}
    ]
    assert result.messages[-1].text == "It is sunny."
    assert (result.thinking, result.finish_reason) == ("Hm", "stop")


@requirement("R55")
async def test_paused_answer_is_continued_automatically():
    paused = MessagesScript(container="container_1").text("I look.").web_search("a", FOUND[:1])
    paused.server_tool_use("web_search", {"query": "b"}, "srvtoolu_9").pause_turn()
    rest = MessagesScript().result("web_search_tool_result", FOUND, "srvtoolu_9").text("Found.")
    async with no_leaks(), FakeProvider([paused.reply(), rest.reply()]) as fake:
        agent = agent_at(fake, server_side_tools=[WebSearch()])
        parts = await run_parts(agent)
        second = fake.requests[1].json
    assert second["container"] == "container_1"
    assert [block["type"] for block in second["messages"][-1]["content"]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "server_tool_use",
    ]
    assert [step.reason for step in of(parts, StepFinish)] == ["other", "stop"]
    assert one(parts, Finish).reason == "stop"
    assert [result.id for result in of(parts, ToolResult)][-1] == "srvtoolu_9"


@requirement("R53", "R55")
async def test_links_are_deduplicated_across_continued_answers():
    paused = MessagesScript().web_search("a", FOUND[:1]).pause_turn()
    rest = MessagesScript().web_search("b", FOUND).text("Found.")
    async with FakeProvider([paused.reply(), rest.reply()]) as fake:
        result = await agent_at(fake, server_side_tools=[WebSearch()]).send("hi")
    links = [part.url for m in result.messages for part in m.parts if isinstance(part, LinkPart)]
    assert links == [URL, "https://example.com/b"]


@requirement("R55")
async def test_pauses_are_limited_by_max_steps():
    async with FakeProvider() as fake:
        fake.on("POST", "*/messages", MessagesScript().text("…").pause_turn().reply())
        parts = await run_parts(agent_at(fake, limits=Limits(max_steps=3)))
        assert len(fake.requests) == 3
    assert one(parts, Finish).reason == "limit"


@requirement("R53")
async def test_sandbox_files_are_downloaded_with_key():
    made = MessagesScript(container="container_1").bash("plot", files=["file_1", "file_1", "file_2"]).text("Done.")
    async with no_leaks(), FakeProvider([made.reply()]) as fake:
        fake.add_file("/v1/files/file_1/content", PNG)
        fake.add_file("/v1/files/file_2/content", b"a,b\n1,2\n")
        result = await agent_at(fake, api_key="sk-ant-1", server_side_tools=[CodeInterpreter()]).send("plot")
        downloads = [request for request in fake.requests if request.path.endswith("/content")]
    assert {request.path for request in downloads} == {"/v1/files/file_1/content", "/v1/files/file_2/content"}
    assert {request.headers["authorization"] for request in downloads} == {"Bearer sk-ant-1"}
    files = [part for m in result.messages for part in m.parts if isinstance(part, DataPart)]
    assert [part.data for part in files] == [PNG, b"a,b\n1,2\n"]


@requirement("R55", "F24")
async def test_expired_container_is_replaced_once_with_notice():
    first = MessagesScript(container="container_1").bash("ls").text("ok")
    gone = error_reply(400, "invalid_request_error", "container: Container container_1 has expired")
    async with no_leaks(), FakeProvider([first.reply(), gone, MessagesScript().text("new").reply()]) as fake:
        agent = agent_at(fake, server_side_tools=[CodeInterpreter(reuse_container=True)])
        history = (await agent.send("one")).messages
        async with agent.stream("two", history=history) as run:
            parts = [part async for part in run]
        sent = [request.json.get("container") for request in fake.requests]
    assert sent == [None, "container_1", None]
    assert [part.kind for part in of(parts, Custom)] == ["sidestream.container-replaced"]
    assert one(parts, Finish).reason == "stop"


@requirement("F03", "R55")
async def test_mid_stream_overload_raises_with_partial_result():
    async with no_leaks(), FakeProvider([MessagesScript().text("Half of it").error().reply()]) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake).send("hi")
        assert len(fake.requests) == 1
    assert (caught.value.code, caught.value.retryable) == ("overloaded_error", True)
    assert caught.value.result is not None
    assert caught.value.result.output == "Half of it"


@requirement("F01")
async def test_truncated_stream_raises():
    events = MessagesScript().text("Half of it").events()[:-2]
    async with no_leaks(), FakeProvider([sse(events)]) as fake:
        with pytest.raises(StreamTruncatedError):
            await agent_at(fake).send("hi")


async def test_refusal_does_not_raise():
    async with FakeProvider([MessagesScript().refusal("cyber").reply()]) as fake:
        result = await agent_at(fake).send("hi")
    assert (result.output, result.finish_reason) == ("", "content-filter")


async def test_function_answers_provider_defined_client_tool():
    def memory(command: str, path: str) -> str:
        """Keeps notes."""
        return f"{command} {path}: the user lives in Mexico City"

    asks = MessagesScript().tool_use("memory", {"command": "view", "path": "/memories"}, "toolu_1")
    async with FakeProvider([asks.reply(), MessagesScript().text("Mexico City").reply()]) as fake:
        agent = agent_at(fake, tools=[memory], server_side_tools=[Memory()])
        result = await agent.send("Where do I live?")
        first, second = (request.json for request in fake.requests)
    assert first["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    assert "Mexico City" in second["messages"][2]["content"][0]["content"]
    assert result.output == "Mexico City"


async def test_client_tool_call_is_returned_when_function_is_missing():
    asks = MessagesScript().tool_use("memory", {"command": "view", "path": "/memories"}, "toolu_1")
    async with FakeProvider([asks.reply()]) as fake:
        result = await agent_at(fake, server_side_tools=[Memory(execution="provider")]).send("Where do I live?")
    assert result.finish_reason == "tool-calls"
    assert result.messages[-1].tool_calls[0].name == "memory"


@requirement("F13")
async def test_broken_arguments_are_reported_to_model_not_executed():
    ran: list[str] = []

    def get(city: str) -> str:
        """Gets."""
        ran.append(city)
        return city

    broken = MessagesScript().tool_use("get", ['{"city": "Ro'], "toolu_1")
    async with FakeProvider([broken.reply(), MessagesScript().text("Sorry.").reply()]) as fake:
        await agent_at(fake, tools=[get]).send("hi")
        second = fake.requests[1].json
    assert ran == []
    assert second["messages"][2]["content"][0]["is_error"] is True


@requirement("R75")
async def test_history_from_other_provider_is_continued():
    foreign = ResponsesScript().reasoning("Hm", encrypted_content="gAAA").function_call("get_weather", {"city": "Rome"})
    async with FakeProvider([foreign.reply(), ResponsesScript().text("Sunny.").reply()]) as fake:
        history = (await Agent("openai-responses", base_url=fake.base_url, tools=[get_weather]).send("hi")).messages
    async with FakeProvider([MessagesScript().text("As I said.").reply()]) as fake:
        await agent_at(fake, tools=[get_weather]).send("Sure?", history=history)
        sent = fake.requests[0].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert "gAAA" not in json.dumps(sent)
    assert "_responses_session" not in json.dumps(sent)


@requirement("R10", "R54")
async def test_conversation_survives_json_round_trip():
    first = MessagesScript().thinking("Hm").web_fetch(URL, "The page", title="A").text("Read.")
    async with FakeProvider([first.reply(), MessagesScript().text("Yes.").reply()]) as fake:
        agent = agent_at(fake)
        history = messages_from_json(messages_to_json((await agent.send("one")).messages))
        await agent.send("two", history=history)
        sent = fake.requests[1].json["messages"][1]["content"]
    expected = first.response()["content"]
    assert [block["type"] for block in sent] == [block["type"] for block in expected]
    assert sent[2]["content"]["content"]["source"] == expected[2]["content"]["content"]["source"]


@requirement("R56")
@pytest.mark.parametrize("model", ["claude", "claude:claude-sonnet-4-0"], ids=["native", "by tool"])
async def test_typed_output_works_natively_and_by_reserved_tool(model: str):
    script = MessagesScript().text('{"name": "Rome"}')
    if "4-0" in model:
        script = MessagesScript().text("Here:").tool_use("return_result", {"name": "Rome"})
    calls = MessagesScript().tool_use("get_weather", {"city": "Rome"})
    async with FakeProvider([calls.reply(), script.reply()]) as fake:
        agent: Any = agent_at(fake, model, tools=[get_weather])
        result = await agent.send("hi", output_type=City)
    assert result.output == City("Rome")
    assert of(list(result.parts), Error) == []


async def test_options_reach_server():
    async with FakeProvider([MessagesScript().text("Hi").reply()]) as fake:
        await agent_at(fake, options=AnthropicOptions(max_tokens=7, betas=["b1"])).send("hi")
        request = fake.requests[0]
    assert request.json["max_tokens"] == 7
    assert request.headers["anthropic-beta"] == "b1"


@requirement("R53")
async def test_sandbox_files_have_provider_names():
    script = MessagesScript().code_execution("plot()", files=["file_1", "file_2"]).text("Done")
    async with no_leaks(), FakeProvider([script.reply()]) as fake:
        fake.add_file("/v1/files/file_1/content", PNG)
        fake.add_file("/v1/files/file_2/content", b"a,b\n1,2\n")
        known = {
            "type": "file",
            "id": "file_1",
            "filename": "plot.png",
            "mime_type": "image/png",
            "size_bytes": len(PNG),
        }
        fake.add_file("/v1/files/file_1", json.dumps(known).encode(), "application/json")
        fake.on("GET", "/v1/files/file_2", error_reply(404, "not_found_error", "gone"))
        result = await agent_at(fake, server_side_tools=[CodeInterpreter()]).send("plot")
    assert [(file.name, file.mime_type) for file in result.files] == [
        ("plot.png", "image/png"),
        ("file_2.txt", "text/plain"),
    ]


async def test_tool_can_return_image_to_model():
    def draw() -> list[Any]:
        """Draws."""
        return ["a dot", DataPart(PNG, "image/png", "dot.png")]

    replies = [MessagesScript().tool_use("draw", {}, "toolu_1").reply(), MessagesScript().text("I see.").reply()]
    async with FakeProvider(replies) as fake:
        await agent_at(fake, tools=[draw]).send("hi")
        content = fake.requests[1].json["messages"][2]["content"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image"]

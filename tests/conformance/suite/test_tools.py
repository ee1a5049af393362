"""Functions of the user's: called, answered, several at once, failing, and beside tools that the provider runs."""

import pytest

from conformance.suite.subjects import Subject, run_parts
from conformance.suite.wires import Call, Text, Thought
from sidestream.errors import UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Finish, StepFinish, ToolCall, ToolResult
from sidestream.providers.capabilities import instead_of
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.registry import hosts_of
from sidestream.tools.server_side import CodeInterpreter, ImageGeneration, RemoteMCP, Shell, WebFetch, WebSearch
from sidestream.tools.tool import ToolError
from support.streams import of, one, streamed_text

WEATHER = "How is the weather in Paris?"
PORTABLE = (
    WebSearch(),
    WebFetch(),
    CodeInterpreter(),
    ImageGeneration(),
    Shell(),
    RemoteMCP(label="docs", url="https://mcp.example/mcp", require_approval="never"),
)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return {"Paris": "sunny", "Rome": "rainy"}.get(city, "cloudy")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_tool_is_called_and_model_sees_its_result(subject: Subject, stream: bool) -> None:
    assert subject.caps.client_tools
    answers = Call("get_weather", {"city": "Paris"}), Text("It is sunny in Paris.")
    async with subject.open(*answers, tools=[get_weather]) as talk:
        parts = await run_parts(talk.agent, WEATHER, stream=stream)
        first, *_, last = talk.bodies
    call, result = one(parts, ToolCall), one(parts, ToolResult)
    assert (call.name, call.input, call.provider_executed) == ("get_weather", {"city": "Paris"}, False)
    assert (result.id, result.result, result.is_error) == (call.id, "sunny", False)
    assert [part.reason for part in of(parts, StepFinish)] == ["tool-calls", "stop"]
    assert subject.tells(streamed_text(parts), "It is sunny in Paris.", "sunny")
    assert subject.wire.tools(first) == ["get_weather"]
    assert "sunny" in str(last)
    usages = [part.usage for part in of(parts, StepFinish)]
    assert one(parts, Finish).usage.input.total == sum(usage.input.total for usage in usages)


async def test_calls_and_results_are_resent_in_pairs(wired: Subject) -> None:
    answers = Call("get_weather", {"city": "Paris"}), Text("It is sunny.")
    async with wired.open(*answers, tools=[get_weather]) as talk:
        result = await talk.agent.send(WEATHER)
        wired_history = list(result.messages)
    # Without its session the history is sent whole.
    bare = [ChatMessage(message.role, message.parts) for message in wired_history]
    async with wired.open(Text("You are welcome."), tools=[get_weather]) as talk:
        await talk.agent.send("Thanks.", history=bare)
        (body,) = talk.bodies
    (pair,) = wired.wire.pairs(body)
    assert (pair.name, pair.input) == ("get_weather", {"city": "Paris"})
    assert "sunny" in str(pair.result)


async def test_several_tools_are_called_at_once_when_supported(subject: Subject) -> None:
    both = (Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Rome"}))
    prompt = "How is the weather in Paris, and how is it in Rome? Call the tool for both cities at once."
    async with subject.open(both, Text("Sunny and rainy."), tools=[get_weather]) as talk:
        parts = await run_parts(talk.agent, prompt)
    calls = of(parts, ToolCall)
    assert len({call.id for call in calls}) == len(calls) > 0
    assert {part.id: part.result for part in of(parts, ToolResult)} == {
        call.id: get_weather(call.input["city"]) for call in calls
    }
    if subject.caps.parallel_tool_calls:
        assert [call.input["city"] for call in calls] == ["Paris", "Rome"]
        assert [part.reason for part in of(parts, StepFinish)] == ["tool-calls", "stop"]
    else:
        assert instead_of(subject.caps, "parallel_tool_calls")
        reasons = [part.reason for part in of(parts, StepFinish)]
        assert reasons.count("tool-calls") == len(calls)


async def test_results_of_round_are_sent_in_call_order(wired: Subject) -> None:
    both = (Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Rome"}))
    async with wired.open(both, Text("Done."), tools=[get_weather]) as talk:
        await talk.agent.send("Both, please.")
        assert len(talk.bodies) == 2
        told = str(talk.bodies[1])
    assert 0 < told.index("sunny") < told.index("rainy")


async def test_failed_tool_is_reported_to_model_as_error(wired: Subject) -> None:
    def broken(city: str) -> str:
        """The weather in a city."""
        raise ToolError("the station is offline")

    async with wired.open(Call("broken", {"city": "Paris"}), Text("I cannot tell."), tools=[broken]) as talk:
        parts = await run_parts(talk.agent, WEATHER)
        told = str(talk.bodies[1])
    assert one(parts, ToolResult).is_error
    assert "the station is offline" in told
    assert one(parts, Finish).reason == "stop"


async def test_thinking_before_call_is_resent_to_its_provider(wired: Subject) -> None:
    thought = (Thought("I should look."),) if wired.caps.thinking else ()
    said = (*thought, Call("get_weather", {"city": "Paris"}))
    async with wired.open(said, Text("It is sunny."), tools=[get_weather], options=wired.row.thinks) as talk:
        await talk.agent.send(WEATHER)
        second = talk.bodies[1]
    held_by_server = any(key.startswith("previous_") for key in second)
    assert held_by_server == wired.caps.server_sessions
    # Chat Completions seal nothing: there, only its words are shown.
    assert held_by_server or wired.wire.seal is None or wired.wire.seal in str(second)


@pytest.mark.parametrize("tool", PORTABLE, ids=lambda tool: type(tool).__name__)
def test_server_side_tool_is_encoded_or_refused_with_hosts(wired: Subject, tool: object) -> None:
    from sidestream import Agent

    model = Agent(wired.model, base_url="http://127.0.0.1:1/v1").model
    request = ModelRequest(messages=(ChatMessage.user("hi"),), server_side_tools=(tool,))
    is_search_of_chat = wired.row.provider == "openai" and isinstance(tool, WebSearch)
    if type(tool) in wired.provider.server_side_tools and not is_search_of_chat:
        assert model.encode(request).call.body
        return
    with pytest.raises(UnsupportedError) as refused:
        model.encode(request)
    others = [host for host in hosts_of(type(tool)) if host != wired.row.provider]
    assert all(host in str(refused.value) for host in others)

"""The settings of an agent and a call: what reaches the wire, what is refused, and what `help()` shows."""

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_overloads

import msgspec
import pytest

from requirements import requirement
from sidestream import (
    Agent,
    AnthropicOptions,
    Chat,
    ChatMessage,
    CodeInterpreter,
    ConfigurationError,
    DataPart,
    Limits,
    MCPServer,
    OpenAIResponsesOptions,
    RemoteMCP,
    Tool,
    UnsupportedError,
    WebSearch,
)
from sidestream.agent.settings import AgentSettings, CallSettings
from sidestream.parts import StreamStart
from sidestream.providers.anthropic import AnthropicServerSideTool, AnthropicTool
from sidestream.providers.google import (
    GoogleEmbeddingOptions,
    GoogleInteractionsOptions,
    GoogleMaps,
    GoogleOptions,
    GoogleServerSideTool,
)
from sidestream.providers.openai import OpenAIServerSideTool, Reasoning
from sidestream.providers.openai.account import OpenAIEmbeddingOptions
from sidestream.providers.openai.chat import OpenAIChatOptions
from sidestream.testing import FakeProvider, GeminiScript, MessagesScript, ResponsesScript
from sidestream.tools.configs import Config
from sidestream.tools.server_side import TOOLS

OPTIONS = (
    AnthropicOptions,
    GoogleEmbeddingOptions,
    GoogleInteractionsOptions,
    GoogleOptions,
    OpenAIChatOptions,
    OpenAIEmbeddingOptions,
    OpenAIResponsesOptions,
)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"clear in {city}"


def local_agent(**settings: Any) -> Agent[Any]:
    return Agent("openai-responses", base_url="http://127.0.0.1:1/v1", **settings)


async def requests_of(agent_settings: dict[str, Any], *calls: dict[str, Any]) -> list[dict[str, Any]]:
    script = [ResponsesScript(id=f"r{number}").text("ok").reply() for number in range(len(calls))]
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, **agent_settings)
        for call in calls:
            await agent.send("hi", **call)
        return [request.json for request in fake.requests]


# Settings on the wire


@requirement("R100")
async def test_call_settings_override_agent_settings_individually() -> None:
    first, second, third = await requests_of(
        {"temperature": 0.2, "max_tokens": 50, "thinking": "low"},
        {},
        {"temperature": 0.9},
        {"temperature": None, "thinking": "off"},
    )
    assert (first["temperature"], first["max_output_tokens"], first["reasoning"]["effort"]) == (0.2, 50, "low")
    assert (second["temperature"], second["max_output_tokens"], second["reasoning"]["effort"]) == (0.9, 50, "low")
    assert ("temperature" in third, third["max_output_tokens"], third["reasoning"]["effort"]) == (False, 50, "none")


async def test_tool_choice_applies_to_first_request_of_each_run() -> None:
    call, answer = ResponsesScript().function_call("get_weather", {"city": "Oslo"}), ResponsesScript().text("Clear.")
    async with FakeProvider([script.reply() for script in (call, answer) * 2]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[get_weather], tool_choice="required")
        for _ in range(2):
            assert (await agent.send("How is Oslo?")).output == "Clear."
        sent = [request.json.get("tool_choice") for request in fake.requests]
    assert sent == ["required", None, "required", None]


@requirement("R104")
async def test_call_options_keep_agent_options() -> None:
    agent = OpenAIResponsesOptions(store=False, temperature=0.2, extra_body={"a": 1})
    first, second, third = await requests_of(
        {"options": agent},
        {"options": OpenAIResponsesOptions(temperature=0.9, extra_body={"b": 2})},
        {"options": OpenAIResponsesOptions(store=None)},
        {"temperature": 0.5},
    )
    assert (first["store"], first["temperature"], first["a"], first["b"]) == (False, 0.9, 1, 2)
    assert ("store" in second, second["temperature"]) == (False, 0.2)
    assert (third["store"], third["temperature"]) == (False, 0.5)


@requirement("R104")
@pytest.mark.parametrize(
    "call",
    [{"options": AnthropicOptions(max_tokens=9)}, {"options": {"temperature": 1}}, {"options": OpenAIResponsesOptions}],
)
@pytest.mark.parametrize("agent", [{}, {"options": OpenAIResponsesOptions(store=False)}])
async def test_options_of_another_provider_are_rejected(agent: dict[str, Any], call: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await local_agent(**agent).send("hi", **call)
    assert "OpenAIResponsesOptions" in str(caught.value)


@requirement("R100")
async def test_unsupported_setting_raises_or_warns_in_stream() -> None:
    with pytest.raises(UnsupportedError) as caught:
        await local_agent(seed=7).send("hi")
    assert "seed" in str(caught.value)
    async with FakeProvider([ResponsesScript().text("ok").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, seed=7, unsupported="warn")
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
        sent = fake.requests[0].json
    assert "seed" not in sent
    assert isinstance(parts[0], StreamStart)
    assert ["seed" in warning for warning in parts[0].warnings] == [True]


@requirement("R100")
async def test_model_without_settings_rejects_them() -> None:
    class Plain:
        """Somebody's own model."""

        provider, name = "acme", "acme-1"

        def __init__(self) -> None:
            made = local_agent().model
            self.encode, self.recover, self.download = made.encode, made.recover, made.download

    with pytest.raises(UnsupportedError) as caught:
        await Agent(Plain()).send("hi", temperature=0.5)
    assert "acme" in str(caught.value)


@requirement("R100")
async def test_recording_warns_of_ignored_settings(recordings: Path) -> None:
    recording = recordings / "openai-responses/v-openai-web-search-tool.1-stream.json"
    async with Agent(f"replay:{recording}", temperature=0.5).stream("hi") as run:
        start = await anext(run)
    assert isinstance(start, StreamStart)
    assert ["temperature" in warning for warning in start.warnings] == [True]


# Errors that say what to write


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"message_metadata": "everything"}, ["session", "summary", "full"]),
        ({"message_metadata": None}, ["session"]),
        ({"result_metadata": "all"}, ["accumulated", "response"]),
        ({"limits": {"max_steps": 3}}, ["Limits("]),
        ({"limits": None}, ["Limits("]),
        ({"thinking": "hard"}, ["off", "low", "medium", "high"]),
        ({"temperature": 3}, ["temperature", "at most 2"]),
        ({"max_tokens": 0}, ["max_tokens", "at least 1"]),
        ({"tools": [WebSearch()]}, ["server_side_tools=[WebSearch("]),
        ({"tools": [WebSearch]}, ["server_side_tools=[WebSearch("]),
        ({"tools": [RemoteMCP(label="a", url="https://a.example")]}, ["server_side_tools=[RemoteMCP("]),
        ({"tools": ["web_search"]}, ["server_side_tools=[WebSearch("]),
        ({"tools": ["get_weather"]}, ["functions"]),
        ({"tools": [3]}, ["functions", "3"]),
        ({"tools": get_weather}, ["tools=[get_weather]"]),
        ({"tools": [Tool]}, ["instance"]),
        ({"tools": [MCPServer]}, ["instance"]),
        ({"server_side_tools": [WebSearch]}, ["WebSearch("]),
        ({"server_side_tools": WebSearch()}, ["[WebSearch()]"]),
        ({"server_side_tools": ["web_search"]}, ["WebSearch("]),
        ({"server_side_tools": [get_weather]}, ["tools=["]),
        ({"server_side_tools": [Tool.from_function(get_weather)]}, ["tools=["]),
        ({"server_side_tools": [MCPServer("a", command="true")]}, ["tools=["]),
        ({"server_side_tools": [GoogleMaps()]}, ["GoogleMaps", "options"]),
        ({"server_side_tools": [GoogleServerSideTool.GOOGLE_SEARCH]}, ["google_search"]),
        ({"server_side_tools": [3]}, ["WebSearch()"]),
        ({"options": OpenAIResponsesOptions}, ["OpenAIResponsesOptions("]),
    ],
)
async def test_invalid_setting_is_rejected_at_construction_and_call(settings: Any, words: list[str]) -> None:
    for use in (lambda: local_agent(**settings), lambda: local_agent().stream("hi", **settings)):
        if "message_metadata" in settings or "result_metadata" in settings:
            use = functools.partial(local_agent, **settings)
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("model", [None, 3, Agent, object()])
def test_model_must_be_string_or_model(model: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Agent(model)
    assert "openai-responses:" in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        (None, "None"),
        (123, "123"),
        ([], "empty"),
        ((), "empty"),
        ([None], "None"),
        (b"hi", "bytes"),
        ({"role": "user", "content": "hi"}, "dict"),
        ([{"role": "user", "content": "hi"}], "dict"),
        ([ChatMessage.user("hi")], "history"),
        (DataPart(b"x", "text/plain"), "[DataPart("),
    ],
)
async def test_invalid_prompt_is_rejected(prompt: Any, word: str) -> None:
    agent = local_agent()
    uses: list[Callable[[], Any]] = [lambda: agent.stream(prompt), lambda: Chat(agent).stream(prompt)]
    for use in uses:
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert "prompt must be" in str(caught.value)
        assert word in str(caught.value)
    with pytest.raises(ConfigurationError):
        await agent.send(prompt)


def test_invalid_prompt_raises_same_error_in_plain_script() -> None:
    with pytest.raises(ConfigurationError) as caught:
        local_agent().send_sync(None)  # type: ignore[arg-type]
    assert "prompt must be" in str(caught.value)


@pytest.mark.parametrize("history", ["hi", ["hi"], [{"role": "user"}], ChatMessage.user("hi"), 3])
def test_history_must_contain_messages(history: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        local_agent().stream("hi", history=history)
    assert "ChatMessage" in str(caught.value)


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("temprature", "temperature"),
        ("max_output_tokens", "max_tokens"),
        ("instructions", "system"),
        ("system_prompt", "system"),
        ("reasoning", "thinking"),
        ("server_tools", "server_side_tools"),
    ],
)
def test_unknown_setting_error_suggests_intended_one(unknown: str, meant: str) -> None:
    for use in (local_agent, functools.partial(local_agent().stream, "hi")):
        with pytest.raises(TypeError) as caught:
            use(**{unknown: 1})
        assert f"did you mean {meant}?" in str(caught.value)


async def test_chat_takes_output_type_for_one_turn() -> None:
    script = [ResponsesScript(id="r1").text('{"value": [1, 2]}').reply(), ResponsesScript(id="r2").text("ok").reply()]
    async with FakeProvider(script) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        typed = await chat.send("Two numbers.", output_type=list[int])
        plain = await chat.send("Thanks.")
        first, second = (request.json for request in fake.requests)
    assert (typed.output, plain.output) == ([1, 2], "ok")
    assert first["text"]["format"]["type"] == "json_schema"
    assert "text" not in second


# Signatures and names


@pytest.mark.parametrize("function", [Agent.send, Agent.stream, Agent.send_stream, Chat.send, Chat.stream, Chat.resume])
def test_help_lists_every_call_setting_briefly(function: Any) -> None:
    shown = str(inspect.signature(function))
    assert all(f"{name}: " in shown for name in CallSettings.__annotations__)
    assert "thinking: Thinking | None = None" in shown
    assert "tools: Tools = ..." in shown
    assert "sidestream." not in shown
    assert "Ellipsis" not in shown
    assert "output_type" in shown


def test_help_lists_every_agent_setting_briefly() -> None:
    shown = str(inspect.signature(Agent))
    assert all(f"{name}: " in shown for name in AgentSettings.__annotations__)
    assert shown.startswith("(model: str | ChatModel | None = None, *, output_type: Any = None, ")
    assert len(shown) < 1400


def add_configs(kind: Any, found: set[type[Config]]) -> None:
    """Adds the config classes in the type of a field, and in their own fields."""
    if isinstance(kind, type) and issubclass(kind, Config) and kind not in found:
        found.add(kind)
        for field in msgspec.structs.fields(kind):
            add_configs(field.type, found)
    for argument in getattr(kind, "__args__", ()):
        add_configs(argument, found)


@pytest.mark.parametrize("options", [*OPTIONS, *TOOLS.values()])
def test_every_field_config_is_public(options: type[Config]) -> None:
    found: set[type[Config]] = set()
    add_configs(options, found)
    names = {id(value) for package in HOMES for value in vars_of(package).values()}
    assert [config for config in found if id(config) not in names] == []


def vars_of(package: str) -> dict[str, Any]:
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


HOMES = (
    "sidestream",
    "sidestream.tools",
    "sidestream.providers.anthropic",
    "sidestream.providers.google",
    "sidestream.providers.openai",
)


def test_vendor_config_is_accepted_by_options() -> None:
    assert OpenAIResponsesOptions(reasoning=Reasoning(effort="low")).reasoning == Reasoning(effort="low")
    assert Limits().max_total_tokens is None


def test_editor_overload_has_every_setting():
    shown = inspect.signature(get_overloads(Agent.__init__)[0]).parameters.keys()
    assert shown - {"self", "model", "output_type"} == AgentSettings.__annotations__.keys()


TOOLS_OF_OPTIONS = {
    "openai-responses": OpenAIResponsesOptions(
        server_side_tools={OpenAIServerSideTool.WEB_SEARCH}, web_search_config=WebSearch(), temperature=0.5
    ),
    "anthropic": AnthropicOptions(
        server_side_tools={AnthropicServerSideTool.WEB_SEARCH},
        tool_configs=[AnthropicTool(type="web_fetch_20250910", name="web_fetch")],
        temperature=0.5,
    ),
    "google": GoogleOptions(
        server_side_tools={GoogleServerSideTool.GOOGLE_SEARCH},
        maps_grounding=GoogleMaps(),
        extra_tools=[{"codeExecution": {}}],
        temperature=0.5,
    ),
}
ANSWERS = {"openai-responses": ResponsesScript, "anthropic": MessagesScript, "google": GeminiScript}


@pytest.mark.parametrize("provider", TOOLS_OF_OPTIONS)
async def test_tools_of_call_replace_those_of_options(provider: str) -> None:
    options = TOOLS_OF_OPTIONS[provider]
    replies = [ANSWERS[provider]().text("ok").reply() for _ in range(4)]
    async with FakeProvider(replies) as fake:
        agent = Agent(provider, base_url=fake.base_url, options=options)
        await agent.send("hi")
        await agent.send("hi", server_side_tools=[])
        await agent.send("hi", server_side_tools=[CodeInterpreter()])
        await agent.send("hi", server_side_tools=[], options=options)
    own, none, code, both = [request.json.get("tools") for request in fake.requests]
    assert own == both
    assert own
    assert none is None
    assert len(code) == 1
    assert all("0.5" in str(request.json) for request in fake.requests)

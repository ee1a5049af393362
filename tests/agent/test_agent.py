"""The agent against a fake provider: tools in a loop, what the model is told, what the user gets."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hostile.streams import calls_in
from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.errors import ConfigurationError, ProviderError, UnknownProviderError
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage, ToolResultPart
from sidestream.parts import Finish, StreamPart, ToolEvent, ToolResult
from sidestream.providers.registry import ModelString, find_provider
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, Reply, ResponsesScript, json_reply, no_leaks
from sidestream.tools.server_side import CustomTool, LocalShell
from sidestream.tools.tool import ToolContext


def get_weather(city: str) -> dict[str, str]:
    """The weather in a city."""
    return {"city": city, "sky": "clear"}


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


async def run_parts(agent: Agent, prompt: str = "hi") -> list[StreamPart]:
    async with agent.stream(prompt) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


@requirement("R32")
@pytest.mark.parametrize("store", [None, False])
async def test_model_gets_call_results_by_id(store: bool | None) -> None:
    from sidestream import OpenAIResponsesOptions

    calls = ResponsesScript().function_call("get_weather", {"city": "Oslo"}, "call_a")
    calls.function_call("get_weather", {"city": "Rome"}, "call_b")
    async with no_leaks(), FakeProvider([calls.reply(), ResponsesScript().text("Clear.").reply()]) as fake:
        agent = agent_at(fake, tools=[get_weather], options=OpenAIResponsesOptions(store=store))
        result = await agent.send("hi")
        second = fake.requests[1].json
    outputs = [item for item in second["input"] if item.get("type") == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in outputs] == [
        ("call_a", '{"city":"Oslo","sky":"clear"}'),
        ("call_b", '{"city":"Rome","sky":"clear"}'),
    ]
    assert ("previous_response_id" in second) == (store is None)
    assert [message.role for message in result.messages] == ["user", "model", "tool", "model"]
    assert result.messages[2].parts == (
        ToolResultPart("call_a", "get_weather", {"city": "Oslo", "sky": "clear"}),
        ToolResultPart("call_b", "get_weather", {"city": "Rome", "sky": "clear"}),
    )


@requirement("R72")
async def test_tools_of_one_round_run_concurrently_and_report_progress() -> None:
    meeting = asyncio.Barrier(2)

    async def meet(name: str, context: ToolContext) -> str:
        """Waits for the other."""
        context.progress({"here": name})
        await meeting.wait()
        return f"{name} met"

    script = ResponsesScript().function_call("meet", {"name": "a"}, "c1").function_call("meet", {"name": "b"}, "c2")
    async with no_leaks(), FakeProvider([script.reply(), ResponsesScript().text("ok").reply()]) as fake:
        parts = await asyncio.wait_for(run_parts(agent_at(fake, tools=[meet])), 30)
    results = [part for part in parts if isinstance(part, ToolResult)]
    assert {(part.id, part.result) for part in results} == {("c1", "a met"), ("c2", "b met")}
    events = [part for part in parts if isinstance(part, ToolEvent)]
    assert [(part.tool, part.provider_stage, part.event, part.call_id) for part in events] == [
        ("meet", "progress", {"here": "a"}, "c1"),
        ("meet", "progress", {"here": "b"}, "c2"),
    ]


async def test_unknown_tool_is_error_result_and_loop_continues() -> None:
    script = [ResponsesScript().function_call("nothing", {}).reply(), ResponsesScript().text("Sorry.").reply()]
    async with FakeProvider(script) as fake:
        parts = await run_parts(agent_at(fake, tools=[get_weather]))
        told = fake.requests[1].json["input"][-1]["output"]
    (result,) = [part for part in parts if isinstance(part, ToolResult)]
    assert result.is_error
    assert "get_weather" in told


async def test_run_calling_tools_endlessly_ends_at_step_limit() -> None:
    script = [ResponsesScript(id=f"r{n}").function_call("get_weather", {"city": "Oslo"}).reply() for n in range(5)]
    async with FakeProvider(script) as fake:
        finish = (await run_parts(agent_at(fake, tools=[get_weather], limits=Limits(max_steps=3))))[-1]
        assert len(fake.requests) == 3
    assert isinstance(finish, Finish)
    assert finish.reason == "limit"
    assert finish.metadata["limit"] == "max_steps"
    assert finish.metadata["reached"] == 3


@requirement("R36")
async def test_client_side_calls_end_run_and_are_answered_by_message() -> None:
    shell = {"type": "local_shell_call", "call_id": "call_1", "status": "completed"}
    shell["action"] = {"type": "exec", "command": ["ls"], "env": {}}  # type: ignore[assignment]
    script = [ResponsesScript().item(shell, prefix="lsh").reply(), ResponsesScript().text("Two files.").reply()]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, server_side_tools=[LocalShell()])
        first = await agent.send("list")
        assert first.finish_reason == "tool-calls"
        (call,) = first.messages[-1].tool_calls
        assert call.input["command"] == ["ls"]
        answer = ChatMessage("tool", (ToolResultPart(call.id, call.name, "a b"),))
        second = await agent.send(answer, history=first.messages)
        assert fake.requests[1].json["input"][0]["type"] == "local_shell_call_output"
    assert second.output == "Two files."


async def test_function_of_same_name_answers_custom_tool_with_string() -> None:
    def sql(input: str) -> str:
        """Runs a query."""
        return input.upper()

    item = {"type": "custom_tool_call", "name": "sql", "call_id": "call_1", "input": "select 1"}
    script = [ResponsesScript().item(item, prefix="ctc").reply(), ResponsesScript().text("ok").reply()]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, tools=[sql], server_side_tools=[CustomTool(name="sql")])
        result = await agent.send("hi")
        answer = fake.requests[1].json["input"][0]
        offered = [tool["type"] for tool in fake.requests[0].json["tools"]]
    assert (answer["type"], answer["output"]) == ("custom_tool_call_output", "SELECT 1")
    assert offered == ["custom"]
    (run,) = result.tool_runs
    assert (run.tool, run.provider_tool, run.name, run.status) == ("custom", "sql", "sql", "completed")
    assert {event.tool for event in result.tool_events} == {"custom"}


@requirement("R79", "R70")
def test_send_sync_works_in_plain_script_and_in_threads() -> None:
    with FakeProvider([ResponsesScript().text("Hello").reply() for _ in range(5)]).in_thread() as fake:
        agent = agent_at(fake)
        assert agent.send_sync("hi").output == "Hello"
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(agent.send_sync, ["hi"] * 4))
    assert [result.output for result in results] == ["Hello"] * 4


@requirement("R79")
async def test_send_sync_inside_loop_suggests_await() -> None:
    with pytest.raises(ConfigurationError, match=r"await agent\.send"):
        Agent("openai-responses", base_url="http://127.0.0.1:1").send_sync("hi")


@requirement("R71")
@pytest.mark.parametrize(
    ("text", "provider", "models"),
    [
        ("openai-responses", "openai-responses", {}),
        ("openai-responses:gpt-5.6", "openai-responses", {"chat": "gpt-5.6"}),
        ("openai:org/model:free", "openai", {"chat": "org/model:free"}),
        (
            "openai?chat=gpt-5.6&embeddings=e-1&media=m",
            "openai",
            {"chat": "gpt-5.6", "embeddings": "e-1", "media": "m"},
        ),
        ("replay:/tmp/a:b.json", "replay", {"chat": "/tmp/a:b.json"}),
    ],
)
def test_model_strings_are_parsed(text: str, provider: str, models: dict[str, str]) -> None:
    assert ModelString.parse(text) == ModelString(provider, models)


@requirement("R71")
@pytest.mark.parametrize("name", ["openai-responses", "openai", "anthropic", "google"])
async def test_default_model_is_used_without_model_name(name: str) -> None:
    default = find_provider(name).default_models["chat"]
    async with FakeProvider([Reply(status=400, body=b"{}")] * 2) as fake:
        for model in (name, f"{name}:{default}"):
            with pytest.raises(ProviderError):
                await Agent(model, base_url=fake.base_url, api_key="k").send("hi")
        unnamed, named = ((request.path, request.json) for request in fake.requests)
    assert unnamed == named
    assert default in str(unnamed)


@requirement("R71")
def test_custom_provider_registers_like_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidestream.providers.registry import find_provider, providers, register_provider
    from sidestream.replay.provider import ReplayProvider

    class Mine(ReplayProvider):
        name = "mine"
        aliases = ("my-own",)

    monkeypatch.setattr("sidestream.providers.registry._registered", {})
    register_provider(Mine())
    assert find_provider("mine") is find_provider("my-own")
    assert {"mine", "openai-responses", "replay"} <= providers().keys()


@requirement("R71")
def test_unknown_provider_error_suggests_known_ones() -> None:
    with pytest.raises(UnknownProviderError, match="openai-responses"):
        Agent("openai-response")


@requirement("R48")
@pytest.mark.parametrize("model", ["openai-responses", "anthropic"])
async def test_agent_lists_models_of_its_provider(model: str) -> None:
    pages = {
        "openai-responses": [
            {"object": "list", "data": [{"id": "gpt-x", "object": "model", "created": 1}, {"id": "text-embedding-x"}]}
        ],
        "anthropic": [
            {
                "data": [{"id": "claude-x", "type": "model", "display_name": "X"}],
                "has_more": True,
                "last_id": "claude-x",
            },
            {"data": [{"id": "claude-y", "type": "model"}], "has_more": False, "last_id": "claude-y"},
        ],
    }
    async with FakeProvider() as fake:
        fake.on("GET", "/v1/models", *[json_reply(page) for page in pages[model]])
        found = await Agent(model, base_url=fake.base_url).list_models()
    names = {"openai-responses": ["gpt-x", "text-embedding-x"], "anthropic": ["claude-x", "claude-y"]}
    assert [info.name for info in found] == names[model]
    assert found[0].kinds == ("chat",)


def test_agent_with_rejected_settings_has_repr():
    seen: list[object] = []

    class Shown(Agent[str]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            seen.append(self)
            super().__init__(*args, **settings)

    with pytest.raises(UnknownProviderError):
        Shown("no-such-provider")
    assert repr(seen) == "[Agent(not configured)]"


def test_installed_providers_are_cached_until_one_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from sidestream.providers.registry import find_provider, providers

    before = providers()
    assert calls_in(providers) < 1000  # It was about 50,000.
    package = tmp_path / "later-1.0.dist-info"
    monkeypatch.syspath_prepend(tmp_path)
    assert providers().keys() == before.keys()
    (tmp_path / "later.py").write_text("class Later:\n    name, aliases = 'later', ('l8r',)\nPROVIDER = Later()\n")
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sidestream.providers]\nlater = later:PROVIDER\n")
    assert providers().keys() == {*before, "later"}
    assert find_provider("l8r") is find_provider("later") is providers()["later"]

"""Where server-side tools run: at the provider that hosts them, else here."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    CodeInterpreter,
    ComputerUse,
    ConfigurationError,
    DataPart,
    File,
    FileSearch,
    ImageGeneration,
    Limits,
    LocalShell,
    Memory,
    NotHostedError,
    ServerSideTool,
    Shell,
    Source,
    Store,
    StreamPart,
    Tool,
    ToolContext,
    ToolResult,
    UnsupportedError,
    WebSearch,
    open_store,
)
from sidestream.parts import StreamStart, ToolCall, ToolEvent
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    ScriptedModel,
    check_stream,
    tool_call,
)
from sidestream.tools import SkillReference

VIEW = {"command": "view", "path": "/memories"}


def chat_agent(fake: FakeProvider, **settings: object) -> Agent:
    return Agent("openai", base_url=fake.base_url, api_key="k", **settings)  # type: ignore[arg-type]


async def parts_of(agent: Agent) -> list[StreamPart]:
    async with agent.stream("hi") as run:
        return [part async for part in run]


@requirement("R120")
async def test_tool_missing_at_provider_runs_locally_with_notice():
    script = [ChatScript().tool_call("memory", VIEW).reply(), ChatScript().text("Nothing yet").reply()]
    async with FakeProvider(script) as fake:
        parts = await parts_of(chat_agent(fake, server_side_tools=[Memory()]))
        tools = fake.requests[0].json["tools"]
    check_stream(parts)
    assert [tool["function"]["name"] for tool in tools] == ["memory"]
    assert isinstance(parts[0], StreamStart)
    assert [warning.split(":")[0] for warning in parts[0].warnings] == ["Memory runs on this machine"]
    call = next(part for part in parts if isinstance(part, ToolCall))
    assert (call.tool, call.provider_executed) == ("memory", False)
    assert [part.result for part in parts if isinstance(part, ToolResult)] == ["Files in /memories:\n(none yet)"]


@requirement("R120")
async def test_execution_forces_provider_or_local():
    async with FakeProvider([ChatScript().text("ok").reply()]) as fake:
        with pytest.raises(NotHostedError):
            await chat_agent(fake, server_side_tools=[Memory(execution="provider")]).send("hi")
        assert not fake.requests
    async with FakeProvider([MessagesScript().text("ok").reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key="k", server_side_tools=[Memory(execution="here")])
        await agent.send("hi")
        assert fake.requests[0].json["tools"][0]["input_schema"]["properties"]["command"]["enum"]


async def test_tool_available_nowhere_is_refused_before_any_request():
    async with FakeProvider([]) as fake:
        with pytest.raises(NotHostedError):
            await chat_agent(fake, server_side_tools=[ComputerUse()]).send("hi")
        with pytest.raises(UnsupportedError, match="screen"):
            await chat_agent(fake, server_side_tools=[ComputerUse(execution="here")]).send("hi")
        assert not fake.requests


async def test_calls_left_to_client_are_answered_locally():
    asks = MessagesScript().tool_use("memory", VIEW, "toolu_1")
    async with FakeProvider([asks.reply(), MessagesScript().text("Nothing").reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key="k", server_side_tools=[Memory()])
        result = await agent.send("Where do I live?")
        first = fake.requests[0].json
    assert first["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    assert result.output == "Nothing"


async def test_function_with_same_name_replaces_tool():
    def memory(command: str, path: str) -> str:
        """Mine."""
        return f"mine: {command} {path}"

    script = [ChatScript().tool_call("memory", VIEW).reply(), ChatScript().text("ok").reply()]
    async with FakeProvider(script) as fake:
        result = await chat_agent(fake, tools=[memory], server_side_tools=[Memory()]).send("hi")
    assert [entry.result for entry in result.tool_results] == ["mine: view /memories"]


async def test_store_of_provider_is_refused_before_sending():
    async with FakeProvider([]) as fake:
        with pytest.raises(UnsupportedError, match="vs_1"):
            await chat_agent(fake, server_side_tools=[FileSearch(stores=["vs_1"])]).send("hi")
        assert not fake.requests


async def test_gemini_2_runs_tools_here_beside_functions():
    def mine() -> str:
        """Mine."""
        return "mine"

    script = [GeminiScript().text("ok").reply()]
    for model, is_hosted in (("google:gemini-2.5-flash", False), ("google:gemini-3-flash-preview", True)):
        async with FakeProvider(script, base_path="") as fake:
            agent = Agent(
                model, base_url=fake.base_url, api_key="k", tools=[mine], server_side_tools=[CodeInterpreter()]
            )
            result = await agent.send("hi")
            names = {name for tool in fake.requests[0].json["tools"] for name in tool}
            await agent.aclose()
        assert ("codeExecution" in names) is is_hosted
        assert any("together with functions" in warning for warning in result.warnings) is not is_hosted


async def test_gemini_2_refuses_hosted_tool_beside_functions(monkeypatch: pytest.MonkeyPatch):
    def mine() -> str:
        """Mine."""
        return "mine"

    monkeypatch.delenv("SIDESTREAM_SEARCH", raising=False)
    async with FakeProvider([], base_path="") as fake:
        agent = Agent("google:gemini-2.5-flash", base_url=fake.base_url, api_key="k", tools=[mine])
        for tool in (WebSearch(), CodeInterpreter(execution="provider")):
            with pytest.raises(UnsupportedError, match="together with functions"):
                await agent.send("hi", server_side_tools=[tool])
        assert not fake.requests


def test_local_stores_make_file_search_local():
    assert FileSearch(stores=["./docs"]).is_local
    assert FileSearch(stores=["C:\\docs"]).is_local
    assert not FileSearch(stores=["vs_1"]).is_local
    assert not FileSearch(stores=["fileSearchStores/x"]).is_local


async def test_settings_of_own_search_make_it_local():
    assert not WebSearch().is_local
    for fields in ({"count": 3}, {"language": "de"}):
        assert WebSearch(**fields).is_local
        async with FakeProvider([]) as fake:
            agent = Agent(
                "anthropic",
                base_url=fake.base_url,
                api_key="k",
                server_side_tools=[WebSearch(**fields, execution="provider")],
            )
            with pytest.raises(UnsupportedError):
                await agent.send("hi")
            assert not fake.requests


@pytest.mark.parametrize("tool", [CodeInterpreter, ImageGeneration, Memory])
def test_execution_accepts_three_values(tool: type):
    assert tool(execution="here").execution == "here"
    with pytest.raises(ConfigurationError, match="auto, provider, here"):
        tool(execution="local")


def emitting(context: ToolContext) -> dict[str, str]:
    """Emits from a thread of its own."""
    context.emit(ToolEvent("other", "started", {"type": "response.x.in_progress"}, call_id="other"))
    context.emit(ToolResult("other", "other", "other", {"n": 1}, False, True, preliminary=True))
    context.emit(File("", "text/csv", "n.csv", b"a,b\n"))
    context.emit(Source("", "url", "https://example.org"))
    kept.append(context)
    return {"thread": "main" if threading.current_thread() is threading.main_thread() else "other"}


kept: list[ToolContext] = []


@asynccontextmanager
async def closing_store(folder: Path) -> AsyncGenerator[Store]:
    store = open_store(folder / "talks.db")
    yield store
    await store.aclose()


@requirement("R121")
async def test_emitted_parts_belong_to_call_in_stream_and_messages(tmp_path: Path):
    model = ScriptedModel([tool_call("stand_in"), "done"])
    agent = Agent(model, tools=[Tool.from_function(emitting, name="stand_in", key="code_interpreter")])
    async with closing_store(tmp_path) as store:
        chat = Chat(agent, store=store, id="me/1")
        await chat.load()
        async with chat.stream("hi") as run:
            parts = [part async for part in run]
        reopened = Chat(agent, store=store, id="me/1")
        await reopened.load()
        logged = reopened.messages
    check_stream(parts)
    call = next(part for part in parts if isinstance(part, ToolCall))
    assert (call.name, call.tool) == ("stand_in", "code_interpreter")
    event = next(part for part in parts if isinstance(part, ToolEvent))
    assert (event.tool, event.call_id, event.stage) == ("code_interpreter", call.id, "started")
    preview, final = (part for part in parts if isinstance(part, ToolResult))
    assert (preview.id, preview.tool, preview.preliminary, preview.provider_executed) == (
        call.id,
        "code_interpreter",
        True,
        False,
    )
    assert final.result == {"thread": "other"}
    file = next(part for part in parts if isinstance(part, File))
    assert (file.tool, file.call_id, file.id) == ("code_interpreter", call.id, f"{call.id}:file-1")
    assert next(part for part in parts if isinstance(part, Source)).id == f"{call.id}:source-2"
    # The file stands in the model's next message, as that of a hosted tool does; the log says the same.
    assert [type(part).__name__ for part in logged[-1].parts] == ["DataPart", "TextPart"]
    assert logged[-1].parts[0] == DataPart(b"a,b\n", "text/csv", "n.csv", to="container")
    context = kept.pop()
    context.emit(File("late", "text/plain", "late.txt", b""))  # After the call it does nothing.
    assert [message.role for message in context.history] == ["user", "model"]
    assert context.conversation == "me/1"


async def test_run_ended_by_limit_keeps_tool_files():
    model = ScriptedModel([tool_call("stand_in")])
    agent = Agent(model, tools=[Tool.from_function(emitting, name="stand_in")], limits=Limits(max_steps=1))
    result = await agent.send("hi")
    assert result.finish_reason == "limit"
    assert [[type(part).__name__ for part in message.parts] for message in result.messages[1:]] == [
        ["ToolCallPart"],
        ["ToolResultPart"],
        ["DataPart"],
    ]


async def test_tool_cannot_emit_its_final_result():
    def hasty(context: ToolContext) -> str:
        """Emits too much."""
        context.emit(ToolResult("", "", "", "done", False, False))
        return "unreachable"

    result = await Agent(ScriptedModel([tool_call("hasty"), "ok"]), tools=[hasty]).send("hi")
    assert [(entry.result, entry.is_error) for entry in result.tool_results] == [({"error": "TypeError"}, True)]


@requirement("R120")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LocalShell(execution="here"), "Shell runs here"),
        (Shell(execution="here", skills=[SkillReference(id="s")]), "workspace"),
        (ComputerUse(execution="here"), "a screen"),
    ],
)
async def test_tool_unavailable_locally_raises_with_reason(config: ServerSideTool, reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        await Agent(ScriptedModel(["x"]), server_side_tools=[config]).send("go")

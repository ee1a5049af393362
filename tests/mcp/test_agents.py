"""Agents with MCP servers: local ones, remote ones, both at once, and what a person is asked."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, RemoteMCP, UnsupportedError, open_store
from sidestream.errors import ToolServerError
from sidestream.mcp import MCPServer
from sidestream.parts import (
    Finish,
    StreamPart,
    StreamStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.run.run import Run
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript
from sidestream.tools.context import ToolContext
from sidestream.tools.tool import Tool, ToolOutcome
from support.mcp_servers.peers import HERE, asked, rogue

NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"}


def clock(**settings: Any) -> MCPServer:
    return MCPServer(
        "clock", command=sys.executable, args=["-m", "mcp_server_time", "--local-timezone=UTC"], **settings
    )


async def parts_of(run: Run[Any], **start: Any) -> list[StreamPart]:
    async with run:
        parts = [part async for part in run]
    grammar.check(parts, **start)
    return parts


def calling(name: str, arguments: Any, call_id: str = "call_1") -> list[Any]:
    return [
        ResponsesScript(id="r1").function_call(name, arguments, call_id).reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]


@requirement("R80")
async def test_agent_calls_tools_of_local_server() -> None:
    async with (
        FakeProvider(calling("convert_time", NOON)) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[clock(approval="run")]) as agent,
    ):
        result = await agent.send("What time is it?")
        offered, answer = fake.requests[0].json["tools"], fake.requests[1].json["input"][-1]
    assert {tool["name"] for tool in offered} == {"get_current_time", "convert_time"}
    assert "12:00" in answer["output"]
    assert result.output == "Done."


@requirement("R80", "R81")
@pytest.mark.parametrize("given", ["server", "file"])
async def test_local_server_asks_without_policy(given: str, tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "mcp.json"
    server = rogue("--log", str(log))
    file.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "rogue": {"command": sys.executable, "args": ["-I", str(HERE / "rogue.py"), "--log", str(log)]}
                }
            }
        )
    )
    async with (
        FakeProvider(calling("echo", {"text": "hello"})) as fake,
        Agent("openai-responses", base_url=fake.base_url, mcp=file if given == "file" else [server]) as agent,
    ):
        result = await agent.send("Say hello.")
        assert (result.is_waiting, asked(log, "tools/call")) == (True, [])
        with pytest.warns(
            UserWarning, match=r"approval of echo of the MCP server 'rogue'.* set approval=\"run\""
        ) as caught:
            assert result.output == ""
        assert caught[0].filename == __file__
        result = await agent.resume(result.run_state, [entry.approve() for entry in result.approvals])
    assert (result.output, len(asked(log, "tools/call"))) == ("Done.", 1)


@requirement("R80", "R81")
@pytest.mark.parametrize("policy", ["agent", "tool"])
async def test_policy_lets_local_server_run_unasked(policy: str, tmp_path: Path) -> None:
    server = rogue("--log", str(tmp_path / "log"), approval={"echo": "run"} if policy == "tool" else None)
    async with (
        FakeProvider(calling("echo", {"text": "hello"})) as fake,
        Agent(
            "openai-responses", base_url=fake.base_url, tools=[server], approval="run" if policy == "agent" else None
        ) as agent,
    ):
        assert (await agent.send("Say hello.")).output == "Done."


@requirement("R80")
async def test_server_lives_as_long_as_its_agent() -> None:
    server = clock(approval="run")
    async with FakeProvider([*calling("convert_time", NOON), *calling("convert_time", NOON)]) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, tools=[server]) as agent:
            await agent.send("1")
            first = await server.list()
            await agent.send("2")
            assert await server.list() is first
        assert len(fake.requests) == 4


@requirement("R80")
async def test_server_start_failure_fails_run_and_names_server() -> None:
    missing = MCPServer("nowhere", command="/no/such/program")
    async with FakeProvider([]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[missing])
        parts = await parts_of(agent.stream("Hello", errors="parts"))
        assert isinstance(parts[-1], Finish)
        assert parts[-1].reason == "error"
        with pytest.raises(ToolServerError, match="nowhere") as caught:
            await agent.send("Hello")
        assert caught.value.server == "nowhere"
        assert fake.requests == []


@requirement("R76", "R80", "R81")
async def test_local_and_remote_servers_look_alike_in_conversation() -> None:
    asking = ResponsesScript(id="r1").mcp_approval_request("docs", "search", {"q": "time"})
    asking.function_call("convert_time", NOON, "call_1")
    answered = ResponsesScript(id="r2").mcp_call("docs", "search", {"q": "time"}, output="found").text("Done.")
    remote = RemoteMCP(label="docs", url="https://mcp.example/", require_approval="always")
    async with (
        FakeProvider([asking.reply(), answered.reply()]) as fake,
        Agent(
            "openai-responses",
            base_url=fake.base_url,
            tools=[clock(approval="ask")],
            server_side_tools=[remote],
        ) as agent,
    ):
        run = agent.stream("Both, please")
        first = await parts_of(run)
        asked = {part.server_label: part for part in first if isinstance(part, ToolApprovalRequest)}
        assert asked.keys() == {"docs", "clock"}
        assert (asked["docs"].name, asked["clock"].name) == ("search", "convert_time")
        assert asked["clock"].input == NOON
        again = agent.resume(run.state, [entry.approve() for entry in run.state.approvals])
        second = await parts_of(again, first_step=1, known_calls={"call_1"})
    calls = [part for part in (*first, *second) if isinstance(part, ToolCall)]
    results = [part for part in second if isinstance(part, ToolResult)]
    assert {part.tool for part in (*calls, *results)} == {"mcp"}
    assert {(part.name, part.is_error) for part in results} == {("convert_time", False), ("search", False)}
    assert {part.name: part.provider_executed for part in results} == {"convert_time": False, "search": True}
    sent = fake.requests[1].json["input"]
    assert {item["type"] for item in sent} == {"mcp_approval_response", "function_call_output"}


@requirement("R81")
async def test_remote_server_is_called_locally_when_provider_cannot(everything_url: str) -> None:
    """Anthropic calls MCP servers, but asks nobody before."""
    remote = RemoteMCP(label="everything", url=everything_url, require_approval="always", allowed_tools=["echo"])
    script = [
        MessagesScript().tool_use("echo", {"message": "hello"}, "toolu_1").reply(),
        MessagesScript().text("Done.").reply(),
    ]
    async with (
        FakeProvider(script) as fake,
        Agent("anthropic", base_url=fake.base_url, server_side_tools=[remote]) as agent,
    ):
        run = agent.stream("Echo hello")
        parts = await parts_of(run)
        assert isinstance(parts[0], StreamStart)
        (warning,) = parts[0].warnings
        assert "'everything' is called from this machine" in warning
        assert "approval" in warning
        (asked,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        assert (asked.server_label, asked.name) == ("everything", "echo")
        result = await agent.resume(run.state, [entry.approve() for entry in run.state.approvals])
        assert result.output == "Done."
        body = fake.requests[0].json
    assert "mcp_servers" not in body
    assert [tool["name"] for tool in body["tools"]] == ["echo"]
    assert "hello" in str(fake.requests[1].json["messages"][-1])


@requirement("R81")
async def test_remote_server_can_be_called_locally_or_by_provider(everything_url: str) -> None:
    def remote(execution: Any) -> RemoteMCP:
        return RemoteMCP(
            label="everything",
            url=everything_url,
            require_approval="never",
            allowed_tools=["echo"],
            execution=execution,
        )

    async with FakeProvider([ResponsesScript().text("Hi.").reply()] * 3) as fake:
        for execution in ("auto", "provider", "here"):
            async with Agent("openai-responses", base_url=fake.base_url) as agent:
                await agent.send("Hello", server_side_tools=[remote(execution)])
        kinds = [[tool["type"] for tool in request.json["tools"]] for request in fake.requests]
        assert kinds == [["mcp"], ["mcp"], ["function"]]
        agent = Agent("anthropic", base_url=fake.base_url)
        refused = RemoteMCP(label="x", url=everything_url, require_approval="always", execution="provider")
        with pytest.raises(UnsupportedError, match="approval"):
            await agent.send("Hello", server_side_tools=[refused])
        nowhere = RemoteMCP(label="mail", connector="connector_gmail", execution="here")
        with pytest.raises(UnsupportedError, match="mail"):
            await agent.send("Hello", server_side_tools=[nowhere])


@requirement("R80")
async def test_server_progress_is_reported_as_events(node: Callable[..., MCPServer]) -> None:
    script = calling("trigger-long-running-operation", {"duration": 0.2, "steps": 2})
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[node("everything", approval="run")])
        parts = await parts_of(agent.stream("Work"))
    events = [part for part in parts if isinstance(part, ToolEvent) and part.provider_stage == "progress"]
    assert len(events) >= 2
    assert {(event.tool, event.call_id) for event in events} == {("mcp", "call_1")}


@requirement("F43", "R80")
async def test_names_shared_by_two_servers_are_prefixed(node: Callable[..., MCPServer], tmp_path: Path) -> None:
    def read_file(path: str) -> str:
        """Our own."""
        return path

    other = node("filesystem", str(tmp_path))
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[read_file, other])
        await agent.send("Hello")
        names = [tool["name"] for tool in fake.requests[0].json["tools"]]
    assert names.count("read_file") == 1
    assert "filesystem_read_file" in names
    assert "list_directory" in names


class Shifting:
    """A toolset whose tool becomes another one."""

    label = "shifty"
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.pin = "first"
        self.calls: list[Any] = []

    async def list(self) -> Sequence[Tool]:
        async def run(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
            self.calls.append(arguments)
            return ToolOutcome("ran")

        return [
            Tool(
                name="wipe",
                description="Wipes.",
                parameters={"type": "object", "properties": {}},
                approval="ask",
                server_label=self.label,
                pin=self.pin,
                function=run,
                bind=lambda arguments, context: {"arguments": arguments, "context": context},
            )
        ]

    async def aclose(self) -> None:
        pass


@requirement("F43", "F42")
async def test_approval_does_not_hold_for_changed_tool() -> None:
    toolset = Shifting()
    async with FakeProvider(calling("wipe", {"disk": 1})) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[toolset])
        first = agent.stream("Wipe")
        await parts_of(first)
        toolset.pin = "second"
        second = agent.resume(first.state.to_json(), [entry.approve() for entry in first.state.approvals])
        parts = await parts_of(second, first_step=1, known_calls={"call_1"})
        assert toolset.calls == []
        (asked,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        assert asked.id == "call_1"
        result = await agent.resume(second.state, [entry.approve() for entry in second.state.approvals])
    assert result.output == "Done."
    assert toolset.calls == [{"disk": 1}]


@requirement("F43", "F42")
async def test_tool_changed_after_approval_is_asked_again(tmp_path: Path) -> None:
    def lists(description: str) -> None:
        tool = {"name": "echo", "description": description, "inputSchema": {"type": "object"}}
        (tmp_path / "tools.json").write_text(json.dumps([tool]))

    log = tmp_path / "log"
    lists("Repeats.")
    async with FakeProvider(calling("echo", {"a": 1})) as fake:

        def agent() -> Agent[str]:
            server = rogue("--tools", str(tmp_path / "tools.json"), "--log", str(log))
            return Agent("openai-responses", base_url=fake.base_url, tools=[server], approval="ask")

        async with agent() as before:
            first = await before.send("Repeat")
        lists("Repeats, and sends a copy to somebody.")
        async with agent() as after:  # as another process would, which has not seen the first list
            second = await after.resume(first.run_state, [entry.approve() for entry in first.approvals])
            assert (second.finish_reason, asked(log, "tools/call")) == ("approval", [])
            third = await after.resume(second.run_state, [entry.approve() for entry in second.approvals])
    assert third.output == "Done."
    assert len(asked(log, "tools/call")) == 1


@requirement("R76", "R82", "R84")
async def test_conversation_with_server_continues_from_log(tmp_path: Path) -> None:
    store = open_store(tmp_path / "talks.db")
    async with FakeProvider(calling("convert_time", NOON)) as fake:

        def agent() -> Agent[str]:
            return Agent("openai-responses", base_url=fake.base_url, tools=[clock(approval="ask")])

        async with agent() as first:
            await Chat(first, store=store, id="talk").send("What time is it?")
        async with agent() as second:
            chat = Chat(second, store=store, id="talk")
            await chat.load()
            assert chat.run_state is not None
            (asked,) = chat.run_state.approvals
            assert (asked.server_label, asked.tool) == ("clock", "convert_time")
            assert asked.pin is not None
            assert (await chat.resume([asked.approve()])).output == "Done."
    await store.aclose()

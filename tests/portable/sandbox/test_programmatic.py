"""Programs of a model that call the agent's tools, in a container."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatResult,
    Limits,
    ProgrammaticToolCalling,
    RunState,
    Tool,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    ToolRun,
    open_store,
)
from sidestream.parts import ToolCall, program_of
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, check_stream
from support.sandboxes import needs

NAME = "programmatic_tool_calling"
SANDBOXES = ["bubblewrap", "monty"]


def scripts(code: str) -> list[Any]:
    return [ChatScript().tool_call(NAME, {"code": code}).reply(), ChatScript().text("done").reply()]


class Tools:
    """Tools that count their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def double(self, number: int) -> int:
        """Doubles."""
        self.calls.append(number)
        return number * 2

    def send_mail(self, to: str) -> str:
        """Sends."""
        self.calls.append(to)
        return f"sent to {to}"


def printed(result: ChatResult[Any]) -> str:
    """What the last program of a run printed."""
    return [part.result["result"] for part in result.tool_results if part.tool == NAME][-1]


def agent_of(fake: FakeProvider, *tools: Any, sandbox: str = "bubblewrap", **settings: Any) -> Agent:
    return Agent(
        "openai", base_url=fake.base_url, api_key="k", tools=tools,
        server_side_tools=[ProgrammaticToolCalling(sandbox=sandbox)], **settings,
    )  # fmt: skip


@requirement("R122")
@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_code_in_container_calls_agent_tools(sandbox: str) -> None:
    needs(sandbox)
    tools = Tools()
    code = "total = 0\nfor n in range(3):\n    total += await double(number=n)\nprint(total)"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, tools.double, sandbox=sandbox) as agent:
        async with agent.stream("go") as run:
            parts = [part async for part in run]
        names = [tool["function"]["name"] for tool in fake.requests[0].json["tools"]]
    check_stream(parts)
    assert names == ["double", NAME]
    assert tools.calls == [0, 1, 2]
    (result,) = [part.result for part in parts if isinstance(part, ToolResult) and part.tool == NAME]
    assert result == {"status": "completed", "result": "6\n"}
    inner = [part for part in parts if isinstance(part, ToolCall | ToolResult) and part.tool == "double"]
    assert [part.type for part in inner] == ["tool-call", "tool-result"] * 3
    assert {program_of(part) for part in inner} == {next(part.id for part in parts if isinstance(part, ToolCall))}


async def test_model_sees_only_output_of_program() -> None:
    needs("bubblewrap")
    async with FakeProvider(scripts(PROGRAM)) as fake, agent_of(fake, Tools().double) as agent:
        result = await agent.send("go")
    sent = fake.requests[1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert [call["function"]["name"] for call in sent[1]["tool_calls"]] == [NAME]
    kept = [part for message in result.messages for part in message.parts]
    assert [part.name for part in kept if isinstance(part, ToolCallPart | ToolResultPart)] == [NAME, NAME]


async def test_gathered_calls_run_concurrently() -> None:
    needs("bubblewrap")
    tools = Tools()
    code = "import asyncio\nprint(await asyncio.gather(*(double(number=n) for n in range(4))))"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, tools.double) as agent:
        result = await agent.send("go")
    assert printed(result) == "[0, 2, 4, 6]\n"


@requirement("R122")
async def test_call_awaiting_approval_does_not_repeat_other_calls() -> None:
    needs("bubblewrap")
    tools = Tools()
    mail = Tool.from_function(tools.send_mail, approval="ask")
    code = "n = await double(number=4)\nprint(n, await send_mail(to='ann'))\nprint(await send_mail(to='bob'))"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, tools.double, mail) as agent:
        first = await agent.send("go")
        assert [(approval.tool, approval.input) for approval in first.approvals] == [("send_mail", {"to": "ann"})]
        assert tools.calls == [4]
        state = RunState.from_json(first.run_state.to_json())
        second = await agent.resume(state, [approval.approve() for approval in state.approvals])
        assert [approval.input for approval in second.approvals] == [{"to": "bob"}]
        last = await agent.resume(second.run_state, [approval.deny() for approval in second.approvals])
    assert tools.calls == [4, "ann"]
    assert printed(last).startswith("8 sent to ann\n")
    assert "Denied" in printed(last)


@requirement("R122")
async def test_call_of_program_denied_by_policy_is_part_of_stream() -> None:
    needs("bubblewrap")
    tools = Tools()
    refused = Tool.from_function(tools.double, approval=lambda question: "deny")
    async with FakeProvider(scripts(PROGRAM)) as fake, agent_of(fake, refused) as agent, agent.stream("go") as run:
        parts = [part async for part in run]
    check_stream(parts)
    assert tools.calls == []
    program, made = (part for part in parts if isinstance(part, ToolCall))
    result = next(part for part in parts if isinstance(part, ToolResult))
    assert (program_of(made), program_of(result)) == (program.id, program.id)
    assert (result.id, result.is_error, result.result["error"]) == (made.id, True, "Denied")


@requirement("R122")
async def test_call_of_program_denied_by_approver_has_tool_run() -> None:
    needs("bubblewrap")
    tools = Tools()
    mail = Tool.from_function(tools.send_mail, approval="ask")
    async with FakeProvider(scripts("print(await send_mail(to='ada'))")) as fake, agent_of(fake, mail) as agent:
        first = await agent.send("go")
        last = await agent.resume(first.run_state, [entry.deny() for entry in first.approvals])
    assert tools.calls == []
    (call,) = (run for run in last.tool_runs if run.name == "send_mail")
    assert (call.status, call.result["error"]) == ("failed", "Denied")
    assert [stage.stage for stage in call.stages] == ["started", "running", "failed"]


async def test_limits_and_policies_hold_for_programs() -> None:
    needs("bubblewrap")
    tools = Tools()
    code = "for n in range(5):\n    print(await double(number=n))"
    async with (
        FakeProvider(scripts(code)) as fake,
        agent_of(fake, tools.double, limits=Limits(max_tool_calls=3)) as agent,
    ):
        result = await agent.send("go")
    assert tools.calls == [0, 1]
    assert "LimitError" in printed(result)
    code = "print(await missing(x=1))"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, tools.double) as agent:
        result = await agent.send("go")
    assert "NameError" in printed(result)


@requirement("R122")
async def test_sensitive_tool_needs_approval_after_open_world_call() -> None:
    needs("bubblewrap")
    tools = Tools()
    page = Tool.from_function(tools.double, is_open_world=True)
    mail = Tool.from_function(tools.send_mail, is_sensitive=True)
    code = "await double(number=1)\nprint(await send_mail(to='ann'))"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, page, mail) as agent:
        result = await agent.send("go")
    assert [approval.tool for approval in result.approvals] == ["send_mail"]
    assert tools.calls == [1]


PROGRAM = "print(await double(number=3))"


def hosted_program() -> list[Any]:
    """A program of OpenAI's that calls a function."""
    program = {"type": "program", "call_id": "p1", "code": PROGRAM, "fingerprint": "f"}
    call = {"type": "function_call", "call_id": "c1", "name": "double", "arguments": '{"number": 3}'}
    caller = {"status": "completed", "caller": {"type": "program", "caller_id": "p1"}}
    output = {"type": "program_output", "status": "completed", "call_id": "p1", "result": "6\n"}
    asking = ResponsesScript().item(program, prefix="cm").item(call | caller, prefix="fc", arguments="")
    return [asking.reply(), ResponsesScript().item(output, prefix="cmo").text("done").reply()]


@requirement("R121", "R122")
async def test_call_of_program_has_tool_run_of_hosted_one() -> None:
    needs("bubblewrap")
    async with FakeProvider(hosted_program()) as fake:
        agent = Agent(
            "openai-responses", base_url=fake.base_url, api_key="k", tools=[Tools().double],
            server_side_tools=[ProgrammaticToolCalling()],
        )  # fmt: skip
        hosted = await agent.send("go")
    async with FakeProvider(scripts(PROGRAM)) as fake, agent_of(fake, Tools().double) as agent:
        here = await agent.send("go")
    assert [seen_run(run) for run in here.tool_runs] == [seen_run(run) for run in hosted.tool_runs]
    assert [run.caller for run in hosted.tool_runs] == [None, "p1"]
    assert [run.caller for run in here.tool_runs] == [None, here.tool_runs[0].call_id]
    for result in (hosted, here):
        stages = [event.stage for event in result.tool_events if event.tool == "double"]
        assert stages == ["started", "running", "completed"]


def seen_run(run: ToolRun) -> tuple[Any, ...]:
    """What a program reads of a call, but for the program's own result, which only a provider can describe."""
    result = run.result if run.tool == "double" else None
    return run.tool, run.name, run.input, run.status, [stage.stage for stage in run.stages], result


@requirement("R122")
async def test_resumed_program_repeats_no_answered_call(tmp_path: Path) -> None:
    needs("bubblewrap")
    tools = Tools()
    held = asyncio.Event()

    async def wait() -> str:
        """Waits."""
        tools.calls.append("wait")
        await held.wait()
        return "waited"

    code = "n = await double(number=4)\nprint(n, await wait())"
    store = open_store(tmp_path / "log.db")
    async with FakeProvider(scripts(code)) as fake:
        async with agent_of(fake, tools.double, wait) as agent:
            chat = Chat(agent, store=store, id="c")
            await chat.load()
            async with chat.stream("go") as run:
                async for part in run:
                    if isinstance(part, ToolCall) and part.name == "wait":
                        break
        held.set()
        async with agent_of(fake, tools.double, wait) as agent:
            chat = Chat(agent, store=store, id="c")
            await chat.load()
            asked = await chat.resume()
            assert [entry.tool for entry in asked.approvals] == [NAME]
            result = await chat.resume([entry.approve() for entry in asked.approvals])
    await store.aclose()
    assert tools.calls[0] == 4
    assert set(tools.calls[1:]) == {"wait"}
    assert printed(result) == "8 waited\n"


@requirement("R122")
async def test_approved_call_of_program_has_one_tool_run() -> None:
    needs("bubblewrap")
    tools = Tools()
    mail = Tool.from_function(tools.send_mail, approval="ask")
    code = "print(await double(number=1))\nprint(await send_mail(to='ada'))"
    async with FakeProvider(scripts(code)) as fake, agent_of(fake, tools.double, mail) as agent:
        first = await agent.send("go")
        assert [run.name for run in first.tool_runs] == [NAME, "double"]
        second = await agent.resume(first.run_state, [entry.approve() for entry in first.approvals])
    assert tools.calls == [1, "ada"]
    (call,) = (run for run in second.tool_runs if run.name == "send_mail")
    assert [stage.stage for stage in call.stages] == ["started", "running", "completed"]
    assert call.result == "sent to ada"

"""Functions that answer a provider's own calls: computer use with its safety checks, shells and patches."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    ApplyPatch,
    Chat,
    ChatMessage,
    ComputerUse,
    DataPart,
    LocalShell,
    Shell,
    ToolError,
    ToolResult,
    ToolResultPart,
    open_store,
)
from sidestream.actions import (
    Click,
    ComputerAction,
    ComputerCall,
    CreateFile,
    DeleteFile,
    LocalShellCall,
    OtherAction,
    PatchOperation,
    SafetyCheck,
    Screenshot,
    ShellCall,
    ShellOutput,
    Type,
    UpdateFile,
)
from sidestream.parts import ToolApprovalRequest, ToolCall
from sidestream.testing import FakeProvider, ResponsesScript, pixel_png
from sidestream.turn import ledger
from sidestream.turn.ledger import resumable
from sidestream.turn.state import RunState, copied

PNG = pixel_png(red=200)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
CLICK = {"type": "click", "button": "wheel", "x": 3, "y": 4, "keys": None}
TYPE = {"type": "type", "text": "hello"}
CHECK = {"id": "sc_1", "code": "malicious_instructions", "message": "The page gives orders."}


def computer_call(*actions: dict[str, Any], checks: tuple[dict[str, Any], ...] = (), call_id: str = "call_1") -> Any:
    item = {"type": "computer_call", "call_id": call_id, "status": "completed", "actions": [*actions]}
    return ResponsesScript().item({**item, "pending_safety_checks": [*checks]}, prefix="cu").reply()


def done(text: str = "Done.") -> Any:
    return ResponsesScript().text(text).reply()


def agent_at(fake: FakeProvider, *tools: Callable[..., Any], hosted: Any = None, **settings: Any) -> Agent:
    hosted = [ComputerUse()] if hosted is None else [hosted]
    return Agent("openai-responses", base_url=fake.base_url, tools=tools, server_side_tools=hosted, **settings)


class Desk:
    """A computer that notes what was done on it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def computer_use(self, action: ComputerAction) -> DataPart:
        """Carries out an action."""
        self.seen.append(action)
        return DataPart(PNG, "image/png")


@requirement("R36", "R114")
async def test_screenshot_data_part_answers_computer_call() -> None:
    desk = Desk()
    async with FakeProvider([computer_call(CLICK, TYPE), done()]) as fake:
        result = await agent_at(fake, desk.computer_use).send("Say hello")
        first, second = fake.requests
    assert result.messages[-1].text == "Done."
    assert desk.seen == [Click(3, 4, "middle"), Type("hello")]
    assert [tool["type"] for tool in first.json["tools"]] == ["computer"]
    assert second.json["input"] == [
        {
            "type": "computer_call_output",
            "call_id": "call_1",
            "output": {"type": "computer_screenshot", "image_url": URL},
        }
    ]


@requirement("R114")
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("I see nothing", "I see nothing"),
        ({"cursor": [1, 2]}, '{"cursor":[1,2]}'),
        (DataPart(b"%PDF-1.7", "application/pdf"), ""),
        (None, "null"),
        (ToolError("the screen is locked"), "the screen is locked"),
    ],
    ids=["text", "an object", "a file that is no image", "nothing", "an error"],
)
async def test_result_without_screenshot_is_sent(value: Any, words: str, store: bool) -> None:
    from sidestream import OpenAIResponsesOptions

    def computer_use(actions: list[ComputerAction]) -> Any:
        """Carries out actions."""
        if isinstance(value, Exception):
            raise value
        return value

    async with FakeProvider([computer_call(CLICK), done()]) as fake:
        agent = agent_at(fake, computer_use, options=OpenAIResponsesOptions(store=store))
        assert (await agent.send("hi")).messages[-1].text == "Done."
        assert len(fake.requests) == 2
        *_, answer, remark = fake.requests[1].json["input"]
    assert (answer["type"], answer["call_id"], answer["status"]) == ("computer_call_output", "call_1", "incomplete")
    assert answer["output"]["image_url"].startswith("data:image/png;base64,")
    assert remark["role"] == "user"
    assert "call_1" in remark["content"]
    assert words in remark["content"]


@requirement("R114")
async def test_text_beside_screenshot_follows_it() -> None:
    def computer_use(call: ComputerCall) -> list[Any]:
        """Carries out actions."""
        assert call == ComputerCall((Click(3, 4, "middle"),))
        return ["The cursor is a hand.", DataPart(PNG, "image/png")]

    async with FakeProvider([computer_call(CLICK), done()]) as fake:
        await agent_at(fake, computer_use).send("hi")
        answer, remark = fake.requests[1].json["input"]
    assert answer["output"]["image_url"] == URL
    assert "status" not in answer
    assert remark == {"role": "user", "content": "The cursor is a hand."}


@requirement("R114")
async def test_unknown_action_reaches_function() -> None:
    desk = Desk()
    pinch = {"type": "pinch", "scale": 2, "x": None}
    async with FakeProvider([computer_call(pinch, {"type": "screenshot"}), done()]) as fake:
        await agent_at(fake, desk.computer_use).send("hi")
    assert desk.seen == [OtherAction("pinch", {"scale": 2}), Screenshot()]


@requirement("R114")
async def test_failed_action_ends_batch_and_model_gets_reason() -> None:
    seen: list[str] = []

    def computer_use(action: ComputerAction) -> DataPart:
        """Carries out an action."""
        seen.append(type(action).__name__)
        if isinstance(action, Click):
            raise ToolError("nothing is there")
        return DataPart(PNG, "image/png")

    async with FakeProvider([computer_call({"type": "wait"}, CLICK, TYPE), done()]) as fake:
        await agent_at(fake, computer_use).send("hi")
        assert "nothing is there" in fake.requests[1].json["input"][-1]["content"]
    assert seen == ["Wait", "Click"]


@requirement("R36", "R114", "R76")
@pytest.mark.parametrize("policy", [None, lambda question: "run", lambda question: False])
async def test_safety_checks_wait_for_approver_under_any_policy(policy: Any) -> None:
    desk = Desk()
    async with FakeProvider([computer_call(CLICK, checks=(CHECK,)), done()]) as fake:
        agent = agent_at(fake, desk.computer_use, **({} if policy is None else {"approval": policy}))
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
        result = await run.result()
        assert len(fake.requests) == 1
        assert desk.seen == []
        (request,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        assert request.input["safety_checks"] == [CHECK]
        assert request.input["actions"] == [{"type": "click", "button": "middle", "x": 3, "y": 4}]
        assert request.provider_metadata is not None
        assert request.provider_metadata["sidestream"]["safety_checks"] == [CHECK]
        (pending,) = result.approvals
        assert pending.safety_checks == (SafetyCheck("sc_1", "malicious_instructions", "The page gives orders."),)
        assert "The page gives orders." in pending.provenance
        state = RunState.from_json(result.run_state.to_json())
        final = await agent.resume(state, [pending.approve()]).result()
        assert final.messages[-1].text == "Done."
        (answer,) = fake.requests[1].json["input"]
    assert desk.seen == [Click(3, 4, "middle")]
    assert answer["acknowledged_safety_checks"] == [CHECK]
    assert answer["output"]["image_url"] == URL


@requirement("R36", "R114", "R76")
@pytest.mark.parametrize("store", [True, False])
async def test_denied_safety_checks_are_not_acknowledged(store: bool) -> None:
    from sidestream import OpenAIResponsesOptions

    desk = Desk()
    async with FakeProvider([computer_call(CLICK, checks=(CHECK,)), done("I stop.")]) as fake:
        agent = agent_at(fake, desk.computer_use, options=OpenAIResponsesOptions(store=store))
        result = await agent.send("hi")
        (pending,) = result.approvals
        final = await agent.resume(result.run_state, [pending.deny("Never click there.")]).result()
        *_, answer, remark = fake.requests[1].json["input"]
    assert final.messages[-1].text == "I stop."
    assert desk.seen == []
    assert (answer["type"], answer["status"]) == ("computer_call_output", "incomplete")
    assert "acknowledged_safety_checks" not in answer
    assert "Never click there." in remark["content"]


@requirement("R114")
async def test_acknowledgement_persists_and_counts_only_for_its_call() -> None:
    from sidestream import OpenAIResponsesOptions

    desk = Desk()
    script = [computer_call(CLICK, checks=(CHECK,)), computer_call(TYPE, call_id="call_2"), done()]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, desk.computer_use, options=OpenAIResponsesOptions(store=False))
        result = await agent.send("hi")
        await agent.resume(result.run_state, [pending.approve() for pending in result.approvals]).result()
        sent = [item for item in fake.requests[2].json["input"] if item.get("type") == "computer_call_output"]
    assert [item.get("acknowledged_safety_checks") for item in sent] == [[CHECK], None]


@requirement("R114")
async def test_function_result_cannot_acknowledge_checks() -> None:
    def computer_use(actions: list[ComputerAction]) -> dict[str, Any]:
        """Carries out actions."""
        return {"image_url": URL, "acknowledged_safety_checks": [CHECK]}

    async with FakeProvider([computer_call(CLICK), done()]) as fake:
        await agent_at(fake, computer_use).send("hi")
        (answer,) = fake.requests[1].json["input"]
    assert "acknowledged_safety_checks" not in answer


@requirement("R114")
async def test_message_answers_call_without_function_and_acknowledges() -> None:
    async with FakeProvider([computer_call(CLICK, checks=(CHECK,)), done()]) as fake:
        agent = agent_at(fake)
        first = await agent.send("hi")
        assert first.finish_reason == "tool-calls"
        (call,) = first.messages[-1].tool_calls
        part = ToolResultPart(call.id, call.name, {"image_url": URL}, acknowledged=True)
        await agent.send(ChatMessage("tool", (part,)), history=first.messages)
        (answer,) = fake.requests[1].json["input"]
    assert answer["acknowledged_safety_checks"] == [CHECK]


@requirement("R114")
async def test_screen_content_counts_as_untrusted_source() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def policy(question: Any) -> bool:
        asked.append((question.tool, question.sources))
        return False

    script = [computer_call(CLICK), computer_call(TYPE, call_id="call_2"), done()]
    async with FakeProvider(script) as fake:
        await agent_at(fake, Desk().computer_use, approval=policy).send("hi")
    assert asked == [("computer_use", ()), ("computer_use", ("computer_use",))]


# Shells and patches


def shell_call(**action: Any) -> Any:
    item = {"type": "shell_call", "call_id": "call_1", "status": "completed", "action": action}
    return ResponsesScript().item({**item, "environment": {"type": "local"}}, prefix="sh").reply()


def by_commands(commands: list[str]) -> str:
    """Runs commands."""
    return " && ".join(commands)


def by_field(commands: list[str], timeout_ms: int | None = None, max_output_length: int | None = None) -> str:
    """Runs commands."""
    return f"{commands} {timeout_ms} {max_output_length}"


def by_call(call: ShellCall) -> list[ShellOutput]:
    """Runs commands."""
    assert call == ShellCall(("ls", "pwd"), timeout_ms=500)
    return [ShellOutput("a b"), ShellOutput(stderr="no", exit_code=2), ShellOutput(timed_out=True)]


def lines(commands: list[str]) -> list[str]:
    """Runs commands."""
    return commands


def numbers(commands: list[str]) -> list[int]:
    """Runs commands."""
    return [1, 2]


def picture(commands: list[str]) -> DataPart:
    """Runs commands."""
    return DataPart(PNG, "image/png", "plot.png")


def broken(commands: list[str]) -> str:
    """Runs commands."""
    raise ToolError("no shell here")


def exited(stdout: str = "", stderr: str = "", code: int = 0) -> dict[str, Any]:
    return {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exit_code": code}}


@requirement("R36", "R114")
@pytest.mark.parametrize(
    ("function", "output"),
    [
        (by_commands, [exited("ls && pwd")]),
        (by_field, [exited("['ls', 'pwd'] 500 None")]),
        (by_call, [exited("a b"), exited(stderr="no", code=2), {**exited(), "outcome": {"type": "timeout"}}]),
        (lines, [exited("ls"), exited("pwd")]),
        (numbers, [exited("[1,2]")]),
        (picture, [exited(f"[plot.png, image/png, {len(PNG)} bytes]")]),
        (broken, [exited(stderr='{"error":"ToolError","message":"no shell here"}', code=1)]),
    ],
)
async def test_shell_function_may_choose_parameters_and_result_type(
    function: Callable[..., Any], output: list[Any]
) -> None:
    from sidestream import Tool

    async with FakeProvider([shell_call(commands=["ls", "pwd"], timeout_ms=500), done()]) as fake:
        await agent_at(fake, Tool.from_function(function, name="shell"), hosted=Shell(local=True)).send("hi")
        (answer,) = fake.requests[1].json["input"]
    assert answer == {"type": "shell_call_output", "call_id": "call_1", "output": output}


def test_invalid_argument_error_names_its_path() -> None:
    from sidestream import Tool
    from sidestream.tools.tool import InvalidArgumentsError, ToolContext

    tool = Tool.from_function(Desk().computer_use)
    with pytest.raises(InvalidArgumentsError, match=r"action: .*`str`.*\$\.x"):
        tool.bind({"action": {"type": "click", "x": "left"}}, ToolContext("call_1", "computer_use"))
    variants = tool.parameters["properties"]["action"]["anyOf"]
    assert {"enum": ["click"]} in [variant["properties"]["type"] for variant in variants]


@requirement("R36", "R114")
async def test_local_shell_function_gets_command_and_script() -> None:
    seen: list[Any] = []

    def local_shell(call: LocalShellCall) -> DataPart:
        """Runs a command."""
        seen.append(call)
        return DataPart(b"a, b", "text/csv", "a.csv")

    action = {"type": "exec", "command": ["echo", "a b"], "env": {"A": "1"}, "timeout_ms": None, "user": None}
    item = {"type": "local_shell_call", "call_id": "call_1", "status": "completed", "action": action}
    async with FakeProvider([ResponsesScript().item(item, prefix="lsh").reply(), done()]) as fake:
        await agent_at(fake, local_shell, hosted=LocalShell()).send("hi")
        (answer,) = fake.requests[1].json["input"]
    assert seen == [LocalShellCall(("echo", "a b"), "echo 'a b'", {"A": "1"})]
    assert answer == {"type": "local_shell_call_output", "id": "call_1", "call_id": "call_1", "output": "a, b"}


@requirement("R34", "R114")
@pytest.mark.parametrize(
    ("operation", "typed"),
    [
        ({"type": "create_file", "path": "a.py", "diff": "+x\n"}, CreateFile("a.py", "+x\n")),
        ({"type": "update_file", "path": "a.py", "diff": "-x\n+y\n"}, UpdateFile("a.py", "-x\n+y\n")),
        ({"type": "delete_file", "path": "a.py"}, DeleteFile("a.py")),
    ],
)
@pytest.mark.parametrize("form", ["whole", "by field"])
async def test_patch_function_gets_one_typed_operation(operation: Any, typed: Any, form: str) -> None:
    seen: list[Any] = []

    def apply_patch(operation: PatchOperation) -> str:
        """Applies a patch."""
        seen.append(operation)
        return "done"

    def by_field(path: str, type: str, diff: str | None = None) -> str:
        """Applies a patch."""
        seen.append({"type": type, "path": path, **({} if diff is None else {"diff": diff})})
        return "done"

    from sidestream import Tool

    function = apply_patch if form == "whole" else Tool.from_function(by_field, name="apply_patch")
    item = {"type": "apply_patch_call", "call_id": "call_1", "status": "completed", "operation": operation}
    async with FakeProvider([ResponsesScript().item(item, prefix="ap").reply(), done()]) as fake:
        await agent_at(fake, function, hosted=ApplyPatch()).send("hi")
        (answer,) = fake.requests[1].json["input"]
    assert seen == [typed if form == "whole" else operation]
    expected = {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed", "output": "done"}
    assert answer == expected


async def test_own_function_may_be_named_shell() -> None:
    def shell(line: str) -> str:
        """Runs a line."""
        return line.upper()

    script = [ResponsesScript().function_call("shell", {"line": "ls"}, "call_1").reply(), done()]
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[shell])
        result = await agent.send("hi")
    assert [part.result for part in result.parts if isinstance(part, ToolResult)] == ["LS"]
    assert not any(part.action for part in result.parts if isinstance(part, ToolCall))


@requirement("R114", "R76")
async def test_approved_check_is_acknowledged_by_another_process(tmp_path: Path) -> None:
    desk = Desk()
    store = open_store(tmp_path / "log.db")
    async with FakeProvider([computer_call(CLICK, checks=(CHECK,)), done()]) as fake:
        await Chat(agent_at(fake, desk.computer_use), store=store, id="talk").send("hi")
        other = Chat(agent_at(fake, desk.computer_use), store=store, id="talk")
        await other.load()
        (pending,) = other.run_state.approvals
        assert pending.safety_checks == (SafetyCheck("sc_1", "malicious_instructions", "The page gives orders."),)
        await other.resume([pending.approve()])
        (answer,) = fake.requests[1].json["input"]
    await store.aclose()
    assert desk.seen == [Click(3, 4, "middle")]
    assert answer["acknowledged_safety_checks"] == [CHECK]


@requirement("R114")
async def test_check_is_asked_again_when_process_died_during_function() -> None:
    async with FakeProvider([computer_call(CLICK, checks=(CHECK,)), done()]) as fake:
        desk = Desk()
        agent = agent_at(fake, desk.computer_use)
        result = await agent.send("hi")
        state = copied(result.run_state.turn)
        (pending,) = result.approvals
        ledger.decide(state, pending.approve())
        ledger.start_tool(state, "call_1")
        again = RunState(resumable(state))
        (second,) = again.approvals
        assert second.safety_checks == pending.safety_checks
        await agent.resume(again, [second.deny("It ran.")]).result()
        answer, _ = fake.requests[1].json["input"]
    assert desk.seen == []
    assert "acknowledged_safety_checks" not in answer

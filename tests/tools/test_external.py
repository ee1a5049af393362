"""External tools: calls that somebody else executes, and their results."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import (
    Agent,
    ApprovalError,
    Chat,
    ConfigurationError,
    DataPart,
    ExternalTool,
    Limits,
    RunState,
    TextPart,
    open_store,
    tool,
)
from sidestream.parts import Finish, ToolApprovalRequest, ToolResult
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, no_leaks
from sidestream.tools.approvals import PendingApproval

SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
    "additionalProperties": False,
}
ASK = ExternalTool("ask_user", "Asks the user.", SCHEMA)
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(30)


def scripted(*calls: tuple[str, Any]) -> list[Any]:
    """One round of calls, then the answer."""
    first = ResponsesScript(id="r1")
    for number, (name, arguments) in enumerate(calls):
        first.function_call(name, arguments, f"call_{number}")
    return [first.reply(), ResponsesScript(id="r2").text("Done.").reply()]


def agent_at(fake: FakeProvider, *tools: Any, **settings: Any) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url, tools=[ASK, *tools], **settings)


def outputs(fake: FakeProvider) -> dict[str, Any]:
    """What the model got as results, by call id."""
    return {item["call_id"]: item["output"] for item in fake.requests[-1].json["input"] if "output" in item}


ONE = ("ask_user", {"question": "Colour?"})


async def test_external_tool_is_declared_like_any_tool() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        loose = ExternalTool("loose", schema={"properties": {"a": {"type": "string"}}})
        await agent_at(fake).send("go", tools=[ASK, loose, ExternalTool("bare")])
    asked, loose_sent, bare = fake.requests[0].json["tools"]
    assert (asked["name"], asked["description"], asked["strict"]) == ("ask_user", "Asks the user.", True)
    assert asked["parameters"] == SCHEMA
    assert (loose_sent["strict"], loose_sent["parameters"]["type"]) == (False, "object")
    assert (bare["name"], bare["parameters"]["type"]) == ("bare", "object")


async def test_external_call_waits_and_answer_continues_run() -> None:
    async with no_leaks(), FakeProvider(scripted(ONE)) as fake:
        agent = agent_at(fake)
        run = agent.stream("go")
        async with run:
            parts = [part async for part in run]
        grammar.check(parts)
        (request,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        assert (request.id, request.name, request.is_external) == ("call_0", "ask_user", True)
        assert isinstance(parts[-1], Finish)
        assert parts[-1].reason == "approval"
        (waiting,) = run.state.approvals
        assert (waiting.tool, waiting.input, waiting.is_external) == ("ask_user", ONE[1], True)
        resumed = await agent.resume(run.state.to_json(), [waiting.answer("red")])
    assert resumed.output == "Done."
    assert [(entry.name, entry.status) for entry in resumed.tool_runs] == [("ask_user", "completed")]
    assert outputs(fake) == {"call_0": "red"}


@pytest.mark.parametrize(
    ("output", "sent"),
    [
        ("red", "red"),
        ({"colour": "red"}, '{"colour":"red"}'),
        ([1, 2], "[1,2]"),
        (None, "null"),
        ("", ""),
        (
            [TextPart("look"), DataPart(PIXEL, "image/png")],
            [
                {"type": "input_text", "text": "look"},
                {
                    "type": "input_image",
                    "image_url": f"data:image/png;base64,{b64encode(PIXEL).decode()}",
                    "detail": "auto",
                },
            ],
        ),
    ],
)
async def test_answer_can_be_text_json_or_content(output: Any, sent: Any) -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        agent = agent_at(fake)
        first = await agent.send("go")
        await agent.resume(first.run_state.to_json(), [first.approvals[0].answer(output)])
    assert outputs(fake) == {"call_0": sent}


async def test_external_error_is_error_result() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        agent = agent_at(fake)
        first = await agent.send("go")
        second = await agent.resume(first.run_state, [first.approvals[0].answer("the user left", is_error=True)])
    (result,) = [part for part in second.parts if isinstance(part, ToolResult)]
    assert (result.is_error, result.result) == (True, "the user left")


async def test_long_answer_is_truncated_at_result_limit() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        agent = agent_at(fake, limits=Limits(max_tool_result_bytes=2000))
        first = await agent.send("go")
        await agent.resume(first.run_state, [first.approvals[0].answer("x" * 100_000)])
    assert "[cut" in outputs(fake)["call_0"]
    assert len(outputs(fake)["call_0"]) < 2100


@requirement("R73", "R76")
@pytest.mark.parametrize("is_approved", [True, False])
async def test_mixed_round_is_one_message_in_call_order(is_approved: bool) -> None:
    done: list[str] = []

    def look(name: str) -> str:
        """Looks."""
        done.append(f"look {name}")
        return "there"

    def delete(name: str) -> str:
        """Deletes."""
        done.append(f"delete {name}")
        return "gone"

    script = scripted(("delete", {"name": "a"}), ONE, ("look", {"name": "b"}), ("ask_user", {"question": "Size?"}))
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, look, tool(approval="ask")(delete))
        first = await agent.send("go")
        assert done == ["look b"]
        assert [(entry.tool, entry.is_external) for entry in first.approvals] == [
            ("delete", False),
            ("ask_user", True),
            ("ask_user", True),
        ]
        guarded, colour, size = first.approvals
        decisions = [size.answer(9), guarded.approve() if is_approved else guarded.deny("no"), colour.answer("red")]
        second = await agent.resume(first.run_state, decisions)
    assert second.output == "Done."
    assert done == (["look b", "delete a"] if is_approved else ["look b"])
    results = outputs(fake)
    assert [results[f"call_{n}"] for n in (1, 2, 3)] == ["red", "there", "9"]
    assert ("gone" in results["call_0"]) == is_approved


async def test_denied_call_is_refusal_for_model() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        agent = agent_at(fake)
        first = await agent.send("go")
        await agent.resume(first.run_state, [first.approvals[0].deny("not now")])
    assert json.loads(outputs(fake)["call_0"]) == {"error": "Denied", "message": "not now"}


@pytest.mark.parametrize("policy", ["run", "deny"])
async def test_policies_are_not_asked_about_external_tools(policy: Any) -> None:
    asked: list[str] = []

    def note(question: Any) -> Any:
        asked.append(question.tool)
        return policy

    for approval in (policy, note):
        async with FakeProvider(scripted(ONE)) as fake:
            result = await agent_at(fake, approval=approval).send("go")
        assert [entry.is_external for entry in result.approvals] == [True]
    assert asked == []


async def test_agent_without_external_tool_can_resume_with_answer() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        first = await agent_at(fake).send("go")
        other = Agent("openai-responses", base_url=fake.base_url)
        second = await other.resume(first.run_state.to_json(), [first.approvals[0].answer("red")])
    assert second.output == "Done."
    assert outputs(fake) == {"call_0": "red"}


async def test_local_call_waits_if_tool_became_external() -> None:
    def ask_user(question: str) -> str:
        """Asks."""
        raise AssertionError("it must not run here")

    async with FakeProvider(scripted(ONE)) as fake:
        local = Agent("openai-responses", base_url=fake.base_url, tools=[tool(approval="ask")(ask_user)])
        first = await local.send("go")
        state = RunState.from_json(first.run_state.to_json())
        second = await agent_at(fake).resume(state, [first.approvals[0].approve()])
        assert [entry.is_external for entry in second.approvals] == [True]
        third = await agent_at(fake).resume(second.run_state, [second.approvals[0].answer("red")])
    assert third.output == "Done."


@requirement("F42")
@pytest.mark.parametrize(
    "forge",
    [
        lambda external, local: [replace(external.deny(), is_approved=True), local.approve()],
        lambda external, local: [external.answer("x"), replace(local.approve(), output=external.answer("y").output)],
        lambda external, local: [replace(external.answer("x"), is_approved=False), local.approve()],
        lambda external, local: [replace(external.answer("x"), digest="0" * 64), local.approve()],
        lambda external, local: [external.answer("x"), external.answer("y"), local.approve()],
        lambda external, local: [external.answer("x")],
        lambda external, local: [external.approve(), local.approve()],
        lambda external, local: [external.answer("x"), local.answer("y")],
    ],
)
async def test_decision_of_wrong_kind_is_refused_and_runs_no_call(
    forge: Callable[[PendingApproval, PendingApproval], Any],
) -> None:
    done: list[str] = []

    def delete(name: str) -> str:
        """Deletes."""
        done.append(name)
        return "gone"

    async with FakeProvider(scripted(ONE, ("delete", {"name": "a"}))) as fake:
        agent = agent_at(fake, tool(approval="ask")(delete))
        first = await agent.send("go")
        external, local = first.approvals
        with pytest.raises(ApprovalError):
            await agent.resume(first.run_state, forge(external, local))
    assert done == []
    assert len(fake.requests) == 1


@requirement("R84")
async def test_stored_chat_accepts_answer_once_across_processes(tmp_path: Any) -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        store = open_store(tmp_path / "log.db")
        first = await Chat(agent_at(fake), store=store, id="talk").send("go")
        answer = first.approvals[0].answer("red")
        other = Chat(agent_at(fake), store=open_store(tmp_path / "log.db"), id="talk")
        await other.load()
        assert other.status == "waiting"
        assert [entry.is_external for entry in other.approvals] == [True]
        assert (await other.resume([answer])).output == "Done."
        late = Chat(agent_at(fake), store=store, id="talk")
        await late.load()
        with pytest.raises(ApprovalError):
            await late.resume([answer])
        await store.aclose()
    assert len(fake.requests) == 2
    assert [message.role for message in other.messages] == ["user", "model", "tool", "model"]


async def test_subagent_forwards_external_call_and_answer() -> None:
    inner_script = [
        ResponsesScript().function_call("ask_user", {"question": "?"}, "c").reply(),
        ResponsesScript().text("Red it is.").reply(),
    ]
    async with FakeProvider(inner_script) as inner, FakeProvider(scripted(("helper", {"task": "ask"}))) as outer:
        helper = agent_at(inner).as_tool("helper", "Helps.")
        agent = Agent("openai-responses", base_url=outer.base_url, tools=[helper])
        first = await agent.send("go")
        (waiting,) = first.approvals
        assert (waiting.tool, waiting.is_external) == ("ask_user", True)
        second = await agent.resume(first.run_state.to_json(), [waiting.answer("red")])
        assert second.output == "Done."
        assert outputs(outer) == {"call_0": "Red it is."}
        assert outputs(inner) == {"c": "red"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExternalTool("no spaces", "", SCHEMA),
        lambda: ExternalTool("a", "", {"type": "array"}),
        lambda: ExternalTool("a", "", []),  # type: ignore[arg-type]
        lambda: ExternalTool("a", "", {"type": "object", "additionalProperties": True}, strict=True),
        lambda: Agent("openai-responses", base_url="http://127.0.0.1:1", tools=[ASK, ASK]),
        lambda: Agent("openai-responses", base_url="http://127.0.0.1:1", tools=[ExternalTool]),
        lambda: Agent("openai-responses", base_url="http://127.0.0.1:1", server_side_tools=[ASK]),  # type: ignore[list-item]
    ],
)
def test_invalid_external_tool_is_refused_when_made(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError):
        make()


async def test_answer_without_json_form_is_type_error() -> None:
    async with FakeProvider(scripted(ONE)) as fake:
        first = await agent_at(fake).send("go")
    with pytest.raises(TypeError):
        first.approvals[0].answer(object())

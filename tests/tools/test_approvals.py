"""Approvals: what waits, what a decision fits, and runs that go on elsewhere."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, ApprovalError, Chat, ConfigurationError, Decision, MCPServer, Tool, tool
from sidestream.parts import Finish, StreamPart, ToolApprovalRequest, ToolCall, ToolResult
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, no_leaks
from sidestream.tools import Question
from sidestream.tools.approvals import PendingApproval, digest_of
from sidestream.tools.server_side import RemoteMCP, WebSearch
from sidestream.turn.state import RunState

REMOTE = RemoteMCP(label="docs", url="https://mcp.example/", require_approval="always")


class Desk:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def look(self, name: str) -> str:
        """Looks something up."""
        self.done.append(f"look {name}")
        return f"{name} is there"

    def delete(self, name: str) -> str:
        """Deletes something."""
        self.done.append(f"delete {name}")
        return f"{name} is gone"


def agent_at(fake: FakeProvider, desk: Desk, **settings: Any) -> Agent[str]:
    tools = [desk.look, tool(approval="ask")(desk.delete)]
    return Agent("openai-responses", base_url=fake.base_url, tools=tools, **settings)


def two_calls() -> list[Any]:
    calls = ResponsesScript(id="r1").function_call("delete", {"name": "a"}, "call_d")
    calls.function_call("look", {"name": "b"}, "call_l")
    return [calls.reply(), ResponsesScript(id="r2").text("Done.").reply()]


async def run_parts(run: Any, **start: Any) -> list[StreamPart]:
    async with run:
        parts = [part async for part in run]
    grammar.check(parts, **start)
    return parts


@requirement("R76")
async def test_call_needing_approval_waits_while_other_calls_run() -> None:
    desk = Desk()
    async with no_leaks(), FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        assert first.finish_reason == "approval"
        assert desk.done == ["look b"]
        (waiting,) = first.approvals
        assert (waiting.tool, waiting.input, waiting.call_id) == ("delete", {"name": "a"}, "call_d")
        second = await agent.resume(first.run_state.to_json(), [waiting.approve()])
        outputs = {i["call_id"]: i["output"] for i in fake.requests[1].json["input"]}
    assert desk.done == ["look b", "delete a"]
    assert outputs == {"call_d": "a is gone", "call_l": "b is there"}
    assert second.output == "Done."
    assert [m.role for m in (*first.messages, *second.messages)] == ["user", "model", "tool", "model"]
    assert [part.id for part in second.messages[0].parts if hasattr(part, "id")] == ["call_d", "call_l"]


@requirement("R76")
async def test_denied_call_is_not_run_and_model_reads_reason() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        parts = await run_parts(
            agent.resume(first.run_state, [first.approvals[0].deny("Not today.")]),
            first_step=1,
            known_calls=["call_d", "call_l"],
        )
        told = {i["call_id"]: i["output"] for i in fake.requests[1].json["input"]}
    assert "delete a" not in desk.done
    (result,) = [part for part in parts if isinstance(part, ToolResult)]
    assert result.is_error
    assert "Not today." in told["call_d"]


@requirement("R76", "F42")
@pytest.mark.parametrize(
    "forge",
    [
        lambda d: replace(d, digest=digest_of("delete", {"name": "everything"})),
        lambda d: replace(d, run_id="run_other"),
        lambda d: replace(d, tool="look"),
        lambda d: replace(d, call_id="call_l"),
        lambda d: replace(d, approval_id="approval_other"),
    ],
)
async def test_decision_for_other_call_is_refused(forge: Any) -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        with pytest.raises(ApprovalError):
            agent.resume(first.run_state, [forge(first.approvals[0].approve())])
        with pytest.raises(ApprovalError):
            agent.resume(first.run_state, [])
    assert desk.done == ["look b"]


@requirement("F42")
async def test_arguments_changed_after_approval_are_not_executed() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        decision = first.approvals[0].approve()
        tampered = first.run_state.to_json().replace('{"name":"a"}', '{"name":"z"}')
        with pytest.raises(ApprovalError):
            agent.resume(tampered, [decision])
    assert desk.done == ["look b"]


@requirement("F42")
async def test_approval_of_other_displayed_arguments_is_refused() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        decision = first.approvals[0].approve()
        # Only what is shown is changed: the call that would run is still the one of the digest.
        shown = '"tool":"delete","input":{"name":"a"}'
        state = first.run_state.to_json()
        assert state.count(shown) == 1
        with pytest.raises(ApprovalError):
            agent.resume(state.replace(shown, shown.replace('"a"', '"z"')), [decision])
    assert desk.done == ["look b"]


@requirement("F42")
async def test_remote_call_with_changed_displayed_arguments_is_refused() -> None:
    request = ResponsesScript(id="r1").mcp_approval_request("docs", "ask", {"q": "x"})
    async with FakeProvider([request.reply(), ResponsesScript(id="r2").text("ok").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=[REMOTE])
        first = await agent.send("ask them")
        tampered = first.run_state.to_json().replace('{"q":"x"}', '{"q":"harmless"}')
        with pytest.raises(ApprovalError):
            agent.resume(tampered, [first.approvals[0].approve()])
        assert len(fake.requests) == 1


@requirement("F42")
async def test_decision_counts_once() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        decision = first.approvals[0].approve()
        await agent.resume(first.run_state, [decision])
        with pytest.raises(ApprovalError):
            agent.resume(first.run_state, [decision])
    assert desk.done.count("delete a") == 1


@requirement("R76", "R37")
@pytest.mark.parametrize("approve", [True, False])
async def test_remote_call_is_decided_like_local_call(approve: bool) -> None:
    request = ResponsesScript(id="r1").mcp_approval_request("docs", "ask", {"q": "x"})
    async with FakeProvider([request.reply(), ResponsesScript(id="r2").text("ok").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=[REMOTE])
        first = await agent.send("ask them")
        (waiting,) = first.approvals
        assert (waiting.tool, waiting.server_label, waiting.input) == ("ask", "docs", {"q": "x"})
        decision = waiting.approve() if approve else waiting.deny("no")
        await agent.resume(first.run_state, [decision])
        (answer,) = fake.requests[1].json["input"]
    assert answer["type"] == "mcp_approval_response"
    assert (answer["approval_request_id"], answer["approve"]) == (waiting.approval_id, approve)


async def test_policy_can_decide_for_approver() -> None:
    asked: list[Question] = []

    def policy(question: Question) -> bool:
        asked.append(question)
        return question.tool == "delete"

    request = ResponsesScript(id="r1").mcp_approval_request("docs", "ask", {"q": "x"})
    async with FakeProvider([request.reply(), ResponsesScript(id="r2").text("ok").reply()]) as fake:
        remote = RemoteMCP(label="docs", url="https://mcp.example/")
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=[remote], approval=policy)
        assert (await agent.send("ask them")).output == "ok"
        assert fake.requests[0].json["tools"][0]["require_approval"] == "always"
        assert fake.requests[1].json["input"][0]["approve"] is True
    assert [(question.tool, question.is_remote) for question in asked] == [("ask", True)]


@requirement("F41")
async def test_sensitive_tool_needs_approval_after_reading_open_web() -> None:
    desk = Desk()
    page = {"type": "url_citation", "url": "https://evil.example/", "title": "E", "start_index": 0, "end_index": 2}
    script = ResponsesScript().web_search("x").text("ok", annotations=[page]).function_call("delete", {"name": "a"})
    calm = ResponsesScript().function_call("delete", {"name": "b"})
    sensitive = tool(is_sensitive=True)(desk.delete)
    async with FakeProvider([calm.reply(), ResponsesScript().text("done").reply(), script.reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[sensitive], server_side_tools=[WebSearch()])
        assert (await agent.send("delete b")).finish_reason == "stop"
        second = await agent.send("search")
    assert desk.done == ["delete b"]
    assert second.finish_reason == "approval"
    assert "https://evil.example/" in second.approvals[0].provenance


@requirement("R76", "R73")
@pytest.mark.parametrize("decide", ["approve", "deny"])
async def test_run_serialised_after_any_part_can_be_resumed(decide: str) -> None:
    def script() -> list[Any]:
        rounds = ResponsesScript(id="r1").text("First.").function_call("look", {"name": "a"}, "c1")
        more = (
            ResponsesScript(id="r2")
            .function_call("delete", {"name": "b"}, "c2")
            .function_call("look", {"name": "c"}, "c3")
        )
        return [rounds.reply(), more.reply(), ResponsesScript(id="r3").text("Done.").reply()]

    def decided(waiting: Sequence[PendingApproval]) -> list[Decision]:
        return [entry.approve() if decide == "approve" else entry.deny() for entry in waiting]

    async def whole() -> tuple[list[Any], list[str]]:
        desk = Desk()
        async with FakeProvider(script()) as fake:
            agent = agent_at(fake, desk)
            first = await agent.send("go")
            second = await agent.resume(first.run_state, decided(first.approvals))
        return [*first.messages, *second.messages], desk.done

    expected, done = await whole()
    stop_at = 0
    while True:
        desk = Desk()
        async with FakeProvider(script()) as fake:
            agent = agent_at(fake, desk)
            run = agent.stream("go")
            count = 0
            async with run:
                async for _ in run:
                    count += 1
                    if count > stop_at:
                        break
            if count <= stop_at:
                break
            text = run.state.to_json()
            # What was stopped in mid-answer is asked for again.
            again = script()[len(fake.requests) - (1 if run.turn.state.is_in_step else 0) :]
        async with FakeProvider(again) as fake:
            resumed = agent_at(fake, desk).resume(text, decided(RunState.from_json(text).approvals))
            parts = [part async for part in resumed]
            while isinstance(parts[-1], Finish) and parts[-1].reason == "approval":
                resumed = agent_at(fake, desk).resume(resumed.state.to_json(), decided(resumed.state.approvals))
                parts = [part async for part in resumed]
            messages = resumed.turn.state.messages
        assert [(m.role, m.parts) for m in messages] == [(m.role, m.parts) for m in expected], stop_at
        assert sorted(set(desk.done)) == sorted(set(done)), stop_at
        stop_at += 1
    assert stop_at > 20


async def test_chat_waits_for_approval_and_continues() -> None:
    desk = Desk()
    async with FakeProvider([*two_calls(), ResponsesScript(id="r3").text("Bye.").reply()]) as fake:
        chat = Chat(agent_at(fake, desk))
        first = await chat.send("clean up")
        assert first.finish_reason == "approval"
        await chat.resume([entry.approve() for entry in first.approvals])
        assert [message.role for message in chat.messages] == ["user", "model", "tool", "model"]
        assert (await chat.send("bye")).output == "Bye."
        assert fake.requests[2].json["previous_response_id"] == "r2"


def test_run_state_of_newer_version_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        RunState.from_json('{"turn": {"messages": []}, "version": 2}')


async def test_stream_contains_calls_and_approval_requests() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        parts = await run_parts(agent_at(fake, desk).stream("clean up"))
    assert [part.name for part in parts if isinstance(part, ToolCall)] == ["delete", "look"]
    (request,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
    assert (request.id, request.name, request.input) == ("call_d", "delete", {"name": "a"})
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "approval"


@requirement("F42")
async def test_only_call_under_approval_runs() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        agent = agent_at(fake, desk)
        first = await agent.send("clean up")
        decision = first.approvals[0].approve()
        state = json.loads(first.run_state.to_json())
        state["turn"]["calls"][0]["input"] = {"name": "everything"}
        with pytest.raises(ApprovalError):
            agent.resume(json.dumps(state), [decision])
    assert desk.done == ["look b"]


@pytest.mark.parametrize("verdict", ["yes", None, 1, "ask"])
async def test_unclear_policy_result_asks_for_approval(verdict: Any) -> None:
    desk = Desk()
    async with FakeProvider([ResponsesScript().function_call("look", {"name": "a"}).reply()]) as fake:
        result = await agent_at(fake, desk, approval=lambda question: verdict).send("hi")
    assert (result.finish_reason, desk.done) == ("approval", [])


@requirement("R76")
@pytest.mark.parametrize("word", ["always", "never", "alwyas", "", 1])
def test_unknown_policy_is_refused_with_allowed_values(word: Any) -> None:
    agent = Agent("openai-responses", base_url="http://127.0.0.1:1")
    for make in (
        lambda: Agent("openai-responses", base_url="http://127.0.0.1:1", approval=word),
        lambda: agent.stream("hi", approval=word),
        lambda: agent.as_tool("helper", "Helps.", approval=word),
        lambda: tool(approval=word)(Desk().look),
        lambda: Tool.from_function(Desk().look, approval=word),
        lambda: MCPServer("files", command="npx", approval=word),
        lambda: MCPServer("files", command="npx", approval={"read": word}),
    ):
        with pytest.raises(ConfigurationError, match="'ask', 'ask-each', 'run', 'deny' or a function"):
            make()


async def test_agent_without_tool_tells_model() -> None:
    desk = Desk()
    async with FakeProvider(two_calls()) as fake:
        first = await agent_at(fake, desk).send("clean up")
        other = Agent("openai-responses", base_url=fake.base_url)
        second = await other.resume(first.run_state, [first.approvals[0].approve()])
    assert second.output == "Done."
    assert second.messages[0].parts[0].is_error  # type: ignore[union-attr]


async def test_finished_or_invalid_run_cannot_be_resumed() -> None:
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        async with agent.stream("hi") as run:
            async for _ in run:
                pass
        with pytest.raises(ConfigurationError, match="has finished"):
            agent.resume(run.state)
        with pytest.raises(ConfigurationError, match="not a valid run state"):
            agent.resume("[]")

"""Calls that were interrupted: what becomes of each, in every mixture of policies and wherever a run is left."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import to_builtins

from requirements import requirement
from sidestream import Agent, ConfigurationError, Tool, ToolContext, tool
from sidestream.limits import MAX_TOOL_ATTEMPTS
from sidestream.parts import Custom, Finish, StreamPart, ToolApprovalRequest, ToolCall, ToolResult
from sidestream.run.prompts import user_message
from sidestream.run.run import Run
from sidestream.run.settings import RunHooks
from sidestream.store.records import Segment
from sidestream.stream import grammar
from sidestream.testing import Recording, ReplayTransport
from sidestream.tools.interruption import INTERRUPTED
from sidestream.turn.ledger import UNCERTAIN
from sidestream.turn.state import AwaitDecision, Over
from support.left_runs import Log
from turn.test_left_runs import HISTORY, Step, exchange

NAMES = ["asked", "retried", "failed", "approved_first"]
STEPS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=2)


class Turn:
    """Plays a turn whose runs are left after some of their parts, and resumed."""

    def __init__(self, steps: Sequence[Sequence[str]], **tools: Tool) -> None:
        self.runs: dict[str, list[str]] = defaultdict(list)
        """Call id → the idempotency keys with which its tool was executed."""
        self.asked: list[str] = []
        """Why each pending call waited."""
        self.log = Log(HISTORY)
        self.tools = self._tools() | tools
        self._script = [*(Step(calls=tuple(names)) for names in steps), Step(text="The end.")]
        self.run: Run[Any] = self._agent(0)._begun(
            user_message("go"), None, {"history": HISTORY}, RunHooks(self.log), "parts"
        )
        self.log.run = self.run

    def _agent(self, step: int) -> Agent[str]:
        """The agent, with a provider that answers from this step on."""
        exchanges = [exchange(number, each) for number, each in enumerate(self._script)]
        transport = ReplayTransport(Recording(tuple(exchanges[step:])))
        return Agent("openai-responses:gpt-5.6", api_key="k", transport=transport, tools=[*self.tools.values()])

    def _tools(self) -> dict[str, Tool]:
        async def act(context: ToolContext, task: str) -> str:
            """Acts."""
            self.runs[context.call_id].append(context.idempotency_key)
            assert context.attempt == len(self.runs[context.call_id])
            for n in range(3):
                context.progress(n)
                await asyncio.sleep(0)
            return "acted"

        return {
            "asked": Tool.from_function(act, name="asked"),
            "retried": Tool.from_function(act, name="retried", on_interruption="retry"),
            "failed": Tool.from_function(act, name="failed", on_interruption="fail"),
            "approved_first": Tool.from_function(act, name="approved_first", approval="ask", on_interruption="retry"),
        }

    async def until(self, count: int | None) -> None:
        """Reads so many parts of the current run, or all, and leaves it."""
        parts: list[StreamPart] = []
        state = self.run.turn.state
        first_step, known = state.step + 1, [call.id for call in state.calls]
        async for part in self.run:
            parts.append(part)
            if len(parts) == count:
                break
        await self.run.leave()
        self.log.check()
        if count is None:
            grammar.check(parts, first_step=first_step, known_calls=known)

    def resume(self, *, approves: bool) -> None:
        """Continues from what the log says."""
        state = self.log.state().run_state
        assert state is not None
        is_waiting = self.log.state().status == "waiting"
        self.asked += [entry.provenance for entry in state.approvals] if is_waiting else []
        decisions = [
            # What was only to be approved is; what may have run is repeated if the person says so.
            entry.approve() if approves or entry.provenance != UNCERTAIN else entry.deny("it ran")
            for entry in (state.approvals if is_waiting else ())
        ]
        self.run = self._agent(state.turn.step + 1)._resumed(state, decisions, None, {}, RunHooks(self.log), "parts")
        self.log.run = self.run

    async def play(self, cuts: Sequence[int], *, approves: bool = False) -> None:
        for cut in itertools.chain(cuts, itertools.repeat(None, 30)):
            await self.until(cut)
            if isinstance(self.run.turn.command, Over):
                return
            self.resume(approves=approves)
        raise AssertionError("the turn does not come to its end")

    def told(self, call_id: str) -> list[str]:
        """The policies with which a call was reported as interrupted."""
        return [
            part.data["policy"]
            for part in self.parts
            if isinstance(part, Custom) and part.kind == INTERRUPTED and part.data["call_id"] == call_id
        ]

    @property
    def parts(self) -> list[StreamPart]:
        """What the log has of all runs."""
        return [part for body in self.log.bodies if isinstance(body, Segment) for part in body.parts]

    @property
    def results(self) -> dict[str, ToolResult]:
        return {part.id: part for part in self.parts if isinstance(part, ToolResult)}


@requirement("R84", "R161", "F32")
@settings(max_examples=30)
@given(STEPS, st.lists(st.integers(1, 25), max_size=4), st.booleans())
async def test_call_runs_twice_only_if_tool_or_approver_allows(
    steps: list[list[str]], cuts: list[int], approves: bool
) -> None:
    turn = Turn(steps)
    await turn.play(cuts, approves=approves)
    keys = [key for made in turn.runs.values() for key in set(made)]
    assert len(keys) == len(set(keys)) == len(turn.runs), "one key for each call"
    for call in [part for part in turn.parts if isinstance(part, ToolCall)]:
        made, told = turn.runs[call.id], turn.told(call.id)
        again = len(made) - 1
        if call.name in ("retried", "approved_first"):
            assert again <= told.count("retry")
        elif call.name == "failed" or not approves:
            assert again <= 0, (call.name, told)
        else:
            assert again <= turn.asked.count(UNCERTAIN)
    assert isinstance(turn.parts[-1], Finish)
    assert turn.parts[-1].reason == "stop"


async def left_in_tools(turn: Turn) -> None:
    """Leaves the run once all tools of its round have begun."""
    async for _ in turn.run:
        if len(turn.runs) == len(turn.run.turn.state.calls) > 0:
            break
    await turn.run.leave()
    turn.resume(approves=False)


async def test_interruption_policies_work_side_by_side() -> None:
    turn = Turn([["asked", "retried", "failed"]])
    await left_in_tools(turn)
    await turn.until(None)
    kinds = [part.data["policy"] for part in turn.parts if isinstance(part, Custom) and part.kind == INTERRUPTED]
    assert kinds == ["ask", "retry", "fail"]
    # The person is asked, and what does not need one is done meanwhile.
    assert [part.name for part in turn.parts if isinstance(part, ToolApprovalRequest)] == ["asked"]
    assert {id: part.is_error for id, part in turn.results.items()} == {"call_0_1": False, "call_0_2": True}
    failed = turn.results["call_0_2"].result
    assert failed["error"] == "Interrupted"
    assert "may or may not have had its effect" in failed["message"]
    assert isinstance(turn.run.turn.command, AwaitDecision)
    turn.resume(approves=True)
    await turn.until(None)
    assert {id: len(keys) for id, keys in turn.runs.items()} == {"call_0_0": 2, "call_0_1": 2, "call_0_2": 1}
    assert all(len(set(keys)) == 1 for keys in turn.runs.values())


async def test_interruption_is_reported_after_resuming_process_ended() -> None:
    turn = Turn([["failed"]])
    await left_in_tools(turn)
    await turn.run.begin()
    turn.resume(approves=False)
    await turn.until(None)
    assert turn.log.state().status == "complete"
    rounds = [message for message in turn.run.turn.state.messages if message.role == "tool"]
    assert "Interrupted" in str(to_builtins(rounds))
    assert [len(keys) for keys in turn.runs.values()] == [1]


@pytest.mark.parametrize("now", ["ask", "fail", None])
async def test_call_is_not_retried_if_tool_no_longer_declares_it(now: Any) -> None:
    turn = Turn([["retried"]])
    await left_in_tools(turn)
    tool = turn.tools.pop("retried")
    if now is not None:
        turn.tools["retried"] = Tool.from_function(tool.function, name="retried", on_interruption=now)
    turn.resume(approves=False)
    await turn.until(None)
    if now == "ask":
        assert isinstance(turn.run.turn.command, AwaitDecision)
        turn.resume(approves=False)
        await turn.until(None)
    assert [len(keys) for keys in turn.runs.values()] == [1]
    error = turn.results["call_0_0"].result["error"]
    assert error == ("Denied" if now == "ask" else "Interrupted")
    assert turn.told("call_0_0") == ["ask" if now == "ask" else "fail"]


async def test_retried_call_follows_current_approval_policy() -> None:
    turn = Turn([["retried"]])
    await left_in_tools(turn)
    function = turn.tools["retried"].function
    turn.tools["retried"] = Tool.from_function(function, name="retried", approval="ask", on_interruption="retry")
    turn.resume(approves=False)
    await turn.until(None)
    assert isinstance(turn.run.turn.command, AwaitDecision)
    assert [len(keys) for keys in turn.runs.values()] == [1]
    turn.resume(approves=True)
    await turn.until(None)
    assert [len(keys) for keys in turn.runs.values()] == [2]


async def test_call_repeatedly_ending_process_needs_approval() -> None:
    turn = Turn([["retried"]])
    for _attempt in range(MAX_TOOL_ATTEMPTS):
        runs = len(turn.runs["call_0_0"])
        async for _ in turn.run:
            if len(turn.runs["call_0_0"]) > runs:
                break
        await turn.run.leave()
        turn.resume(approves=False)
    await turn.until(None)
    assert turn.told("call_0_0") == ["retry"] * (MAX_TOOL_ATTEMPTS - 1) + ["ask"]
    assert len(turn.runs["call_0_0"]) == MAX_TOOL_ATTEMPTS
    assert isinstance(turn.run.turn.command, AwaitDecision)


@pytest.mark.parametrize("policy", ["again", "", None, True, "hints"])
def test_unknown_interruption_policy_is_refused(policy: Any) -> None:
    def act() -> str:
        """Acts."""
        return ""

    with pytest.raises(ConfigurationError, match="on_interruption must be 'ask', 'retry' or 'fail'"):
        tool(on_interruption=policy)(act)
    with pytest.raises(ConfigurationError, match="tool 'helper': on_interruption"):
        Agent("openai-responses", api_key="k").as_tool("helper", "Helps.", on_interruption=policy)

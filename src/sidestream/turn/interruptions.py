"""Handling of interrupted calls when a turn is resumed, and the parts that report them."""

from collections.abc import Callable, Mapping

from sidestream.parts import Custom, StreamPart, ToolCall
from sidestream.tools.interruption import INTERRUPTED, InterruptionPolicy, failure, notice
from sidestream.turn import ledger, rounds
from sidestream.turn.rounds import ToolFacts
from sidestream.turn.state import TurnState

Tools = Mapping[str, ToolFacts]


def ask_instead(state: TurnState, tools: Tools, new_id: Callable[[], str]) -> None:
    """Ask for approval of calls that were due to run again, if their tools no longer declare that they may."""
    for call in _unreported(state):
        if _policy(state, tools, call) == "ask" and call.id not in ledger.blocked_calls(state):
            ledger.ask(state, ledger.uncertain(state, call, new_id()))


def reports(state: TurnState, tools: Tools) -> list[StreamPart]:
    """Return the parts that report interrupted calls, with the results of those that are not run again."""
    out: list[StreamPart] = []
    for call in _unreported(state):
        attempt, policy, name = state.attempts[call.id], _policy(state, tools, call), rounds.function_of(call)
        if attempt.number == 1:
            continue  # Not started itself; it waits beside a call that was.
        out.append(Custom(INTERRUPTED, notice(call.id, name, policy, attempt.number - 1)))
        if policy == "fail":
            out.append(rounds.tool_result(call, failure(name), is_error=True))
    return out


def requests(state: TurnState) -> list[StreamPart]:
    """Return the approval requests for interrupted calls and for those that wait beside them."""
    calls = {call.id for call in _unreported(state)}
    return [rounds.approval_request(entry) for entry in state.waiting if entry.call_id in calls]


def _unreported(state: TurnState) -> list[ToolCall]:
    attempts = state.attempts
    return [call for call in state.calls if call.id in attempts and attempts[call.id].is_interrupted]


def _policy(state: TurnState, tools: Tools, call: ToolCall) -> InterruptionPolicy:
    """Return the policy for an interrupted call, which runs again only if its tool still declares that it may."""
    if call.id in ledger.blocked_calls(state):
        return "ask"
    policy, facts = state.attempts[call.id].policy, tools.get(rounds.function_of(call))
    return policy if policy != "retry" else "fail" if facts is None else facts.on_interruption

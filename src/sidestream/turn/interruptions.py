"""Resumption of a turn: the state to continue from, and the interrupted calls with the parts that report them."""

from collections.abc import Callable, Mapping

from sidestream.errors import ConfigurationError
from sidestream.parts import Custom, StreamPart, ToolCall
from sidestream.tools.approvals import ApprovalError, Decision
from sidestream.tools.interruption import INTERRUPTED, InterruptionPolicy, failure, notice
from sidestream.turn import ledger, rounds
from sidestream.turn.rounds import ToolFacts
from sidestream.turn.state import AwaitDecision, Over, RunState, TurnState, copied

Tools = Mapping[str, ToolFacts]


def resumed_state(state: RunState | str | bytes, decisions: list[Decision]) -> tuple[TurnState, list[Decision] | None]:
    """Return a copy of the state to continue from, and the decisions, or None if it does not wait for any.

    Raises ConfigurationError if the run has finished, and ApprovalError for decisions that it does not wait for.
    """
    given = RunState.from_json(state) if isinstance(state, str | bytes) else state
    turn_state = copied(given.turn)
    if isinstance(turn_state.command, Over):
        raise ConfigurationError("the run has finished; there is nothing to resume")
    turn_state = ledger.resumable(turn_state)
    is_waiting = isinstance(turn_state.command, AwaitDecision)
    if decisions and not is_waiting:
        raise ApprovalError("the run is not waiting for a decision")
    if not decisions and ledger.has_unreported(turn_state):
        return turn_state, None  # The run reports what was interrupted, requests decisions, and waits for them.
    return turn_state, decisions if is_waiting else None


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

"""The state and the decisions with which a run is resumed."""

from sidestream.errors import ConfigurationError
from sidestream.tools.approvals import ApprovalError, Decision
from sidestream.turn.ledger import has_unreported, resumable
from sidestream.turn.state import AwaitDecision, Over, RunState, TurnState, copied


def resumed_state(state: RunState | str | bytes, decisions: list[Decision]) -> tuple[TurnState, list[Decision] | None]:
    """Return a copy of the state to continue from, and the decisions, or None if it does not wait for any.

    Raises ConfigurationError if the run has finished, and ApprovalError for decisions that it does not wait for.
    """
    given = RunState.from_json(state) if isinstance(state, str | bytes) else state
    turn_state = copied(given.turn)
    if isinstance(turn_state.command, Over):
        raise ConfigurationError("the run has finished; there is nothing to resume")
    turn_state = resumable(turn_state)
    is_waiting = isinstance(turn_state.command, AwaitDecision)
    if decisions and not is_waiting:
        raise ApprovalError("the run is not waiting for a decision")
    if not decisions and has_unreported(turn_state):
        return turn_state, None  # The run reports what was interrupted, requests decisions, and waits for them.
    return turn_state, decisions if is_waiting else None

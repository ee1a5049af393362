"""How an interaction ended: its finish reason, and the session that continues from it."""

from sidestream.jsontext import JsonObject
from sidestream.messages.replays import HOSTED
from sidestream.providers.google.interactions.context import REPLAY_KEY, REPLAYED, SESSION_KEY
from sidestream.providers.google.interactions.state import InteractionState, Step
from sidestream.providers.google.values import some_text
from sidestream.stream.parts import FinishReason, StepOutcome

STATUSES: dict[str, FinishReason] = {
    "completed": "stop",
    "requires_action": "tool-calls",
    "incomplete": "length",
    "budget_exceeded": "limit",
    "failed": "error",
    "cancelled": "other",
    "queued": "other",
    "in_progress": "other",
    "requires_continuation": "other",
}
"""The provider's status → our reason."""

PAUSED = "requires_continuation"
ENDED = frozenset({"failed", "cancelled", "incomplete", "budget_exceeded"})
"""Statuses after which a stream may end without its last event."""


def finish_reason(s: InteractionState) -> tuple[FinishReason, str | None]:
    """Our reason and the provider's own."""
    reason = STATUSES.get(s.status or "", "other")
    if reason in ("stop", "tool-calls"):
        reason = "tool-calls" if s.has_client_call else "stop"
    return reason, s.status


def step_outcome(s: InteractionState) -> StepOutcome:
    """What the interaction means for the turn."""
    metadata = _message_metadata(s)
    is_held = SESSION_KEY in metadata
    return StepOutcome(message_metadata=metadata, replay=REPLAYED, is_held=is_held, is_paused=s.status == PAUSED)


def _message_metadata(s: InteractionState) -> JsonObject:
    """The private metadata of the message: how to continue from it on the server, or by replaying its steps."""
    session: JsonObject = {
        "model": s.context.model or s.interaction.get("model") or s.interaction.get("agent"),
        "base_url": s.context.base_url,
        "steps": [_layout(step) for step in s.order],
    }
    if s.status == PAUSED and some_text(s.interaction, "continuation_token"):
        session["continuation_token"] = s.interaction["continuation_token"]
    identity = some_text(s.interaction, "id")
    if not s.context.store or identity is None:
        return {REPLAY_KEY: session}
    session |= {"interaction_id": identity, "history": s.context.history, "calls": _given_ids(s)}
    if hosted := sorted({step.kind for step in s.order} - _SAID):
        session[HOSTED] = hosted
    if some_text(s.interaction, "environment_id"):
        session["environment_id"] = s.interaction["environment_id"]
    return {SESSION_KEY: session}


_SAID = frozenset({"model_output", "function_call", "thought"})
"""Steps that the message's own parts can replace."""


def _given_ids(s: InteractionState) -> JsonObject:
    """Our id of a call → the API's, where it is another."""
    calls = {step.call_id: some_text(step.raw, "id") for step in s.order if step.kind == "function_call"}
    return {call_id: given for call_id, given in calls.items() if given not in (None, call_id)}


def _layout(step: Step) -> JsonObject:
    kept = {key: value for key, value in step.raw.items() if value not in (None, "")}
    if step.kind == "function_call":
        kept["call_id"] = step.call_id
    return kept


_KEPT = ("service_tier", "environment_id", "agent", "continuation_token", "previous_interaction_id")


def result_metadata(s: InteractionState) -> JsonObject:
    """The metadata of the result."""
    return {
        "response_id": s.interaction.get("id"),
        "model": s.interaction.get("model"),
        "status": s.status,
        "last_event_id": s.last_event_id,
        **{key: s.interaction.get(key) for key in _KEPT},
    }

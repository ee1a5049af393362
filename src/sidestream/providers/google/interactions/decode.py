"""The Interactions API decoder, with the end of an interaction and the session that continues from it."""

from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.messages.references import HOSTED
from sidestream.parts import Error, FinishReason, StepOutcome
from sidestream.providers.google.context import some_text
from sidestream.providers.google.decode.outcome import error_of
from sidestream.providers.google.interactions import steps
from sidestream.providers.google.interactions.options import REPLAY_KEY, REPLAYED, SESSION_KEY, InteractionContext
from sidestream.providers.google.interactions.state import InteractionState, Step
from sidestream.providers.google.interactions.steps import (
    DELTAS,
    IGNORED_DELTAS,
    IGNORED_STEPS,
    STEPS,
    begin_step,
    complete_step,
    end_step,
    on_delta,
)
from sidestream.providers.shared.decoding import UNREADABLE, EventRow, ResponseDecoder, bare_error, truncated
from sidestream.providers.transfers import seconds_of

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
"""The provider's status → our finish reason."""

PAUSED = "requires_continuation"
ENDED = frozenset({"failed", "cancelled", "incomplete", "budget_exceeded"})
"""Statuses after which a stream may end without its last event."""


def finish_reason(s: InteractionState) -> tuple[FinishReason, str | None]:
    """Return our finish reason and the provider's."""
    reason = STATUSES.get(s.status or "", "other")
    if reason in ("stop", "tool-calls"):
        reason = "tool-calls" if s.has_client_call else "stop"
    return reason, s.status


def step_outcome(s: InteractionState) -> StepOutcome:
    """Return the outcome of the step."""
    metadata = _message_metadata(s)
    is_held = SESSION_KEY in metadata
    return StepOutcome(message_metadata=metadata, replay=REPLAYED, is_held=is_held, is_paused=s.status == PAUSED)


def _message_metadata(s: InteractionState) -> JsonObject:
    """Return the private metadata of the message, to continue on the server or by resending its steps."""
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
    """Map our id of a call to the API's, where they differ."""
    calls = {step.call_id: some_text(step.raw, "id") for step in s.order if step.kind == "function_call"}
    return {call_id: given for call_id, given in calls.items() if given not in (None, call_id)}


def _layout(step: Step) -> JsonObject:
    kept = {key: value for key, value in step.raw.items() if value not in (None, "")}
    if step.kind == "function_call":
        kept["call_id"] = step.call_id
    return kept


_KEPT = ("service_tier", "environment_id", "agent", "continuation_token", "previous_interaction_id")


def result_metadata(s: InteractionState) -> JsonObject:
    """Return the metadata of the result."""
    return {
        "response_id": s.interaction.get("id"),
        "model": s.interaction.get("model"),
        "status": s.status,
        "last_event_id": s.last_event_id,
        **{key: s.interaction.get(key) for key in _KEPT},
    }


def _on_created(s: InteractionState, e: steps.InteractionSnapshot, raw: JsonObject) -> None:
    """Emit `response-metadata`, once."""
    _interaction(s, e.interaction)


def _is_second(s: InteractionState, e: steps.InteractionSnapshot) -> bool:
    """Return whether the event begins a different interaction."""
    known = some_text(s.interaction, "id")
    return known is not None and (some_text(e.interaction, "id") or known) != known


def _interaction(s: InteractionState, interaction: JsonObject) -> None:
    s.interaction |= {key: value for key, value in interaction.items() if key != "steps" and value is not None}
    s.status = some_text(interaction, "status") or s.status
    if is_object(interaction.get("usage")):
        s.usage = interaction["usage"]
    model = some_text(s.interaction, "model") or some_text(s.interaction, "agent")
    s.response_metadata(some_text(s.interaction, "id"), model, seconds_of(interaction.get("created")))


def _on_status(s: InteractionState, e: steps.StatusEvent, raw: JsonObject) -> None:
    """Store the status, which counts at the end."""
    s.status = e.status
    if e.continuation_token is not None:
        s.interaction["continuation_token"] = e.continuation_token


def _on_start(s: InteractionState, e: steps.StepStartEvent, raw: JsonObject) -> None:
    """Start the step, as listed below."""
    if e.index in s.steps:
        s.raw(raw)
    elif str(e.step.get("type")) in IGNORED_STEPS:
        s.ignored.add(e.index)
    else:
        start_step(s, e.index, e.step, raw)


def start_step(s: InteractionState, index: int, step: JsonObject, event: Any) -> None:
    """Start a step, and emit its tool event if it has one."""
    begun = begin_step(s, index, step)
    if begun is None:
        s.raw(event)
    elif STEPS[begun.kind].tool is not None:
        s.step_event(begun, "start", event)


def _on_delta(s: InteractionState, e: steps.StepDeltaEvent, raw: JsonObject) -> None:
    """Apply the delta, as listed below."""
    if is_object((e.metadata or {}).get("total_usage")):
        s.usage = (e.metadata or {})["total_usage"]
    kind = str(e.delta.get("type"))
    row = DELTAS.get(kind)
    if kind in IGNORED_DELTAS or e.index in s.ignored:
        return
    step = s.steps.get(e.index)
    if step is None and row is not None and row.step is not None:
        # The start was missed, as in a resumed stream.
        step = begin_step(s, e.index, {"type": row.step})
    if step is None or step.done or row is None:
        s.raw(raw)
        return
    is_hosted = STEPS[step.kind].tool is not None
    if is_hosted:
        s.step_event(step, "delta", raw)
    if not on_delta(s, step, e.delta) and not is_hosted:
        s.raw(raw)


def _on_stop(s: InteractionState, e: steps.StepStopEvent, raw: JsonObject) -> None:
    """End the step, as listed below."""
    if e.usage is not None:
        s.usage = e.usage
    step = s.steps.get(e.index)
    if step is None:
        if e.index not in s.ignored:
            s.raw(raw)
        return
    if STEPS[step.kind].tool is not None:
        s.step_event(step, "stop", raw)
    end_step(s, step)


def _on_completed(s: InteractionState, e: steps.InteractionSnapshot, raw: JsonObject) -> None:
    """End open blocks and calls, then emit `finish`, after `error` if the interaction failed."""
    _interaction(s, e.interaction)
    _whole_steps(s, e.interaction)
    finish(s)


def _whole_steps(s: InteractionState, interaction: JsonObject) -> None:
    """Emit steps that were not streamed, or not to their end, as if they had just started or stopped."""
    streamed = iter([*s.order])
    for place, step in enumerate(objects(interaction.get("steps"))):
        if str(step.get("type")) in IGNORED_STEPS:
            continue
        known = next(streamed, None)
        if known is None:
            index = place if place not in s.steps else max(s.steps) + 1
            start_step(s, index, step, step)
            if index in s.steps:
                end_step(s, s.steps[index])
        elif not known.done and known.kind == str(step.get("type")):
            complete_step(s, known, step)


def _on_error(s: InteractionState, e: steps.InteractionsError, raw: JsonObject) -> None:
    """End open blocks and calls, then emit `error` and `finish`."""
    s.error = error_of(e.error, "the provider reported an error")
    fail(s, s.error)


EVENTS: dict[str, EventRow] = {
    "interaction.created": EventRow(steps.InteractionSnapshot, _on_created),
    "interaction.status_update": EventRow(steps.StatusEvent, _on_status),
    "step.start": EventRow(steps.StepStartEvent, _on_start),
    "step.delta": EventRow(steps.StepDeltaEvent, _on_delta),
    "step.stop": EventRow(steps.StepStopEvent, _on_stop),
    "interaction.completed": EventRow(steps.InteractionSnapshot, _on_completed),
    "error": EventRow(steps.InteractionsError, _on_error),
}
"""Event type → how it is decoded."""


def finish(s: InteractionState) -> None:
    """Finish the interaction, with an error if it failed."""
    for step in s.order:
        end_step(s, step)
    s.emit_draft()
    reason, raw_reason = finish_reason(s)
    if reason == "error" or (s.error is not None and not s.has_client_call):
        errors = objects(s.interaction.get("errors"))
        fail(s, s.error or error_of(errors[0] if errors else None, "the interaction failed"))
        return
    s.finish(reason, raw_reason, result_metadata(s), step_outcome(s))


def fail(s: InteractionState, error: Error) -> None:
    """End everything open and emit the error. Calls whose arguments may be truncated are not emitted."""
    for step in s.order:
        s.end_block(step)
        s.close_input(step)
    s.end_with_error(error, s.total_usage())


class InteractionsDecoder(ResponseDecoder[InteractionState]):
    """A decoder for one interaction."""

    LAST_EVENTS = frozenset({"interaction.completed", "error"})

    def __init__(self, context: InteractionContext) -> None:
        super().__init__(InteractionState(context))

    @property
    def resume_point(self) -> tuple[str, str] | None:
        """Interaction id and last event id, to resume from after a broken connection."""
        identity = some_text(self._state.interaction, "id")
        return (identity, self._state.last_event_id) if identity and self._state.last_event_id else None

    def _read_event(self, s: InteractionState, event: Any) -> None:
        fields = jsontext.as_object(event)
        row = EVENTS.get(str(fields.get("event_type"))) or bare_error(EVENTS, fields, "event_type")
        if row is None:
            s.raw(event)
            return
        try:
            value = msgspec.convert(event, row.shape)
            if row.handler is _on_created and _is_second(s, value):
                s.second_answer(event)
                return
            if s.is_repeated(value.event_id):
                s.raw(event)
                return
            s.last_event_id = value.event_id or s.last_event_id
            row.handler(s, value, fields)
        except UNREADABLE:
            s.raw(event)

    def _read_whole(self, s: InteractionState, answer: Any) -> Error | None:
        interaction = jsontext.as_object(answer)
        if "status" not in interaction and "steps" not in interaction:
            s.raw(answer)
            return error_of(interaction.get("error"), "the body is not an interaction")
        _interaction(s, interaction)
        _whole_steps(s, interaction)
        s.status = s.status or "completed"
        finish(s)
        return None

    def _end(self, s: InteractionState, error: Error | None) -> None:
        if error is None and s.status in ENDED:
            finish(s)
        else:
            fail(s, error or truncated())

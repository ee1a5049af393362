"""Events of the Interactions API → parts: one table, one pure decoder per interaction."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object, objects
from sidestream.providers.google.context import PROVIDER_NAME
from sidestream.providers.google.interactions import outcome, shapes
from sidestream.providers.google.interactions.context import InteractionContext
from sidestream.providers.google.interactions.state import State
from sidestream.providers.google.interactions.steps import (
    DELTAS,
    IGNORED_DELTAS,
    IGNORED_STEPS,
    STEPS,
    begin_step,
    end_step,
    on_delta,
)
from sidestream.providers.google.outcome import error_of
from sidestream.providers.google.values import seconds_of, some_text
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Error, Finish, ResponseMetadata, StepOutcome, StreamPart


class EventRow(Struct, frozen=True):
    """How one event type is read."""

    shape: type[shapes.Event]
    handler: Callable[[State, Any, JsonObject], None]


def _on_created(s: State, e: shapes.InteractionEvent, raw: JsonObject) -> None:
    """`response-metadata`, once."""
    _interaction(s, e.interaction)


def _interaction(s: State, interaction: JsonObject) -> None:
    s.interaction |= {key: value for key, value in interaction.items() if key != "steps" and value is not None}
    s.status = some_text(interaction, "status") or s.status
    if is_object(interaction.get("usage")):
        s.usage = interaction["usage"]
    identity, model = (
        some_text(s.interaction, "id"),
        some_text(s.interaction, "model") or some_text(s.interaction, "agent"),
    )
    if not s.has_metadata and (identity or model):
        s.has_metadata = True
        s.out.append(ResponseMetadata(identity, model, seconds_of(interaction.get("created")), PROVIDER_NAME))


def _on_status(s: State, e: shapes.StatusEvent, raw: JsonObject) -> None:
    """Nothing yet: the status counts at the end."""
    s.status = e.status
    if e.continuation_token is not None:
        s.interaction["continuation_token"] = e.continuation_token


def _on_start(s: State, e: shapes.StepStart, raw: JsonObject) -> None:
    """By step, see below."""
    if e.index in s.steps:
        s.raw(raw)
    elif str(e.step.get("type")) in IGNORED_STEPS:
        s.ignored.add(e.index)
    else:
        start_step(s, e.index, e.step, raw)


def start_step(s: State, index: int, step: JsonObject, event: Any) -> None:
    """A step starts: its tool event first, if it has one."""
    begun = begin_step(s, index, step)
    if begun is None:
        s.raw(event)
    elif STEPS[begun.kind].tool is not None:
        s.tool_event(begun, "start", event)


def _on_delta(s: State, e: shapes.StepDelta, raw: JsonObject) -> None:
    """By delta, see below."""
    if is_object((e.metadata or {}).get("total_usage")):
        s.usage = (e.metadata or {})["total_usage"]
    kind = str(e.delta.get("type"))
    row = DELTAS.get(kind)
    if kind in IGNORED_DELTAS or e.index in s.ignored:
        return
    step = s.steps.get(e.index)
    if step is None and row is not None and row.step is not None:
        # Its start was missed, as in a stream that was resumed.
        step = begin_step(s, e.index, {"type": row.step})
    if step is None or step.done or row is None:
        s.raw(raw)
        return
    is_hosted = STEPS[step.kind].tool is not None
    if is_hosted:
        s.tool_event(step, "delta", raw)
    if not on_delta(s, step, e.delta) and not is_hosted:
        s.raw(raw)


def _on_stop(s: State, e: shapes.StepStop, raw: JsonObject) -> None:
    """By step, see below."""
    if e.usage is not None:
        s.usage = e.usage
    step = s.steps.get(e.index)
    if step is None:
        if e.index not in s.ignored:
            s.raw(raw)
        return
    if STEPS[step.kind].tool is not None:
        s.tool_event(step, "stop", raw)
    end_step(s, step)


def _on_completed(s: State, e: shapes.InteractionEvent, raw: JsonObject) -> None:
    """Ends of what is open, then `finish`; `error` before it where the interaction failed."""
    _interaction(s, e.interaction)
    if not s.order:
        _whole_steps(s, e.interaction)
    finish(s)


def _whole_steps(s: State, interaction: JsonObject) -> None:
    """Steps that were not streamed come as if each had just started and stopped."""
    for index, step in enumerate(objects(interaction.get("steps"))):
        if str(step.get("type")) not in IGNORED_STEPS:
            start_step(s, index, step, step)
            if index in s.steps:
                end_step(s, s.steps[index])


def _on_error(s: State, e: shapes.ErrorEvent, raw: JsonObject) -> None:
    """Ends of what is open, `error`, `finish`."""
    s.error = error_of(e.error, "the provider reported an error")
    fail(s, s.error)


EVENTS: dict[str, EventRow] = {
    "interaction.created": EventRow(shapes.InteractionEvent, _on_created),
    "interaction.status_update": EventRow(shapes.StatusEvent, _on_status),
    "step.start": EventRow(shapes.StepStart, _on_start),
    "step.delta": EventRow(shapes.StepDelta, _on_delta),
    "step.stop": EventRow(shapes.StepStop, _on_stop),
    "interaction.completed": EventRow(shapes.InteractionEvent, _on_completed),
    "error": EventRow(shapes.ErrorEvent, _on_error),
}
"""Event type → how it is read."""


def finish(s: State) -> None:
    """The interaction is over."""
    for step in s.order:
        end_step(s, step)
    s.tell_draft()
    reason, raw_reason = outcome.finish_reason(s)
    if reason == "error" or (s.error is not None and not s.has_client_call):
        errors = objects(s.interaction.get("errors"))
        fail(s, s.error or error_of(errors[0] if errors else None, "the interaction failed"))
        return
    s.is_over = True
    meaning = StepOutcome(
        message_metadata=outcome.message_metadata(s), is_paused=s.status == outcome.PAUSED, is_kept=bool(s.draft)
    )
    usage = outcome.usage_of(s.usage, s.server_tool_use)
    s.out.append(Finish(reason, usage, raw_reason, outcome.result_metadata(s), outcome=meaning))


def fail(s: State, error: Error) -> None:
    """Ends what is open and tells the error. Calls whose arguments may be cut off are not made."""
    s.is_over = True
    for step in s.order:
        s.end_block(step)
        s.close_input(step)
    s.out += [error, Finish("error", outcome.usage_of(s.usage, s.server_tool_use), error.kind)]


class InteractionsDecoder:
    """Decodes one interaction, streamed or whole."""

    def __init__(self, context: InteractionContext) -> None:
        self._state = State(context)

    @property
    def downloads(self) -> tuple[FileRef, ...]:
        """None: files come inline or by their URI."""
        return ()

    @property
    def resume_point(self) -> tuple[str, str] | None:
        """The interaction and the last event that came of it, to go on from after a break."""
        identity = some_text(self._state.interaction, "id")
        return (identity, self._state.last_event_id) if identity and self._state.last_event_id else None

    def feed(self, data: bytes) -> list[StreamPart]:
        """The parts of one event; none for what is no JSON."""
        s = self._state
        if s.is_over:
            return []
        try:
            event = jsontext.loads(data)
        except (ValueError, RecursionError):
            return []
        self._event(event)
        return self._taken()

    def _event(self, event: Any) -> None:
        s = self._state
        fields = event if is_object(event) else {}
        row = EVENTS.get(str(fields.get("event_type")))
        if row is None and "event_type" not in fields and fields.get("error"):
            row = EVENTS["error"]
        try:
            if row is None:
                s.raw(event)
                return
            value = msgspec.convert(event, row.shape)
            s.last_event_id = value.event_id or s.last_event_id
            row.handler(s, value, fields)
        except (msgspec.ValidationError, UnicodeError):
            s.raw(event)

    def whole(self, body: bytes) -> list[StreamPart]:
        """All parts of an interaction that was not streamed."""
        s = self._state
        try:
            answer = jsontext.loads(body)
        except (ValueError, RecursionError):
            return self.close(Error("protocol", "the answer is not JSON"))
        interaction = answer if is_object(answer) else {}
        if "status" not in interaction and "steps" not in interaction:
            s.raw(answer)
            return self.close(error_of(interaction.get("error"), "the answer is no interaction"))
        _interaction(s, interaction)
        _whole_steps(s, interaction)
        s.status = s.status or "completed"
        finish(s)
        return self._taken()

    def close(self, error: Error | None = None) -> list[StreamPart]:
        """Nothing more comes. Without the provider's own end this is an error, never a success."""
        s = self._state
        if s.is_over:
            return []
        if error is None and s.status in outcome.ENDED:
            finish(s)
        else:
            fail(s, error or Error("truncated", "the stream ended before the interaction was complete", retryable=True))
        return self._taken()

    def _taken(self) -> list[StreamPart]:
        s = self._state
        out, s.out = s.out, []
        return out

"""Typed events of an interaction, with the fields that the decoder uses."""

from typing import Any

from msgspec import Struct


class InteractionsEvent(Struct, kw_only=True):
    """Fields that all events may have."""

    event_id: str | None = None


class InteractionSnapshot(InteractionsEvent, kw_only=True):
    """The events interaction.created and interaction.completed."""

    interaction: dict[str, Any]


class StatusEvent(InteractionsEvent, kw_only=True):
    status: str
    interaction_id: str | None = None
    continuation_token: str | None = None


class StepStartEvent(InteractionsEvent, kw_only=True):
    index: int
    step: dict[str, Any]


class StepDeltaEvent(InteractionsEvent, kw_only=True):
    index: int
    delta: dict[str, Any]
    metadata: dict[str, Any] | None = None


class StepStopEvent(InteractionsEvent, kw_only=True):
    index: int
    usage: dict[str, Any] | None = None


class InteractionsError(InteractionsEvent, kw_only=True):
    error: dict[str, Any] | None = None


class StepTextDelta(Struct, kw_only=True):
    text: str


class AnnotationsDelta(Struct, kw_only=True):
    annotations: list[dict[str, Any]]


class ArgumentsDelta(Struct, kw_only=True):
    arguments: str


class SummaryDelta(Struct, kw_only=True):
    content: dict[str, Any]


class StepSignatureDelta(Struct, kw_only=True):
    signature: str


class CallDelta(Struct, kw_only=True):
    """Fields of a hosted tool call."""

    arguments: dict[str, Any] | None = None


class ResultDelta(Struct, kw_only=True):
    """Fields of a hosted tool result."""

    result: Any = None
    is_error: bool | None = None


class MediaDelta(Struct, kw_only=True):
    """An image, audio, video or document."""

    data: str | None = None
    uri: str | None = None
    mime_type: str | None = None

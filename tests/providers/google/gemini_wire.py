"""From chunks and interaction events to the parts of one run."""

from collections.abc import Iterable
from typing import Any

from sidestream.parts import Error, Finish, StepFinish, StepStart, StreamPart, StreamStart
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.decode.decoder import GenerateContentDecoder
from sidestream.providers.google.interactions.decode import InteractionsDecoder
from sidestream.providers.google.interactions.options import InteractionContext
from sidestream.providers.protocol import Decoder
from sidestream.stream.grammar import check
from sidestream.testing.gemini_script import GeminiScript, InteractionScript
from support.streams import Event, wire

MODEL = "gemini-3-flash-preview"
BASE_URL = "https://gemini.example/v1"


def decode(events: Iterable[Event | bytes], **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this stream; they are legal, or GrammarError is raised."""
    return fed(GenerateContentDecoder(GoogleContext(**context)), events)


def decode_whole(response: Any, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this object, not streamed; they are legal."""
    return whole(GenerateContentDecoder(GoogleContext(**context)), response)


def fed(decoder: Decoder, events: Iterable[Event | bytes]) -> list[StreamPart]:
    """What a decoder tells of a stream, as a run."""
    parts: list[StreamPart] = []
    for event in events:
        parts += decoder.feed(wire(event))
        if parts and isinstance(parts[-1], Finish):
            break
    return as_run(parts + decoder.close())


def whole(decoder: Decoder, response: Any) -> list[StreamPart]:
    """What a decoder tells of a whole answer, as a run."""
    return as_run(decoder.whole(wire(response)) + decoder.close())


def as_run(told: list[StreamPart]) -> list[StreamPart]:
    """One step around what a decoder told; an error is told after the step, as a run does."""
    *parts, finish = told
    assert isinstance(finish, Finish)
    errors = [part for part in parts if isinstance(part, Error)]
    inside = [part for part in parts if not isinstance(part, Error)]
    assert len(errors) <= 1
    if errors:
        assert parts[-1] is errors[0]
    step = StepFinish(0, finish.reason, finish.usage, outcome=finish.outcome)
    end = Finish(finish.reason, finish.usage, finish.raw_reason, finish.metadata)
    run: list[StreamPart] = [StreamStart(()), StepStart(0), *inside, step, *errors, end]
    check(run)
    return run


def kept(parts: list[StreamPart]) -> dict[str, Any]:
    """What the message keeps of the answer."""
    (step,) = [part for part in parts if isinstance(part, StepFinish)]
    return step.outcome.message_metadata if step.outcome is not None else {}


def session(parts: list[StreamPart]) -> dict[str, Any]:
    """The session that the message keeps."""
    return kept(parts)["_google_session"]


def both(script: GeminiScript, **context: Any) -> list[list[StreamPart]]:
    """The parts of the streamed and of the whole form."""
    return [decode(script.chunks(), **context), decode_whole(script.response(), **context)]


def interaction(events: Iterable[Event | bytes], **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this stream of an interaction."""
    return fed(InteractionsDecoder(InteractionContext(**context)), events)


def whole_interaction(response: Any, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this interaction, not streamed."""
    return whole(InteractionsDecoder(InteractionContext(**context)), response)


def both_interactions(script: InteractionScript, **context: Any) -> list[list[StreamPart]]:
    """The parts of the streamed and of the whole form."""
    return [interaction(script.chunks(), **context), whole_interaction(script.response(), **context)]

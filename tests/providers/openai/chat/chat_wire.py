"""From chunks of a chat completion to the parts of one run."""

from collections.abc import Iterable
from typing import Any

from sidestream.parts import Error, Finish, StepFinish, StepStart, StreamPart, StreamStart
from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.stream.grammar import check
from support.streams import Event, inside, wire

USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 9,
    "total_tokens": 39,
    "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 4},
}


def decode(events: Iterable[Event | bytes], **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this stream; they are legal, or GrammarError is raised."""
    decoder = CompletionsDecoder(CompletionsContext(**context))
    parts = [part for event in events for part in decoder.feed(wire(event))]
    return _as_run(parts + decoder.close())


def decode_whole(answer: Any, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this object, not streamed; they are legal."""
    decoder = CompletionsDecoder(CompletionsContext(**context))
    return _as_run(decoder.whole(wire(answer)) + decoder.close())


def _as_run(emitted: list[StreamPart]) -> list[StreamPart]:
    """One step around what a decoder emitted; an error is emitted after the step, as a run does."""
    *parts, finish = emitted
    assert isinstance(finish, Finish)
    errors = [part for part in parts if isinstance(part, Error)]
    within = [part for part in parts if not isinstance(part, Error)]
    step = StepFinish(0, finish.reason, finish.usage, outcome=finish.outcome)
    end = Finish(finish.reason, finish.usage, finish.raw_reason, finish.metadata)
    run: list[StreamPart] = [StreamStart(()), StepStart(0), *within, step, *errors, end]
    check(run)
    return run


def chunk(delta: Any = None, reason: Any = None, **fields: Any) -> Event:
    """One chunk of the first choice."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1762317021, "model": "gpt-5.6"}
    return {**head, "choices": [choice], **fields}


def stream(*deltas: Any, reason: str | None = "stop") -> list[Event]:
    """A stream of these deltas, with its end."""
    return [chunk({"role": "assistant", "content": None}), *map(chunk, deltas), chunk({}, reason)]


def emitted(*deltas: Any, reason: str | None = "stop") -> list[StreamPart]:
    """What these deltas of a complete stream became, without the response's own facts."""
    return inside(decode(stream(*deltas, reason=reason)))


def call_piece(index: Any = 0, name: str | None = None, arguments: Any = None, **fields: Any) -> Event:
    """A delta with a piece of one call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    place = {} if index is None else {"index": index}
    return {"tool_calls": [{**place, **fields, "function": function}]}


def whole(message: Event, reason: str | None = "stop", **fields: Any) -> Event:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1762317021, "model": "gpt-5.6"}
    return {**head, "choices": [choice], **fields}

"""Streams that lie: what comes out must be the answer as it was, or an error, and never a third thing."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from hostile.corpus import frames_of, with_events
from hostile.judge import Judged, judge
from sidestream.parts import Custom, Finish, StepStart, StreamPart, TextDelta, TextEnd, ToolCall
from sidestream.replay.recording import Exchange
from sidestream.transport.calls import is_plain_keep_alive

Frames = list[bytes]
Event = dict[str, Any]
NO_REASON = "sidestream.finish-reason-missing"
KEPT = 8
"""Judged answers that are kept."""
LAST = frozenset(
    {
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "message_stop",
        "interaction.completed",
    }
)


class Lied(AssertionError):
    """A lie that came out as a third thing."""

    def __init__(self, exchange: Exchange, message: str) -> None:
        super().__init__(message)
        self.exchange = exchange


class Answer(Struct, frozen=True):
    """What a run came to."""

    text: str
    calls: tuple[tuple[str, Any], ...]
    """The client's calls: name and input."""
    reason: str


def said(parts: Sequence[StreamPart]) -> str:
    """The text: what was streamed, and what has replaced it."""
    texts: dict[tuple[int, str], str] = {}
    step = 0
    for part in parts:
        if isinstance(part, StepStart):
            step = part.step
        elif isinstance(part, TextDelta):
            texts[step, part.id] = texts.get((step, part.id), "") + part.delta
        elif isinstance(part, TextEnd) and part.text is not None:
            texts[step, part.id] = part.text
    return "".join(texts.values())


def answer_of(judged: Judged) -> Answer:
    calls = [part for part in judged.parts if isinstance(part, ToolCall) and not part.provider_executed]
    reason = next(part.reason for part in judged.parts if isinstance(part, Finish))
    return Answer(said(judged.parts), tuple((call.name, call.input) for call in calls), reason)


def _event(data: bytes) -> Event:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _edited(frames: Frames, change: Callable[[Event], Event]) -> Frames:
    return [json.dumps(change(event)).encode() if (event := _event(data)) else data for data in frames]


# The lies: each gives the frames that are sent instead; None if it cannot be told of these


def corrupt(random: Random, frames: Frames, others: Sequence[Frames]) -> Frames | None:
    """One event no longer parses."""
    place = random.randrange(len(frames))
    data = frames[place]
    start = random.randrange(1, max(len(data), 2))
    broken = random.choice((data[:start], data[start:], data[:start] + b"\x00" + data[start:], b"<html>", b"{" + data))
    if _parses(broken) or is_plain_keep_alive(broken):
        return None
    return [*frames[:place], broken, *frames[place + 1 :]]


def _parses(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def splice(random: Random, frames: Frames, others: Sequence[Frames]) -> Frames | None:
    """Another answer begins before this one has ended."""
    other = random.choice(others)
    first, second = _identity(frames), _identity(other)
    if None in (first, second) or first == second or len(frames) < 2:
        return None
    return frames[: random.randrange(1, len(frames))] + other


def _identity(frames: Frames) -> str | None:
    """The id of an answer, if each of its events that should has it. A chat must begin with a role."""
    events = [event for event in map(_event, frames) if event]
    ids = {found for event in events if (found := _id_in(event)) is not None}
    if events and "choices" in events[0]:
        choices = [choice for event in events for choice in event.get("choices") or ()]
        if not choices or not (choices[0].get("delta") or {}).get("role"):
            return None
    return ids.pop() if len(ids) == 1 else None


def _id_in(event: Event) -> str | None:
    holder = event.get("response") or event.get("message") or event.get("interaction") or event
    found = holder.get("id", holder.get("responseId")) if isinstance(holder, dict) else None
    is_start = "choices" in event or "responseId" in event or holder is not event
    return found if isinstance(found, str) and found and is_start else None


def renumber(random: Random, frames: Frames, others: Sequence[Frames]) -> Frames | None:
    """Parts have other numbers."""
    shift, counts = random.randint(1, 5), random.random() < 0.3
    number = 0

    def change(event: Event) -> Event:
        nonlocal number
        changed = dict(event)
        if "choices" in event:
            return {**event, "choices": [_shifted_calls(choice, shift) for choice in event["choices"] or ()]}
        if isinstance(event.get("content_index"), int):
            number += 1
            is_counted = counts and event["type"].endswith((".delta", "text.done"))
            changed["content_index"] = event["content_index"] + (100 + number if is_counted else shift)
        elif isinstance(event.get("index"), int) and str(event.get("type", event.get("event_type"))) != "None":
            changed["index"] = event["index"] + shift
        return changed

    sent = _edited(frames, change)
    is_changed = any(map(lambda old, new: _event(old) != _event(new), frames, sent))
    return sent if is_changed else None


def _shifted_calls(choice: Event, shift: int) -> Event:
    calls = (choice.get("delta") or {}).get("tool_calls") or ()
    if not all(isinstance(call, dict) and isinstance(call.get("index"), int) for call in calls) or not calls:
        return choice
    shifted = [{**call, "index": call["index"] + shift} for call in calls]
    return {**choice, "delta": {**choice["delta"], "tool_calls": shifted}}


def lose_delta(random: Random, frames: Frames, others: Sequence[Frames]) -> Frames | None:
    """A piece of text is missing where its end says the whole once more."""
    deltas = [n for n, data in enumerate(frames) if _event(data).get("type") == "response.output_text.delta"]
    if not deltas:
        return None
    place = random.choice(deltas)
    return [*frames[:place], *frames[place + 1 :]]


def drop_end(random: Random, frames: Frames, others: Sequence[Frames]) -> Frames | None:
    """The event that ends the answer is missing."""
    kept = [data for data in frames if not _is_last(_event(data))]
    return kept if len(kept) < len(frames) else None


def _is_last(event: Event) -> bool:
    if event.get("type", event.get("event_type")) in LAST:
        return True
    choices = [*(event.get("choices") or ()), *(event.get("candidates") or ())]
    return any(isinstance(one, dict) and (one.get("finish_reason") or one.get("finishReason")) for one in choices)


def move_result(random: Random, frames: Frames, others: Sequence[Frames]) -> tuple[Frames, Frames] | None:
    """The result of a hosted tool comes with the next response, as after a pause."""
    results = [n for n, data in enumerate(frames) if _has_result(_event(data))]
    if not results:
        return None
    place = random.choice(results)
    head, first = _event(frames[0]), _event(frames[place])
    if "candidates" in first:
        pause: Event = {"candidates": [{"index": 0, "finishReason": "CONTINUATION"}]}
        return [*frames[:place], json.dumps({**head, **pause}).encode()], frames[place:]
    index, message = first["index"], {**head["message"], "id": f"{head['message'].get('id')}_next"}
    ends = [{"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}, {"type": "message_stop"}]
    rest = _edited(frames[place:], lambda e: {**e, "index": e["index"] - index} if "index" in e else e)
    begin = json.dumps({**head, "message": message}).encode()
    return frames[:place] + [json.dumps(end).encode() for end in ends], [begin, *rest]


def _has_result(event: Event) -> bool:
    if event.get("type") == "content_block_start":
        return str(event["content_block"].get("type")).endswith("_tool_result")
    parts = [part for one in event.get("candidates") or () for part in (one.get("content") or {}).get("parts") or ()]
    return bool(parts) and "codeExecutionResult" in parts[0]


Sent = Frames | tuple[Frames, Frames]
Lie = Callable[[Random, Frames, Sequence[Frames]], Sent | None]
LIES: dict[str, Lie] = {lie.__name__: lie for lie in (corrupt, splice, lose_delta, renumber, drop_end, move_result)}


def is_true(found: Judged, truths: Sequence[Judged]) -> bool:
    """True for an answer that is one of these, or an error."""
    if found.errors:
        return True
    answer, known = answer_of(found), [answer_of(truth) for truth in truths]
    if any(isinstance(part, Custom) and part.kind == NO_REASON for part in found.parts):
        # That the reason is a guess, the run says itself.
        return (answer.text, answer.calls) in [(truth.text, truth.calls) for truth in known]
    return answer in known


_latest: dict[int, tuple[Exchange, Judged]] = {}


async def _judged(exchange: Exchange) -> Judged:
    """Judge an answer that does not lie, once for all lies about it."""
    known = _latest.get(id(exchange))
    if known is None:
        if len(_latest) >= KEPT:
            del _latest[next(iter(_latest))]
        known = _latest[id(exchange)] = exchange, await judge(exchange)
    return known[1]


async def told(random: Random, name: str, exchange: Exchange, others: Sequence[Exchange]) -> Exchange | None:
    """The exchange that lies. Raises Lied if it comes out as a third thing; None if it cannot be told."""
    clean = await _judged(exchange)
    if not exchange.is_stream or clean.errors:
        return None
    other = random.choice(others)
    sent = LIES[name](random, frames_of(exchange), [frames_of(other)] if other.is_stream else [frames_of(exchange)])
    if sent is None:
        return None
    first, rest = sent if isinstance(sent, tuple) else (sent, None)
    lying = with_events(exchange, first)
    found = await judge(lying, following=[] if rest is None else [with_events(exchange, rest)])
    truths = [clean, await _judged(other)] if name == "splice" else [clean]
    if not is_true(found, truths):
        raise Lied(lying, f"{name}: {answer_of(found)} instead of {answer_of(clean)}")
    return lying

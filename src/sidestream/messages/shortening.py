"""Selection of messages to drop from a long history, which keeps calls and results together, and their replacement."""

from collections.abc import Sequence

from msgspec.structs import replace

from sidestream.jsontext import Json, as_list, as_object
from sidestream.messages.message import ChatMessage, DataPart, MessagePart, TextPart, ToolCallPart, ToolResultPart
from sidestream.messages.provenance import NOTHING, known_by, written
from sidestream.messages.steering import is_steer
from sidestream.messages.tokens import BYTES_PER_TOKEN, message_tokens

SHORTENED = "sidestream.context-shortened"
"""Kind of the custom part that reports which messages were dropped."""
OVERFLOWED = "sidestream.context-overflow"
"""Kind of the custom part that reports a request that was too long and is repeated."""

Ranges = tuple[tuple[int, int], ...]
"""Ranges of message indexes in order, each from its first up to but excluding its second number."""

_HEADING = "Summary of the conversation so far, which is no longer here in full:"
_FILES = "Files of earlier messages that are no longer here:"
_MAX_SHOWN = 2000
"""Maximum characters of a call or result in a transcript."""


def plan(
    messages: Sequence[ChatMessage], *, total: int, budget: int, keep_turns: int, turn: int | None = None
) -> Ranges:
    """Choose messages to drop so that a history of `total` tokens shrinks to `budget`, or as near as possible.

    Older turns are dropped first, except the last `keep_turns`, then more turns, then rounds of calls in the current
    turn, which begins at `turn`. Its question, its last round and system messages at the beginning are kept.
    """
    sizes = [message_tokens((message,)) for message in messages]
    scale = total / max(sum(sizes), 1)
    found: Ranges = ()
    for ranges in _candidates(messages, keep_turns, turn):
        found = ranges
        if total - scale * sum(sum(sizes[a:b]) for a, b in ranges) <= budget:
            break
    return found


def is_shortenable(messages: Sequence[ChatMessage]) -> bool:
    """Return whether anything can be dropped."""
    return bool(_candidates(messages, 1, None))


def _candidates(messages: Sequence[ChatMessage], keep_turns: int, turn: int | None) -> list[Ranges]:
    """Return the possible ranges to drop, from least to most."""
    first = _first(messages)
    # Steering messages belong to the turn of their run.
    users = [p for p in range(first, len(messages)) if messages[p].role == "user" and not is_steer(messages[p])]
    if not users:
        return []
    current = users[-1] if turn is None else turn
    # Consecutive user messages belong to one turn, as does the question after a summary.
    starts = [p for p in users if p <= current and (p in (first, current) or messages[p - 1].role != "user")]
    cuts = [start for start in starts[-keep_turns:] if start > first]
    older: list[Ranges] = [((first, cut),) for cut in cuts]
    before = ((first, current),) if current > first else ()
    rounds = [
        place
        for place in range(current + 2, len(messages))
        if messages[place].role == "model" and (messages[place - 1].role == "tool" or is_steer(messages[place - 1]))
    ]
    return older + [(*before, (current + 1, place)) for place in rounds]


def shortened(messages: Sequence[ChatMessage], dropped: Ranges, summary: str | None) -> list[ChatMessage]:
    """Return the history without the dropped messages, with their summary after the system messages."""
    kept = list(messages)
    gone = [message for start, end in dropped for message in messages[start:end]]
    # The remaining messages were written after the dropped ones, so they inherit their provenance.
    known = sum(map(known_by, gone), NOTHING)
    for start, end in reversed(dropped):
        del kept[start:end]
    first = _first(kept)
    kept[first:first] = _container_files(gone)
    if summary is not None and dropped:
        kept.insert(_first(kept), written(f"{_HEADING}\n\n{summary}", known))
    elif (first := _first(kept)) < len(kept):
        kept[first] = known.marked(kept[first])
    return kept


def _container_files(gone: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages with the files of containers that dropped messages had, from which containers are restored."""
    given: dict[str | None, MessagePart] = {}
    made: dict[str | None, MessagePart] = {}
    for message in gone:
        for part in message.parts:
            if isinstance(part, DataPart) and part.to == "container":
                (made if message.role == "model" else given)[part.name] = part
    users = [replace(written(_FILES), parts=(TextPart(_FILES), *given.values()))] if given else []
    return [*users, *([ChatMessage("model", tuple(made.values()))] if made else [])]


def _first(messages: Sequence[ChatMessage]) -> int:
    """Return the index of the first message that is not a system message."""
    return next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))


def shortened_by(messages: Sequence[ChatMessage], notice: Json) -> list[ChatMessage]:
    """Return the history as shortened by the data of a SHORTENED part."""
    data = as_object(notice)
    dropped = tuple((int(entry[0]), int(entry[1])) for entry in as_list(data.get("dropped")))
    summary = data.get("summary")
    return shortened(messages, dropped, summary if isinstance(summary, str) else None)


def transcript(messages: Sequence[ChatMessage], max_tokens: int) -> str:
    """Return the messages as text for a summary, keeping only the beginning and end if they are too long."""
    text = "\n\n".join(f"{message.role}: {_said(message)}" for message in messages)
    limit = max_tokens * BYTES_PER_TOKEN
    return text if len(text) <= limit else f"{text[: limit // 4]}\n\n[…]\n\n{text[-limit * 3 // 4 :]}"


def _said(message: ChatMessage) -> str:
    said: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                said.append(part.text)
            case ToolCallPart():
                said.append(f"[calls {part.name}: {str(part.input)[:_MAX_SHOWN]}]")
            case ToolResultPart():
                said.append(f"[{part.name} gave: {str(part.result)[:_MAX_SHOWN]}]")
            case _:
                said.append(f"[{type(part).__name__}]")
    return "\n".join(said)

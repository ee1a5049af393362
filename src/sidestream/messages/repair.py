"""Validation of histories, and repair to a form that every provider accepts.

A round is a message with calls and the tool messages right after it. In a valid history every call has a unique id and
exactly one result, and the results of a round are in one message, in the order of their calls.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, cast, get_args

from msgspec import Struct, structs

from sidestream.jsontext import as_object
from sidestream.messages.message import (
    NOT_EXECUTED,
    ApprovalPart,
    ChatMessage,
    MessagePart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.provenance import KEY as PROVENANCE
from sidestream.messages.sessions import is_session_key

__all__ = ["Problem", "ProblemKind", "repair_history", "validate_history"]


Repairable = Literal[
    "empty-message",
    "stray-call",
    "dangling-call",
    "duplicate-id",
    "orphan-result",
    "misplaced-result",
    "scattered-results",
]
ProblemKind = Repairable | Literal["unknown-role", "system-in-the-middle", "not-json", "foreign-session"]

_ROLES = get_args(Role)
_REPAIRABLE = get_args(Repairable)
_NEVER_CALL = ("system", "user", "tool")


class Problem(Struct, frozen=True):
    """A problem with the message at `index`, in plain words, and how to fix it."""

    index: int
    kind: ProblemKind
    message: str
    fix: str

    @property
    def is_repairable(self) -> bool:
        """Whether `repair_history` fixes it."""
        return self.kind in _REPAIRABLE


def validate_history(messages: Sequence[ChatMessage]) -> list[Problem]:
    """Return the problems of a history, in the order of its messages. Calls of the last message may lack results.

    ```python
    for problem in validate_history(history):
        print(problem)
    history = repair_history(history)
    ```
    """
    found = [problem for index, message in enumerate(messages) for problem in _message_problems(index, message)]
    talk = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    found += [
        Problem(index, "system-in-the-middle", "A system message follows other messages.", "Move it to the beginning.")
        for index, message in enumerate(messages)
        if index > talk and message.role == "system"
    ]
    found += _pair(messages).problems()
    return sorted(found, key=lambda problem: problem.index)


def repair_history(messages: Sequence[ChatMessage], *, answer_last: bool = False) -> list[ChatMessage]:
    """Return the history with valid rounds and without empty messages.

    Calls without a result get an error result, results without a call are removed, misplaced results move to their
    calls, and ids become unique. Calls of the last message are left alone because their results may still arrive,
    unless `answer_last` is set. A message that needs no change is returned as the same object.
    """
    pairing = _pair(messages)
    repaired: list[ChatMessage] = []
    done: set[int] = set()
    for index, message in enumerate(messages):
        if index in done or _is_empty(message):
            continue
        kept = pairing.kept(index)
        if kept is not None:
            repaired.append(kept)
        if index in pairing.calls and (answer_last or index != pairing.last):
            done.update(pairing.runs[index])
            repaired += pairing.results(index)
    return repaired


class _Entry(Struct, eq=False):
    """A single part, or a result and the parts that follow it in a tool message."""

    index: int
    place: int
    """Index among the entries of the message."""
    parts: list[MessagePart]
    call: "_Call | None" = None
    """Call that the entry answers."""

    @property
    def result(self) -> ToolResultPart | None:
        return self.parts[0] if isinstance(self.parts[0], ToolResultPart) else None


class _Call(Struct, eq=False):
    index: int
    part: ToolCallPart
    id: str
    """Unique id for the call."""
    answer: _Entry | None = None


class _Pairing:
    """The assignment of results to calls."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self.messages = messages
        self.entries: list[list[_Entry]] = [_entries(index, message) for index, message in enumerate(messages)]
        self.last = -1
        """Index of the last message that is not empty."""
        self.calls: dict[int, list[_Call]] = {}
        """Calls by message index, for messages with calls."""
        self.runs: dict[int, list[int]] = {}
        """Indexes of the tool messages right after a message with calls, by its index."""
        self.openers: dict[int, int] = {}
        """Index of the message with calls right before a tool message, by the tool message's index."""

    def is_in_place(self, entry: _Entry) -> bool:
        """Return whether a result is in its own round."""
        return entry.call is not None and self.openers.get(entry.index) == entry.call.index

    def kept(self, index: int) -> ChatMessage | None:
        """Return the message with unique ids, without results and stray calls, or None if nothing remains."""
        message = self.messages[index]
        calls = iter(self.calls.get(index, ()))
        parts: list[MessagePart] = []
        for entry in self.entries[index]:
            if isinstance(entry.parts[0], ToolCallPart):
                parts += [_with_id(entry.parts[0], next(calls).id)] if index in self.calls else []
            elif entry.result is None:
                parts += entry.parts
        if _are_same(parts, message.parts):
            return message
        changed = structs.replace(message, parts=tuple(parts))
        return None if _is_empty(changed) else changed

    def results(self, index: int) -> list[ChatMessage]:
        """Return the messages with all results of a round. Its own results keep their positions among other parts."""
        run = [self.messages[place] for place in self.runs[index]]
        answers = deque(_answer(call) for call in self.calls[index])
        parts: list[MessagePart] = []
        for entry in (entry for place in self.runs[index] for entry in self.entries[place]):
            if entry.result is None and not isinstance(entry.parts[0], ToolCallPart):
                parts += entry.parts
            elif self.is_in_place(entry):
                parts += answers.popleft()
        parts += [part for answer in answers for part in answer]
        holders = [message for message in run if any(isinstance(part, ToolResultPart) for part in message.parts)]
        if len(holders) == 1 and _are_same(parts, [part for message in run for part in message.parts]):
            return run
        metadata = {key: value for message in run for key, value in message.metadata.items()}
        return [ChatMessage("tool", tuple(parts), metadata)]

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of calls and results."""
        for calls in self.calls.values():
            yield from self._round_problems(calls)
        for entry in (entry for entries in self.entries for entry in entries):
            part, index = entry.parts[0], entry.index
            if isinstance(part, ToolCallPart) and index not in self.calls:
                what = f"The call {part.id!r} of {part.name} is in a {self.messages[index].role} message."
                yield Problem(index, "stray-call", what, "Remove it; only model messages may contain calls.")
            elif isinstance(part, ToolResultPart) and entry.call is None:
                what = f"The result {part.id!r} of {part.name} has no earlier call that still needs a result."
                yield Problem(index, "orphan-result", what, "Remove it, or add the message with its call.")
            elif isinstance(part, ToolResultPart) and not self.is_in_place(entry):
                what = f"The result {part.id!r} of {part.name} is not right after its call."
                fix = f"Move it into a tool message right after message {cast(_Call, entry.call).index}."
                yield Problem(index, "misplaced-result", what, fix)

    def _round_problems(self, calls: list[_Call]) -> Iterator[Problem]:
        for call in calls:
            what = f"The call {call.part.id!r} of {call.part.name}"
            if call.answer is None and call.index != self.last:
                fix = "Add its result in a tool message right after it."
                yield Problem(call.index, "dangling-call", f"{what} has no result.", fix)
            if call.id != call.part.id:
                fix = f"Give it and its result another id, e.g. {call.id!r}."
                yield Problem(call.index, "duplicate-id", f"{what} has the same id as an earlier call.", fix)
        answers = [call.answer for call in calls if call.answer is not None and self.is_in_place(call.answer)]
        places = [(answer.index, answer.place) for answer in answers]
        if len({index for index, _ in places}) > 1 or places != sorted(places):
            what = "The results of one round are in several messages, or not in the order of their calls."
            yield Problem(min(places)[0], "scattered-results", what, "Put them into one message, in that order.")


def _pair(messages: Sequence[ChatMessage]) -> _Pairing:
    """Match results to calls, each to the first unanswered call with its id in the latest message that has one."""
    pairing = _Pairing(messages)
    waiting: dict[str, list[deque[_Call]]] = {}  # By id, grouped by message.
    ids = _Ids()
    opener = -1
    for index, message in enumerate(messages):
        if _is_empty(message):
            continue
        pairing.last = index
        if message.role != "tool":
            opener = index
        elif opener in pairing.runs:
            pairing.runs[opener].append(index)
            pairing.openers[index] = opener
        for entry in pairing.entries[index]:
            part = entry.parts[0]
            if isinstance(part, ToolCallPart) and message.role not in _NEVER_CALL:
                call = _Call(index, part, ids.free(part.id))
                pairing.calls.setdefault(index, []).append(call)
                pairing.runs.setdefault(index, [])
                groups = waiting.setdefault(part.id, [])
                if not groups or groups[-1][0].index != index:
                    groups.append(deque())
                groups[-1].append(call)
            elif isinstance(part, ToolResultPart) and (groups := waiting.get(part.id)):
                entry.call = groups[-1].popleft()
                entry.call.answer = entry
                if not groups[-1]:
                    groups.pop()
    return pairing


def _entries(index: int, message: ChatMessage) -> list[_Entry]:
    entries: list[_Entry] = []
    for part in message.parts:
        is_attached = not isinstance(part, ToolCallPart | ToolResultPart | ApprovalPart)
        if is_attached and message.role == "tool" and entries and entries[-1].result is not None:
            entries[-1].parts.append(part)
        else:
            entries.append(_Entry(index, len(entries), [part]))
    return entries


def _answer(call: _Call) -> list[MessagePart]:
    if call.answer is None:
        return [ToolResultPart(call.id, call.part.name, NOT_EXECUTED, True)]
    result, *attached = call.answer.parts
    return [_with_id(cast(ToolResultPart, result), call.id), *attached]


_PartT = TypeVar("_PartT", ToolCallPart, ToolResultPart)


def _with_id(part: _PartT, new_id: str) -> _PartT:
    return part if part.id == new_id else structs.replace(part, id=new_id)


class _Ids:
    """The ids in use."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Last number appended to an id, by id."""

    def free(self, wanted: str) -> str:
        """Reserve and return this id, with a number appended if it is taken."""
        free, number = wanted, self._numbers.get(wanted, 1)
        while free in self._taken:
            number += 1
            free = f"{wanted}_{number}"
        self._numbers[wanted] = number
        self._taken.add(free)
        return free


def _are_same(parts: Sequence[MessagePart], others: Sequence[MessagePart]) -> bool:
    return len(parts) == len(others) and all(part is other for part, other in zip(parts, others, strict=True))


def _is_empty(message: ChatMessage) -> bool:
    """Return whether providers would get nothing of the message. A session may replace its parts."""
    if any(key.startswith("_") and key != PROVENANCE for key in as_object(message.metadata)):
        return False
    return not any(not isinstance(part, TextPart | ThinkingPart) or part.text.strip() for part in message.parts)


def _message_problems(index: int, message: ChatMessage) -> Iterator[Problem]:
    if message.role not in _ROLES:
        fix = f"Use one of {', '.join(_ROLES)}; the role that some APIs call assistant is model."
        yield Problem(index, "unknown-role", f"The role {message.role!r} is unknown.", fix)
    if _is_empty(message):
        yield Problem(index, "empty-message", "The message has no content.", "Remove it.")
    if message.role != "model":
        for key in filter(is_session_key, as_object(message.metadata)):
            what = f"A {message.role} message has the session key {key!r}, which only model messages have."
            yield Problem(index, "foreign-session", what, "Remove the key from its metadata.")
    for name, value in _json_values(message):
        path = _not_json(value, name)
        if path is not None:
            fix = "Use only dicts with string keys, lists, strings, finite numbers, booleans and None."
            yield Problem(index, "not-json", f"{path} cannot be converted to JSON.", fix)


def _json_values(message: ChatMessage) -> Iterator[tuple[str, Any]]:
    yield "metadata", message.metadata
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            yield f"input of {part.id!r}", part.input
        elif isinstance(part, ToolResultPart):
            yield f"result {part.id!r}", part.result


def _not_json(value: object, path: str) -> str | None:
    """Return the path of the first value that does not survive conversion to JSON, or None."""
    try:
        return next(_no_json(value, path), None)
    except RecursionError:
        return path


def _no_json(value: object, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in cast(dict[object, object], value).items():
            where = f"{path}.{key}"
            yield from _no_json(inner, where) if isinstance(key, str) else (where,)
    elif isinstance(value, list):
        for index, inner in enumerate(cast(list[object], value)):
            yield from _no_json(inner, f"{path}[{index}]")
    elif not (value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))):
        yield path

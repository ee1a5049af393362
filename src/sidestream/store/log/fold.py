"""Folds of the event log: the messages of a conversation, what is unresolved in it, and where its last turn stands."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.messages.message import ChatMessage
from sidestream.store.log.rebuild import OpenTurn
from sidestream.store.log.segments import INCREMENTS, INPUT, event_with, joined_deltas
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    ApprovalRefused,
    GrantsSet,
    MessageAdded,
    Noted,
    Record,
    RequestPrepared,
    RunCancelled,
    RunStarted,
    Segment,
    ToolStarted,
    ToolSuspended,
    TurnDiscarded,
    TurnKept,
)
from sidestream.stream.parts import StreamPart, ToolCall, ToolEvent
from sidestream.tools.grants import Grant
from sidestream.turn.state import RunState
from sidestream.turn.status import TurnStatus


class UnresolvedCall(Struct, frozen=True):
    """A client tool call of the last turn that has no result."""

    call: ToolCall
    is_started: bool
    """True: the tool may have run. It is asked about, not repeated."""


class LogState(Struct, frozen=True, kw_only=True):
    """A conversation as it follows from its log."""

    head: int
    """The number of the last record."""
    messages: tuple[ChatMessage, ...]
    """The history: all complete turns, and what a turn that waits has said so far. Failed turns do not count."""
    status: TurnStatus = "complete"
    """How the last turn stands."""
    run_state: RunState | None = None
    """From where the last turn can be resumed; None if it is complete."""
    unresolved: tuple[UnresolvedCall, ...] = ()
    decided: frozenset[tuple[str, str]] = frozenset()
    """The keys of all decisions that were used in the conversation."""
    grants: tuple[Grant, ...] = ()
    """Tools that a person has allowed in the conversation."""


def fold(records: Iterable[Record]) -> LogState:
    """The state of a conversation after these records, which must be all of it."""
    log = _Log()
    for record in records:
        log.head = record.seq
        _FOLD[type(record.body)](log, record.body, record)
    turn = log.turn
    if turn is None or turn.status == "complete":
        log.settle()
        decided = frozenset(log.decided)
        return LogState(head=log.head, messages=tuple(log.messages), decided=decided, grants=log.grants)
    started, said = turn.state.started, tuple(turn.state.messages)
    state = turn.resumable()
    return LogState(
        head=log.head,
        messages=said if turn.status == "waiting" else tuple(log.messages),
        status=turn.status,
        run_state=RunState(state),
        unresolved=tuple(UnresolvedCall(call, call.id in started) for call in state.calls),
        decided=frozenset(log.decided),
        grants=state.grants,
    )


def joined(records: Iterable[Record]) -> list[Record]:
    """The records with the increments of each block in the record that closed it, its deltas as one.

    How the inputs of tools were written is left out: the calls have them. The increments of a block that was never
    closed stay as they are.
    """
    found: list[Record | None] = []
    grown: dict[int, list[int]] = {}
    """Place of an open block → where its increments are in `found`."""
    for record in records:
        body = record.body
        if not isinstance(body, Segment):
            pass
        elif body.kind == INPUT:
            continue
        elif body.kind in _BOUNDARIES:
            grown.clear()
        elif body.kind in INCREMENTS:
            grown.setdefault(body.place, []).append(len(found))
        elif body.kind in _CLOSING and body.place in grown:
            before = [found[index] for index in grown[body.place]]
            for index in grown.pop(body.place):
                found[index] = None
            parts = [part for each in before if each is not None for part in _parts(each)]
            record = replace(record, body=replace(body, parts=joined_deltas([*parts, *body.parts])))
        found.append(record)
    return [record for record in found if record is not None]


def stream_of(records: Iterable[Record]) -> list[StreamPart]:
    """The part stream that the records hold, with the deltas of a block joined: blocks in the order of their beginning.

    For a turn that was interrupted and resumed, the stream of each run begins anew.
    """
    parts: list[StreamPart] = []
    step: list[Segment] = []
    for segment in (record.body for record in joined(records) if isinstance(record.body, Segment)):
        if segment.kind in _BOUNDARIES:
            parts += _in_order(step)
            parts += segment.parts
            step = []
        else:
            step.append(segment)
    return parts + _in_order(step)


_CLOSING = frozenset(INCREMENTS.values())
_BOUNDARIES = frozenset({"step-start", "step-finish", "stream-start", "finish"})
"""Segments before and after which no block is open."""


def _parts(record: Record) -> tuple[StreamPart, ...]:
    return record.body.parts if isinstance(record.body, Segment) else ()


def _in_order(step: list[Segment]) -> list[StreamPart]:
    """The parts of a step, blocks in the order in which they began; deltas of one call's events joined."""
    parts: list[StreamPart] = []
    for part in (part for each in sorted(step, key=lambda each: each.place) for part in each.parts):
        last = parts[-1] if parts else None
        whole = event_with(last, part) if isinstance(last, ToolEvent) and isinstance(part, ToolEvent) else None
        if whole is None:
            parts.append(part)
        else:
            parts[-1] = whole
    return parts


class _Log:
    def __init__(self) -> None:
        self.head = 0
        self.messages: list[ChatMessage] = []
        self.turn: OpenTurn | None = None
        self.decided: set[tuple[str, str]] = set()
        self.grants: tuple[Grant, ...] = ()
        """Those before the last turn; they outlast a turn that is dropped."""

    def settle(self) -> None:
        """Takes the last turn into the history, if it came to its end."""
        turn = self.close()
        if turn is not None and turn.status == "complete":
            self.messages = turn.state.messages

    def close(self) -> OpenTurn | None:
        """The last turn, which is open no more."""
        turn, self.turn = self.turn, None
        self.grants = self.grants if turn is None else turn.state.grants
        return turn


def _message(log: _Log, body: MessageAdded, record: Record) -> None:
    log.settle()
    if body.opens_turn:
        log.turn = OpenTurn(log.messages, body.message, log.grants)
    else:
        log.messages.append(body.message)


def _run_started(log: _Log, body: RunStarted, record: Record) -> None:
    if log.turn is not None:
        log.turn.start_run(record.run, body.message_metadata, resumes=body.resumes)


def _of_turn(take: Callable[[OpenTurn, Any], None]) -> Callable[[_Log, Any, Record], None]:
    def handler(log: _Log, body: Any, record: Record) -> None:
        if log.turn is not None:
            take(log.turn, body)

    return handler


def _decided(log: _Log, body: ApprovalDecided, record: Record) -> None:
    log.decided.add(body.decision.key)
    if log.turn is not None:
        log.turn.decided(body)


def _refused(log: _Log, body: ApprovalRefused, record: Record) -> None:
    """It is kept for whoever reads the log."""


def _grants_set(log: _Log, body: GrantsSet, record: Record) -> None:
    log.grants = body.grants
    if log.turn is not None:
        log.turn.grants_set(body)


def _discarded(log: _Log, body: TurnDiscarded, record: Record) -> None:
    log.close()


def _kept(log: _Log, body: TurnKept, record: Record) -> None:
    if (turn := log.close()) is not None:
        log.messages = turn.said()


def _noted(log: _Log, body: Noted, record: Record) -> None:
    """Nothing follows from it here."""


_FOLD: dict[type, Callable[[_Log, Any, Record], None]] = {
    MessageAdded: _message,
    RunStarted: _run_started,
    Segment: _of_turn(OpenTurn.segment),
    RequestPrepared: _of_turn(OpenTurn.prepared),
    ToolStarted: _of_turn(OpenTurn.tool_started),
    ToolSuspended: _of_turn(OpenTurn.tool_suspended),
    ApprovalAsked: _of_turn(OpenTurn.asked),
    ApprovalDecided: _decided,
    ApprovalRefused: _refused,
    GrantsSet: _grants_set,
    RunCancelled: _of_turn(OpenTurn.cancelled),
    TurnDiscarded: _discarded,
    TurnKept: _kept,
    Noted: _noted,
}
"""Type of a record's body → what it does to the conversation."""

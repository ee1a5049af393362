"""Folds of the event log: the messages of a conversation, what is unresolved in it, and where its last turn stands."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from sidestream.messages.message import ChatMessage
from sidestream.store.rebuild import OpenTurn, TurnStatus
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    MessageAdded,
    Record,
    RequestPrepared,
    RunCancelled,
    RunStarted,
    Segment,
    ToolStarted,
    ToolSuspended,
    TurnDiscarded,
)
from sidestream.stream.parts import StreamPart, ToolCall
from sidestream.turn.state import RunState


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


def fold(records: Iterable[Record]) -> LogState:
    """The state of a conversation after these records, which must be all of it."""
    log = _Log()
    for record in records:
        log.head = record.seq
        _FOLD[type(record.body)](log, record.body, record)
    turn = log.turn
    if turn is None or turn.status == "complete":
        log.settle()
        return LogState(head=log.head, messages=tuple(log.messages))
    started, said = turn.state.started, tuple(turn.state.messages)
    state = turn.resumable()
    return LogState(
        head=log.head,
        messages=said if turn.status == "waiting" else tuple(log.messages),
        status=turn.status,
        run_state=RunState(state),
        unresolved=tuple(UnresolvedCall(call, call.id in started) for call in state.calls),
    )


def stream_of(records: Iterable[Record]) -> list[StreamPart]:
    """The part stream that the records hold, with the deltas of a block joined: blocks in the order of their beginning.

    For a turn that was broken off and resumed, the stream of each run begins anew.
    """
    parts: list[StreamPart] = []
    step: list[Segment] = []
    for segment in (record.body for record in records if isinstance(record.body, Segment)):
        if segment.kind in ("step-start", "step-finish", "stream-start", "finish"):
            parts += (part for each in sorted(step, key=lambda each: each.place) for part in each.parts)
            parts += segment.parts
            step = []
        else:
            step.append(segment)
    return parts + [part for each in sorted(step, key=lambda each: each.place) for part in each.parts]


class _Log:
    def __init__(self) -> None:
        self.head = 0
        self.messages: list[ChatMessage] = []
        self.turn: OpenTurn | None = None

    def settle(self) -> None:
        """Takes the last turn into the history, if it came to its end."""
        turn, self.turn = self.turn, None
        if turn is not None and turn.status == "complete":
            self.messages = turn.state.messages


def _message(log: _Log, body: MessageAdded, record: Record) -> None:
    log.settle()
    if body.opens_turn:
        log.turn = OpenTurn(log.messages, body.message)
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


def _discarded(log: _Log, body: TurnDiscarded, record: Record) -> None:
    log.turn = None


_FOLD: dict[type, Callable[[_Log, Any, Record], None]] = {
    MessageAdded: _message,
    RunStarted: _run_started,
    Segment: _of_turn(OpenTurn.segment),
    RequestPrepared: _of_turn(OpenTurn.prepared),
    ToolStarted: _of_turn(OpenTurn.tool_started),
    ToolSuspended: _of_turn(OpenTurn.tool_suspended),
    ApprovalAsked: _of_turn(OpenTurn.asked),
    ApprovalDecided: _of_turn(OpenTurn.decided),
    RunCancelled: _of_turn(OpenTurn.cancelled),
    TurnDiscarded: _discarded,
}
"""Type of a record's body → what it does to the conversation."""

"""Folds of the event log, which rebuild the messages, the unresolved calls and the last turn of a conversation."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.messages.fold import APPROVAL_DECIDED, OUTPUT_REJECTED, MessageMetadata
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.messages.sessions import forked
from sidestream.parts import (
    Custom,
    Finish,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolEvent,
    Usage,
)
from sidestream.store.log.segments import INCREMENTS, INPUT, event_with, joined_deltas
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    ApprovalRefused,
    EvidenceChecked,
    Forked,
    GrantsSet,
    MessageAdded,
    Noted,
    Record,
    RequestPrepared,
    RequestSent,
    ResponseReceived,
    RunCancelled,
    RunStarted,
    Segment,
    ToolStarted,
    ToolSuspended,
    TurnDiscarded,
    TurnKept,
)
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.tools.grants import Grant
from sidestream.turn import ledger
from sidestream.turn.ledger import Ledger
from sidestream.turn.state import RunState, TurnState, TurnStatus, status_after


class OpenTurn:
    """A turn rebuilt from its records."""

    def __init__(self, history: Iterable[ChatMessage], message: ChatMessage, grants: tuple[Grant, ...] = ()) -> None:
        self.status: TurnStatus = "unfinished"
        self._settled = Ledger(TurnState(messages=[*history, message], grants=grants), is_logged=True)
        self._approvals: list[PendingApproval | Decision | Custom] = []
        """Latest approval requests and decisions, in order. They are applied in groups, since there may be thousands.
        """
        self._step: list[Segment] | None = None
        """Blocks of the current step, whose end is not recorded yet."""
        self._failed_step: list[Segment] = []
        """Blocks of the last step if it failed. They count only in `said`."""

    @property
    def _ledger(self) -> Ledger:
        """The state reducer, with all records so far applied."""
        entries, self._approvals = self._approvals, []
        for kind, group in groupby(entries, type):
            if kind is PendingApproval:
                ledger.ask(self._settled.state, *cast("Iterator[PendingApproval]", group))
            elif kind is Decision:
                ledger.decide(self._settled.state, *cast("Iterator[Decision]", group))
            else:
                self._settled.feed(list(cast("Iterator[Custom]", group)))
        return self._settled

    @property
    def state(self) -> TurnState:
        """State of the turn after its last record. Its messages are the whole history."""
        return self._ledger.state

    def start_run(self, run_id: str, policy: MessageMetadata, *, resumes: bool) -> None:
        """Apply the start of a run, or its resumption of this turn."""
        if resumes:
            self._settled = Ledger(self.resumable(), is_logged=True)
        self._ledger.fold.policy = policy
        self.state.run_id = run_id
        self.status = "unfinished"

    def segment(self, segment: Segment) -> None:
        """Apply the next finished block, or an increment of one."""
        part = segment.parts[0]
        if isinstance(part, StepStart):
            self._feed([part])
            self._step, self._failed_step = [], []
            self.status = "unfinished"
        elif isinstance(part, StepFinish):
            self._failed_step = self._step or [] if part.reason == "error" else []
            self._feed(self._taken_step())
            step = self._ledger.end_step(part)
            is_open = step.is_repeated or bool(self.state.steers)
            if part.reason not in ("tool-calls", "approval", "error") and not is_open:
                self.status = "complete"
        elif self._step is not None:
            self._step.append(segment)
        else:
            self._between(segment.parts)

    def prepared(self, body: RequestPrepared) -> None:
        """Apply a request that differs from the usual one."""
        ledger.prepare(self.state, frozenset(body.without), defers_output=body.defers_output)

    def asked(self, body: ApprovalAsked) -> None:
        """Apply an approval request."""
        self._approvals.append(body.approval)

    def decided(self, body: ApprovalDecided) -> None:
        """Apply an approval decision."""
        self._approvals.append(body.decision)

    def grants_set(self, body: GrantsSet) -> None:
        """Apply the new remembered approvals."""
        self.state.grants = body.grants

    def tool_started(self, body: ToolStarted) -> None:
        """Apply the start of a client tool, or the continuation of a suspended subagent."""
        ledger.start_tool(self.state, body.call_id, body.key, body.on_interruption)

    def tool_suspended(self, body: ToolSuspended) -> None:
        """Apply the suspension of a tool."""
        ledger.suspend_tool(self.state, body.call_id, body.suspended)

    def cancelled(self, body: RunCancelled) -> None:
        """Apply the cancellation of the run."""
        self.status = "cancelled"

    def said(self) -> list[ChatMessage]:
        """Return the history with all output of this turn, including the text of an unfinished step."""
        texts: dict[str, str] = {}
        for segment in sorted(self._step or self._failed_step, key=lambda segment: segment.place):
            for part in segment.parts:
                if isinstance(part, TextDelta):
                    texts[part.id] = texts.get(part.id, "") + part.delta
                elif isinstance(part, TextEnd) and part.text is not None:
                    texts[part.id] = part.text
        partial = tuple(TextPart(text, id) for id, text in texts.items() if text)
        return [*self.state.messages, *([ChatMessage("model", partial)] if partial else ())]

    def resumable(self) -> TurnState:
        """Return the state from which a run continues this turn, including recorded blocks of an unfinished step."""
        self._feed(self._taken_step())
        return ledger.resumable(self.state)

    def _taken_step(self) -> list[StreamPart]:
        """Take the parts of the current step, with blocks in the order in which they began."""
        step, self._step = self._step or [], None
        return [part for segment in sorted(step, key=lambda segment: segment.place) for part in segment.parts]

    def _feed(self, parts: list[StreamPart]) -> None:
        self._ledger.feed(parts)

    def _between(self, parts: tuple[StreamPart, ...]) -> None:
        """Apply parts that occur between two steps."""
        for part in parts:
            if isinstance(part, Finish):
                self.status = status_after(part.reason)
            elif _needs_step(part):
                self.status = "unfinished"
        if len(parts) == 1 and isinstance(parts[0], Custom) and parts[0].kind == APPROVAL_DECIDED:
            self._approvals.append(parts[0])
        else:
            self._feed(list(parts))


def _needs_step(part: StreamPart) -> bool:
    """Return whether this part, between two steps, means that another step follows."""
    if isinstance(part, Steer):
        return part.status != "failed"
    return isinstance(part, Custom) and part.kind == OUTPUT_REJECTED


class UnresolvedCall(Struct, frozen=True):
    """A client tool call of the last turn that has no result."""

    call: ToolCall
    is_started: bool
    """Whether the tool may have run. Such a call is not repeated without asking."""


class LogState(Struct, frozen=True, kw_only=True):
    """The state of a conversation, rebuilt from its log."""

    head: int
    """Sequence number of the last record."""
    messages: tuple[ChatMessage, ...]
    """History: all complete turns, and the output so far of a waiting turn. Failed turns do not count."""
    status: TurnStatus = "complete"
    """Status of the last turn."""
    run_state: RunState | None = None
    """State from which the last turn can be resumed. None means that the turn is complete."""
    unresolved: tuple[UnresolvedCall, ...] = ()
    decided: frozenset[tuple[str, str]] = frozenset()
    """Keys of all decisions that were used in the conversation."""
    grants: tuple[Grant, ...] = ()
    """Remembered approvals of the conversation."""
    forked_from: Forked | None = None
    """Origin of a conversation that was forked from another one."""


def fold(records: Iterable[Record]) -> LogState:
    """Rebuild the state of a conversation from its records, which must be complete."""
    log = _Log()
    for record in records:
        log.head = record.seq
        _FOLD[type(record.body)](log, record.body, record)
    turn = log.turn
    if turn is None or turn.status == "complete":
        log.settle()
        decided = frozenset(log.decided)
        messages = tuple(log.messages)
        return LogState(head=log.head, messages=messages, decided=decided, grants=log.grants, forked_from=log.forked)
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
        forked_from=log.forked,
    )


def joined(records: Iterable[Record]) -> list[Record]:
    """Merge the increments of each block into the record that closed it, with its deltas joined.

    Deltas of tool inputs are omitted, since the calls contain the inputs. The increments of a block that was never
    closed are returned unchanged.
    """
    found: list[Record | None] = []
    grown: dict[int, list[int]] = {}
    """Position of an open block → indices of its increments in `found`."""
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
    """Return the part stream of the records, with joined deltas and blocks in the order in which they began.

    If a turn was interrupted and resumed, each run has a separate stream.
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
    """Return the parts of a step, with blocks in the order in which they began and event deltas of one call joined."""
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
        """Remembered approvals before the last turn, which remain if that turn is dropped."""
        self.forked: Forked | None = None

    def settle(self) -> None:
        """Add the last turn to the history if it is complete."""
        turn = self.close()
        if turn is not None and turn.status == "complete":
            self.messages = turn.state.messages

    def close(self) -> OpenTurn | None:
        """Close the last turn and return it."""
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
    """Ignore a refused decision, which is recorded only for readers of the log."""


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
    """Ignore a note, which does not affect the conversation."""


def _checked(log: _Log, body: EvidenceChecked, record: Record) -> None:
    """Ignore a check of citations, which is recorded only for readers of the log."""


def _forked(log: _Log, body: Forked, record: Record) -> None:
    """Note the origin. It paid for the copied part of the turn, and its sessions at the provider are marked."""
    log.forked = body
    log.messages = forked(log.messages)
    if log.turn is not None:
        state = log.turn.state
        state.usage, state.messages = Usage(), forked(state.messages)


def _exchanged(log: _Log, body: RequestSent | ResponseReceived, record: Record) -> None:
    """Ignore a request or the bytes of a response, which are recorded only for readers of the log."""


_FOLD: dict[type, Callable[[_Log, Any, Record], None]] = {
    MessageAdded: _message,
    RunStarted: _run_started,
    Segment: _of_turn(OpenTurn.segment),
    RequestPrepared: _of_turn(OpenTurn.prepared),
    RequestSent: _exchanged,
    ResponseReceived: _exchanged,
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
    Forked: _forked,
    EvidenceChecked: _checked,
}
"""Handlers, by type of a record's body."""

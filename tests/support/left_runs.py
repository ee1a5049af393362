"""Whether a run that is left at some point can be rebuilt from its log: the state that follows from the records equals
the state of the live turn, field by field."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import to_builtins

from sidestream.messages.fold import FoldState, MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.parts import StreamPart, StreamStart, ToolCall
from sidestream.run.run import Run
from sidestream.store.log.fold import LogState, fold
from sidestream.store.log.segments import SegmentFold
from sidestream.store.log.writer import imported
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    Body,
    EvidenceChecked,
    GrantsSet,
    MessageAdded,
    Record,
    RequestPrepared,
    Row,
    RunStarted,
    Segment,
    ToolStarted,
    ToolSuspended,
    kind_of,
    pack,
    unpack,
)
from sidestream.tools.approvals import Decision, PendingApproval, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.turn.ledger import resumable
from sidestream.turn.state import Over, TurnState, TurnStatus, copied


class Log:
    """Records the runs of one turn, in memory, and compares them with the live turn whenever it is asked to."""

    def __init__(self, history: Iterable[ChatMessage] = (), *, cuts: bool = False) -> None:
        self.cuts = cuts
        """True: after each part, what is open is written as an increment."""
        self.run: Run[Any] | None = None
        self.checks = 0
        self.bodies: list[Body] = []
        """What was recorded."""
        self._rows: list[tuple[Row, dict[str, bytes]]] = []
        self._segments = SegmentFold()
        self._changes = 0
        self._told: tuple[int, _Told] | None = None
        """The number of changes at the last comparison, and what the log gave then."""
        self._run_id = ""
        for body in imported(history):
            self._add(body)

    # The recorder of a run

    def begin(
        self,
        run_id: str,
        *,
        model: str,
        opening: Sequence[ChatMessage],
        message_metadata: MessageMetadata,
        decisions: Sequence[Decision],
    ) -> None:
        self._run_id, self._segments = run_id, SegmentFold()
        self._changes += 1
        for message in opening:
            self._add(MessageAdded(message))
        self._add(RunStarted(model, message_metadata, resumes=not opening))
        for decision in decisions:
            self._add(ApprovalDecided(decision))

    def feed(self, parts: Iterable[StreamPart]) -> None:
        self._changes += 1
        for segment in self._segments.feed(parts):
            self._add(segment)
        for segment in self._segments.increments() if self.cuts else ():
            self._add(segment)

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        self._add(RequestPrepared(tuple(sorted(without)), defers_output))

    keeps_responses = False

    def sent(self, body: bytes | None, *, model: str, path: str, step: int) -> None: ...

    def received(self, content: bytes, *, step: int, status: int, is_stream: bool) -> None: ...

    def asked(self, approval: PendingApproval) -> None:
        self._add(ApprovalAsked(approval))

    def granted(self, grants: Sequence[Grant]) -> None:
        self._add(GrantsSet(tuple(grants)))

    def tool_started(self, call: ToolCall, key: str, policy: InterruptionPolicy) -> None:
        self._add(ToolStarted(call.id, call.name, key, policy))

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        self._add(ToolSuspended(call_id, suspended))

    def checked(self, check: EvidenceChecked, pages: Mapping[str, bytes]) -> None:
        self._add(check)

    def left(self) -> None:
        pass

    def cancelled(self) -> None:
        pass

    async def commit(self) -> StreamPart | None:
        self.check()
        return None

    def _add(self, body: Body) -> None:
        self._changes += 1
        self.bodies.append(body)
        self._rows.append(_row(len(self.bodies), self._run_id, body))  # written at once, as a store does

    # What follows from the records

    def state(self) -> LogState:
        """The conversation as a reader of the log would find it if the run were left now."""
        return fold(self._records(self._run_id, self._open()))

    def resumed_state(self) -> TurnState:
        """What a second resumption would continue from, if a first one were left before it did anything."""
        begun = (RunStarted("m", resumes=True), Segment("stream-start", (StreamStart(()),)))
        state = fold(self._records("next", [*self._open(), *begun])).run_state
        assert state is not None
        return state.turn

    def _open(self) -> list[Segment]:
        """What would be written of the blocks that are open."""
        return copy.deepcopy(self._segments).end()

    def _records(self, run: str, rest: Iterable[Body]) -> Iterable[Record]:
        """The records as they are read, each time anew, and the rest after them."""
        for row, blobs in self._rows:
            yield unpack(row, blobs.__getitem__)
        for seq, body in enumerate(rest, len(self._rows) + 1):
            row, blobs = _row(seq, run, body)
            yield unpack(row, blobs.__getitem__)

    def check(self) -> None:
        """Compares what the log would give with the live turn. The live turn is not changed."""
        run = self.run
        if run is None or not any(isinstance(body, RunStarted) for body in self.bodies):
            return
        live, told = run.turn.state, self._read()
        if told.status == "complete":
            assert plain(live.messages) == told.messages
        else:
            expected = fields(resumable(copied(live)))
            assert told.turn == expected, type(live.command).__name__
            assert not isinstance(live.command, Over) or told.status in ("failed", "unfinished")
            assert told.resumed == {**expected, "run_id": "next"}, type(live.command).__name__
        self.checks += 1

    def _read(self) -> "_Told":
        """Return what the log gives. It is read again only if it has changed since the last time."""
        if self._told is None or self._told[0] != self._changes:
            self._told = self._changes, self._read_again()
        return self._told[1]

    def _read_again(self) -> "_Told":
        state = self.state()
        if state.status == "complete":
            return _Told(state.status, messages=plain(list(state.messages)))
        assert state.run_state is not None
        return _Told(state.status, turn=fields(state.run_state.turn), resumed=fields(self.resumed_state()))


class _Told(NamedTuple):
    """What follows from the records, as plain values."""

    status: TurnStatus
    messages: Any = None
    """Those of a turn that is complete."""
    turn: dict[str, Any] | None = None
    """The state from which any other turn continues."""
    resumed: dict[str, Any] | None = None
    """The same after a resumption that did nothing."""


def _row(seq: int, run: str, body: Body) -> tuple[Row, dict[str, bytes]]:
    data, blobs = pack(body)
    return Row(seq=seq, time=0.0, run=run, kind=kind_of(body), body=data, blobs=tuple(blobs)), blobs


def fields(state: TurnState) -> dict[str, Any]:
    """A state as plain values; a fold that holds nothing is the same as none."""
    return {**plain(state), "fold": plain(state.fold or FoldState())}


def plain(value: Any) -> Any:
    return to_builtins(value, order="sorted")

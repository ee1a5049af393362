"""Copies of logs for forks, with one fact changed. A fork never writes to the log that it was copied from."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage
from sidestream.messages.steering import steer_of
from sidestream.parts import Custom, StreamPart, ToolCall, ToolResult
from sidestream.store.log.fold import LogState
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    Body,
    MessageAdded,
    Record,
    Row,
    RunStarted,
    Segment,
    ToolStarted,
    kind_of,
    pack,
    unpack,
)
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.rounds import decided, denial, tool_result
from sidestream.turn.state import BACKGROUND, LOST

_OWN_IDS = re.compile(rb"\b(run|approval)_[0-9a-f]{32}\b")
"""Ids that are valid in one conversation only."""
_ASKED = frozenset({"approval-asked", "tool-approval-request", "tool-suspended"})
"""Records with the ids of new approvals."""
_SENT = frozenset({"request-sent", "step-start"})
"""Records after which the model has seen earlier results."""
_DECIDED = frozenset({"approval-decided", "custom"})
"""Records with a decision on an approval."""


class Changes(Struct, frozen=True, kw_only=True):
    """The facts that a fork changes at its point."""

    results: Mapping[str, Any] = {}
    """Results of client tools, by call id."""
    denied: tuple[str, ...] = ()
    """Ids of calls that are denied."""
    message: ChatMessage | None = None
    """Message of the user, which the next request takes."""
    model: str | None = None
    system: str | None = None

    def to_json(self) -> jsontext.JsonObject:
        """Return what is changed, by kind."""
        fields = {
            "model": self.model,
            "system": self.system,
            "result": dict(self.results) or None,
            "deny": list(self.denied) or None,
            "message": None if self.message is None else self.message.text,
        }
        return jsontext.without_none(fields)


class Copy:
    """The rows of a fork, as they grow from those of the log that it is copied from."""

    def __init__(self, rows: Sequence[Row], redact: Callable[[Body], Body]) -> None:
        self.rows: list[Row] = []
        self.blobs: dict[str, bytes] = {}
        """Blobs that the store may not have yet."""
        self.is_longer = False
        """Whether records were added, so that numbers in later records of the log are not those of the copy."""
        self._ids: dict[bytes, bytes] = {}
        """Ids of runs and approvals in the log → those of the copy. Texts may hold others, which stay."""
        self._redact = redact
        self.extend(rows)

    def extend(self, rows: Sequence[Row]) -> None:
        """Copy the next rows, with their own ids for runs and approvals."""
        self.rows += map(self._copied, rows)

    def change(self, changes: Changes) -> None:
        """Change results and denied calls. Raises ConfigurationError if the model has seen the results."""
        if both := changes.results.keys() & set(changes.denied):
            raise ConfigurationError(f"the call {min(both)!r} cannot have another result and be denied")
        for call_id, value in changes.results.items():
            self._answer(call_id, lambda call, value=value: tool_result(call, value, is_error=False))
        for call_id in changes.denied:
            if (asked := self._asked_remotely(call_id)) is not None:
                self._deny(asked)
            else:
                self._answer(call_id, lambda call: tool_result(call, denial(call.tool), is_error=True))

    def say(self, message: ChatMessage, state: LogState) -> None:
        """Add a message of the user, as the next turn or to the turn that the state is in."""
        if state.run_state is None:
            self.add(MessageAdded(message))
        else:
            self.add_part(steer_of(message, f"steer_{os.urandom(8).hex()}"))

    def start(self, state: LogState, later: Sequence[Row]) -> None:
        """Take the original's start of each tool that it ran after the point, so that none runs again unasked."""
        waiting = () if state.run_state is None else state.run_state.turn.waiting
        ready = {found.call.id for found in state.unresolved if not found.is_started}
        ready -= {approval.call_id for approval in waiting}
        for row in later:
            if row.kind == "tool-started":
                body = unpack(row).body
                assert isinstance(body, ToolStarted)
                if body.call_id in ready:
                    self.add(body)

    def detach(self, state: LogState) -> None:
        """Give up a response in the background, which the original may still fetch."""
        held = None if state.run_state is None else state.run_state.turn.background
        if held is not None:
            message = f"The answer {held.id} belongs to the conversation that was forked; a new one is requested."
            data = {"provider": held.provider, "id": held.id, "is_streamed": held.is_streamed}
            self.add_part(Custom(BACKGROUND, {**data, "status": LOST, "message": message}))

    def add(self, body: Body) -> None:
        """Add a record of the fork's own."""
        self.is_longer = True
        like = replace(self.rows[-1], time=time.time())
        self.rows.append(self._row(self._redact(body), len(self.rows) + 1, like))

    def add_part(self, part: StreamPart) -> None:
        """Add a part of the stream."""
        self.add(Segment(part.type, (part,), len(self.rows) + 1))

    def _asked_remotely(self, call_id: str) -> PendingApproval | None:
        """Return the approval that the provider requested for a call that it executes itself."""
        for row in reversed(self.rows):
            if row.kind == "approval-asked" and call_id.encode() in row.body:
                body = unpack(row).body
                assert isinstance(body, ApprovalAsked)
                if body.approval.call_id == call_id and body.approval.is_remote:
                    return body.approval
        return None

    def _deny(self, approval: PendingApproval) -> None:
        """Deny a call of the provider, instead of an approval if there is one."""
        at = max(index for index, row in enumerate(self.rows) if row.kind == "approval-asked")
        if seen := next((row.seq for row in self.rows[at:] if row.kind in _SENT), None):
            raise ConfigurationError(
                f"the provider has the decision on {approval.call_id!r} from record {seen}; fork at record {seen - 1} "
                "or before"
            )
        if any(row.kind in _DECIDED and approval.approval_id.encode() in row.body for row in self.rows[at:]):
            raise ConfigurationError(
                f"the decision on {approval.call_id!r} is made before the fork; fork at record {at + 1}"
            )
        self.add(ApprovalDecided(approval.deny()))
        self.add_part(decided(approval.approval_id, is_approved=False))

    def _answer(self, call_id: str, made: Callable[[ToolCall], ToolResult]) -> None:
        """Replace the result of a call, or add one if it has none."""
        call: ToolCall | None = None
        at: int | None = None
        for index, row in enumerate(self.rows):
            if row.kind in ("tool-call", "tool-result") and call_id.encode() in row.body:
                part = _part(unpack(row))
                if isinstance(part, ToolCall) and part.id == call_id and not part.provider_executed:
                    call, at = part, None
                elif isinstance(part, ToolResult) and part.id == call_id and not part.preliminary:
                    at = index
        if call is None:
            raise ConfigurationError(f"no tool of this process was called as {call_id!r} before the fork")
        given = self._redact(Segment("tool-result", (made(call),)))
        if at is None:
            if any(row.kind == "tool-call" for row in self.rows[_last(self.rows, "step-finish") :]):
                raise ConfigurationError(f"the step that calls {call_id!r} is not complete there; fork after its end")
            self.add(given)
            return
        if seen := next((row.seq for row in self.rows[at:] if row.kind in _SENT), None):
            raise ConfigurationError(
                f"the model has the result of {call_id!r} from record {seen}; fork at record {seen - 1} or before"
            )
        assert isinstance(given, Segment)
        given = replace(given, place=_place(unpack(self.rows[at])))
        self.rows[at] = self._row(given, at + 1, self.rows[at])

    def _row(self, body: Body, seq: int, like: Row) -> Row:
        data, blobs = pack(body)
        self.blobs |= blobs
        return replace(like, seq=seq, kind=kind_of(body), body=data, blobs=tuple(blobs))

    def _copied(self, row: Row) -> Row:
        run = self._own(row.run.encode()).decode()
        if row.kind in _ASKED:
            for found in _OWN_IDS.finditer(row.body):
                self._own(found[0])
        row = replace(row, run=run, body=_OWN_IDS.sub(lambda found: self._ids.get(found[0], found[0]), row.body))
        if row.kind == "run-started":  # Its job must not be executed again by a worker.
            record = unpack(row).body
            assert isinstance(record, RunStarted)
            row = replace(row, body=pack(replace(record, details={}))[0])
        return row

    def _own(self, id: bytes) -> bytes:
        kind = id.partition(b"_")[0]
        return self._ids.setdefault(id, b"%b_%b" % (kind, os.urandom(16).hex().encode())) if id else id


def turn_end(rows: Sequence[Row], at: int) -> int:
    """Return the number of rows up to the end of the turn that the record `at` belongs to."""
    return next((row.seq - 1 for row in rows[at:] if row.kind == "message"), len(rows))


def _part(record: Record) -> StreamPart | None:
    return record.body.parts[0] if isinstance(record.body, Segment) else None


def _place(record: Record) -> int:
    return record.body.place if isinstance(record.body, Segment) else 0


def _last(rows: Sequence[Row], kind: str) -> int:
    return max((index for index, row in enumerate(rows) if row.kind == kind), default=0)

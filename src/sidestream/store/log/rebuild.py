"""The last turn of a log: its state, rebuilt by the ledger that the live turn uses, and how it ended."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import cast

from sidestream.messages.fold import APPROVAL_DECIDED, OUTPUT_REJECTED, MessageMetadata
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    GrantsSet,
    RequestPrepared,
    RunCancelled,
    Segment,
    ToolStarted,
    ToolSuspended,
)
from sidestream.stream.parts import Custom, Finish, Steer, StepFinish, StepStart, StreamPart, TextDelta, TextEnd
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.tools.grants import Grant
from sidestream.turn import ledger
from sidestream.turn.ledger import Ledger
from sidestream.turn.state import TurnState
from sidestream.turn.status import TurnStatus, status_after


class OpenTurn:
    """Follows the records of one turn."""

    def __init__(self, history: Iterable[ChatMessage], message: ChatMessage, grants: tuple[Grant, ...] = ()) -> None:
        self.status: TurnStatus = "unfinished"
        self._settled = Ledger(TurnState(messages=[*history, message], grants=grants), is_logged=True)
        self._approvals: list[PendingApproval | Decision | Custom] = []
        """What was asked and decided last, in order. The ledger gets neighbours together: there may be thousands."""
        self._step: list[Segment] | None = None
        """The blocks of a step whose end has not come yet."""
        self._failed_step: list[Segment] = []
        """Those of the last step, if it failed: they count only for what was said."""

    @property
    def _ledger(self) -> Ledger:
        """The ledger, which knows of all records so far."""
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
        """Where the turn stood when its last record was written. Its messages are the whole history."""
        return self._ledger.state

    def start_run(self, run_id: str, policy: MessageMetadata, *, resumes: bool) -> None:
        """A run begins, or resumes this turn."""
        if resumes:
            self._settled = Ledger(self.resumable(), is_logged=True)
        self._ledger.fold.policy = policy
        self.state.run_id = run_id
        self.status = "unfinished"

    def segment(self, segment: Segment) -> None:
        """The next finished block, or an increment of one."""
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
        """A request was about to be sent that differs from the usual one."""
        ledger.prepare(self.state, frozenset(body.without), defers_output=body.defers_output)

    def asked(self, body: ApprovalAsked) -> None:
        """A call waits for a person."""
        self._approvals.append(body.approval)

    def decided(self, body: ApprovalDecided) -> None:
        """A person has decided."""
        self._approvals.append(body.decision)

    def grants_set(self, body: GrantsSet) -> None:
        """A grant was withdrawn."""
        self.state.grants = body.grants

    def tool_started(self, body: ToolStarted) -> None:
        """A client tool begins to run; a suspended agent continues."""
        ledger.start_tool(self.state, body.call_id, body.key, body.on_interruption)

    def tool_suspended(self, body: ToolSuspended) -> None:
        """A tool waits for a person, or for work that is done elsewhere."""
        ledger.suspend_tool(self.state, body.call_id, body.suspended)

    def cancelled(self, body: RunCancelled) -> None:
        """The run was left."""
        self.status = "cancelled"

    def said(self) -> list[ChatMessage]:
        """The history with all that this turn has said, the texts of an unfinished step included."""
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
        """The state from which a run continues this turn. Takes what is known of an unfinished step with it."""
        self._feed(self._taken_step())
        return ledger.resumable(self.state)

    def _taken_step(self) -> list[StreamPart]:
        """The parts of the current step, blocks in the order in which they began."""
        step, self._step = self._step or [], None
        return [part for segment in sorted(step, key=lambda segment: segment.place) for part in segment.parts]

    def _feed(self, parts: list[StreamPart]) -> None:
        self._ledger.feed(parts)

    def _between(self, parts: tuple[StreamPart, ...]) -> None:
        """What happens between two steps."""
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
    """True if this part, between two steps, says that another step follows."""
    if isinstance(part, Steer):
        return part.status != "failed"
    return isinstance(part, Custom) and part.kind == OUTPUT_REJECTED

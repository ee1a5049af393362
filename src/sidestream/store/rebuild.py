"""The last turn of a log: how far it came, and from where it can go on."""

from typing import Literal

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.messages.fold import APPROVAL_DECIDED, OUTPUT_REJECTED, MessageFold, MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.store.records import ApprovalAsked, ApprovalDecided, RunCancelled, Segment, ToolStarted, ToolSuspended
from sidestream.stream.parts import Custom, Finish, StepFinish, StepStart, StreamPart, ToolCall, ToolResult
from sidestream.tools.approvals import PendingApproval, Question, pending
from sidestream.turn import rounds
from sidestream.turn.background import background_in
from sidestream.turn.state import Judge, Send, TurnState, Wait

TurnStatus = Literal["complete", "waiting", "failed", "cancelled", "broken-off"]
"""`waiting`: for a person. `broken-off`: the process that ran it ended in the middle, or it still runs elsewhere."""

_ENDINGS: dict[str, TurnStatus] = {"approval": "waiting", "error": "failed"}
"""Finish reason → how the turn stands; any other reason completes it."""

UNCERTAIN = "was started before the run broke off; no result was recorded, so it may have run already"
HELD = "was to run beside a call that may have run already"


class OpenTurn:
    """Follows the records of one turn."""

    def __init__(self, message: ChatMessage) -> None:
        self.status: TurnStatus = "broken-off"
        self.messages: list[ChatMessage] = [message]
        """The user's message, and what the turn has added to it."""
        self.started: set[str] = set()
        self._fold = MessageFold()
        self._state = TurnState(messages=[])
        self._step: list[Segment] | None = None
        """The blocks of a step whose end has not come yet."""
        self._asked: dict[str, PendingApproval] = {}
        self._decided: dict[str, PendingApproval] = {}
        """Decisions on calls of the provider that have not been taken into the conversation yet."""

    def started_run(self, run_id: str, policy: MessageMetadata) -> None:
        """A run begins, or goes on with this turn: a step that was not finished is made again."""
        self._fold.policy = policy
        self._state.run_id = run_id
        self._step = None
        self.status = "broken-off"

    def segment(self, segment: Segment) -> None:
        """The next finished block."""
        part = segment.parts[0]
        if isinstance(part, StepStart):
            self._feed(part)
            self._step = []
            self.status = "broken-off"
            self._state.step = part.step
            self._state.calls, self._state.requests, self._state.ending = (), (), None
            self.started.clear()
        elif isinstance(part, StepFinish):
            self._end_step(part)
        elif self._step is not None:
            self._step.append(segment)
        else:
            for each in segment.parts:
                self._between(each)

    def asked_for(self, body: ApprovalAsked) -> None:
        """A call waits for a person."""
        approval = body.approval
        self._asked[approval.approval_id] = approval
        self._state.requests = tuple(r for r in self._state.requests if r.approval_id != approval.approval_id)

    def decided_on(self, body: ApprovalDecided) -> None:
        """A person has decided."""
        approval = self._asked.pop(body.decision.approval_id, None)
        if approval is not None and approval.is_remote:
            self._decided[approval.approval_id] = approval

    def tool_started(self, body: ToolStarted) -> None:
        """A client tool begins to run; an agent that waited goes on."""
        self.started.add(body.call_id)
        self._state.suspended.pop(body.call_id, None)

    def suspended_agent(self, body: ToolSuspended) -> None:
        """A tool that is an agent waits for a person."""
        self.started.discard(body.call_id)
        self._state.suspended[body.call_id] = body.suspended

    def cancelled(self, body: RunCancelled) -> None:
        """The run was left."""
        self.status = "cancelled"

    def resumable(self, history: list[ChatMessage]) -> TurnState:
        """The state from which a run goes on with this turn."""
        state = self._state
        state.messages = [*history, *self.messages]
        state.waiting = (*self._asked.values(), *self._decided.values())
        state.is_in_step = False
        if self._step is not None:
            # The answer was not complete: it is asked for again, or fetched where the provider went on with it.
            state.step -= 1
            state.background = background_in(part for segment in self._step for part in segment.parts)
            state.calls, state.requests, state.command = (), (), Send()
            return state
        state.fold = self._fold.state
        if state.waiting or state.suspended:
            state.command = Wait()
        elif self.started & {call.id for call in state.calls}:
            state.waiting = tuple(self._uncertain(call) for call in state.calls)
            state.command = Wait()
        elif state.calls or state.requests:
            state.command = Judge(rounds.questions(state, state.calls, {}) + rounds.requests(state))
        else:
            state.messages += self._fold.end_round()
            state.ending, state.command = None, Send()
        return state

    def _uncertain(self, call: ToolCall) -> PendingApproval:
        """A call that a person must decide on, since it may have run."""
        question = Question(call_id=call.id, tool=call.name, input=call.input)
        waiting = pending(question, self._state.run_id, f"again_{call.id}")
        return replace(waiting, provenance=UNCERTAIN if call.id in self.started else HELD)

    def _feed(self, part: StreamPart) -> None:
        self.messages += self._fold.feed(part)

    def _end_step(self, finish: StepFinish) -> None:
        """Takes the blocks of a step in the order in which they began."""
        step, self._step = self._step or [], None
        state = self._state
        for segment in sorted(step, key=lambda segment: segment.place):
            for part in segment.parts:
                self._feed(part)
                rounds.note(state, part)
        state.usage = finish.usage if finish.step == 0 else state.usage + finish.usage
        state.tool_calls_made += len(state.calls)
        if finish.reason == "error":
            # What a failed step said does not count; it is asked for again.
            self._fold.feed(finish)
            state.calls, state.requests = (), ()
            return
        self._feed(finish)
        state.ending = Finish(finish.reason, finish.usage, outcome=finish.outcome)
        goes_on = finish.outcome is not None and finish.outcome.is_paused
        if finish.reason not in ("tool-calls", "approval") and not goes_on:
            self.status = "complete"

    def _between(self, part: StreamPart) -> None:
        """What happens between two steps."""
        state = self._state
        match part:
            case ToolResult(provider_executed=False):
                state.calls = tuple(call for call in state.calls if call.id != part.id)
                state.suspended.pop(part.id, None)
                if part.tool == "mcp":
                    rounds.read_from(state, f"mcp {part.name}")
            case Custom(kind=kind) if kind == APPROVAL_DECIDED:
                self._decided.pop(str(jsontext.as_object(part.data).get("approval_id")), None)
            case Custom(kind=kind) if kind == OUTPUT_REJECTED:
                state.rejected_outputs += 1
                self.status = "broken-off"
            case Finish():
                self._finish(part)
                return
            case _:
                pass
        self._feed(part)

    def _finish(self, part: Finish) -> None:
        self._feed(part)
        self.status = _ENDINGS.get(part.reason, "complete")

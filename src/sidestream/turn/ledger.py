"""The state reducer of a turn, which applies parts and other state transitions to the turn's state.

The live machine updates its state through it while a run streams, and the event log rebuilds the same state through it.
Only this module defines what they mean for the state. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import replace

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_object
from sidestream.limits import MAX_SOURCES
from sidestream.messages.fold import (
    APPROVAL_DECIDED,
    OUTPUT_REJECTED,
    Completed,
    MessageFold,
    MessageMetadata,
    without_step,
)
from sidestream.messages.message import ChatMessage
from sidestream.messages.provenance import forwarded_part, sources_in
from sidestream.messages.shortening import OVERFLOWED, SHORTENED, shortened_by
from sidestream.parts import (
    Custom,
    File,
    Finish,
    Source,
    Steer,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
    Usage,
    program_of,
)
from sidestream.tools.approvals import (
    Decision,
    PendingApproval,
    Question,
    Suspended,
    has_kind_of,
    has_own_grant,
    pending,
)
from sidestream.tools.grants import after_listing, with_grant
from sidestream.tools.interruption import INTERRUPTED, Attempt, InterruptionPolicy, policy_after
from sidestream.turn import rounds
from sidestream.turn.state import (
    BACKGROUND,
    AwaitDecision,
    CallTools,
    Check,
    Judge,
    OpenCall,
    ProgramAnswer,
    Send,
    TurnState,
    background_in,
)

if TYPE_CHECKING:
    from sidestream.stream.markers import Markers

UNCERTAIN = "was started before the run broke off; no result was recorded, so it may have run already"
HELD = "was to run beside a call that may have run already"

CONTEXT = "context"
"""Entry of `without` for a request that was too long, so that the next one is shorter."""
MODEL_FALLBACK = "sidestream.model-fallback"
"""Kind of the part that reports that a run continues with another model."""
JUDGED = "sidestream.citations-judged"
"""Kind of the part that reports that a model has judged citations, and its usage."""
_NONE: frozenset[str] = frozenset()
_PER_STEP = frozenset({"session", "container", CONTEXT})
"""Entries of `without` that apply to one step only."""


class EndedStep(Struct, frozen=True):
    """The result of a step."""

    messages: list[ChatMessage]
    """The model's message, or none if it is empty. After a failed step, it is partial and not in the history."""
    is_repeated: bool
    """Whether to send the conversation again at once, because the provider paused or the answer is still missing."""


class Ledger:
    """The state reducer of one turn."""

    def __init__(self, state: TurnState, policy: MessageMetadata = "session", *, is_logged: bool = False) -> None:
        self.state = state
        self.fold = MessageFold(policy, state.fold, is_logged=is_logged)
        state.fold = self.fold.state
        _read(state, sources_in(state.messages))
        self._markers: Markers | None = None
        self._brought: tuple[str, ...] = ()

    def _read_brought(self) -> None:
        """Record the sources that arrived since the last call. They are appended one by one, and may be hundreds."""
        brought, before = self.fold.state.brought.sources, self._brought
        _read(self.state, brought[len(before) :] if brought[: len(before)] == before else brought)
        self._brought = brought

    def placed(self, source: Source, new: Sequence[StreamPart]) -> Source:
        """Return a source with the link that cites it, if the model has written one. `new` parts are not fed yet."""
        if self._markers is None:
            # Not at the top: its patterns take 2 ms to compile, and most runs cite nothing.
            from sidestream.stream.markers import Markers

            self._markers = Markers()
        return self._markers.placed(source, self.fold.text_of, new, self.state.step)

    def feed(self, parts: Sequence[StreamPart]) -> list[Completed]:
        """Apply parts, except for `step-finish`, and return the messages that they complete."""
        fold, state = self.fold, self.state
        completed = fold.feed_all(parts)
        for _, messages in completed:
            state.messages += messages
            _read(state, sources_in(messages))
        if fold.state.brought.sources is not self._brought:
            self._read_brought()
        decided: set[str] = set()
        for part, handler in zip(parts, map(_BOOKKEEPING.get, map(type, parts)), strict=True):
            if handler is None:
                continue
            if type(part) is ToolEvent:
                if state.is_in_step:
                    continue  # An event of a provider tool; there may be thousands.
            elif type(part) is Custom and part.kind == APPROVAL_DECIDED:
                decided.add(str(as_object(part.data).get("approval_id")))
                continue
            if decided:
                _settle(state, decided)
            handler(state, part)
        if decided:
            _settle(state, decided)
        state.fold = fold.state
        return completed

    def end_step(self, part: StepFinish) -> EndedStep:
        """Apply the end of a step."""
        state = self.state
        follows_tools = bool(state.messages) and state.messages[-1].role == "tool"
        outcome = part.outcome or StepOutcome()
        messages = self.fold.feed(part)
        state.fold = self.fold.state
        state.is_in_step = False
        state.background = None if state.limit is None else state.background
        state.defers_output, defers_output = False, state.defers_output
        state.digests = _NONE
        state.without = state.without - _PER_STEP if state.without else _NONE
        state.usage = state.usage + part.usage
        state.ending = Finish(part.reason, part.usage, outcome.raw_reason, outcome.metadata)
        if part.reason == "error":
            # Drop the output of a failed step: the request is repeated when the turn is resumed.
            state.calls, state.requests = (), ()
            _forget_step(state)
            return EndedStep(messages, is_repeated=False)
        if state.hosted:
            state.hosted = {id: entry for id, entry in state.hosted.items() if entry.answered is None}
        state.messages += messages
        state.is_paused = outcome.is_paused
        if outcome.listed:
            state.listed = {**state.listed, **outcome.listed}
            state.grants = after_listing(state.grants, outcome.listed)
        if part.reason in ("tool-calls", "approval"):
            state.tool_calls_made += len(state.calls)
        is_empty = part.reason == "stop" and not messages and follows_tools
        state.empty_answers += is_empty
        is_repeated = outcome.is_paused or (is_empty and state.empty_answers == 1)
        if state.steers:
            _allow_tools(state)
        elif part.reason == "stop" and not is_repeated and defers_output:
            state.without |= {"tools"}
            is_repeated = True
        return EndedStep(messages, is_repeated)

    def end_round(self) -> list[ChatMessage]:
        """Apply the end of a round, whose calls all have results, and return the message that holds them."""
        state = self.state
        results = self.fold.end_round()
        state.messages += results
        state.fold = self.fold.state
        state.ending = None
        state.pins, state.outputs, state.approved, state.started = {}, {}, frozenset(), frozenset()
        state.attempts = {}
        return results


# State transitions that no part reports


def prepare(state: TurnState, without: frozenset[str], *, defers_output: bool) -> None:
    """Record how the next request differs from the usual one."""
    state.without, state.defers_output = without, defers_output


def ask(state: TurnState, *approvals: PendingApproval) -> None:
    """Record that calls wait for approval."""
    calls = {approval.call_id for approval in approvals}
    asked: dict[str, PendingApproval] = {}
    for approval in approvals:
        asked.pop(approval.approval_id, None)
        asked[approval.approval_id] = approval
    state.pins = {call: pin for call, pin in state.pins.items() if call not in calls}
    state.outputs = {call: output for call, output in state.outputs.items() if call not in calls}
    state.approved -= calls
    state.requests = tuple(request for request in state.requests if request.approval_id not in asked)
    state.waiting = (*(w for w in state.waiting if w.approval_id not in asked), *asked.values())


def decide(state: TurnState, *decisions: Decision) -> None:
    """Record approval decisions. Refusals take effect with the result or part that reports them."""
    nested = {entry.approval_id: call for call, found in state.suspended.items() for entry in found.approvals}
    waiting = {entry.approval_id: entry for entry in state.waiting}
    for decision in decisions:
        _reported(state, decision.call_id)
        if decision.approval_id in nested:
            _decide_nested(state, nested.pop(decision.approval_id), decision)
        elif (entry := waiting.pop(decision.approval_id, None)) is not None:
            _decide_own(state, entry, decision)
    state.waiting = tuple(waiting.values())


def _decide_nested(state: TurnState, call_id: str, decision: Decision) -> None:
    """Apply a decision on a call of a subagent."""
    suspended = state.suspended[call_id]
    left = tuple(entry for entry in suspended.approvals if entry.approval_id != decision.approval_id)
    state.suspended[call_id] = Suspended(suspended.state, left, (*suspended.decisions, decision))


def _decide_own(state: TurnState, entry: PendingApproval, decision: Decision) -> None:
    if decision.grant is not None and has_own_grant(decision, entry):
        state.grants = with_grant(state.grants, decision.grant)
    if not decision.is_approved or entry.is_remote:
        return
    # The log may have been altered since, so a call that differs from the approved one is judged again.
    if decision.digest == entry.digest and has_kind_of(decision, entry) and rounds.fits(entry, state.calls):
        state.approved |= {entry.call_id}
        state.pins |= {entry.call_id: entry.pin} if entry.pin is not None else {}
        state.outputs |= {entry.call_id: decision.output} if decision.output is not None else {}


def start_tool(state: TurnState, call_id: str, key: str = "", policy: InterruptionPolicy = "ask") -> None:
    """Record that a client tool is about to run, or a suspended one is about to continue.

    `key` is the idempotency key for a call that has none yet. `policy` applies if the call is interrupted.
    """
    before = state.attempts.get(call_id, Attempt(""))
    state.attempts[call_id] = Attempt(before.key or key, policy, before.number)
    if is_saved(state.suspended.get(call_id)):
        return  # The work runs in another process, so the call continues there however often this one ends.
    state.started |= {call_id}
    state.suspended.pop(call_id, None)


def is_saved(suspended: Suspended | None) -> bool:
    """Return whether the call's work runs in another process. Other calls are suspended for approval."""
    return suspended is not None and not suspended.approvals and not suspended.decisions


def suspend_tool(state: TurnState, call_id: str, suspended: Suspended) -> None:
    """Record that a tool waits for the user or for work in another process."""
    state.started -= {call_id}
    state.suspended[call_id] = suspended


def blocked_calls(state: TurnState) -> set[str]:
    """Return the calls that cannot continue before they are approved."""
    if not state.suspended and not state.waiting:
        return set()
    undecided = {call_id for call_id, entry in state.suspended.items() if entry.approvals}
    return undecided | {entry.call_id for entry in state.waiting}


def resumable(state: TurnState) -> TurnState:
    """Change a state that a run left to one from which a run can continue, and return it.

    A step without its end is repeated. A tool that was started and has no result may have run; its interruption policy
    decides what happens to the call, and by default it needs approval.
    """
    state.error = state.limit = None
    if state.is_in_step:
        _drop_step(state)
        return state
    if isinstance(state.command, Check) and not state.steers:
        return state
    if state.started & {call.id for call in state.calls}:
        _interrupt(state)
    blocked = blocked_calls(state)
    failed = {call.id for call in state.calls if call.id not in blocked and fails(state, call.id)}
    cleared = state.approved | state.suspended.keys() | failed
    unjudged = [call for call in state.calls if call.id not in blocked | cleared]
    runnable = tuple(call for call in state.calls if call.id not in blocked | failed)
    if unjudged or state.requests:
        state.command = Judge(rounds.questions(state, unjudged, {}) + rounds.requests(state))
    elif runnable or (failed and not blocked):
        state.command = CallTools(runnable)
    elif blocked:
        state.command = AwaitDecision()
    else:
        Ledger(state).end_round()
        state.command = Send()
    return state


def _interrupt(state: TurnState) -> None:
    """Mark interrupted calls of the round as to be run again, failed, or waiting for approval."""
    known = {entry.call_id for entry in state.waiting} | state.suspended.keys() | state.outputs.keys()
    unresolved = [call for call in state.calls if call.id not in known]
    for call in unresolved:
        if call.id in state.started:
            attempt = state.attempts.get(call.id, Attempt(""))
            policy = policy_after(attempt)
            state.attempts[call.id] = Attempt(attempt.key, policy, attempt.number + 1, is_interrupted=True)
    asked = [call for call in unresolved if call.id in state.started and state.attempts[call.id].policy == "ask"]
    if asked:
        # Calls that had not started wait for the decision on the one beside them that may have run.
        asked = [call for call in unresolved if call.id not in state.started or call in asked]
        reasons = [UNCERTAIN if call.id in state.started else HELD for call in asked]
        ids = [_approval_id(state, call) for call in asked]
        ask(state, *map(uncertain, repeat(state), asked, ids, reasons))
        for call in asked:
            held = state.attempts.get(call.id, Attempt(""))
            state.attempts[call.id] = replace(held, is_interrupted=True)
    state.started = frozenset()
    state.interrupted_rounds += 1


def fails(state: TurnState, call_id: str) -> bool:
    """Return whether the call was interrupted, is not run again, and has no reported result yet."""
    attempt = state.attempts.get(call_id)
    return attempt is not None and attempt.is_interrupted and attempt.policy == "fail"


def has_unreported(state: TurnState) -> bool:
    """Return whether calls were interrupted without the stream having reported it."""
    return any(attempt.is_interrupted for attempt in state.attempts.values())


def _reported(state: TurnState, call_id: str) -> None:
    """Mark an interruption as reported to the stream."""
    attempt = state.attempts.get(call_id)
    if attempt is not None and attempt.is_interrupted and attempt.policy != "fail":
        state.attempts[call_id] = replace(attempt, is_interrupted=False)


def _drop_step(state: TurnState) -> None:
    """Drop an unfinished step, except for the sources it has read and a pending background response."""
    state.is_in_step = False
    _forget_step(state)
    state.step -= 1
    state.calls, state.requests = (), ()
    state.digests, state.ending = _NONE, None
    state.fold = without_step(state.fold) if state.fold is not None else None
    state.command = Send()


def _forget_step(state: TurnState) -> None:
    """Drop calls and files of the current step, which is repeated, and reopen the calls that it answered."""
    state.delivered = {file: step for file, step in state.delivered.items() if step < state.step}
    earlier = {id: entry for id, entry in state.hosted.items() if entry.step < state.step}
    state.hosted = {id: replace(entry, answered=None) for id, entry in earlier.items()}


def open_calls(state: TurnState) -> tuple[ToolCall, ...]:
    """Return the provider's calls that have no result yet."""
    return tuple(entry.call for entry in state.hosted.values() if entry.answered is None)


def uncertain(state: TurnState, call: ToolCall, approval_id: str, provenance: str = UNCERTAIN) -> PendingApproval:
    """Return an approval request for a call that may have run, or that was to run beside one."""
    question = Question(
        call_id=call.id,
        tool=rounds.function_of(call),
        input=rounds.arguments_of(call),
        server_label=rounds.server_label(call),
        pin=state.pins.get(call.id),
        safety_checks=rounds.safety_checks(call),
    )
    return replace(pending(question, state.run_id, approval_id), provenance=provenance)


def _approval_id(state: TurnState, call: ToolCall) -> str:
    # A call may be interrupted again after its approval. Each request needs a separate id, since a decision counts
    # once, but not a random one, since the rebuild from the log must find the same ids.
    return f"again{state.interrupted_rounds or ''}_{call.id}"


# Parts


def _call(state: TurnState, part: ToolCall) -> None:
    if part.provider_executed:
        state.hosted[part.id] = OpenCall(part, state.step)
    elif state.is_in_step:  # Else a program has made it.
        state.calls += (part,)


def _request(state: TurnState, part: ToolApprovalRequest) -> None:
    if state.is_in_step:
        state.requests += (part,)
    else:
        _reported(state, part.id)


def _result(state: TurnState, part: ToolResult) -> None:
    if not part.provider_executed:
        if part.preliminary:
            return
        if part.provider_metadata is not None and (program := program_of(part)) is not None:
            state.programs.setdefault(program, {})[part.id] = ProgramAnswer(part.result, part.is_error)
            return
        state.programs.pop(part.id, None)
        state.calls = tuple([call for call in state.calls if call.id != part.id])
        if state.waiting:
            state.waiting = tuple(entry for entry in state.waiting if entry.call_id != part.id)
        state.suspended.pop(part.id, None)
        state.outputs.pop(part.id, None)
        state.attempts.pop(part.id, None)
    elif not part.preliminary and (entry := state.hosted.get(part.id)) is not None:
        if entry.step == state.step:
            del state.hosted[part.id]
        else:
            state.hosted[part.id] = replace(entry, answered=state.step)


def _read(state: TurnState, sources: tuple[str, ...]) -> None:
    """Record that untrusted sources were read, in this run or before it."""
    if not sources:
        return
    if len(state.sources) < MAX_SOURCES and (new := [source for source in sources if source not in state.sources]):
        state.sources = (*state.sources, *dict.fromkeys(new))[:MAX_SOURCES]


def _file(state: TurnState, part: File) -> None:
    if state.is_in_step and part.data is not None:
        digest = media_types.digest(part.data)
        state.digests |= {digest}
        state.delivered.setdefault(delivery(part.id, digest), state.step)


def delivery(file_id: str, digest: str) -> str:
    """Return the key of a delivered file. A file that was rewritten has another digest."""
    return f"{file_id} {digest}"


def is_delivered(state: TurnState, file_id: str, data: bytes) -> bool:
    """Return whether the turn has delivered this file, or the current step one with the same content."""
    digest = media_types.digest(data)
    return digest in state.digests or delivery(file_id, digest) in state.delivered


def _event(state: TurnState, part: ToolEvent) -> None:
    """Add the usage of a finished subagent.

    The usage of its own subagents is included. A suspended one reports its usage once it has finished.
    """
    inner = forwarded_part(part) if part.provider_stage == "finish" else None
    if isinstance(inner, Finish) and inner.reason != "approval":
        state.usage = state.usage + inner.usage


def _settle(state: TurnState, decided: set[str]) -> None:
    """Remove the approvals with these ids, whose decisions on provider calls were reported, and empty the set."""
    state.waiting = tuple(entry for entry in state.waiting if entry.approval_id not in decided)
    state.requests = tuple(entry for entry in state.requests if entry.approval_id not in decided)
    decided.clear()


def _custom(state: TurnState, part: Custom) -> None:
    if part.kind == OUTPUT_REJECTED:
        state.rejected_outputs += 1
        state.ending = None
    elif part.kind == BACKGROUND:
        state.background = background_in([part])
    elif part.kind == OVERFLOWED:
        state.ending = None
    elif part.kind == INTERRUPTED:
        _interruption(state, as_object(part.data))
    elif part.kind == MODEL_FALLBACK:
        prepare(state, frozenset(), defers_output=False)
        model = as_object(part.data).get("model")
        state.model = model if isinstance(model, str) else state.model
    elif part.kind in (SHORTENED, JUDGED):
        if part.kind == SHORTENED:
            state.messages = shortened_by(state.messages, part.data)
        used = as_object(part.data).get("usage")
        state.usage = state.usage + convert(used, Usage) if used is not None else state.usage


def _interruption(state: TurnState, data: JsonObject) -> None:
    """Apply a reported interruption.

    A call that runs again is settled. Others wait for a result or a decision.
    """
    call_id, attempt = str(data.get("call_id")), state.attempts.get(str(data.get("call_id")))
    if attempt is None or not attempt.is_interrupted:
        return
    if data.get("policy") == "retry":
        _reported(state, call_id)
    elif data.get("policy") == "fail":
        state.attempts[call_id] = replace(attempt, policy="fail")


def _steer(state: TurnState, part: Steer) -> None:
    is_known = any(steer.id == part.id for steer in state.steers)
    if part.status != "accepted":
        state.steers = tuple(steer for steer in state.steers if steer.id != part.id)
    elif not is_known:
        state.steers += (part,)
        if not state.is_in_step:
            _allow_tools(state)


def _allow_tools(state: TurnState) -> None:
    """Allow tools in the next request again, since the user's new message may need them."""
    state.without -= {"tools"}


def _step_start(state: TurnState, part: StepStart) -> None:
    state.step = part.step
    state.is_in_step = True
    state.calls, state.requests, state.ending = (), (), None
    state.digests = _NONE
    state.started = state.approved = frozenset()
    state.pins, state.outputs, state.attempts, state.programs = {}, {}, {}, {}


_BOOKKEEPING: dict[type, Callable[[TurnState, Any], None]] = {
    ToolCall: _call,
    ToolApprovalRequest: _request,
    ToolResult: _result,
    ToolEvent: _event,
    File: _file,
    Custom: _custom,
    Steer: _steer,
    StepStart: _step_start,
}
"""Handlers, by part type. Other parts do not change the state."""

WATCHED = frozenset(_BOOKKEEPING) | {Source}

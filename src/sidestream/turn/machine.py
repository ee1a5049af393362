"""The turn machine, which takes inputs from the run and returns parts and commands.

It does no I/O. The run carries out its commands and reports the outcome; whatever can be decided without the network or
the clock is decided here. The state reducer in `ledger` defines what parts mean for the state. The state is plain data,
so it can be written as JSON between two inputs and continue in another process.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from sidestream.jsontext import Json
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages.fold import OUTPUT_REJECTED, WARNING, Batch, MessageMetadata
from sidestream.messages.message import ChatMessage, Numbers
from sidestream.messages.shortening import OVERFLOWED, is_shortenable
from sidestream.messages.steering import opening_role
from sidestream.parts import (
    Custom,
    Error,
    Finish,
    FinishReason,
    Source,
    Steer,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    StreamStart,
    ToolCall,
    ToolEvent,
    Usage,
)
from sidestream.providers.protocol import FileRef, Recovery
from sidestream.stream.errors import redacted
from sidestream.tools.approvals import (
    ASKING,
    ApprovalError,
    Decision,
    Question,
    Ruling,
    Suspended,
    match_decisions,
    pending,
)
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.turn import interruptions, ledger, rounds
from sidestream.turn.ledger import EndedStep, Ledger
from sidestream.turn.outbox import Outbox
from sidestream.turn.rounds import ToolFacts, is_outage, is_output
from sidestream.turn.state import (
    BLOCKED_BY,
    AwaitDecision,
    CallTools,
    Check,
    Command,
    Fetch,
    Judge,
    Over,
    Send,
    TurnState,
    blocked_finish,
)

_WATCHED = (ledger.WATCHED - {ToolEvent}) | {Finish, Error}
"""Parts of a response that affect more than the message. Tool events do so only between two steps."""
_CHANGED = frozenset({Finish, Error, ToolCall, Source})
"""Parts of a response that are not passed on verbatim."""

_REFUSALS = frozenset({"provider", "rate-limit", "context-overflow"})
_TOO_LONG = Custom(
    OVERFLOWED, {"message": "The request was longer than the model's context window; it is made again, shorter."}
)


class Turn:
    """One run, from the user's message to the last answer."""

    def __init__(
        self,
        messages: Sequence[ChatMessage] = (),
        *,
        state: TurnState | None = None,
        tools: Collection[str] | None = (),
        handed_over: frozenset[str] = frozenset(),
        answers_calls: bool = True,
        checks_output: bool = False,
        shortens: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        message_metadata: MessageMetadata = "session",
        price: Callable[[Finish], Usage] | None = None,
        has_fallback: bool = False,
    ) -> None:
        self.state = TurnState(messages=list(messages)) if state is None else state
        self._tools = tools
        """Tool names. None means that they are unknown, and calls that were judged before are not refused."""
        self._facts: Mapping[str, ToolFacts] = {}
        self._handed_over = handed_over.difference(tools or ()) if handed_over else handed_over
        self._answers_calls = answers_calls
        self._checks_output = checks_output
        self._shortens = shortens
        """Whether to repeat a request that was too long with a shorter history, once per step."""
        self._limits = limits
        self._price = price
        """Function that adds the cost to the usage of a response. None means that costs are unknown."""
        self._has_fallback = has_fallback
        """Whether another model may replace this one; false once the model has produced output."""
        self.abandoned: Error | None = None
        """Error because of which the last step must be repeated with another model; see `fell_back`."""
        self._ledger = Ledger(self.state, message_metadata)
        self._is_started = False
        self._warned: tuple[str, ...] = ()
        """Warnings that the stream has reported."""
        self.outbox = Outbox()
        """Messages that emitted parts complete, and their form in the log."""

    @property
    def command(self) -> Command:
        """The command to carry out next."""
        return self.state.command

    @property
    def is_receiving(self) -> bool:
        """Whether an answer is arriving."""
        return self.state.is_in_step and self.state.ending is None

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended.

        A resumed turn that waits for decisions has not, until its stream has started.
        """
        return isinstance(self.state.command, Over) or (
            isinstance(self.state.command, AwaitDecision) and self._is_started
        )

    @property
    def due_steers(self) -> tuple[Steer, ...]:
        """User messages for the next request. None while the provider continues its own answer."""
        state = self.state
        return state.steers if not state.is_paused and state.background is None else ()

    def set_logged(self) -> None:
        """Note that a log records the run, so messages may refer to it."""
        self._ledger.fold.is_logged = True

    # Requests and answers

    def set_tools(self, tools: Mapping[str, ToolFacts]) -> None:
        """Set the available tools. Those of a server may have changed."""
        self._tools = self._facts = tools

    def steered(self, steer: Steer) -> list[StreamPart]:
        """Accept a user message for the next request. Its part is emitted now, or once the stream starts."""
        assert not self.is_over
        if self._is_started:
            return self._emit([steer])
        self._ledger.feed([steer])
        return []

    def sending(
        self,
        warnings: Sequence[str],
        notices: Sequence[StreamPart],
        *,
        steers: Sequence[Steer] = (),
        defers_output: bool = False,
    ) -> list[StreamPart]:
        """Report a prepared request, with these user messages, that is about to be sent."""
        applied = (replace(steer, status="applied") for steer in steers) if steers else ()
        if out := [*self._start(warnings), *applied, *notices, *self._late(warnings)]:
            self._emit(out)
        ledger.prepare(self.state, self.state.without, defers_output=defers_output)
        return out

    def opened(self) -> list[StreamPart]:
        """Start a step, as its answer begins to arrive."""
        return self._emit([StepStart(self.state.step + 1)])

    def refused(self, recovery: Recovery | None, error: Error) -> list[StreamPart]:
        """Handle a refused request by leaving out what the recovery says, once, or else fail the run."""
        state = self.state
        recovery = Recovery(ledger.CONTEXT, _TOO_LONG) if recovery is None and self._may_shorten(error) else recovery
        if recovery is None or recovery.drop in state.without:
            return self.failed(error)
        ledger.prepare(state, state.without | {recovery.drop}, defers_output=state.defers_output)
        return self._emit([] if recovery.notice is None else [recovery.notice])

    def may_fall_back(self, error: Error) -> bool:
        """Return whether another model may be called.

        This model must have failed through no fault of the request, before any output.
        """
        state = self.state
        is_first = opening_role(state.messages) == "user" and not state.rejected_outputs
        has_steps = state.step + 1 < self._limits.max_steps
        return self._has_fallback and is_first and has_steps and is_outage(error)

    def fell_back(
        self, *, handed_over: frozenset[str], price: Callable[[Finish], Usage] | None, has_fallback: bool
    ) -> None:
        """Switch to another model for the next request, which brings the notice of the switch."""
        self._handed_over = handed_over
        self._price = price
        self._has_fallback = has_fallback
        self.abandoned = None
        # As the notice does when the log is read: another provider may accept what this one refused.
        ledger.prepare(self.state, frozenset(), defers_output=False)

    def failed(self, error: Error) -> list[StreamPart]:
        """End the run with an error."""
        return self._emit([*self._start(()), error, *self._finish("error", raw_reason=error.kind)])

    def received(self, parts: Batch | list[StreamPart], downloads: tuple[FileRef, ...] = ()) -> list[StreamPart]:
        """Handle parts of the answer. `downloads` are its files, known once `finish` is among the parts."""
        batch = Batch(parts) if isinstance(parts, list) else parts
        fold = self._ledger.fold
        folded = batch.joined(has_inputs=fold.keeps_events)
        if self._has_fallback and any(map(is_output, batch.parts)):
            self._has_fallback = False
        state = self.state
        if state.is_in_step and _WATCHED.isdisjoint(map(type, folded)):
            # The fast path for most parts, which only extend the message.
            fold.feed_all(folded)
        else:
            batch = batch.changed(_CHANGED, self._changed)
            self._emit(batch.joined(has_inputs=fold.keeps_events))
        if batch.parts and fold.is_logged:
            self.outbox.joined = len(batch.parts), fold.joined
        if state.ending is None:
            return batch.parts
        if not downloads or state.ending.reason == "error":
            return batch.parts + self._end_step()
        state.command = Fetch(downloads)
        return batch.parts

    def _changed(self, part: StreamPart, before: list[StreamPart]) -> StreamPart | None:
        """Return a part of the answer as it is emitted, or None if it is not yet. `before` are new parts before it."""
        match part:
            case Finish():
                self.state.ending = part
                return None
            case Error() if part.kind != "tool":
                # Emit it once the step has ended. Redact it, since a provider may repeat the key in it.
                self.state.error = redacted(part)
                return None
            case Error():
                return redacted(part)
            case Source():
                return self._ledger.placed(part, before)
            case _:
                return rounds.of_server(part, self._facts)

    def fetched(self, ref: FileRef, data: bytes) -> list[StreamPart]:
        """Emit a downloaded file, unless it was delivered before."""
        return [] if ledger.is_delivered(self.state, ref.id, data) else self._emit([rounds.downloaded(ref, data)])

    def not_fetched(self, ref: FileRef, error: Error) -> list[StreamPart]:
        """Report a failed download. The answer remains valid."""
        message = f"could not download {ref.name or ref.id}: {error.message}"
        return self._emit([Error("tool", message, code=error.code, status=error.status, retryable=error.retryable)])

    def all_fetched(self) -> list[StreamPart]:
        """End the step after its last download."""
        return self._end_step()

    def stopped(self, limit: str, reached: float) -> list[StreamPart]:
        """End the run at a limit, between two answers or during the downloads of one."""
        if self.state.is_in_step:
            self.state.limit = (limit, reached)
            return self._end_step()
        return self._emit([*self._start(()), *self._finish("limit", limit=(limit, reached))])

    def blocked(self, by: str, reason: str) -> list[StreamPart]:
        """End the run because a hook of the program does not let it continue, between two answers."""
        ending = blocked_finish(by, reason, self.state.ending)
        return self._emit([*self._start(()), *self._finish(ending.reason, ending)])

    # Rounds of calls

    def judged(self, verdicts: Mapping[str, Ruling], new_id: Callable[[], str]) -> list[StreamPart]:
        """Apply the policy's decision on each call. Calls that must wait are reported, and the others continue."""
        command = self.state.command
        assert isinstance(command, Judge)
        if not self.state.requests and {"run"}.issuperset(verdicts.values()):
            return self._advance_round()
        out: list[StreamPart] = []
        asked = [question for question in command.questions if verdicts[question.call_id] in ASKING]
        requests = iter(self._ask(asked, new_id, verdicts))
        remote = {request.approval_id: request.id for request in self.state.requests}
        for question in command.questions:
            verdict = verdicts[question.call_id]
            if verdict in ASKING:
                out += next(requests)
            elif question.is_remote:
                if verdict == "granted":
                    out.append(rounds.granted(question, remote.get(question.call_id, question.call_id)))
                is_automatic = verdict != "granted"
                out.append(rounds.decided(question.call_id, verdict != "deny", is_automatic=is_automatic))
            elif verdict == "deny":
                out.append(self._answer(question.call_id, rounds.denial(question.tool)))
            elif verdict == "granted":
                out.append(rounds.granted(question, question.call_id))
        return self._emit(out) + self._advance_round()

    def tool_started(self, call_id: str, key: str = "", policy: InterruptionPolicy = "ask") -> None:
        """Record that a client tool is about to run, with this idempotency key."""
        ledger.start_tool(self.state, call_id, key, policy)

    def tool_reported(self, parts: list[StreamPart]) -> list[StreamPart]:
        """Emit a client tool's progress, or parts of a subagent."""
        return self._emit(parts) if parts else parts

    def tool_done(
        self,
        call_id: str,
        result: Json,
        is_error: bool,
        cites: Numbers | None = None,
        source: str | None = None,
        *,
        error: tuple[str, str] | None = None,
        failure: Error | None = None,
    ) -> list[StreamPart]:
        """Emit the result of a client tool, with the passages it cites, its untrusted source and what it raised.

        The message keeps the order of the calls. With `failure`, the run ends with this error.
        """
        call = self._call(call_id)
        part = rounds.tool_result(
            call,
            result,
            is_error,
            facts=self._facts.get(rounds.function_of(call)),
            source=source,
            approved=self.state.approved,
            cites=cites,
            error=error,
        )
        out = self._emit([part])
        if failure is None:
            return out + self._end_of_round()
        if not self.state.calls:
            self.outbox.round = self._ledger.end_round() or None
        return out + self.failed(failure)

    def tool_saved(self, call_id: str, suspended: Suspended) -> None:
        """Record that a client tool's work runs in another process, where it continues if the run is abandoned."""
        ledger.suspend_tool(self.state, call_id, suspended)

    def tool_suspended(self, call_id: str, suspended: Suspended) -> list[StreamPart]:
        """Suspend a tool that waits for approval, and report its requests as this run's own."""
        ledger.suspend_tool(self.state, call_id, suspended)
        requests: list[StreamPart] = [rounds.approval_request(entry, call_id) for entry in suspended.approvals]
        return self._emit(requests) + self._end_of_round()

    def check_decisions(self, decisions: Iterable[Decision]) -> None:
        """Raise ApprovalError unless the decisions match the pending approvals exactly."""
        state = self.state
        if not isinstance(state.command, AwaitDecision):
            raise ApprovalError("the run is not waiting for a decision")
        nested = [entry for suspended in state.suspended.values() for entry in suspended.approvals]
        match_decisions([*state.waiting, *nested], decisions)
        for entry in state.waiting:
            if not entry.is_remote and not rounds.fits(entry, state.calls):
                raise ApprovalError(f"the arguments of {entry.tool} differ from the approved ones")

    def resumed(self, decisions: Iterable[Decision], warnings: Sequence[str] = ()) -> list[StreamPart]:
        """Continue with the approver's decisions. Raises ApprovalError as `check_decisions` does."""
        made = tuple(decisions)
        self.check_decisions(made)
        decided = {decision.approval_id: decision for decision in made}
        waiting = self.state.waiting
        reports = interruptions.reports(self.state, self._facts)
        ledger.decide(self.state, *decided.values())
        out: list[StreamPart] = [*self._start(warnings), *reports]
        for entry in waiting:
            decision = decided[entry.approval_id]
            if entry.is_remote:
                out.append(rounds.decided(entry.approval_id, decision.is_approved, decision.reason))
            elif not decision.is_approved:
                out.append(self._answer(entry.call_id, rounds.denial(entry.tool, decision.reason)))
        return self._emit(out) + self._advance_round()

    def reconsidered(self, new_id: Callable[[], str], warnings: Sequence[str] = ()) -> list[StreamPart]:
        """Ask again about approved calls whose tools have changed, now that the tools are known.

        A stream that continues in the middle of a round starts here; any other starts with its request or decisions.
        """
        state = self.state
        is_in_round = isinstance(state.command, Judge | CallTools | Check) or ledger.has_unreported(state)
        out = self._start(warnings) if is_in_round else []
        if ledger.has_unreported(state):
            out += self._report_interruptions(new_id)
        if isinstance(state.command, Check) and not self._checks_output:
            return out + self.checked(None)
        if isinstance(state.command, Judge):
            # A rebuilt state knows the calls, but not what servers claim about their tools.
            asked = {question.call_id for question in state.command.questions}
            calls = [call for call in state.calls if call.id in asked]
            state.command = Judge(rounds.questions(state, calls, self._facts) + rounds.requests(state))
        runnable = state.command.calls if isinstance(state.command, CallTools) else ()
        changed = [call for call in runnable if rounds.is_changed(state, call, self._facts)]
        if not changed:
            return out
        for requests in self._ask(rounds.questions(state, changed, self._facts), new_id):
            out += requests
        return self._emit(out) + self._advance_round()

    def _report_interruptions(self, new_id: Callable[[], str]) -> list[StreamPart]:
        """Report interrupted calls, each with a request for approval, a result or a retry."""
        state = self.state
        interruptions.ask_instead(state, self._facts, new_id)
        out = self._emit([*interruptions.reports(state, self._facts), *interruptions.requests(state)])
        blocked = ledger.blocked_calls(state)
        if isinstance(state.command, Judge):
            left = {call.id for call in state.calls if call.id not in blocked}
            questions = tuple(entry for entry in state.command.questions if entry.is_remote or entry.call_id in left)
            if questions:
                state.command = Judge(questions)
                return out
        return out + self._advance_round()

    def checked(self, problem: str | None) -> list[StreamPart]:
        """Handle the check of the answer against the output type. None means that the answer fits."""
        state = self.state
        ending = state.ending
        assert ending is not None
        if state.steers:
            return self._send_again(ending)
        if problem is None:
            return self._emit(self._finish(ending.reason, ending))
        if state.rejected_outputs >= self._limits.max_output_retries:
            return self.failed(Error("protocol", f"the answer does not fit the output type: {problem}", code="output"))
        text = f"{problem}\n\nAnswer again, with JSON that fits and nothing else."
        out = self._emit([Custom(OUTPUT_REJECTED, {"message": text, "problem": problem})])
        return out + self._send_again(ending)

    def _start(self, warnings: Sequence[str]) -> list[StreamPart]:
        if self._is_started:
            return []
        self._is_started, self._warned = True, tuple(warnings)
        return [StreamStart(self._warned), *self.state.steers]

    def _late(self, warnings: Sequence[str]) -> list[StreamPart]:
        """Return parts for warnings that were not known when the stream started."""
        new = tuple(text for text in warnings if text not in self._warned) if warnings else ()
        self._warned += new
        return [Custom(WARNING, {"message": text}) for text in new]

    def _end_step(self) -> list[StreamPart]:
        state = self.state
        ending = state.ending
        assert ending is not None
        if state.error is not None and state.error.kind == "limit" and state.limit is not None:
            state.error = None
            ending = Finish("limit", ending.usage, "limit", ending.metadata)
        ending = self._priced(ending)
        may_shorten = state.error is not None and self._may_shorten(state.error)
        outcome = replace(ending.outcome or StepOutcome(), raw_reason=ending.raw_reason, metadata=ending.metadata)
        part = StepFinish(state.step, ending.reason, ending.usage, outcome=outcome)
        step = self._ledger.end_step(part)
        # The outcome is internal: log it, but keep it out of the public stream.
        logged, part = part, replace(part, outcome=None)
        self.outbox.end_step(part, logged, step.messages)
        if may_shorten and not step.messages:  # Only if nothing was shown that would be repeated.
            state.error = None
            ledger.prepare(state, state.without | {ledger.CONTEXT}, defers_output=state.defers_output)
            return [part, *self._emit([_TOO_LONG]), *self._send_again(ending)]
        if state.error is not None and self.may_fall_back(state.error):
            self.abandoned, state.error = state.error, None
            return [part, *self._send_again(ending)]
        return [part, *self._next(ending, step)]

    def _priced(self, ending: Finish) -> Finish:
        """Add the cost to the end of a response. A refused request costs nothing."""
        error = self.state.error
        is_refused = error is not None and error.kind in _REFUSALS and ending.usage.is_empty
        return ending if self._price is None or is_refused else replace(ending, usage=self._price(ending))

    def _may_shorten(self, error: Error) -> bool:
        """Return whether the request was too long, and can be repeated once with a shorter history."""
        is_first = self._shortens and error.kind == "context-overflow" and ledger.CONTEXT not in self.state.without
        return is_first and is_shortenable(self.state.messages)

    def _next(self, ending: Finish, step: EndedStep) -> list[StreamPart]:
        """Continue after a step by judging calls, checking the output, sending again, or ending the run."""
        state = self.state
        if state.limit is not None:
            return self._emit(self._finish("limit", ending, limit=state.limit))
        if state.error is not None:
            return self._emit([state.error, *self._finish("error", ending)])
        is_blocked = BLOCKED_BY in ending.metadata
        if step.is_repeated and self._answers_calls and not is_blocked:
            return self._send_again(ending)
        if ending.reason in ("tool-calls", "approval"):
            return self._begin_round(ending)
        if state.steers and self._answers_calls and not is_blocked:
            return self._send_again(ending)
        if ending.reason == "stop" and self._checks_output:
            state.command = Check(step.messages[-1].text if step.messages else "")
            return []
        return self._emit(self._finish(ending.reason, ending))

    def _begin_round(self, ending: Finish) -> list[StreamPart]:
        state = self.state
        names = {rounds.function_of(call) for call in state.calls}
        if not self._answers_calls or names & self._handed_over:
            state.calls, state.requests = (), ()
            return self._emit(self._finish(ending.reason, ending))
        if state.tool_calls_made > self._limits.max_tool_calls:
            return self._emit(self._finish("limit", ending, limit=("max_tool_calls", state.tool_calls_made)))
        refused = self._refuse(state.calls)
        asked = rounds.questions(state, state.calls, self._facts) + rounds.requests(state)
        if not asked:
            return refused + self._advance_round()
        state.command = Judge(asked)
        return refused

    def _ask(
        self, questions: Sequence[Question], new_id: Callable[[], str], verdicts: Mapping[str, Ruling] | None = None
    ) -> list[list[StreamPart]]:
        """Record that calls wait for approval, and return the parts that report each.

        A provider's own request was emitted when it arrived.
        """
        said, run_id = verdicts or {}, self.state.run_id
        approvals = [
            pending(each, run_id, each.call_id if each.is_remote else new_id(), said.get(each.call_id, "ask-each"))
            for each in questions
        ]
        if approvals:
            ledger.ask(self.state, *approvals)
        return [[] if entry.is_remote else [rounds.approval_request(entry)] for entry in approvals]

    def _answer(self, call_id: str, problem: Json) -> StreamPart:
        """Return the error result of a call that does not run."""
        return rounds.tool_result(self._call(call_id), problem, is_error=True)

    def _call(self, call_id: str) -> ToolCall:
        return next(call for call in self.state.calls if call.id == call_id)

    def _refuse(self, calls: Sequence[ToolCall]) -> list[StreamPart]:
        """Answer the calls that must not run, with the reason."""
        refused = rounds.refusals(self.state, calls, self._tools) if calls else []
        return self._emit(refused) if refused else refused

    def _end_of_round(self) -> list[StreamPart]:
        blocked = ledger.blocked_calls(self.state) if self.state.calls else ()
        return self._advance_round() if all(call.id in blocked for call in self.state.calls) else []

    def _advance_round(self) -> list[StreamPart]:
        """Run the calls that may run, then wait for approval, or send the round's results."""
        state = self.state
        blocked = ledger.blocked_calls(state)
        out = self._refuse([call for call in state.calls if call.id not in blocked] if blocked else state.calls)
        runnable = tuple(call for call in state.calls if call.id not in blocked) if blocked else state.calls
        if runnable:
            state.command = CallTools(runnable)
            return out
        ending = state.ending
        assert ending is not None
        if blocked:
            out += self._emit(self._finish("approval", ending))
            state.command = AwaitDecision()
            return out
        return out + self._send_again(ending)

    def _send_again(self, ending: Finish) -> list[StreamPart]:
        """Start the next step, unless a limit is reached."""
        state = self.state
        self.outbox.round = self._ledger.end_round() or None
        if (limit := rounds.limit_reached(state, self._limits)) is not None:
            return self._emit(self._finish("limit", ending, limit=limit))
        state.command = Send()
        return []

    def _finish(
        self,
        reason: FinishReason,
        ending: Finish | None = None,
        raw_reason: str | None = None,
        limit: tuple[str, float | None] | None = None,
    ) -> list[StreamPart]:
        self.state.command = Over()
        metadata = dict(ending.metadata) if ending else {}
        if limit is not None:
            metadata |= {"limit": limit[0], "reached": limit[1]}
            metadata |= {"unpriced": list(self.state.usage.unpriced)} if limit[1] is None else {}
        # A failed or waiting run takes pending messages when it is resumed; a finished one cannot.
        pending = () if reason in ("error", "approval") else self.state.steers
        lost = [replace(steer, status="failed", reason=f"the run ended with {reason!r}") for steer in pending]
        return [*lost, Finish(reason, self.state.usage, ending.raw_reason if ending else raw_reason, metadata)]

    def _emit(self, parts: list[StreamPart]) -> list[StreamPart]:
        completed = self._ledger.feed(parts) if parts else ()
        if completed or self.outbox.round is not None:
            self.outbox.completes(parts, completed)
        return parts

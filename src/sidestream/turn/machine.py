"""The turn machine: facts in, parts and commands out.

It does no I/O. The run carries its commands out and tells it what happened; whatever can be known without the network
or the clock is decided here. Its state is plain data: written as JSON between two facts, it goes on in another process.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from sidestream import deliverables
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages.fold import OUTPUT_REJECTED, MessageFold, MessageMetadata, MessagesTold
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import FileRef, Recovery
from sidestream.redaction import redact
from sidestream.stream.parts import (
    Custom,
    Error,
    File,
    Finish,
    FinishReason,
    Json,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    ToolApprovalRequest,
    ToolCall,
    ToolResult,
)
from sidestream.tools.approvals import ApprovalError, Decision, Suspended, Verdict, match_decisions
from sidestream.turn import rounds
from sidestream.turn.rounds import ToolFacts
from sidestream.turn.state import CallTools, Check, Command, Fetch, Judge, Over, Send, TurnState, Wait

_WATCHED = frozenset({ToolCall, ToolResult, ToolApprovalRequest, Source, Finish, Error, File})


class Turn:
    """One run from the user's message to the last answer."""

    def __init__(
        self,
        messages: Sequence[ChatMessage] = (),
        *,
        state: TurnState | None = None,
        tools: Collection[str] | None = (),
        handed_over: frozenset[str] = frozenset(),
        answers_calls: bool = True,
        checks_output: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        message_metadata: MessageMetadata = "session",
    ) -> None:
        self.state = TurnState(messages=list(messages)) if state is None else rounds.settled(state)
        self._tools = tools
        """None while they are not known: a call that was judged before is not refused for that."""
        self._facts: Mapping[str, ToolFacts] = {}
        self._handed_over = handed_over.difference(tools or ()) if handed_over else handed_over
        self._answers_calls = answers_calls
        self._checks_output = checks_output
        self._limits = limits
        self._fold = MessageFold(message_metadata, self.state.fold)
        self.state.fold = self._fold.state
        self._is_started = False
        self.told = MessagesTold()

    def tools_known(self, tools: Mapping[str, ToolFacts]) -> None:
        """Which tools there are now; those of a server may have changed."""
        self._tools = self._facts = tools

    @property
    def command(self) -> Command:
        """What to do next."""
        return self.state.command

    @property
    def is_in_step(self) -> bool:
        """True while an answer arrives."""
        return self.state.is_in_step

    def sending(
        self, warnings: Sequence[str], notices: Sequence[StreamPart], *, defers_output: bool = False
    ) -> list[StreamPart]:
        """A request was made and is about to be sent."""
        self.state.defers_output = defers_output
        return self._emit([*self._start(warnings), *notices])

    def opened(self) -> list[StreamPart]:
        """The answer has begun to arrive."""
        self.state.step += 1
        self.state.is_in_step = True
        return self._emit([StepStart(self.state.step)])

    def refused(self, recovery: Recovery | None, error: Error) -> list[StreamPart]:
        """The request was refused. What can be left out is left out, once; else the run fails."""
        if recovery is None or recovery.drop in self.state.without:
            return self.failed(error)
        self.state.without |= {recovery.drop}
        return self._emit([recovery.notice])

    def failed(self, error: Error) -> list[StreamPart]:
        """The run cannot go on."""
        return self._emit([*self._start(()), error, *self._finish("error", raw_reason=error.kind)])

    def received(self, parts: list[StreamPart], downloads: tuple[FileRef, ...] = ()) -> list[StreamPart]:
        """Parts of the answer; its files are known when its `finish` is among them."""
        if len(parts) == 1 and type(parts[0]) is TextDelta:
            self._fold.feed_all(parts)  # Most of what arrives is this, and nothing else depends on it.
            return parts
        if _WATCHED.isdisjoint(map(type, parts)):
            return self._emit(parts)
        state = self.state
        out: list[StreamPart] = []
        for part in parts:
            if type(part) not in _WATCHED:
                out.append(part)
                continue
            match part:
                case Finish():
                    state.ending = part
                case Error() if part.kind != "tool":
                    # Told after the step has ended, right before the run does. A provider may repeat the key in it.
                    state.error = replace(part, message=redact(part.message))
                case _:
                    told = rounds.of_server(part, self._facts)
                    rounds.note(state, told)
                    out.append(told)
        self._emit(out)
        if state.ending is None:
            return out
        state.is_in_step = False
        if downloads and state.ending.reason != "error":
            state.command = Fetch(downloads)
            return out
        return out + self._end_step()

    def fetched(self, ref: FileRef, data: bytes) -> list[StreamPart]:
        """A file has been downloaded."""
        digest = deliverables.digest(data)
        if digest in self.state.digests:
            return []
        self.state.digests |= {digest}
        return self._emit([rounds.downloaded(ref, data)])

    def not_fetched(self, ref: FileRef, error: Error) -> list[StreamPart]:
        """A file could not be downloaded: told, but the answer stands."""
        message = f"could not download {ref.name or ref.id}: {error.message}"
        return self._emit([Error("tool", message, code=error.code, status=error.status, retryable=error.retryable)])

    def all_fetched(self) -> list[StreamPart]:
        """No download is left."""
        return self._end_step()

    def judged(self, verdicts: Mapping[str, Verdict], new_id: Callable[[], str]) -> list[StreamPart]:
        """What the policy said of each call. Calls that must wait are told; the others go on."""
        command = self.state.command
        assert isinstance(command, Judge)
        out: list[StreamPart] = []
        for question in command.questions:
            verdict = verdicts[question.call_id]
            if verdict == "ask":
                out += rounds.ask(self.state, question, new_id)
            elif question.is_remote:
                out.append(rounds.decided(question.call_id, is_approved=verdict == "run"))
            elif verdict == "deny":
                out += self._settle(question.call_id, rounds.denial(question.tool), is_error=True)
        return self._emit(out) + self._go_on()

    def tool_done(self, call_id: str, result: Json, is_error: bool) -> list[StreamPart]:
        """A client tool gave its result. The message will hold the results in the order of their calls."""
        self.state.suspended.pop(call_id, None)
        return self._emit(self._settle(call_id, result, is_error=is_error)) + self._round_over()

    def tool_suspended(self, call_id: str, suspended: Suspended) -> list[StreamPart]:
        """A tool that is an agent waits for a person: its requests are told as this run's own."""
        self.state.suspended[call_id] = suspended
        return self._emit(rounds.asked_by(call_id, suspended)) + self._round_over()

    def _round_over(self) -> list[StreamPart]:
        return self._go_on() if all(call.id in self._blocked() for call in self.state.calls) else []

    def _blocked(self) -> set[str]:
        """Calls that cannot go on before a person has decided."""
        state = self.state
        undecided = {call_id for call_id, entry in state.suspended.items() if not entry.decisions}
        return undecided | {entry.call_id for entry in state.waiting}

    def resumed(self, decisions: Iterable[Decision]) -> list[StreamPart]:
        """A person has decided. Raises ApprovalError unless the decisions fit exactly what waits."""
        state = self.state
        if not isinstance(state.command, Wait):
            raise ApprovalError("the run does not wait for a decision")
        nested = [entry for suspended in state.suspended.values() for entry in suspended.approvals]
        found = match_decisions([*state.waiting, *nested], decisions)
        for entry in state.waiting:
            if not entry.is_remote and not rounds.fits(entry, state.calls):
                raise ApprovalError(f"the arguments of {entry.tool} are not those that were approved")
        waiting, state.waiting = state.waiting, ()
        for call_id, suspended in state.suspended.items():
            chosen = tuple(found[entry.approval_id] for entry in suspended.approvals)
            state.suspended[call_id] = Suspended(suspended.state, decisions=chosen)
        out: list[StreamPart] = [*self._start(())]
        for entry in waiting:
            decision = found[entry.approval_id]
            if entry.is_remote:
                out.append(rounds.decided(entry.approval_id, decision.is_approved, decision.reason))
            elif decision.is_approved:
                state.pins |= {entry.call_id: entry.pin} if entry.pin is not None else {}
            else:
                out += self._settle(entry.call_id, rounds.denial(entry.tool, decision.reason), is_error=True)
        return self._emit(out) + self._go_on()

    def reconsidered(self, new_id: Callable[[], str]) -> list[StreamPart]:
        """Asks again about approved calls of tools that have become others since they were approved."""
        state = self.state
        changed = [call for call in state.calls if self._pin(call) != state.pins.get(call.id, self._pin(call))]
        if not changed or not isinstance(state.command, CallTools):
            return []
        for call in changed:
            del state.pins[call.id]
        out: list[StreamPart] = []
        for question in rounds.questions(state, changed, self._facts):
            out += rounds.ask(state, question, new_id)
        return self._emit(out) + self._go_on()

    def _pin(self, call: ToolCall) -> str | None:
        facts = self._facts.get(call.name)
        return facts.pin if facts is not None else None

    def checked(self, problem: str | None) -> list[StreamPart]:
        """The answer fits the output type, or what is wrong with it."""
        state = self.state
        ending = state.ending
        assert ending is not None
        state.ending = None
        if problem is None:
            return self._emit(self._finish(ending.reason, ending))
        if state.rejected_outputs >= self._limits.max_output_retries:
            return self.failed(Error("protocol", f"the answer does not fit the output type: {problem}", code="output"))
        state.rejected_outputs += 1
        text = f"{problem}\n\nAnswer again, with JSON that fits and nothing else."
        out = self._emit([Custom(OUTPUT_REJECTED, {"message": text, "problem": problem})])
        return out + self._send_again(ending)

    def stopped(self, limit: str, reached: float) -> list[StreamPart]:
        """A limit was reached between two steps."""
        return self._emit([*self._start(()), *self._finish("limit", limit=(limit, reached))])

    def overheard(self, part: StreamPart) -> None:
        """A part of a tool that is an agent: what it used and what it read count for this run too."""
        if isinstance(part, Finish):
            self.state.usage = self.state.usage + part.usage
        elif isinstance(part, ToolResult | Source):
            rounds.note(self.state, part)

    def _start(self, warnings: Sequence[str]) -> list[StreamPart]:
        was_started, self._is_started = self._is_started, True
        return [] if was_started else [StreamStart(tuple(warnings))]

    def _end_step(self) -> list[StreamPart]:
        state = self.state
        ending = state.ending
        assert ending is not None
        state.ending = None
        state.digests = frozenset()
        state.without -= {"session", "container"}
        state.usage = ending.usage if state.step == 0 else state.usage + ending.usage
        if state.error is not None and state.error.kind == "limit" and state.limit is not None:
            state.error = None
            ending = Finish("limit", ending.usage, "limit", ending.metadata)
        finish = StepFinish(state.step, ending.reason, ending.usage, outcome=ending.outcome)
        follows_tools = bool(state.messages) and state.messages[-1].role == "tool"
        known = len(state.messages)
        out = self._emit([finish])
        answer = state.messages[-1] if len(state.messages) > known else None
        return out + self._next(ending, answer, follows_tools)

    def _next(self, ending: Finish, answer: ChatMessage | None, follows_tools: bool) -> list[StreamPart]:
        """After a step: judge calls, check the output, send again, or end the run."""
        state = self.state
        if state.limit is not None:
            return self._emit(self._finish("limit", ending, limit=state.limit))
        if state.error is not None:
            return self._emit([state.error, *self._finish("error", ending)])
        if ending.outcome is not None and ending.outcome.is_paused and self._answers_calls:
            return self._send_again(ending)
        if ending.reason in ("tool-calls", "approval"):
            return self._after_calls(ending)
        if ending.reason == "stop" and answer is None and follows_tools and state.empty_answers == 0:
            state.empty_answers += 1
            return self._send_again(ending)
        if ending.reason == "stop" and state.defers_output:
            state.without |= {"tools"}
            return self._send_again(ending)
        if ending.reason == "stop" and self._checks_output:
            state.ending = ending
            state.command = Check(answer.text if answer is not None else "")
            return []
        return self._emit(self._finish(ending.reason, ending))

    def _after_calls(self, ending: Finish) -> list[StreamPart]:
        state = self.state
        names = {call.name for call in state.calls}
        if not self._answers_calls or names & self._handed_over:
            state.calls, state.requests = (), ()
            return self._emit(self._finish(ending.reason, ending))
        state.tool_calls_made += len(state.calls)
        if state.tool_calls_made > self._limits.max_tool_calls:
            return self._emit(self._finish("limit", ending, limit=("max_tool_calls", state.tool_calls_made)))
        state.ending = ending
        refused = self._refuse(state.calls)
        asked = rounds.questions(state, state.calls, self._facts) + rounds.requests(state)
        if not asked:
            return refused + self._go_on()
        state.command = Judge(asked)
        return refused

    def _settle(self, call_id: str, result: Json, *, is_error: bool) -> list[StreamPart]:
        state = self.state
        call = next(call for call in state.calls if call.id == call_id)
        state.calls = tuple(other for other in state.calls if other is not call)
        facts = self._facts.get(call.name)
        if facts is not None and facts.is_open_world:
            rounds.read_from(state, f"{facts.server_label or 'the tool'} {call.name}")
        return [ToolResult(call_id, call.name, call.tool, result, is_error, False)]

    def _refuse(self, calls: Iterable[ToolCall]) -> list[StreamPart]:
        """Answers the calls that must not run, with the reason."""
        out: list[StreamPart] = []
        for call in list(calls):
            problem = rounds.objection(call, self._tools)
            if problem is not None:
                out += self._settle(call.id, problem, is_error=True)
        return self._emit(out)

    def _go_on(self) -> list[StreamPart]:
        """Runs what may run; then waits for a person, or sends the round's results."""
        state = self.state
        blocked = self._blocked()
        told = self._refuse(call for call in state.calls if call.id not in blocked)
        runnable = tuple(call for call in state.calls if call.id not in blocked)
        if runnable:
            state.command = CallTools(runnable)
            return told
        ending = state.ending
        assert ending is not None
        if blocked or state.waiting:
            told += self._emit(self._finish("approval", ending))
            state.command = Wait()
            return told
        state.ending = None
        return told + self._send_again(ending)

    def _send_again(self, ending: Finish) -> list[StreamPart]:
        """The next step, unless a limit is reached."""
        state = self.state
        results = self._fold.end_round()
        state.messages += results
        self.told.later(results)
        limits = self._limits
        tokens = state.usage.input.total + state.usage.output.total
        if state.step + 1 >= limits.max_steps:
            return self._emit(self._finish("limit", ending, limit=("max_steps", state.step + 1)))
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return self._emit(self._finish("limit", ending, limit=("max_tokens", tokens)))
        state.command = Send()
        return []

    def _finish(
        self,
        reason: FinishReason,
        ending: Finish | None = None,
        raw_reason: str | None = None,
        limit: tuple[str, float] | None = None,
    ) -> list[StreamPart]:
        self.state.command = Over()
        metadata = dict(ending.metadata) if ending else {}
        if limit is not None:
            metadata |= {"limit": limit[0], "reached": limit[1]}
        return [Finish(reason, self.state.usage, ending.raw_reason if ending else raw_reason, metadata)]

    def _emit(self, parts: list[StreamPart]) -> list[StreamPart]:
        completed = self._fold.feed_all(parts)
        if completed or self.told.has_round:
            self.told.with_parts(parts, completed)
            for _, messages in completed:
                self.state.messages += messages
        self.state.fold = self._fold.state
        return parts

"""The turn machine: facts in, parts and commands out.

It does no I/O. The run carries its commands out and tells it what happened; whatever can be known without the network
or the clock is decided here. `TurnState` is plain data.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from sidestream import deliverables
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages import ChatMessage
from sidestream.models import FileRef, Recovery
from sidestream.parts import (
    Error,
    File,
    Finish,
    FinishReason,
    Json,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    ToolCall,
    ToolResult,
    Usage,
)
from sidestream.results import MessageFold, MessageMetadata


class Send(Struct, frozen=True, tag="send"):
    """Make a request of the history and send it."""


class Fetch(Struct, frozen=True, tag="fetch"):
    """Download files that a tool made; any number at once."""

    refs: tuple[FileRef, ...]


class CallTools(Struct, frozen=True, tag="call-tools"):
    """Run these client tools; any number at once."""

    calls: tuple[ToolCall, ...]


class Over(Struct, frozen=True, tag="over"):
    """Nothing is left to do."""


Command = Send | Fetch | CallTools | Over


class TurnState(Struct, kw_only=True):
    """Where a turn stands."""

    messages: list[ChatMessage]
    """The history, growing by what this turn adds."""
    command: Command = field(default_factory=Send)
    step: int = -1
    is_started: bool = False
    is_in_step: bool = False
    without: set[str] = field(default_factory=set[str])
    usage: Usage = Usage()
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Client calls of the current step."""
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """Results that wait for those of earlier calls."""
    tool_calls_made: int = 0
    digests: set[str] = field(default_factory=set[str])
    """Files of the current step, so that a download of one of them is not told twice."""
    ending: Finish | None = None
    """How the current step's response ended, while its files are fetched."""
    error: Error | None = None


_WATCHED = frozenset({ToolCall, Finish, Error, File})


class Turn:
    """One run from the user's message to the last answer."""

    def __init__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: frozenset[str] = frozenset(),
        handed_over: frozenset[str] = frozenset(),
        answers_calls: bool = True,
        limits: Limits = DEFAULT_LIMITS,
        message_metadata: MessageMetadata = "session",
    ) -> None:
        self.state = TurnState(messages=list(messages))
        self._tools = tools
        self._handed_over = handed_over - tools
        self._answers_calls = answers_calls
        self._limits = limits
        self._messages = MessageFold(message_metadata)

    @property
    def command(self) -> Command:
        """What to do next."""
        return self.state.command

    @property
    def is_in_step(self) -> bool:
        """True while an answer arrives."""
        return self.state.is_in_step

    def sending(self, warnings: Sequence[str], notices: Sequence[StreamPart]) -> list[StreamPart]:
        """A request was made and is about to be sent."""
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
        self.state.without.add(recovery.drop)
        return self._emit([recovery.notice])

    def failed(self, error: Error) -> list[StreamPart]:
        """There is no answer."""
        return self._emit([*self._start(()), error, *self._finish("error", raw_reason=error.kind)])

    def received(self, parts: list[StreamPart], downloads: tuple[FileRef, ...] = ()) -> list[StreamPart]:
        """Parts of the answer; its files are known when its `finish` is among them."""
        if all(type(part) not in _WATCHED for part in parts):
            return self._emit(parts)
        state = self.state
        out: list[StreamPart] = []
        for part in parts:
            match part:
                case Finish():
                    state.ending = part
                case Error() if part.kind != "tool":
                    # Told after the step has ended, right before the run does.
                    state.error = part
                case _:
                    self._note(part)
                    out.append(part)
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
        self.state.digests.add(digest)
        name = ref.name or ref.id
        return self._emit(
            [File(ref.id, deliverables.sniff(data, name), name, data, tool=ref.tool, call_id=ref.call_id)]
        )

    def not_fetched(self, ref: FileRef, error: Error) -> list[StreamPart]:
        """A file could not be downloaded: told, but the answer stands."""
        message = f"could not download {ref.name or ref.id}: {error.message}"
        return self._emit([Error("tool", message, code=error.code, status=error.status, retryable=error.retryable)])

    def all_fetched(self) -> list[StreamPart]:
        """No download is left."""
        return self._end_step()

    def tool_done(self, call_id: str, result: Json, is_error: bool) -> list[StreamPart]:
        """A client tool gave its result. Results are told in the order of their calls."""
        out = self._emit(self._settle(call_id, result, is_error))
        if not self.state.calls:
            self.state.messages.extend(self._messages.end_round())
        return out

    def _settle(self, call_id: str, result: Json, is_error: bool) -> list[StreamPart]:
        state = self.state
        call = next(call for call in state.calls if call.id == call_id)
        state.results[call_id] = ToolResult(call_id, call.name, call.tool, result, is_error, False)
        out: list[StreamPart] = []
        while state.calls and state.calls[0].id in state.results:
            out.append(state.results.pop(state.calls.pop(0).id))
        if not state.calls:
            state.command = Send()
        return out

    def _start(self, warnings: Sequence[str]) -> list[StreamPart]:
        if not self.state.is_started:
            self.state.is_started = True
            return [StreamStart(tuple(warnings))]
        return []

    def _note(self, part: StreamPart) -> None:
        if isinstance(part, ToolCall) and not part.provider_executed:
            self.state.calls.append(part)
        elif isinstance(part, File) and part.data is not None:
            self.state.digests.add(deliverables.digest(part.data))

    def _end_step(self) -> list[StreamPart]:
        state = self.state
        ending = state.ending
        assert ending is not None
        state.ending = None
        state.digests.clear()
        state.without.clear()
        state.usage = ending.usage if state.step == 0 else state.usage + ending.usage
        finish = StepFinish(state.step, ending.reason, ending.usage, provider_metadata=ending.provider_metadata)
        out = self._emit([finish])
        out += self._emit(self._next(ending))
        if isinstance(state.command, Send):
            state.messages.extend(self._messages.end_round())
        return out

    def _next(self, ending: Finish) -> list[StreamPart]:
        """After a step: call tools, or end the run."""
        state = self.state
        if state.error is not None:
            return [state.error, *self._finish("error", ending)]
        names = {call.name for call in state.calls}
        if ending.reason != "tool-calls" or not self._answers_calls or names & self._handed_over:
            return self._finish(ending.reason, ending)
        state.tool_calls_made += len(state.calls)
        if state.step + 1 >= self._limits.max_steps:
            return self._finish("limit", ending, limit="max_steps", reached=state.step + 1)
        if state.tool_calls_made > self._limits.max_tool_calls:
            return self._finish("limit", ending, limit="max_tool_calls", reached=state.tool_calls_made)
        told: list[StreamPart] = []
        runnable: list[ToolCall] = []
        for call in list(state.calls):
            objection = self._objection(call)
            if objection is None:
                runnable.append(call)
            else:
                told += self._settle(call.id, objection, True)
        if runnable:
            state.command = CallTools(tuple(runnable))
        return told

    def _objection(self, call: ToolCall) -> dict[str, str] | None:
        """Why a call must not be executed, in words for the model."""
        if call.input_error is not None:
            return {"error": "InvalidArguments", "message": f"The call was not executed: {call.input_error}."}
        if call.name not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            return {
                "error": "UnknownTool",
                "message": f"There is no tool {call.name!r}. The tools are: {known}.",
            }
        return None

    def _finish(
        self,
        reason: FinishReason,
        ending: Finish | None = None,
        raw_reason: str | None = None,
        limit: str | None = None,
        reached: int | None = None,
    ) -> list[StreamPart]:
        self.state.command = Over()
        metadata = dict(ending.metadata) if ending else {}
        if limit is not None:
            metadata |= {"limit": limit, "reached": reached}
        return [Finish(reason, self.state.usage, ending.raw_reason if ending else raw_reason, metadata)]

    def _emit(self, parts: list[StreamPart]) -> list[StreamPart]:
        feed = self._messages.feed
        for part in parts:
            messages = feed(part)
            if messages:
                self.state.messages.extend(messages)
        return parts

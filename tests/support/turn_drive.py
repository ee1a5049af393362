"""Drives a turn by hand: facts in, parts out, with checks that hold for every fact of every drive."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from sidestream.jsontext import loads
from sidestream.messages.fold import WARNING
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    Custom,
    Finish,
    FinishReason,
    InputUsage,
    OutputUsage,
    Steer,
    StepFinish,
    StepOutcome,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
    Usage,
)
from sidestream.providers.protocol import FileRef
from sidestream.stream.grammar import check
from sidestream.tools.approvals import Decision, PendingApproval, Question, Suspended, Verdict, pending
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.turn.machine import Turn
from sidestream.turn.state import AwaitDecision, Over, RunState, TurnState
from support.left_runs import plain

QUESTION = ChatMessage.user("Why?")


class Facts(Struct, frozen=True):
    """What the machine knows of a client tool."""

    server_label: str | None = None
    pin: str | None = None
    is_open_world: bool = False
    reads_outside: bool = False
    is_external: bool = False
    key: str | None = None
    on_interruption: InterruptionPolicy = "ask"
    server_tool: str | None = None


PLAIN = {"f": Facts(), "g": Facts()}


def used(times: int = 1) -> Usage:
    """What this many steps cost."""
    return Usage(InputUsage(10 * times, 10 * times), OutputUsage(5 * times, 5 * times))


def text(words: str, block: str = "t") -> list[StreamPart]:
    return [TextStart(block), TextDelta(block, words), TextEnd(block)]


def call(call_id: str, name: str = "f", **fields: Any) -> ToolCall:
    """A call of a client tool."""
    return ToolCall(call_id, name, fields.pop("tool", name), False, **{"input": {"n": call_id}, **fields})


def result(call_id: str, name: str = "f", value: Any = "done", **fields: Any) -> ToolResult:
    """The result of a client tool."""
    return ToolResult(call_id, name, fields.pop("tool", name), value, fields.pop("is_error", False), False, **fields)


def remote_request(approval_id: str = "mcpr_1") -> list[StreamPart]:
    """A provider asks whether it may call a tool of a remote MCP server."""
    return [
        ToolCall("mcp_1", "ask", "mcp", True, {"q": 1}),
        ToolApprovalRequest(approval_id, "mcp_1", "ask", {"q": 1}, "wiki"),
    ]


def step_finish(step: int, reason: FinishReason = "stop", **outcome: Any) -> StepFinish:
    return StepFinish(step, reason, used(), outcome=StepOutcome(**outcome))


def forwarded(call_id: str, part: StreamPart, agent: str = "f") -> ToolEvent:
    """A part of an agent that runs as a tool, as the run of its caller forwards it."""
    return ToolEvent(agent, "delta", loads(part.to_json()), call_id=call_id, provider_stage=part.type)


def without_start(parts: Iterable[StreamPart]) -> list[StreamPart]:
    """The parts without those that depend on whether the stream has started: pending messages and warnings."""
    return [
        part
        for part in parts
        if not isinstance(part, StreamStart)
        and not (isinstance(part, Steer) and part.status == "accepted")
        and not (isinstance(part, Custom) and part.kind == WARNING)
    ]


class Drive:
    """One stream of a turn.

    Every fact is also reported to a second turn that knows nothing but the JSON of the state before it: its parts and
    its state must be the same. A fact that raises must change nothing. Once the turn is over or waits, its stream must
    be legal.
    """

    def __init__(
        self,
        tools: Mapping[str, Facts] | None = None,
        /,
        *,
        state: TurnState | None = None,
        ids: int = 0,
        **settings: Any,
    ) -> None:
        self._tools = tools
        self._settings = settings
        self._ids = ids
        self.turn = self._made(TurnState(run_id="run_1", messages=[QUESTION]) if state is None else state)
        self.parts: list[StreamPart] = []
        self.completed: list[tuple[StreamPart, list[ChatMessage]]] = []
        """Parts that completed messages, and these."""
        self._first_step = self.state.step + 1
        self._known_calls = {call.id for call in self.state.calls}

    @property
    def state(self) -> TurnState:
        return self.turn.state

    @property
    def command(self) -> Any:
        return self.turn.command

    @property
    def answers(self) -> list[ChatMessage]:
        """What the turn has added to the history."""
        return self.state.messages[1:]

    @property
    def approvals(self) -> dict[str, PendingApproval]:
        """What waits for a person, by tool."""
        return {entry.tool: entry for entry in RunState(self.state).approvals}

    def __getattr__(self, fact: str) -> Callable[..., list[StreamPart]]:
        """The turn's facts."""
        return lambda *given, **named: self._report(lambda turn: getattr(turn, fact)(*given, **named))

    def set_tools(self, tools: Mapping[str, Facts]) -> None:
        self._tools = tools
        self.turn.set_tools(tools)

    def judged(self, verdict: Verdict = "run", **verdicts: Verdict) -> list[StreamPart]:
        """The policy says this of the calls with these ids, and `verdict` of the others."""
        said = {question.call_id: verdicts.get(question.call_id, verdict) for question in self.command.questions}
        return self._report(lambda turn: turn.judged(said, self._new_ids()))

    def reconsidered(self) -> list[StreamPart]:
        return self._report(lambda turn: turn.reconsidered(self._new_ids()))

    def answer(
        self,
        *parts: StreamPart | list[StreamPart],
        reason: FinishReason = "stop",
        downloads: tuple[FileRef, ...] = (),
        **outcome: Any,
    ) -> list[StreamPart]:
        """A whole response, from the request to its end."""
        arrived: list[StreamPart] = []
        for part in parts:
            arrived += part if isinstance(part, list) else [part]
        ending = Finish(reason, used(), outcome=StepOutcome(**outcome) if outcome else None)
        return [
            *self.sending((), ()),
            *self.opened(),
            *self.received([*arrived, ending], downloads),
        ]

    def calls(self, *calls: ToolCall | StreamPart, verdict: Verdict = "run", **verdicts: Verdict) -> list[StreamPart]:
        """A response that calls tools, and what the policy says of them."""
        return [*self.answer(*calls, reason="tool-calls"), *self.judged(verdict, **verdicts)]

    def tool(self, call_id: str, value: Any = "done", is_error: bool = False) -> list[StreamPart]:
        """A tool runs, from its start to its result."""
        self.tool_started(call_id)
        return self.tool_done(call_id, value, is_error)

    def agent_suspended(self, call_id: str, *approvals: PendingApproval) -> list[StreamPart]:
        """A tool that is an agent runs until it waits for a person."""
        self.tool_started(call_id)
        return self.tool_suspended(call_id, Suspended("its state", approvals))

    def continued(self, tools: Mapping[str, Facts] | None = None, *, state: TurnState | None = None) -> "Drive":
        """The next stream of this turn, from its state as JSON."""
        tools = self._tools if tools is None else tools
        return Drive(tools, state=written(self.state if state is None else state), ids=self._ids, **self._settings)

    def decided(self, *decisions: Decision, tools: Mapping[str, Facts] | None = None) -> "Drive":
        """The next stream, with what a person decided."""
        drive = self.continued(tools)
        drive.resumed(decisions)
        drive.reconsidered()
        return drive

    def _made(self, state: TurnState) -> Turn:
        turn = Turn(state=state, **self._settings)
        if self._tools is not None:
            turn.set_tools(self._tools)
        return turn

    def _new_ids(self) -> Callable[[], str]:
        numbers = iter(range(self._ids, self._ids + 100))
        return lambda: f"approval_{next(numbers)}"

    def _report(self, fact: Callable[[Turn], list[StreamPart] | None]) -> list[StreamPart]:
        before = plain(self.state)
        again = self._made(written(self.state))
        try:
            parts = fact(self.turn) or []
        except Exception:
            assert plain(self.state) == before
            raise
        assert without_start(fact(again) or []) == without_start(parts)
        assert plain(again.state) == plain(self.state)
        own = (part.approval_id for part in parts if isinstance(part, ToolApprovalRequest))
        self._ids += sum(approval_id.startswith("approval_") for approval_id in own)
        self.parts += parts
        self.completed += [(part, messages) for part in parts if (messages := self.turn.outbox.messages_with(part))]
        if parts and isinstance(self.command, Over | AwaitDecision):
            check(self.parts, first_step=self._first_step, known_calls=self._known_calls)
        return self.turn.outbox.logged(parts)


def written(state: TurnState) -> TurnState:
    """The state as another process reads it."""
    return RunState.from_json(RunState(state).to_json()).turn


def approval(approval_id: str = "nested_1", tool: str = "delete", **fields: Any) -> PendingApproval:
    """What a sub-agent's run waits for."""
    question = Question(call_id="inner_1", tool=tool, input={"path": "/"}, **fields)
    return pending(question, "run_of_agent", approval_id)

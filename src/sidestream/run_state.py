"""Where a run stands, as data, and what it needs besides."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from sidestream import jsontext
from sidestream.approvals import Decision, PendingApproval, Policy, Question, Verdict, judge
from sidestream.calls import Transport
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.message_fold import MessageMetadata
from sidestream.messages import ChatMessage
from sidestream.models import ChatModel, ModelRequest
from sidestream.output import OutputType
from sidestream.parts import StreamPart, ToolCall
from sidestream.results import ResultMetadata
from sidestream.server_tools import ServerTool
from sidestream.toolsets import ToolBox
from sidestream.turn import Turn
from sidestream.turn_state import TurnState, Wait


class RunState(Struct, frozen=True):
    """Where a run stands, as data. `agent.resume(state, decisions)` goes on from it, also in another process."""

    turn: TurnState
    version: int = 1

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """What waits for a person, once nothing else is left to do."""
        if not isinstance(self.turn.command, Wait):
            return ()
        nested = (entry for suspended in self.turn.suspended.values() for entry in suspended.approvals)
        return (*self.turn.waiting, *nested)

    def to_json(self) -> str:
        """As JSON text."""
        return jsontext.dumps(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> "RunState":
        """What `to_json` wrote."""
        try:
            state = msgspec.json.decode(text, type=RunState)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"this is not the state of a run: {error}") from error
        if state.version != 1:
            raise ConfigurationError(f"this run was written by a newer version ({state.version}); update sidestream")
        return state


class Recorder(Protocol):
    """Writes a run down as it streams. Writing goes on beside the run; `commit` waits until all is safe."""

    def begin(self, run_id: str, started: "RunSettings", decisions: Sequence[Decision]) -> None:
        """The run begins, with its opening messages, or goes on after these decisions."""
        ...

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """What the stream tells next."""
        ...

    def tool_started(self, call: ToolCall) -> None:
        """A client tool is about to run; it does once this is safe."""
        ...

    def waiting(self, state: TurnState) -> None:
        """The run ends for now: it waits for a person."""
        ...

    def cancelled(self) -> None:
        """The run is left before its end."""
        ...

    async def commit(self) -> StreamPart | None:
        """Waits until everything so far is safe. Where it cannot be, gives a notice for the stream, once.

        Raises ConflictError where someone else has written in between: the run must stop.
        """
        ...


class RunSettings(Struct, kw_only=True):
    """What a run needs besides its turn."""

    model: ChatModel
    transport: Transport
    limits: Limits
    toolbox: ToolBox = field(default_factory=lambda: ToolBox({}))
    hosted: tuple[ServerTool, ...] = ()
    system: str | None = None
    options: Any = None
    stream: bool = True
    policy: Policy = "never"
    output: OutputType[Any] | None = None
    opening: tuple[ChatMessage, ...] = ()
    message_metadata: MessageMetadata = "session"
    result_metadata: ResultMetadata = "accumulated"
    warnings: tuple[str, ...] = ()
    """What the stream says at its start, besides what encoding the request has to say."""
    recorder: Recorder | None = None
    ended: Callable[[Turn], None] | None = None
    """Called once when the run has come to its end or waits, unless it failed."""

    def request(self, turn: Turn) -> ModelRequest:
        """What the turn asks the model next."""
        return ModelRequest(
            messages=tuple(turn.state.messages),
            system=self.system,
            tools=self.toolbox.specs,
            server_tools=self.hosted,
            output_schema=self.output.schema if self.output is not None else None,
            options=self.options,
            stream=self.stream,
            without=turn.state.without,
        )

    async def judged(self, question: Question) -> Verdict:
        """Whether a call may run: by its tool's own policy, else by the run's."""
        tool = None if question.is_remote else self.toolbox.tools.get(question.tool)
        policy = tool.approval if tool is not None and tool.approval is not None else self.policy
        # A provider that asks about its own call has been told to ask: the default lets a person answer.
        policy = "always" if question.is_remote and policy == "never" else policy
        return await judge(question, policy, is_sensitive=tool is not None and tool.is_sensitive)

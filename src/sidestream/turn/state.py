"""What a turn can want done, where it stands, and its answers in the background: plain data."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import as_object
from sidestream.messages.fold import FoldState
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Custom, Error, Finish, Steer, StreamPart, ToolApprovalRequest, ToolCall, Usage
from sidestream.text.reprs import ShortRepr
from sidestream.tools.approvals import ExternalOutput, PendingApproval, Question, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import Attempt

BACKGROUND: Final = "sidestream.background"
"""The kind of the custom part that reports an answer in the background: `provider`, `id`, `is_streamed`, `status`."""
STARTED: Final = "started"
RESUMED: Final = "resumed"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
POLLED: Final = "polled"
"""Statuses of our own; the others are the provider's words."""


_NOT_UNDER_WAY: Final = frozenset({LOST, CANCELLED})


class Background(Struct, frozen=True):
    """The answer of the current step, where the provider works on it without a connection."""

    provider: str
    id: str
    is_streamed: bool
    """True if it was requested as a stream, so that it can be fetched as one."""


def background_in(parts: Iterable[StreamPart]) -> Background | None:
    """The pending answer that the parts of an unfinished step report, if they do."""
    reports = [as_object(part.data) for part in parts if isinstance(part, Custom) and part.kind == BACKGROUND]
    with suppress(ValidationError):
        return convert(reports[-1], Background) if reports and reports[-1].get("status") not in _NOT_UNDER_WAY else None
    return None


class Send(Struct, frozen=True, tag="send"):
    """Make a request of the history and send it."""


class Fetch(Struct, frozen=True, tag="fetch"):
    """Download files that a tool made; any number at once."""

    refs: tuple[FileRef, ...]


class Judge(Struct, frozen=True, tag="judge"):
    """Ask the policy about these calls."""

    questions: tuple[Question, ...]


class CallTools(Struct, frozen=True, tag="call-tools"):
    """Run these client tools; any number at once."""

    calls: tuple[ToolCall, ...]


class Check(Struct, frozen=True, tag="check"):
    """See whether the answer fits the output type."""

    text: str


class AwaitDecision(Struct, frozen=True, tag="wait"):
    """Nothing can be done before a person has decided."""


class Over(Struct, frozen=True, tag="over"):
    """Nothing is left to do."""


Command = Send | Fetch | Judge | CallTools | Check | AwaitDecision | Over


class OpenCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A call that the provider executes, until a step has ended with its result."""

    call: ToolCall
    step: int
    """The step that called."""
    answered: int | None = None
    """The step in which its result came, while that step has not ended."""


class TurnState(ShortRepr, Struct, kw_only=True, gc=False):
    """Where a turn stands."""

    run_id: str = ""
    messages: list[ChatMessage]
    """The history, growing by what this turn adds."""
    command: Command = Send()
    model: str = ""
    """The model that the run moved on to, as `PROVIDER:MODEL`, if it did."""
    step: int = -1
    is_in_step: bool = False
    """True from `step-start` to `step-finish`."""
    usage: Usage = Usage()
    without: frozenset[str] = frozenset()
    """What the provider refused, or cannot do, in this step."""
    fold: FoldState | None = None
    calls: tuple[ToolCall, ...] = ()
    """Client calls of the current round that have no result yet."""
    hosted: dict[str, OpenCall] = {}
    """Call id → a call of the provider that has no result yet; it may come with a later step."""
    requests: tuple[ToolApprovalRequest, ...] = ()
    """Calls that the provider asks to be allowed."""
    waiting: tuple[PendingApproval, ...] = ()
    """Calls that wait for a person."""
    pins: dict[str, str] = {}
    """Call id → what its tool was when the call was approved."""
    suspended: dict[str, Suspended] = {}
    """Calls that wait for a person themselves, or continue where they stopped once they run again."""
    approved: frozenset[str] = frozenset()
    """Calls of the current round that a person has approved, or whose results came from outside."""
    outputs: dict[str, ExternalOutput] = {}
    """Call id → the result that came from outside, until the stream reports it."""
    started: frozenset[str] = frozenset()
    """Calls of the current round whose tools have begun to run."""
    attempts: dict[str, Attempt] = {}
    """Calls of the current round whose tools have been started, also before the run was resumed; by call id."""
    interrupted_rounds: int = 0
    """How often the run was left while tools ran that may have done their work."""
    tool_calls_made: int = 0
    sources: tuple[str, ...] = ()
    """Untrusted sources that the conversation has read, in this run or before it."""
    digests: frozenset[str] = frozenset()
    """Files of the current step, so that a download of one of them is not emitted twice."""
    delivered: dict[str, int] = {}
    """File id and digest → the step that delivered the file; one that is cited again is not delivered again."""
    ending: Finish | None = None
    """How the current step's response ended, while more is to do for it."""
    error: Error | None = None
    limit: tuple[str, float] | None = None
    background: Background | None = None
    """Set while the provider works on the current step's answer, whatever becomes of this process."""
    defers_output: bool = False
    """True if the typed answer needs a request of its own, without tools, once the model is done with them."""
    empty_answers: int = 0
    steers: tuple[Steer, ...] = ()
    """Messages that were sent while the run was in progress, and that no request has taken yet."""
    is_paused: bool = False
    """True if the provider paused: its last message must be continued before anything is said to it."""
    rejected_outputs: int = 0
    grants: tuple[Grant, ...] = ()
    """Tools that a person has allowed in this conversation."""
    listed: dict[str, dict[str, str]] = {}
    """Tools that the provider has listed in this turn: label of the remote server → tool → digest of its definition."""


def copied(state: TurnState) -> TurnState:
    """The same state in objects of its own."""
    return msgspec.convert(msgspec.to_builtins(state), TurnState)


def suspended_run(state: "RunState") -> Suspended:
    """A call that waits because the run behind it does. Each approval is for one call: the run ends with its task."""
    approvals = (replace(entry, can_remember=False) for entry in state.approvals)
    return Suspended(state.to_json(), tuple(approvals))


class RunState(ShortRepr, Struct, frozen=True):
    """Where a run stands, as data. `agent.resume(state, decisions)` continues from it, also in another process.

    ```python
    Path("run.json").write_text(result.run_state.to_json())
    state = RunState.from_json(Path("run.json").read_text())
    result = await agent.resume(state, [call.approve() for call in state.approvals])
    ```
    """

    turn: TurnState
    version: int = 1

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """What waits for a person, once nothing else is left to do."""
        if not isinstance(self.turn.command, AwaitDecision):
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
            state = msgspec.convert(jsontext.loads(text), RunState)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigurationError(f"this is not the state of a run: {error}") from error
        if state.version != 1:
            raise ConfigurationError(f"this run was written by a newer version ({state.version}); update sidestream")
        return state


TurnStatus = Literal["complete", "waiting", "failed", "cancelled", "unfinished"]
"""The status of a conversation's last turn."""

TURN_STATUSES: Final[dict[TurnStatus, str]] = {
    "complete": "it has come to its end",
    "waiting": "a call waits for an approval, or for its result from outside",
    "failed": "it ended with an error",
    "cancelled": "it was stopped before its end",
    "unfinished": "it was interrupted, or still runs in another process",
}
"""Status → what it means."""

MUST_RESUME: Final = frozenset[TurnStatus]({"waiting", "unfinished"})
"""After these, the turn must be resumed or discarded before the next message. A failed or cancelled one is dropped."""

_ENDINGS: dict[str | None, TurnStatus] = {"approval": "waiting", "error": "failed", None: "failed"}


def status_after(reason: str | None) -> TurnStatus:
    """The status of a turn whose run ended with this finish reason; None if it has ended without one."""
    return _ENDINGS.get(reason, "complete")

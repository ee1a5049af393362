"""The commands and the state of a turn, and its background responses, as plain data."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import Json, as_object
from sidestream.messages.fold import FoldState
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom, Error, Finish, Steer, StreamPart, ToolApprovalRequest, ToolCall, Usage
from sidestream.providers.protocol import FileRef
from sidestream.text.reprs import ShortRepr
from sidestream.tools.approvals import ExternalOutput, PendingApproval, Question, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import Attempt

BACKGROUND: Final = "sidestream.background"
"""Kind of the custom part that reports a background response, with `provider`, `id`, `is_streamed` and `status`."""
STARTED: Final = "started"
RESUMED: Final = "resumed"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
POLLED: Final = "polled"
"""Our own statuses. The others are the provider's values."""


_NOT_UNDER_WAY: Final = frozenset({LOST, CANCELLED})


class Background(Struct, frozen=True):
    """The current step's response, if the provider works on it without a connection."""

    provider: str
    id: str
    is_streamed: bool
    """Whether it was requested as a stream, so that it can be fetched as one."""


def background_in(parts: Iterable[StreamPart]) -> Background | None:
    """Return the pending background response that the parts of an unfinished step report, or None."""
    reports = [as_object(part.data) for part in parts if isinstance(part, Custom) and part.kind == BACKGROUND]
    with suppress(ValidationError):
        return convert(reports[-1], Background) if reports and reports[-1].get("status") not in _NOT_UNDER_WAY else None
    return None


class Send(Struct, frozen=True, tag="send"):
    """A command to build a request from the history and send it."""


class Fetch(Struct, frozen=True, tag="fetch"):
    """A command to download files that a tool made, any number of them concurrently."""

    refs: tuple[FileRef, ...]


class Judge(Struct, frozen=True, tag="judge"):
    """A command to ask the policy about these calls."""

    questions: tuple[Question, ...]


class CallTools(Struct, frozen=True, tag="call-tools"):
    """A command to run these client tools, any number of them concurrently."""

    calls: tuple[ToolCall, ...]


class Check(Struct, frozen=True, tag="check"):
    """A command to check whether the answer fits the output type."""

    text: str


class AwaitDecision(Struct, frozen=True, tag="wait"):
    """The command of a turn that waits for approval decisions."""


class Over(Struct, frozen=True, tag="over"):
    """The command of a finished turn, which has nothing left to do."""


Command = Send | Fetch | Judge | CallTools | Check | AwaitDecision | Over


class OpenCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A call that the provider executes, kept until a step has ended with its result."""

    call: ToolCall
    step: int
    """Step that made the call."""
    answered: int | None = None
    """Step in which its result came, while that step has not ended."""


class ProgramAnswer(Struct, frozen=True, gc=False):
    """The result of a call that a program made."""

    result: Json
    is_error: bool


class TurnState(ShortRepr, Struct, kw_only=True, gc=False):
    """The state of a turn."""

    run_id: str = ""
    messages: list[ChatMessage]
    """History, to which this turn appends."""
    command: Command = Send()
    model: str = ""
    """Fallback model that the run switched to, as `PROVIDER:MODEL`; empty if it did not."""
    step: int = -1
    is_in_step: bool = False
    """Whether a step is in progress, from `step-start` to `step-finish`."""
    usage: Usage = Usage()
    without: frozenset[str] = frozenset()
    """Features that the provider refused or lacks in this step."""
    fold: FoldState | None = None
    calls: tuple[ToolCall, ...] = ()
    """Client calls of the current round that have no result yet."""
    hosted: dict[str, OpenCall] = {}
    """Provider calls without a result, by call id. The result may come with a later step."""
    requests: tuple[ToolApprovalRequest, ...] = ()
    """Calls for which the provider requests approval."""
    waiting: tuple[PendingApproval, ...] = ()
    """Calls that wait for approval."""
    pins: dict[str, str] = {}
    """Fingerprints of the tools at the time of the approval, by call id."""
    suspended: dict[str, Suspended] = {}
    """Suspended calls, by call id, which wait for approval or continue where they stopped."""
    approved: frozenset[str] = frozenset()
    """Calls of the current round that the user has approved, or that have an external result."""
    outputs: dict[str, ExternalOutput] = {}
    """External results that the stream has not reported yet, by call id."""
    started: frozenset[str] = frozenset()
    """Calls of the current round whose tools have started."""
    attempts: dict[str, Attempt] = {}
    """Attempts at calls of the current round, including those before the run was resumed, by call id."""
    programs: dict[str, dict[str, ProgramAnswer]] = {}
    """Results of the calls that running programs have made, by the program's call id and the id of the call. A program
    that runs again gets them instead of repeating its calls."""
    interrupted_rounds: int = 0
    """Number of times that the run was interrupted while tools ran that may have taken effect."""
    tool_calls_made: int = 0
    sources: tuple[str, ...] = ()
    """Untrusted sources that the conversation has read, in this run or before it."""
    digests: frozenset[str] = frozenset()
    """Digests of the current step's files, so that their downloads are not emitted twice."""
    delivered: dict[str, int] = {}
    """Steps that delivered files, by file id and digest. A file that is cited again is not delivered again."""
    ending: Finish | None = None
    """End of the current step's response, while the step is not complete."""
    error: Error | None = None
    limit: tuple[str, float] | None = None
    background: Background | None = None
    """Background response of the current step, which the provider completes even if this process ends."""
    defers_output: bool = False
    """Whether the typed answer needs a separate request, without tools, once the model is done with them."""
    empty_answers: int = 0
    steers: tuple[Steer, ...] = ()
    """User messages sent during the run that no request has taken yet."""
    is_paused: bool = False
    """Whether the provider paused, so that its last message must be continued before any new message."""
    rejected_outputs: int = 0
    grants: tuple[Grant, ...] = ()
    """Remembered approvals of this conversation."""
    listed: dict[str, dict[str, str]] = {}
    """Tools that the provider has listed in this turn: server label → tool → digest of its definition."""


def copied(state: TurnState) -> TurnState:
    """Return a deep copy of the state."""
    return msgspec.convert(msgspec.to_builtins(state), TurnState)


def suspended_run(state: "RunState") -> Suspended:
    """Build the suspension of a call whose subagent's run waits.

    Its approvals cannot be remembered, since the run ends with its task.
    """
    approvals = (replace(entry, can_remember=False) for entry in state.approvals)
    return Suspended(state.to_json(), tuple(approvals))


class RunState(ShortRepr, Struct, frozen=True):
    """The state of a run as data, from which `agent.resume(state, decisions)` continues, even in another process.

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
        """Pending approvals, once nothing else is left to do."""
        if not isinstance(self.turn.command, AwaitDecision):
            return ()
        nested = (entry for suspended in self.turn.suspended.values() for entry in suspended.approvals)
        return (*self.turn.waiting, *nested)

    def to_json(self) -> str:
        """Serialize the state to JSON."""
        return jsontext.dumps(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> "RunState":
        """Parse the output of `to_json`. Raises ConfigurationError if it is not the state of a run."""
        try:
            state = msgspec.convert(jsontext.loads(text), RunState)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigurationError(f"not a valid run state: {error}") from error
        if state.version != 1:
            raise ConfigurationError(f"the run state is of a newer version ({state.version}); update Sidestream")
        return state


TurnStatus = Literal["complete", "waiting", "failed", "cancelled", "unfinished"]
"""Status of a conversation's last turn."""

TURN_STATUSES: Final[dict[TurnStatus, str]] = {
    "complete": "it has finished",
    "waiting": "a call is waiting for an approval or an external result",
    "failed": "it ended with an error",
    "cancelled": "it was stopped before its end",
    "unfinished": "it was interrupted, or is still running in another process",
}
"""Descriptions of the statuses."""

MUST_RESUME: Final = frozenset[TurnStatus]({"waiting", "unfinished"})
"""Statuses after which a turn must be resumed or discarded before the next message. Failed and cancelled turns are
dropped."""

_ENDINGS: dict[str | None, TurnStatus] = {"approval": "waiting", "error": "failed", None: "failed"}


def status_after(reason: str | None) -> TurnStatus:
    """Return the status of a turn whose run ended with this finish reason.

    None means that it ended without one.
    """
    return _ENDINGS.get(reason, "complete")


BLOCKED_BY: Final = "blocked_by"
"""Metadata key of `finish` for the hook that ended the run. `blocked` has its reason."""


def blocked_finish(by: str, reason: str, ending: Finish | None = None) -> Finish:
    """Return the end of an answer that a hook does not let the run use."""
    usage, metadata = (ending.usage, ending.metadata) if ending is not None else (Usage(), {})
    return Finish("content-filter", usage, "blocked", {**metadata, BLOCKED_BY: by, "blocked": reason})

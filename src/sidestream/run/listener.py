"""What can follow a run while it happens, for telemetry."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from sidestream.errors import RunError
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import ChatModel, ModelRequest
from sidestream.stream.parts import FinishReason, StreamPart, ToolCall
from sidestream.tools.tool import Tool, ToolOutcome
from sidestream.transport.calls import HttpCall, HttpResponse

if TYPE_CHECKING:
    from sidestream.turn.machine import Turn


class ObservedRun(Protocol):
    """What a listener may know of a run beside its turn. The model may change: another one can stand in."""

    @property
    def model(self) -> ChatModel: ...

    @property
    def opening(self) -> tuple[ChatMessage, ...]:
        """The user's own messages."""
        ...

    @property
    def is_typed(self) -> bool:
        """True if it has an output type."""
        ...

    @property
    def conversation(self) -> str | None:
        """The id of its conversation, if it has one."""
        ...


class RunListener(Protocol):
    """Follows one run. Its methods are called in the order of what happens; none may raise."""

    def started(self, turn: "Turn", settings: ObservedRun) -> None:
        """The run begins, or resumes."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Surrounds each piece of the run's work, between two of its parts."""
        ...

    def prepared(self, request: ModelRequest) -> None:
        """The next request is known."""
        ...

    def sending(self, call: HttpCall) -> AbstractContextManager[object]:
        """Surrounds the request, until its answer begins to arrive."""
        ...

    def opened(self, response: HttpResponse) -> None:
        """The answer begins to arrive."""
        ...

    def refused(self, error: RunError) -> None:
        """The request got no answer. The run may make another one."""
        ...

    def feed(self, parts: Sequence[StreamPart]) -> None:
        """The next parts of the stream."""
        ...

    def tool(self, call: ToolCall, tool: Tool | None) -> AbstractContextManager[Callable[[ToolOutcome], None]]:
        """Surrounds the execution of a client tool, in its task; the callable takes the outcome."""
        ...

    def ended(self, reason: FinishReason | None = None, error: BaseException | None = None) -> None:
        """The run is over, or waits; without a reason or an error it was cancelled. Only the first call counts."""
        ...

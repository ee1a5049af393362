"""What a recorder of runs must be."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.stream.parts import StreamPart, ToolCall
from sidestream.tools.approvals import Decision, PendingApproval, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy


class Recorder(Protocol):
    """Records a run as it streams. It writes concurrently with the run; `commit` waits until all is safe."""

    def begin(
        self,
        run_id: str,
        *,
        model: str,
        opening: Sequence[ChatMessage],
        message_metadata: MessageMetadata,
        decisions: Sequence[Decision],
    ) -> None:
        """The run begins with its opening messages, or, without any, resumes after these decisions."""
        ...

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """The next parts of the stream."""
        ...

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """A request is about to be sent that differs from the usual one."""
        ...

    def asked(self, approval: PendingApproval) -> None:
        """A call waits for a person."""
        ...

    def granted(self, grants: Sequence[Grant]) -> None:
        """These tools are allowed in the conversation from now on, and no others."""
        ...

    def tool_started(self, call: ToolCall, key: str, policy: InterruptionPolicy) -> None:
        """A client tool is about to run, with this idempotency key; it does once this is safe."""
        ...

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """A tool waits for a person, or for work that is done elsewhere."""
        ...

    def left(self) -> None:
        """The run is left where it is, for another process to continue; nothing is written after the next `commit`."""
        ...

    def cancelled(self) -> None:
        """The run has been stopped before its end."""
        ...

    async def commit(self) -> StreamPart | None:
        """Waits until everything so far is safe. Where it cannot be, gives a notice for the stream, once.

        Raises ConflictError where someone else has written in between, or ApprovalError where they have used the same
        decision: the run must stop.
        """
        ...

"""Where a run stands, as data, and what it needs besides."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.approvals import PendingApproval, Question, Verdict
from sidestream.calls import Transport
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.message_fold import MessageMetadata
from sidestream.messages import ChatMessage
from sidestream.models import ChatModel, ModelRequest
from sidestream.output import OutputType
from sidestream.results import ResultMetadata
from sidestream.tools import Tool
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


class RunSettings(Struct, kw_only=True):
    """What a run needs besides its turn."""

    model: ChatModel
    transport: Transport
    request: Callable[[Turn], ModelRequest]
    limits: Limits
    tools: dict[str, Tool] = {}
    judge: Callable[[Question], Awaitable[Verdict]] | None = None
    output: OutputType[Any] | None = None
    opening: tuple[ChatMessage, ...] = ()
    message_metadata: MessageMetadata = "session"
    result_metadata: ResultMetadata = "accumulated"

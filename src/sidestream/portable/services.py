"""Services of the agent for its local tools."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.run.run import Run
from sidestream.tools.context import ToolContext
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.calls import Transport


class StartsRuns(Protocol):
    """Starts a run on another model, or resumes the one in which the call waits (`ToolContext.suspended`)."""

    def __call__(
        self,
        model: str,
        prompt: str,
        tools: Sequence[ServerSideTool],
        context: ToolContext,
        *,
        system: str | None = None,
    ) -> Run[Any]: ...


class Embeds(Protocol):
    """Embeds strings with a model string's model. None means the embedded model."""

    def __call__(self, model: str | None, texts: Sequence[str]) -> Awaitable[EmbeddingsResult]: ...


class Services(Struct, frozen=True, kw_only=True):
    """The agent's services for a toolset. Anything that belongs to one call is in `ToolContext`."""

    limits: Limits = DEFAULT_LIMITS
    start_run: StartsRuns
    embed: Embeds
    transport: Callable[[], Transport]
    """Returns a plain HTTP transport with retries, limits and redaction. It may reach any host."""

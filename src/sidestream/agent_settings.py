"""What an agent can be made with, and what one call can change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from sidestream.approvals import Policy
from sidestream.calls import Transport
from sidestream.limits import Limits
from sidestream.message_fold import MessageMetadata
from sidestream.messages import ChatMessage, MessagePart
from sidestream.models import Settings
from sidestream.results import ResultMetadata
from sidestream.run_state import Recorder
from sidestream.server_tools import ServerTool
from sidestream.tools import Tool
from sidestream.toolsets import Toolset
from sidestream.turn import Turn

if TYPE_CHECKING:
    from aiohttp import ClientSession

Prompt = str | ChatMessage | Sequence[str | MessagePart]
Tools = Iterable[Tool | Toolset | Callable[..., Any]]


class AgentSettings(TypedDict, total=False):
    """What an agent can be made with, besides its model and its output type."""

    tools: Tools
    server_side_tools: Iterable[ServerTool]
    system: str | None
    options: Any
    approval: Policy
    api_key: str | None
    base_url: str | None
    headers: Mapping[str, str] | None
    auth: Callable[[], Mapping[str, str]] | None
    transport: Transport | None
    session: "ClientSession | None"
    limits: Limits
    message_metadata: MessageMetadata
    result_metadata: ResultMetadata


class CallSettings(TypedDict, total=False):
    """What one call can change, for that call only."""

    history: Iterable[ChatMessage]
    stream: bool
    tools: Tools
    server_side_tools: Iterable[ServerTool]
    system: str | None
    options: Any
    approval: Policy
    limits: Limits
    recorder: Recorder | None
    ended: Callable[[Turn], None] | None


def provider_settings(given: AgentSettings) -> Settings:
    """Where and as whom to call the provider."""
    return Settings(
        api_key=given.get("api_key"),
        base_url=given.get("base_url"),
        headers=dict(given.get("headers") or {}),
        auth=given.get("auth"),
    )


def refuse_unknown(given: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for a setting that there is not."""
    unknown = given.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}; known: {', '.join(known.__annotations__)}")

"""The settings of an agent, and what one call can change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from sidestream.limits import Limits
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage, MessagePart
from sidestream.providers.calls import Transport
from sidestream.providers.protocol import Settings
from sidestream.run.results import ResultMetadata
from sidestream.tools.approvals import Policy
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.tool import Tool
from sidestream.tools.toolset import Toolset

if TYPE_CHECKING:
    from aiohttp import ClientSession

Prompt = str | ChatMessage | Sequence[str | MessagePart]
Tools = Iterable[Tool | Toolset | Callable[..., Any]]


class AgentSettings(TypedDict, total=False):
    """The settings of an agent, besides its model and its output type."""

    tools: Tools
    server_side_tools: Iterable[ServerSideTool]
    system: str | None
    options: Any
    approval: Policy | None
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
    server_side_tools: Iterable[ServerSideTool]
    system: str | None
    options: Any
    approval: Policy | None
    limits: Limits


def provider_settings(given: AgentSettings) -> Settings:
    """Where and as whom to call the provider."""
    return Settings(
        api_key=given.get("api_key"),
        base_url=given.get("base_url"),
        headers=dict(given.get("headers") or {}),
        auth=given.get("auth"),
    )


def refuse_unknown(given: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an unknown setting."""
    unknown = given.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}; known: {', '.join(known.__annotations__)}")

"""An agent's tools: functions, toolsets, and where each server-side tool runs."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import ChatModel, ModelRequest
from sidestream.tools.server_side import RemoteMCP, ServerSideTool
from sidestream.tools.tool import Tool, as_tools
from sidestream.tools.toolset import Toolset


class OwnTools(Struct, frozen=True):
    """Functions by name, and toolsets."""

    functions: dict[str, Tool] = {}
    toolsets: tuple[Toolset, ...] = ()


def own_tools(items: Iterable[Tool | Toolset | Callable[..., Any]]) -> OwnTools:
    """What was handed in as tools, sorted. Raises ConfigurationError, also where two have one name."""
    functions: list[Tool | Callable[..., Any]] = []
    toolsets: list[Toolset] = []
    for item in items:
        if isinstance(item, Tool) or not isinstance(item, Toolset):
            functions.append(item)
        elif any(item.label == other.label for other in toolsets):
            raise ConfigurationError(f"two tool servers are called {item.label!r}: give one another label")
        else:
            toolsets.append(item)
    return OwnTools(as_tools(functions), tuple(toolsets))


class Placement(Struct, frozen=True):
    """Which server-side tools the provider runs, and which MCP servers are called from here instead."""

    hosted: tuple[ServerSideTool, ...]
    toolsets: tuple[Toolset, ...] = ()
    warnings: tuple[str, ...] = ()


class LocalServers:
    """The connections to remote MCP servers that an agent calls from here; they live as long as the agent."""

    def __init__(self) -> None:
        self._known: list[tuple[RemoteMCP, Toolset]] = []

    def place(self, tools: tuple[ServerSideTool, ...], model: ChatModel, options: Any) -> Placement:
        """Decides where each MCP server is called. Raises UnsupportedError for what is possible nowhere."""
        if not any(isinstance(tool, RemoteMCP) for tool in tools):
            return Placement(tools)
        hosted: list[ServerSideTool] = []
        local: list[Toolset] = []
        warnings: list[str] = []
        for tool in tools:
            if not isinstance(tool, RemoteMCP):
                hosted.append(tool)
                continue
            reason = _reason_for_here(tool, model, options)
            if reason is None:
                hosted.append(replace(tool, execution="auto"))
            else:
                local.append(self._server(tool))
                warnings.append(f"the MCP server {tool.label!r} is called from this machine: {reason}")
        return Placement(tuple(hosted), tuple(local), tuple(warnings))

    async def aclose(self) -> None:
        """Ends the connections. Safe to call twice."""
        for _, server in self._known:
            await server.aclose()

    def _server(self, tool: RemoteMCP) -> Toolset:
        for config, server in self._known:
            if config == tool:
                return server
        from sidestream.mcp import MCPServer

        server: Toolset = MCPServer.from_remote(tool)
        self._known.append((tool, server))
        return server


def _reason_for_here(tool: RemoteMCP, model: ChatModel, options: Any) -> str | None:
    """Why the server must be called from here; None where the provider calls it."""
    if tool.execution == "provider":
        return None
    if tool.execution == "local":
        return "execution='local' was requested"
    if tool.url is None:
        return None  # Only a provider reaches its connectors and tunnels.
    probe = ModelRequest(
        messages=(ChatMessage.user("?"),), server_side_tools=(replace(tool, execution="auto"),), options=options
    )
    try:
        model.encode(probe)
    except UnsupportedError as error:
        return str(error)
    return None

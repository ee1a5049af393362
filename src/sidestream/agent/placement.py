"""An agent's tools: functions, toolsets, and where each server-side tool runs."""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import ChatModel, ConfiguresServers, ModelRequest
from sidestream.tools.approvals import REQUIRED_APPROVAL, Policy
from sidestream.tools.external import ExternalTool
from sidestream.tools.server_side import MCPApproval, RemoteMCP, ServerSideTool
from sidestream.tools.tool import Tool, as_tools
from sidestream.tools.toolset import Toolset


class OwnTools(Struct, frozen=True):
    """Functions by name, and toolsets."""

    functions: dict[str, Tool] = {}
    toolsets: tuple[Toolset, ...] = ()


def own_tools(items: Iterable[Tool | ExternalTool | Toolset | Callable[..., Any]]) -> OwnTools:
    """What was handed in as tools, sorted. Raises ConfigurationError, also where two have one name."""
    functions: list[Tool | Callable[..., Any]] = []
    toolsets: list[Toolset] = []
    for item in items:
        if isinstance(item, ExternalTool):
            functions.append(item.as_tool())
        elif isinstance(item, Tool) or not isinstance(item, Toolset):
            functions.append(item)
        elif any(item.label == other.label for other in toolsets):
            raise ConfigurationError(f"two tool servers are called {item.label!r}: give one another label")
        else:
            toolsets.append(item)
    return OwnTools(as_tools(functions), tuple(toolsets))


Servers = str | PathLike[str] | Iterable[Toolset | RemoteMCP]
"""MCP servers: the path of an `mcp.json`, or the servers."""


def mcp_servers(given: Servers) -> tuple[list[Toolset], list[RemoteMCP]]:
    """The servers that this process calls, and those of a provider. Raises ConfigurationError for anything else."""
    if isinstance(given, str | PathLike):
        from sidestream.mcp import load_mcp_config

        config = load_mcp_config(given)
        return [*config.toolsets], [*config.remote_servers]
    own: list[Toolset] = []
    remote: list[RemoteMCP] = []
    for server in [given] if isinstance(given, Toolset | RemoteMCP) else given:
        if isinstance(server, RemoteMCP):
            remote.append(server)
        elif isinstance(server, Toolset):  # pyright: ignore[reportUnnecessaryIsInstance]
            own.append(server)
        else:
            what = type(server).__name__
            raise ConfigurationError(f"mcp must be the path of an mcp.json, or hold MCPServer or RemoteMCP, not {what}")
    return own, remote


class Placement(Struct, frozen=True):
    """Which server-side tools the provider runs, and which MCP servers are called from here instead."""

    hosted: tuple[ServerSideTool, ...]
    options: Any = None
    """The options without MCP servers: those are among the tools."""
    toolsets: tuple[Toolset, ...] = ()
    policies: Mapping[str, Policy] = {}
    """Label of each remote MCP server → the policy for its calls."""
    warnings: tuple[str, ...] = ()


class LocalServers:
    """The connections to remote MCP servers that an agent calls from here; they live as long as the agent."""

    def __init__(self) -> None:
        self._known: list[tuple[RemoteMCP, Toolset]] = []

    def place(
        self, tools: Iterable[ServerSideTool], model: ChatModel, options: Any, policy: Policy | None, own: OwnTools
    ) -> Placement:
        """Decides where each MCP server is called. `policy` is the explicit one of the agent or the call.

        Raises UnsupportedError for a server that can be called nowhere, or nowhere with the approval that it needs.
        """
        tools, options = _merged(tools, options)
        servers = [tool for tool in tools if isinstance(tool, RemoteMCP)]
        if not servers:
            return Placement(tools, options)
        _check_labels(servers, own.toolsets)
        hosted: list[ServerSideTool] = []
        local: list[Toolset] = []
        warnings: list[str] = []
        for tool in tools:
            if not isinstance(tool, RemoteMCP):
                hosted.append(tool)
            elif tool.execution == "local":
                local.append(self._toolset(tool))
            else:
                required = replace(tool, require_approval=_required_approval(tool, policy), execution="auto")
                refusal = _refusal(required, model, options)
                if refusal is None:
                    hosted.append(required)
                else:
                    local.append(self._fallback(tool, refusal))
                    warnings.append(f"the MCP server {tool.label!r} is called from this machine: {refusal}")
        policies: dict[str, Policy] = {server.label: _policy_of(server, policy) for server in servers}
        return Placement(tuple(hosted), options, tuple(local), policies, tuple(warnings))

    async def aclose(self) -> None:
        """Ends the connections. Safe to call twice."""
        for _, server in self._known:
            await server.aclose()

    def _fallback(self, server: RemoteMCP, refusal: UnsupportedError) -> Toolset:
        """The toolset of a server that the provider refuses. Raises UnsupportedError if it is no way out either."""
        if server.url is None:
            raise refusal  # Only a provider reaches its connectors and tunnels.
        if server.execution == "provider":
            raise UnsupportedError(f'{refusal}, or leave out execution="provider" to call it from this machine')
        try:
            return self._toolset(server)
        except UnsupportedError as error:
            raise UnsupportedError(f"{refusal}. {error}") from None

    def _toolset(self, server: RemoteMCP) -> Toolset:
        for config, toolset in self._known:
            if config == server:
                return toolset
        from sidestream.mcp import MCPServer

        made: Toolset = MCPServer.from_remote(server)
        self._known.append((server, made))
        return made


def _merged(tools: Iterable[ServerSideTool], options: Any) -> tuple[tuple[ServerSideTool, ...], Any]:
    """The server-side tools with the MCP servers of the options, each server once, and the options without them."""
    found = tuple(tools)
    if isinstance(options, ConfiguresServers):
        options, servers = options.split_servers()
        found += servers
    unique = [tool for at, tool in enumerate(found) if not isinstance(tool, RemoteMCP) or tool not in found[:at]]
    return tuple(unique), options


def _check_labels(servers: Iterable[RemoteMCP], toolsets: Iterable[Toolset]) -> None:
    """Raises ConfigurationError if two servers share a label: approvals and results name servers by it."""
    labels = {toolset.label for toolset in toolsets}
    for server in servers:
        if server.label in labels:
            raise ConfigurationError(f"two tool servers are called {server.label!r}: give one another label")
        labels.add(server.label)


def _required_approval(server: RemoteMCP, policy: Policy | None) -> Literal["always", "never"] | MCPApproval:
    """What the provider is to request approval for. A function judges the requests, so that it sees every call."""
    return server.require_approval or ("never" if policy == "run" else "always")


def _policy_of(server: RemoteMCP, policy: Policy | None) -> Policy:
    """The server's own policy, else the explicit one, else `ask`."""
    own = server.require_approval
    if own is None:
        return "ask" if policy is None else policy
    # With lists, a provider requests approval only for what needs it.
    return REQUIRED_APPROVAL[own] if isinstance(own, str) else "ask"


def _refusal(server: RemoteMCP, model: ChatModel, options: Any) -> UnsupportedError | None:
    """Why the provider cannot call the server; None if it can."""
    probe = ModelRequest(messages=(ChatMessage.user("?"),), server_side_tools=(server,), options=options)
    try:
        model.encode(probe)
    except UnsupportedError as error:
        return error
    return None

"""Checks of the server-side tools in a request: which tools a provider hosts, and which fields it supports. Pure."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec.structs import replace

from sidestream.errors import ConfigurationError, NotHostedError, UnsupportedError
from sidestream.providers.registry import hosts_of
from sidestream.providers.shared.encoding import given
from sidestream.tools.server_side import RemoteMCP, ServerSideTool, ToolFilter

ToolT = TypeVar("ToolT")
OptionsT = TypeVar("OptionsT", bound=Any)


def require_hosted(tools: Iterable[ServerSideTool], hosted: Collection[type[ServerSideTool]], provider: str) -> None:
    """Check that the provider hosts the tools. Raises NotHostedError, which names other hosts, if it does not."""
    for tool in tools:
        if type(tool) not in hosted:
            hosts = ", ".join(hosts_of(type(tool))) or "no installed provider"
            known = ", ".join(sorted(kind.__name__ for kind in hosted)) or "no server-side tool"
            raise NotHostedError(
                f"{provider} does not host {type(tool).__name__}; it is hosted by {hosts}. {provider} hosts {known}"
            )


def without_repeats(tools: Iterable[ToolT], repeatable: type | tuple[type, ...]) -> list[ToolT]:
    """Remove duplicate tools. Raises ConfigurationError for two of one kind that differ, unless it is repeatable."""
    kept: list[ToolT] = []
    for tool in tools:
        if tool in kept:
            continue
        if not isinstance(tool, repeatable) and any(type(other) is type(tool) for other in kept):
            raise ConfigurationError(f"{type(tool).__name__} is configured twice with different settings; keep one")
        kept.append(tool)
    return kept


def refuse(tool: ServerSideTool, provider: str, **advice: str) -> None:
    """Refuse fields that would have no effect. Raises UnsupportedError, with the field's advice, if one is set."""
    _refuse(tool, provider, list(given(tool, {name: name for name in advice})), advice)


def refuse_others(tool: ServerSideTool, provider: str, *supported: str, **advice: str) -> None:
    """Refuse all fields but the supported ones. Raises UnsupportedError, with the field's advice, if one is set."""
    _refuse(tool, provider, [name for name in given(tool) if name not in supported], advice)


def _refuse(tool: ServerSideTool, provider: str, names: list[str], advice: Mapping[str, str]) -> None:
    if not names:
        return
    fields = ", ".join(f"{name}=…" for name in names)
    hints = "; ".join(dict.fromkeys(advice[name] for name in names if advice.get(name)))
    raise UnsupportedError(
        f"{provider} does not support {type(tool).__name__}({fields})" + (f": {hints}" if hints else "")
    )


def refuse_approval(tool: RemoteMCP, provider: str) -> None:
    """Refuse an MCP server that requires approval, for providers without approvals. Raises UnsupportedError."""
    if tool.require_approval != "never":
        raise UnsupportedError(
            f"{provider} calls MCP servers without approval, but RemoteMCP(label={tool.label!r}) requires it; "
            'set require_approval="never" to allow calls without approval'
        )


def allowed_names(tool: RemoteMCP, provider: str) -> list[str]:
    """Return the allowed tool names of an MCP server. Raises UnsupportedError for a filter by `read_only`."""
    allowed = tool.allowed_tools
    if not isinstance(allowed, ToolFilter):
        return list(allowed or ())
    if allowed.read_only is not None:
        raise UnsupportedError(f"{provider} cannot select MCP tools by read_only; list their names in allowed_tools")
    return list(allowed.names)


def fields_of_tools(members: type[StrEnum], *others: str) -> frozenset[str]:
    """Return the names of the option fields that enable or configure these server-side tools."""
    return frozenset({"server_side_tools", *(f"{member}_config" for member in members), *others})


def check_tool_configs(options: Any, members: type[StrEnum]) -> None:
    """Check that configured tools are enabled. Raises ConfigurationError if options configure one that is not."""
    for member in members:
        if _config_of(options, member) is not None and member not in options.server_side_tools:
            raise ConfigurationError(f"{member}_config has no effect unless {member.name} is in server_side_tools")


def configured_tools(
    options: Any, members: type[StrEnum], kinds: Mapping[Any, type[ServerSideTool]]
) -> list[ServerSideTool]:
    """Return the portable tools that options enable by name, in member order, with their configuration.

    Raises ConfigurationError if a tool lacks the configuration that it needs.
    """
    tools: list[ServerSideTool] = []
    if not options.server_side_tools:
        return tools
    for member in members:
        if member not in options.server_side_tools:
            continue
        config = _config_of(options, member)
        if config is None and kinds[member].needs:
            raise ConfigurationError(f"{member.name} needs {member}_config with {kinds[member].needs}")
        if isinstance(config, tuple):
            tools.extend(config)  # pyright: ignore[reportUnknownArgumentType]
        else:
            tools.append(config or kinds[member]())
    return tools


def split_servers(options: OptionsT, member: StrEnum) -> tuple[OptionsT, tuple[RemoteMCP, ...]]:
    """Return the options without their MCP servers, and the servers."""
    servers = _config_of(options, member)
    if servers is None:
        return options, ()
    chosen = frozenset(other for other in options.server_side_tools if other is not member)
    rest = replace(options, server_side_tools=chosen, **{f"{member}_config": None})
    return rest, servers if isinstance(servers, tuple) else (servers,)  # pyright: ignore[reportUnknownVariableType]


def _config_of(options: Any, member: StrEnum) -> Any:
    return getattr(options, f"{member}_config", None)

"""Server-side tools in a request: which of them a provider hosts, and which of their fields it supports. Pure."""

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
    """Raises NotHostedError for a tool that the provider does not host; the error names the providers that do."""
    for tool in tools:
        if type(tool) not in hosted:
            hosts = ", ".join(hosts_of(type(tool))) or "no installed provider"
            known = ", ".join(sorted(kind.__name__ for kind in hosted)) or "no server-side tool"
            raise NotHostedError(
                f"{provider} does not host {type(tool).__name__}; it is hosted by {hosts}. {provider} hosts {known}"
            )


def without_repeats(tools: Iterable[ToolT], repeatable: type | tuple[type, ...]) -> list[ToolT]:
    """Each tool once. Raises ConfigurationError for two of a kind that differ, unless that kind is repeatable."""
    kept: list[ToolT] = []
    for tool in tools:
        if tool in kept:
            continue
        if not isinstance(tool, repeatable) and any(type(other) is type(tool) for other in kept):
            raise ConfigurationError(f"{type(tool).__name__} is configured twice, and differently; keep one")
        kept.append(tool)
    return kept


def refuse(tool: ServerSideTool, provider: str, **advice: str) -> None:
    """Raises UnsupportedError if one of these fields is set: it would have no effect. Each may come with advice."""
    _refuse(tool, provider, list(given(tool, {name: name for name in advice})), advice)


def refuse_others(tool: ServerSideTool, provider: str, *supported: str, **advice: str) -> None:
    """Raises UnsupportedError if a field is set that is not supported: it would have no effect."""
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
    """Raises UnsupportedError unless the server may be called without approval, which a provider may not support."""
    if tool.require_approval != "never":
        raise UnsupportedError(
            f"{provider} calls MCP servers without approval, and RemoteMCP(label={tool.label!r}) needs it; "
            'set require_approval="never" if it may be called unasked'
        )


def allowed_names(tool: RemoteMCP, provider: str) -> list[str]:
    """The names of the tools that an MCP server may offer. Raises UnsupportedError for a filter by `read_only`."""
    allowed = tool.allowed_tools
    if not isinstance(allowed, ToolFilter):
        return list(allowed or ())
    if allowed.read_only is not None:
        raise UnsupportedError(f"{provider} cannot select MCP tools by read_only; list their names in allowed_tools")
    return list(allowed.names)


def fields_of_tools(members: type[StrEnum], *others: str) -> frozenset[str]:
    """Return the fields of options that switch on these server-side tools, or configure them."""
    return frozenset({"server_side_tools", *(f"{member}_config" for member in members), *others})


def check_tool_configs(options: Any, members: type[StrEnum]) -> None:
    """Raises ConfigurationError if options configure a server-side tool that they do not switch on."""
    for member in members:
        if _config_of(options, member) is not None and member not in options.server_side_tools:
            raise ConfigurationError(f"{member}_config has no effect unless {member.name} is in server_side_tools")


def configured_tools(
    options: Any, members: type[StrEnum], kinds: Mapping[Any, type[ServerSideTool]]
) -> list[ServerSideTool]:
    """The portable tools that options switch on by name, in the order of the names, with their configuration."""
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
    """The options without the MCP servers that they switch on, and these servers."""
    servers = _config_of(options, member)
    if servers is None:
        return options, ()
    chosen = frozenset(other for other in options.server_side_tools if other is not member)
    rest = replace(options, server_side_tools=chosen, **{f"{member}_config": None})
    return rest, servers if isinstance(servers, tuple) else (servers,)  # pyright: ignore[reportUnknownVariableType]


def _config_of(options: Any, member: StrEnum) -> Any:
    return getattr(options, f"{member}_config", None)

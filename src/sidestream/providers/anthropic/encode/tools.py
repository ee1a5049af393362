"""Encoding of client tools and server-side tools."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.output import OutputSchema
from sidestream.output.json_schema import is_record, nodes
from sidestream.providers.anthropic.client_actions import OFF_BY_DEFAULT
from sidestream.providers.anthropic.context import RESULT_TOOL
from sidestream.providers.anthropic.options import (
    Advisor,
    AnthropicFunctionOptions,
    AnthropicOptions,
    AnthropicTool,
    Browser,
    Memory,
    TextEditor,
    tools_of,
)
from sidestream.providers.anthropic.versions import has_native_output, version_of
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.encoding import check_function_options, given, loose_warning
from sidestream.providers.shared.hosting import allowed_names, refuse, refuse_approval, require_hosted, without_repeats
from sidestream.tools.server_side import (
    Callers,
    CodeInterpreter,
    ComputerUse,
    LocalShell,
    ProgrammaticToolCalling,
    RemoteMCP,
    ServerSideTool,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec

_WHO = "Anthropic"


class Versions(Struct, frozen=True):
    """The choice of tool versions for a model."""

    model: str
    chosen: Mapping[str, str]

    def type_of(self, tool: str, requested: str | None = None) -> str:
        """Return the tool's type with its version. `requested` is a date or a whole type."""
        if requested:
            return requested if requested.startswith(tool) else f"{tool}_{requested}"
        return f"{tool}_{version_of(tool, self.model, self.chosen)}"


def _web_search(tool: WebSearch, versions: Versions) -> JsonObject:
    refuse(
        tool,
        _WHO,
        context_size="the model decides how much it reads",
        external_web_access="leave the tool out instead",
        content_types="it finds text only",
    )
    _one_list_of_domains(tool)
    body: JsonObject = {"type": versions.type_of("web_search", tool.version), "name": "web_search"}
    if tool.location is not None:
        names = {name: name for name in ("city", "region", "country", "timezone")}
        body["user_location"] = {"type": "approximate", **given(tool.location, names)}
    return body | given(tool, {name: name for name in ("max_uses", "allowed_domains", "blocked_domains")})


def _web_fetch(tool: WebFetch, versions: Versions) -> JsonObject:
    _one_list_of_domains(tool)
    body: JsonObject = {"type": versions.type_of("web_fetch", tool.version), "name": "web_fetch"}
    names = ("max_uses", "allowed_domains", "blocked_domains", "max_content_tokens")
    body |= given(tool, {name: name for name in names})
    return {**body, "citations": {"enabled": True}} if tool.citations else body


def _one_list_of_domains(tool: WebSearch | WebFetch) -> None:
    if tool.allowed_domains and tool.blocked_domains:
        raise ConfigurationError(f"{type(tool).__name__}: set allowed_domains or blocked_domains, not both")


def _code_interpreter(tool: CodeInterpreter, versions: Versions) -> JsonObject:
    refuse(tool, _WHO, memory_limit="the sandbox has one size", network="the sandbox has no network")
    kind = versions.type_of("code_execution", tool.version)
    return {"type": kind, "name": "code_execution", **callers_of(tool.allowed_callers, versions)}


def _programs(tool: ProgrammaticToolCalling, versions: Versions) -> JsonObject:
    return {"type": versions.type_of("code_execution"), "name": "code_execution"}


def callers_of(callers: Callers, versions: Versions) -> JsonObject:
    """Encode who may call a tool. Programs are identified by the version of code execution that runs them."""
    if not callers:
        return {}
    program = versions.type_of("code_execution")
    return {"allowed_callers": [program if caller == "programmatic" else caller for caller in callers]}


def _tool_search(tool: ToolSearch, versions: Versions) -> JsonObject:
    refuse(
        tool,
        _WHO,
        local="only Anthropic runs it",
        description="it describes itself",
        parameters="it has its own",
    )
    version = tool.version or "bm25"
    kind = "regex" if "regex" in version else "bm25"
    name = f"tool_search_tool_{kind}"
    exact = version if version.startswith("tool_search_tool") else None
    return {"type": exact or versions.type_of(name), "name": name}


def _mcp(tool: RemoteMCP, versions: Versions) -> JsonObject:
    refuse(
        tool,
        _WHO,
        connector="set url",
        tunnel="set url",
        description="the server describes itself",
        headers="use authorization",
        allowed_callers="only the model calls it",
    )
    refuse_approval(tool, _WHO)
    body: JsonObject = {"type": "mcp_toolset", "mcp_server_name": tool.label}
    defaults: JsonObject = {"defer_loading": True} if tool.defer_loading else {}
    if tool.allowed_tools is not None:
        defaults["enabled"] = False
        body["configs"] = {name: {"enabled": True} for name in allowed_names(tool, _WHO)}
    return {**body, "default_config": defaults} if defaults else body


def mcp_server(tool: RemoteMCP) -> JsonObject:
    """Encode the MCP server of a toolset."""
    tool.register_secrets()
    token = {"authorization_token": tool.authorization} if tool.authorization else {}
    return {"type": "url", "url": tool.url, "name": tool.label, **token}


def _memory(tool: Memory, versions: Versions) -> JsonObject:
    return {"type": versions.type_of("memory", tool.version), "name": "memory"}


def _bash(tool: LocalShell, versions: Versions) -> JsonObject:
    return {"type": versions.type_of("bash"), "name": "bash"}


def _text_editor(tool: TextEditor, versions: Versions) -> JsonObject:
    kind = versions.type_of("text_editor", tool.version)
    name = "str_replace_editor" if kind.endswith(("20241022", "20250124")) else "str_replace_based_edit_tool"
    return {"type": kind, "name": name, **given(tool, {"max_characters": "max_characters"})}


def _computer(tool: ComputerUse, versions: Versions) -> JsonObject:
    refuse(tool, _WHO, environment="the model sees it on the screen")
    kind = versions.type_of("computer")
    if "toolset" in kind:
        refuse(tool, "the computer toolset", display_width="screenshots show it", display_height="screenshots show it")
        return {"type": kind}
    size = {"display_width_px": tool.display_width or 1024, "display_height_px": tool.display_height or 768}
    return {"type": kind, "name": "computer", **size}


def _browser(tool: Browser, versions: Versions) -> JsonObject:
    from sidestream.actions.browser import BROWSER_MEMBERS

    both, unknown = {*tool.enable} & {*tool.disable}, {*tool.enable, *tool.disable} - BROWSER_MEMBERS
    if both or unknown:
        names = ", ".join(sorted(both or unknown))
        raise ConfigurationError(
            f"Browser: {names} {'is both enabled and disabled' if both else 'is not a member of the toolset'}"
        )
    configs: JsonObject = {name: {"enabled": True} for name in tool.enable}
    configs |= {name: {"enabled": False} for name in tool.disable}
    if tool.defer_loading:
        # The API requires the same value for all enabled members.
        on = (BROWSER_MEMBERS - OFF_BY_DEFAULT - {*tool.disable}) | {*tool.enable}
        configs |= {name: {**configs.get(name, {}), "defer_loading": True} for name in sorted(on)}
    body: JsonObject = {"type": versions.type_of("browser_toolset", tool.version)}
    return {**body, "configs": configs} if configs else body


def _advisor(tool: Advisor, versions: Versions) -> JsonObject:
    names = {name: name for name in ("max_uses", "max_tokens")}
    kind = versions.type_of("advisor", tool.version)
    return {"type": kind, "name": "advisor", "model": tool.model, **given(tool, names)}


def _explicit(tool: AnthropicTool, versions: Versions) -> JsonObject:
    return {"type": tool.type, **({"name": tool.name} if tool.name else {}), **tool.config}


SERVER_SIDE_TOOLS: dict[type[ServerSideTool], Callable[[Any, Versions], JsonObject]] = {
    WebSearch: _web_search,
    WebFetch: _web_fetch,
    CodeInterpreter: _code_interpreter,
    ProgrammaticToolCalling: _programs,
    ToolSearch: _tool_search,
    RemoteMCP: _mcp,
    Memory: _memory,
    LocalShell: _bash,
    TextEditor: _text_editor,
    ComputerUse: _computer,
    Browser: _browser,
    Advisor: _advisor,
    AnthropicTool: _explicit,
}
"""Server-side tool → how it is encoded."""


_REPEATABLE = (RemoteMCP, AnthropicTool)
RESULT_DESCRIPTION = "Gives the final answer. Call it once, alone, when everything else is done."


class MessagesTools(Struct, frozen=True):
    """Encoded tools and MCP servers, the names of client tools for the decoder, and warnings."""

    functions: list[JsonObject]
    entries: list[JsonObject]
    """Tools of the provider."""
    mcp_servers: list[JsonObject]
    client_names: dict[str, str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest, options: AnthropicOptions, server_side: list[ServerSideTool], model: str
) -> MessagesTools:
    """Encode the client tools and server-side tools of a request.

    Raises ConfigurationError if a client tool has the reserved name.
    """
    if any(spec.name == RESULT_TOOL for spec in request.tools):
        raise ConfigurationError(f"a tool cannot be called {RESULT_TOOL}: the name is reserved for typed output")
    versions = Versions(model, options.tool_versions)
    entries: list[tuple[ServerSideTool, JsonObject]] = [
        (tool, SERVER_SIDE_TOOLS[type(tool)](tool, versions)) for tool in server_side
    ]
    client_names = {str(body.get("name")): tool.client_call for tool, body in entries if tool.client_call}
    # Do not offer a function again if it implements one of the provider's client tools.
    own = {*client_names, *client_names.values()}
    specs = [spec for spec in request.tools if spec.name not in own]
    check_function_options(options.function_options, request.tools)
    has_strict = has_native_output(model)
    strict = {spec.name for spec in specs if has_strict and spec.strict and is_closed(spec.parameters)}
    warnings = [loose_warning(spec) for spec in specs if has_strict and spec.strict and spec.name not in strict]
    functions = [
        _function(spec, spec.name in strict, options.function_options.get(spec.name), versions) for spec in specs
    ]
    servers = [mcp_server(tool) for tool in server_side if isinstance(tool, RemoteMCP)]
    return MessagesTools(functions, [body for _, body in entries], servers, client_names, warnings)


def server_side_tools_of(request: ModelRequest, options: AnthropicOptions) -> list[ServerSideTool]:
    """Return the server-side tools of request and options, each once. Raises UnsupportedError for one not hosted."""
    chosen = (*request.server_side_tools, *tools_of(options))
    require_hosted(chosen, SERVER_SIDE_TOOLS, "Anthropic")
    tools = without_repeats(chosen, _REPEATABLE)
    if any(isinstance(tool, CodeInterpreter) for tool in tools):
        # Programs use the same code execution tool.
        tools = [tool for tool in tools if not isinstance(tool, ProgrammaticToolCalling)]
    return tools


def _function(
    spec: ToolSpec, is_strict: bool, extra: AnthropicFunctionOptions | None, versions: Versions
) -> JsonObject:
    body: JsonObject = {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}
    if is_strict:
        body["strict"] = True
    if spec.defer_loading:
        body["defer_loading"] = True
    if extra is None:
        return body
    names = {name: name for name in ("defer_loading", "eager_input_streaming", "input_examples")}
    return body | given(extra, names) | callers_of(extra.allowed_callers, versions)


def result_tool(schema: OutputSchema) -> JsonObject:
    """Return the reserved tool whose input is the answer."""
    description = f"{RESULT_DESCRIPTION} {schema.description}" if schema.description else RESULT_DESCRIPTION
    return {"name": RESULT_TOOL, "description": description, "input_schema": schema.schema}


def is_closed(schema: Any) -> bool:
    """Return whether no object in the schema allows properties that it does not name."""
    return all(node.get("additionalProperties") is False for node in nodes(schema) if is_record(node))


def closed(schema: Any) -> Any:
    """Copy a schema, and close every object that does not set `additionalProperties`."""
    made = copy.deepcopy(schema)
    for node in nodes(made):
        if is_record(node):
            node.setdefault("additionalProperties", False)
    return made

"""The tools of a request: client tools by their schemas, server-side tools by their table."""

import copy
from typing import Any

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.output.json_schema import is_record, nodes
from sidestream.providers.anthropic.context import RESULT_TOOL
from sidestream.providers.anthropic.encode.server_side import SERVER_SIDE_TOOLS, Versions, callers_of, mcp_server
from sidestream.providers.anthropic.options import AnthropicFunctionOptions, AnthropicOptions, tools_of
from sidestream.providers.anthropic.server_side import AnthropicTool
from sidestream.providers.anthropic.versions import has_native_output
from sidestream.providers.protocol import ModelRequest, OutputSchema, ToolSpec
from sidestream.providers.shared.encoding import check_function_options, given, loose_warning
from sidestream.providers.shared.hosting import require_hosted, without_repeats
from sidestream.tools.server_side import CodeInterpreter, ProgrammaticToolCalling, RemoteMCP, ServerSideTool

_REPEATABLE = (RemoteMCP, AnthropicTool)
RESULT_DESCRIPTION = "Gives the final answer. Call it once, alone, when everything else is done."


class MessagesTools(Struct, frozen=True):
    """Tools and MCP servers on the wire, the names of client tools for the decoder, and warnings."""

    functions: list[JsonObject]
    entries: list[JsonObject]
    """Those of the provider."""
    mcp_servers: list[JsonObject]
    client_names: dict[str, str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest, options: AnthropicOptions, server_side: list[ServerSideTool], model: str
) -> MessagesTools:
    """The client tools of a request and its server-side tools."""
    if any(spec.name == RESULT_TOOL for spec in request.tools):
        raise ConfigurationError(f"a tool cannot be called {RESULT_TOOL}: the name is reserved for typed output")
    versions = Versions(model, options.tool_versions)
    entries: list[tuple[ServerSideTool, JsonObject]] = [
        (tool, SERVER_SIDE_TOOLS[type(tool)](tool, versions)) for tool in server_side
    ]
    client_names = {str(body.get("name")): tool.client_call for tool, body in entries if tool.client_call}
    # A function that implements one of the provider's client tools is not offered a second time.
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
    """The server-side tools of request and options, each once. Raises UnsupportedError for one not hosted."""
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
    """The reserved tool whose input is the answer."""
    description = f"{RESULT_DESCRIPTION} {schema.description}" if schema.description else RESULT_DESCRIPTION
    return {"name": RESULT_TOOL, "description": description, "input_schema": schema.schema}


def is_closed(schema: Any) -> bool:
    """True if no object in the schema allows properties that it does not name."""
    return all(node.get("additionalProperties") is False for node in nodes(schema) if is_record(node))


def closed(schema: Any) -> Any:
    """A copy in which every object is closed, unless it sets `additionalProperties`."""
    made = copy.deepcopy(schema)
    for node in nodes(made):
        if is_record(node):
            node.setdefault("additionalProperties", False)
    return made

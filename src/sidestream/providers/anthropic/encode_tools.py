"""The tools of a request: client tools by their schemas, server-side tools by their table."""

import copy
from typing import Any

from msgspec import Struct

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.json_schema import is_record, nodes
from sidestream.jsontext import JsonObject
from sidestream.providers.anthropic.context import RESULT_TOOL
from sidestream.providers.anthropic.encode_hosted import HOSTED, Versions, callers_of, mcp_server
from sidestream.providers.anthropic.options import AnthropicOptions, FunctionOptions, tools_of
from sidestream.providers.anthropic.server_side import AnthropicTool
from sidestream.providers.anthropic.versions import has_native_output
from sidestream.providers.encoding import given
from sidestream.providers.protocol import ModelRequest, OutputSchema, ToolSpec
from sidestream.providers.registry import hosts_of
from sidestream.tools.server_side import CodeInterpreter, ProgrammaticToolCalling, RemoteMCP, ServerSideTool

_REPEATABLE = (RemoteMCP, AnthropicTool)
RESULT_DESCRIPTION = "Gives the final answer. Call it once, alone, when everything else is done."


class EncodedTools(Struct, frozen=True):
    """Tools on the wire, the servers they need, and what the decoder must know of them."""

    tools: list[JsonObject]
    mcp_servers: list[JsonObject]
    client_names: dict[str, str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest, options: AnthropicOptions, hosted: list[ServerSideTool], model: str
) -> EncodedTools:
    """The client tools of a request and its hosted ones."""
    if any(spec.name == RESULT_TOOL for spec in request.tools):
        raise ConfigurationError(f"a tool cannot be called {RESULT_TOOL}: the name is reserved for typed output")
    versions = Versions(model, options.tool_versions)
    entries: list[tuple[ServerSideTool, JsonObject]] = [(tool, HOSTED[type(tool)](tool, versions)) for tool in hosted]
    client_names = {str(body["name"]): tool.client_call for tool, body in entries if tool.client_call}
    # A function that answers one of the provider's own client tools is not offered a second time.
    own = {*client_names, *client_names.values()}
    specs = [spec for spec in request.tools if spec.name not in own]
    unknown = options.function_options.keys() - {spec.name for spec in request.tools}
    if unknown:
        raise ConfigurationError(f"function_options names tools that there are not: {', '.join(sorted(unknown))}")
    warnings = [
        f"the schema of the tool {spec.name} does not allow strict mode, so its arguments may not follow it"
        for spec in specs
        if spec.strict and has_native_output(model) and not is_closed(spec.parameters)
    ]
    tools = [_function(spec, options.function_options.get(spec.name), versions) for spec in specs]
    tools += [body for _, body in entries]
    servers = [mcp_server(tool) for tool in hosted if isinstance(tool, RemoteMCP)]
    return EncodedTools(tools, servers, client_names, warnings)


def hosted_tools(request: ModelRequest, options: AnthropicOptions) -> list[ServerSideTool]:
    """The server-side tools of request and options, each once. Raises UnsupportedError for one not hosted."""
    tools: list[ServerSideTool] = []
    for tool in (*request.server_side_tools, *tools_of(options)):
        if type(tool) not in HOSTED:
            raise _not_hosted(tool)
        if tool in tools:
            continue
        if not isinstance(tool, _REPEATABLE) and any(type(other) is type(tool) for other in tools):
            raise ConfigurationError(f"{type(tool).__name__} is configured twice, and differently; keep one")
        tools.append(tool)
    if any(isinstance(tool, CodeInterpreter) for tool in tools):
        # Programs run in the sandbox that is there anyway.
        tools = [tool for tool in tools if not isinstance(tool, ProgrammaticToolCalling)]
    return tools


def _not_hosted(tool: ServerSideTool) -> UnsupportedError:
    hosts = ", ".join(hosts_of(type(tool))) or "no installed provider"
    known = ", ".join(sorted(kind.__name__ for kind in HOSTED))
    return UnsupportedError(f"Anthropic does not host {type(tool).__name__}; {hosts} does. It hosts {known}")


def _function(spec: ToolSpec, extra: FunctionOptions | None, versions: Versions) -> JsonObject:
    body: JsonObject = {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}
    if spec.strict and has_native_output(versions.model) and is_closed(spec.parameters):
        body["strict"] = True
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

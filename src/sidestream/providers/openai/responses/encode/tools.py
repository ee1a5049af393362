"""The tools of a request: client tools as functions, server-side tools by their table."""

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.responses.encode.server_side import SERVER_SIDE_TOOLS
from sidestream.providers.openai.responses.options import OpenAIFunctionOptions, OpenAIResponsesOptions, tools_of
from sidestream.providers.protocol import ModelRequest, ToolSpec
from sidestream.providers.shared.encoding import check_function_options, given, loose_warning
from sidestream.providers.shared.hosting import require_hosted, without_repeats
from sidestream.tools.server_side import CodeInterpreter, CustomTool, RemoteMCP, ServerSideTool, Shell

_REPEATABLE = (RemoteMCP, CustomTool)


class ResponsesTools(Struct, frozen=True):
    """Tools on the wire, what the response must include for them, and warnings."""

    tools: list[JsonObject]
    include: list[str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    server_side: list[ServerSideTool],
    last_container: str | None,
) -> ResponsesTools:
    """The client tools of a request and its server-side tools."""
    strict = {spec.name for spec in request.tools if spec.strict and allows_strict(spec.parameters)}
    tools = [_function(spec, spec.name in strict, options.function_options.get(spec.name)) for spec in request.tools]
    warnings = [loose_warning(spec) for spec in request.tools if spec.strict and spec.name not in strict]
    gone = "container" in request.without
    tools += [
        SERVER_SIDE_TOOLS[type(tool)].encode(tool, None if gone else container_of(tool, last_container))
        for tool in server_side
    ]
    check_function_options(options.function_options, request.tools)
    include = [value for tool in server_side for value in SERVER_SIDE_TOOLS[type(tool)].include]
    return ResponsesTools(_in_namespaces(tools, options), include, warnings)


def server_side_tools_of(request: ModelRequest, options: OpenAIResponsesOptions) -> list[ServerSideTool]:
    """The server-side tools of request and options, each once. Raises UnsupportedError for one not hosted."""
    chosen = (*request.server_side_tools, *tools_of(options))
    require_hosted(chosen, SERVER_SIDE_TOOLS, "OpenAI Responses")
    return without_repeats(chosen, _REPEATABLE)


def container_of(tool: ServerSideTool, last: str | None) -> str | None:
    """The container that a tool names or reuses; `last` is the newest of the conversation."""
    if not isinstance(tool, CodeInterpreter | Shell):
        return None
    reused = last if isinstance(tool, CodeInterpreter) and tool.reuse_container else None
    return tool.container_id or reused


def _function(spec: ToolSpec, is_strict: bool, extra: OpenAIFunctionOptions | None) -> JsonObject:
    body: JsonObject = {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": is_strict,
        **({"defer_loading": True} if spec.defer_loading else {}),
    }
    names = {
        "defer_loading": "defer_loading",
        "asynchronous": "async",
        "allowed_callers": "allowed_callers",
        "output_schema": "output_schema",
    }
    return body if extra is None else body | given(extra, names)


def _in_namespaces(tools: list[JsonObject], options: OpenAIResponsesOptions) -> list[JsonObject]:
    """The tools, with those that a namespace lists moved into it."""
    if not options.namespaces:
        return tools
    named = {tool["name"]: tool for tool in tools if tool["type"] in ("function", "custom")}
    moved = {name for space in options.namespaces for name in space.tools}
    if moved - named.keys():
        missing = ", ".join(sorted(moved - named.keys()))
        raise ConfigurationError(f"namespaces list unknown client tools: {missing}")
    spaces: list[JsonObject] = [
        {
            "type": "namespace",
            "name": space.name,
            "description": space.description,
            "tools": [named[name] for name in space.tools],
        }
        for space in options.namespaces
    ]
    return [tool for tool in tools if tool.get("name") not in moved] + spaces

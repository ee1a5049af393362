"""Encodes the client and server-side tools of a request, the latter by a table. Pure."""

import base64
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.responses.options import (
    OpenAIFunctionOptions,
    OpenAIResponsesOptions,
    ResponsesDialect,
    ToolEncoding,
    tools_of,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.encoding import check_function_options, given, loose_warning
from sidestream.providers.shared.hosting import refuse, require_hosted, without_repeats
from sidestream.tools import server_side
from sidestream.tools.spec import ToolSpec


def _web_search(tool: server_side.WebSearch, container: str | None) -> JsonObject:
    preview = (tool.version or "").startswith("preview")
    if preview:
        refuse(tool, "the preview version", allowed_domains="", external_web_access="")
    else:
        refuse(tool, "the current version", content_types='set version="preview" to use it')
    refuse(
        tool,
        "OpenAI",
        blocked_domains="list allowed_domains instead",
        max_uses="set the option max_tool_calls instead",
    )
    body: JsonObject = {"type": f"web_search_{tool.version}" if tool.version else "web_search"}
    if tool.allowed_domains:
        body["filters"] = {"allowed_domains": list(tool.allowed_domains)}
    if tool.location is not None:
        body["user_location"] = {"type": "approximate", **given(tool.location)}
    names = {
        "context_size": "search_context_size",
        "external_web_access": "external_web_access",
        "content_types": "search_content_types",
    }
    return body | given(tool, names)


def _file_search(tool: server_side.FileSearch, container: str | None) -> JsonObject:
    body: JsonObject = {"type": "file_search", "vector_store_ids": list(tool.stores)}
    body |= given(tool, {"max_results": "max_num_results"})
    ranking = given(tool, {"ranker": "ranker", "score_threshold": "score_threshold"})
    if tool.hybrid_search is not None:
        ranking["hybrid_search"] = given(tool.hybrid_search)
    if ranking:
        body["ranking_options"] = ranking
    if tool.filters is not None:
        body["filters"] = _filter(tool.filters)
    return body


def _filter(part: server_side.Comparison | server_side.Combination) -> JsonObject:
    if isinstance(part, server_side.Comparison):
        return {"type": part.operator, "key": part.attribute, "value": part.value}
    return {"type": part.operator, "filters": [_filter(inner) for inner in part.filters]}


def _code_interpreter(tool: server_side.CodeInterpreter, container: str | None) -> JsonObject:
    refuse(tool, "OpenAI", version="there is only one version")
    body: JsonObject = {"type": "code_interpreter", "container": container or {"type": "auto", **_container(tool)}}
    return body | given(tool, {"allowed_callers": "allowed_callers"})


def _container(tool: server_side.CodeInterpreter | server_side.Shell) -> JsonObject:
    body = given(tool, {"file_ids": "file_ids", "memory_limit": "memory_limit"})
    return body if tool.network is None else {**body, "network_policy": _network(tool.network)}


def _network(network: server_side.Network) -> JsonObject:
    if not network.allowed_domains:
        return {"type": "disabled"}
    body: JsonObject = {"type": "allowlist", "allowed_domains": list(network.allowed_domains)}
    if network.domain_secrets:
        body["domain_secrets"] = [given(secret) for secret in network.domain_secrets]
    return body


def _image_generation(tool: server_side.ImageGeneration, container: str | None) -> JsonObject:
    names = {field: field for field in tool.__struct_fields__ if field not in ("mask_file_id", "mask_url", "svg")}
    body: JsonObject = {"type": "image_generation", **given(tool, {**names, "compression": "output_compression"})}
    mask = given(tool, {"mask_file_id": "file_id", "mask_url": "image_url"})
    if mask:
        body["input_image_mask"] = mask
    if tool.svg is not None:
        body["svg"] = _svg(tool.svg)
    return body


def _svg(svg: server_side.Svg) -> JsonObject:
    body = given(svg, {"model": "model"})
    return {**body, "reasoning": {"effort": svg.effort}} if svg.effort else body


def _mcp(tool: server_side.RemoteMCP, container: str | None) -> JsonObject:
    names = {
        "label": "server_label",
        "url": "server_url",
        "connector": "connector_id",
        "tunnel": "tunnel_id",
        "description": "server_description",
        "headers": "headers",
        "authorization": "authorization",
        "defer_loading": "defer_loading",
        "allowed_callers": "allowed_callers",
    }
    body: JsonObject = {"type": "mcp", **given(tool, names)}
    if tool.allowed_tools is not None:
        allowed = tool.allowed_tools
        body["allowed_tools"] = _tool_filter(allowed) if isinstance(allowed, server_side.ToolFilter) else list(allowed)
    # Always sent, so that a server without a policy needs approval, whatever the API's default.
    body["require_approval"] = _required(tool.require_approval) or "always"
    return body


def _required(approval: str | server_side.MCPApproval | None) -> str | JsonObject | None:
    if not isinstance(approval, server_side.MCPApproval):
        return approval
    sides = {"always": approval.always, "never": approval.never}
    return {side: _tool_filter(tools) for side, tools in sides.items() if tools}


def _tool_filter(tools: Iterable[str] | server_side.ToolFilter) -> JsonObject:
    if isinstance(tools, server_side.ToolFilter):
        return given(tools, {"names": "tool_names", "read_only": "read_only"})
    return {"tool_names": list(tools)}


def _shell(tool: server_side.Shell, container: str | None) -> JsonObject:
    if tool.local:
        environment: JsonObject = {"type": "local"}
    elif container is not None:
        environment = {"type": "container_reference", "container_id": container}
    else:
        environment = {"type": "container_auto", **_container(tool)}
    if tool.skills:
        environment["skills"] = [_skill(skill) for skill in tool.skills]
    return {
        "type": "shell",
        "environment": environment,
        **given(tool, {"allowed_callers": "allowed_callers"}),
    }


def _skill(skill: server_side.SkillReference | server_side.InlineSkill | server_side.LocalSkill) -> JsonObject:
    match skill:
        case server_side.SkillReference():
            return {"type": "skill_reference", **given(skill, {"id": "skill_id", "version": "version"})}
        case server_side.InlineSkill():
            data = base64.b64encode(skill.archive).decode()
            source = {"type": "base64", "media_type": "application/zip", "data": data}
            return {"type": "inline", "name": skill.name, "description": skill.description, "source": source}
        case server_side.LocalSkill():
            return given(skill)


def _computer_use(tool: server_side.ComputerUse, container: str | None) -> JsonObject:
    if tool == server_side.ComputerUse():
        return {"type": "computer"}
    defaults = {"display_width": 1024, "display_height": 768, "environment": "browser"}
    return {"type": "computer_use_preview", **defaults, **given(tool)}


def _tool_search(tool: server_side.ToolSearch, container: str | None) -> JsonObject:
    refuse(tool, "OpenAI", version="there is only one version")
    names = {"description": "description", "parameters": "parameters"}
    execution = {"execution": "client"} if tool.local else {}
    return {"type": "tool_search", **execution, **given(tool, names)}


def _custom(tool: server_side.CustomTool, container: str | None) -> JsonObject:
    names = {
        "name": "name",
        "description": "description",
        "asynchronous": "async",
        "defer_loading": "defer_loading",
        "allowed_callers": "allowed_callers",
    }
    body: JsonObject = {"type": "custom", **given(tool, names)}
    if tool.syntax is not None:
        body["format"] = {"type": "grammar", "syntax": tool.syntax, "definition": tool.definition}
    return body


def _plain(tool: server_side.ServerSideTool, container: str | None) -> JsonObject:
    return {"type": tool.key, **given(tool)}


SERVER_SIDE_TOOLS: dict[type[server_side.ServerSideTool], ToolEncoding] = {
    server_side.WebSearch: ToolEncoding(_web_search, ("web_search_call.action.sources",)),
    server_side.FileSearch: ToolEncoding(_file_search, ("file_search_call.results",)),
    server_side.CodeInterpreter: ToolEncoding(_code_interpreter, ("code_interpreter_call.outputs",)),
    server_side.ImageGeneration: ToolEncoding(_image_generation),
    server_side.RemoteMCP: ToolEncoding(_mcp),
    server_side.Shell: ToolEncoding(_shell),
    server_side.LocalShell: ToolEncoding(_plain),
    server_side.ApplyPatch: ToolEncoding(_plain),
    server_side.ComputerUse: ToolEncoding(_computer_use, ("computer_call_output.output.image_url",)),
    server_side.ToolSearch: ToolEncoding(_tool_search),
    server_side.ProgrammaticToolCalling: ToolEncoding(_plain),
    server_side.CustomTool: ToolEncoding(_custom),
}
"""Encodings by tool type."""

_REPEATABLE = (server_side.RemoteMCP, server_side.CustomTool)


class ResponsesTools(Struct, frozen=True):
    """The encoded tools, the `include` values that they need, and warnings."""

    tools: list[JsonObject]
    include: list[str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    hosted: list[server_side.ServerSideTool],
    last_container: str | None,
    dialect: ResponsesDialect,
) -> ResponsesTools:
    """Encode the client and server-side tools of a request."""
    has_strict = "strict" not in dialect.lacks
    tools: list[JsonObject] = []
    warnings: list[str] = []
    for spec in request.tools:
        is_strict = spec.strict and has_strict and allows_strict(spec.parameters)
        tools.append(_function(spec, is_strict, options.function_options.get(spec.name)))
        if spec.strict and has_strict and not is_strict:
            warnings.append(loose_warning(spec))
    if not has_strict:
        tools = [_open_function(tool) for tool in tools]
    gone = "container" in request.without
    for tool in hosted:
        row = dialect.tools[type(tool)]
        tools.append(row.encode(tool, None if gone else container_of(tool, last_container)))
        warnings += [
            f"{type(tool).__name__}({name}=…) is left out: {dialect.display_name} does not support it"
            for name in given(tool, {name: name for name in row.left_out})
        ]
    check_function_options(options.function_options, request.tools)
    include = [value for tool in hosted for value in dialect.tools[type(tool)].include]
    return ResponsesTools(_in_namespaces(tools, options), include, warnings)


def _open_function(function: JsonObject) -> JsonObject:
    """Return a function for servers without strict mode, which refuse schemas that allow no other properties."""
    kept = {name: value for name, value in function.items() if name != "strict"}
    return {**kept, "parameters": _open_schema(function["parameters"])}


def _open_schema(schema: Any) -> Any:
    if is_object(schema):
        closed = schema.get("additionalProperties") is False
        kept = {name: value for name, value in schema.items() if not (closed and name == "additionalProperties")}
        return {name: _open_schema(value) for name, value in kept.items()}
    return [_open_schema(entry) for entry in schema] if is_array(schema) else schema


def server_side_tools_of(
    request: ModelRequest, options: OpenAIResponsesOptions, dialect: ResponsesDialect
) -> list[server_side.ServerSideTool]:
    """Return the server-side tools of the request and the options, without duplicates.

    Raises NotHostedError for a tool that the provider does not host.
    """
    chosen = (*request.server_side_tools, *tools_of(options))
    require_hosted(chosen, dialect.tools, dialect.display_name)
    return without_repeats(chosen, _REPEATABLE)


def container_of(tool: server_side.ServerSideTool, last: str | None) -> str | None:
    """Return the container that a tool names or reuses. `last` is the newest of the conversation."""
    if not isinstance(tool, server_side.CodeInterpreter | server_side.Shell):
        return None
    reused = last if isinstance(tool, server_side.CodeInterpreter) and tool.reuse_container else None
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
    """Move tools into their namespaces. Raises ConfigurationError if a namespace lists an unknown tool."""
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

"""Encoding of server-side tools: portable tools are converted to Google's own first."""

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from sidestream.errors import UnsupportedError
from sidestream.jsontext import JsonObject
from sidestream.providers.google.computer import computer_use
from sidestream.providers.google.options import (
    GoogleComputerUse,
    GoogleFileSearch,
    GoogleImageOutput,
    GoogleMaps,
    GoogleSearch,
    GoogleServerSideTool,
    ServerSideToolOptions,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.encoding import given
from sidestream.providers.shared.hosting import refuse_approval, refuse_others, require_hosted, without_repeats
from sidestream.tools.server_side import (
    CodeInterpreter,
    Combination,
    Comparison,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    RemoteMCP,
    ServerSideTool,
    WebFetch,
    WebSearch,
)

WHO = "Google"


def _web_search(tool: WebSearch) -> GoogleSearch:
    refuse_others(
        tool, WHO, "blocked_domains", "content_types", allowed_domains="list blocked_domains instead (Vertex)"
    )
    types: list[Any] = [{"text": "web", "image": "image"}[kind] for kind in tool.content_types]
    return GoogleSearch(search_types=types, exclude_domains=tool.blocked_domains)


def _file_search(tool: FileSearch) -> GoogleFileSearch:
    refuse_others(tool, WHO, "stores", "max_results", "filters")
    condition = None if tool.filters is None else metadata_filter(tool.filters)
    return GoogleFileSearch(stores=tool.stores, top_k=tool.max_results, metadata_filter=condition)


_OPERATORS = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def metadata_filter(part: Comparison | Combination) -> str:
    """Convert a filter to the API's filter language."""
    if isinstance(part, Combination):
        return f" {part.operator.upper()} ".join(f"({metadata_filter(inner)})" for inner in part.filters)
    if part.operator in ("in", "nin"):
        values = part.value if isinstance(part.value, tuple | list) else (part.value,)
        sign, word = ("=", " OR ") if part.operator == "in" else ("!=", " AND ")
        return word.join(f"{part.attribute} {sign} {_literal(value)}" for value in values)
    return f"{part.attribute} {_OPERATORS[part.operator]} {_literal(part.value)}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"'
    return str(value)


def _web_fetch(tool: WebFetch) -> GoogleServerSideTool:
    refuse_others(tool, WHO)
    return GoogleServerSideTool.URL_CONTEXT


def _code(tool: CodeInterpreter) -> GoogleServerSideTool:
    new = () if tool.reuse_container else ("reuse_container",)
    refuse_others(tool, WHO, *new, reuse_container="each request runs in a new sandbox; see google:interactions/MODEL")
    return GoogleServerSideTool.CODE_EXECUTION


ASPECT_RATIOS = frozenset(
    ("1:1", "1:4", "1:8", "2:3", "3:2", "3:4", "4:1", "4:3", "4:5", "5:4", "8:1", "9:16", "16:9", "21:9")
)


def image_output(tool: ImageGeneration) -> GoogleImageOutput:
    """Convert image generation to Google's terms, with the size as an aspect ratio.

    Raises UnsupportedError for an aspect ratio or format that Google does not support.
    """
    refuse_others(tool, WHO, "size", "output_format", "compression")
    ratio = None
    if tool.size != "auto":
        width, height = (int(side) for side in tool.size.split("x"))
        divisor = gcd(width, height) or 1
        ratio = f"{width // divisor}:{height // divisor}"
        if ratio not in ASPECT_RATIOS:
            raise UnsupportedError(
                f"Google does not support images of the aspect ratio {ratio}; use {', '.join(sorted(ASPECT_RATIOS))}"
            )
    if tool.output_format not in ("png", "jpeg"):
        raise UnsupportedError(f"Google does not support {tool.output_format} images; use png or jpeg")
    return GoogleImageOutput(
        aspect_ratio=ratio,
        output_format="jpeg" if tool.output_format == "jpeg" else None,
        compression=tool.compression if tool.compression != 100 else None,
    )


def _mcp(tool: RemoteMCP) -> RemoteMCP:
    refuse_others(tool, WHO, "label", "url", "headers", "authorization", "require_approval")
    if tool.url is None:
        raise UnsupportedError("Google connects to MCP servers by URL only; set RemoteMCP(url=…)")
    refuse_approval(tool, WHO)
    return tool


PORTABLE: dict[type[ServerSideTool], Callable[[Any], Any]] = {
    WebSearch: _web_search,
    WebFetch: _web_fetch,
    CodeInterpreter: _code,
    FileSearch: _file_search,
    ImageGeneration: image_output,
    RemoteMCP: _mcp,
    ComputerUse: computer_use,
}
"""Portable tool → its conversion to Google's equivalent."""


def server_side_tools_of(
    request: ModelRequest,
    options: ServerSideToolOptions,
    portable: Mapping[type[ServerSideTool], Callable[[Any], Any]] = PORTABLE,
) -> list[Any]:
    """Return the server-side tools of request and options in Google's terms, each kind once."""
    require_hosted(request.server_side_tools, portable, WHO)
    found: list[Any] = [portable[type(tool)](tool) for tool in request.server_side_tools]
    for member in GoogleServerSideTool:
        if member in options.server_side_tools:
            is_search = member is GoogleServerSideTool.GOOGLE_SEARCH
            found.append((options.google_search_config or GoogleSearch()) if is_search else member)
    found += [tool for tool in (options.file_search, options.maps_grounding, options.computer_use) if tool is not None]
    return without_repeats(found, (GoogleServerSideTool, RemoteMCP))


def _search_tool(tool: GoogleSearch) -> JsonObject:
    body = given(tool, {"exclude_domains": "excludeDomains", "blocking_confidence": "blockingConfidence"})
    if tool.search_types:
        body["searchTypes"] = {f"{kind}Search": {} for kind in tool.search_types}
    times = given(tool, {"start_time": "startTime", "end_time": "endTime"})
    return {"googleSearch": {**body, **({"timeRangeFilter": times} if times else {})}}


def _file_search_tool(tool: GoogleFileSearch) -> JsonObject:
    return {"fileSearch": {"fileSearchStoreNames": store_names(tool), **given(tool, _FILE_SEARCH)}}


_FILE_SEARCH = {"top_k": "topK", "metadata_filter": "metadataFilter"}


def store_names(tool: GoogleFileSearch) -> list[str]:
    """Return the full names of the stores, adding the prefix to bare ids."""
    return [store if "/" in store else f"fileSearchStores/{store}" for store in tool.stores]


def _maps_tool(tool: GoogleMaps) -> JsonObject:
    return {"googleMaps": given(tool, {"enable_widget": "enableWidget", "grounding_types": "groundingTypes"})}


def _computer_tool(tool: GoogleComputerUse) -> JsonObject:
    names = {
        "excluded_functions": "excludedPredefinedFunctions",
        "detect_prompt_injection": "enablePromptInjectionDetection",
        "disabled_safety_policies": "disabledSafetyPolicies",
    }
    return {"computerUse": {"environment": f"ENVIRONMENT_{tool.environment.upper()}", **given(tool, names)}}


def _mcp_tool(tool: RemoteMCP) -> JsonObject:
    headers = mcp_headers(tool)
    transport = {"url": tool.url, **({"headers": headers} if headers else {})}
    return {"mcpServers": [{"name": tool.label, "streamableHttpTransport": transport}]}


def mcp_headers(tool: RemoteMCP) -> dict[str, str]:
    """Return the headers for an MCP server, including authorization."""
    tool.register_secrets()
    return {**tool.headers, **({"Authorization": f"Bearer {tool.authorization}"} if tool.authorization else {})}


def _named_tool(tool: GoogleServerSideTool) -> JsonObject:
    return {{"code_execution": "codeExecution", "url_context": "urlContext"}[tool]: {}}


_ENTRIES: dict[type, Callable[[Any], JsonObject]] = {
    GoogleServerSideTool: _named_tool,
    GoogleSearch: _search_tool,
    GoogleFileSearch: _file_search_tool,
    GoogleMaps: _maps_tool,
    GoogleComputerUse: _computer_tool,
    RemoteMCP: _mcp_tool,
}
"""Server-side tool → its entry in `tools`. Images are an output modality instead."""


def tool_entries(server_side: list[Any]) -> list[JsonObject]:
    """Return the entries of `tools`. All MCP servers share one entry."""
    tools = [_ENTRIES[type(tool)](tool) for tool in server_side if type(tool) in _ENTRIES]
    servers = [server for tool in tools for server in tool.get("mcpServers", [])]
    return [tool for tool in tools if "mcpServers" not in tool] + ([{"mcpServers": servers}] if servers else [])

"""The tools of a request: client tools as functions, and the two server-side tools that the API has."""

from collections.abc import Collection

from msgspec import Struct

from sidestream.errors import NotHostedError
from sidestream.jsontext import JsonObject
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.chat.context import WIRE
from sidestream.providers.protocol import ModelRequest, ToolSpec
from sidestream.providers.registry import hosts_of
from sidestream.providers.shared.encoding import given, loose_warning
from sidestream.providers.shared.hosting import refuse_others, require_hosted, without_repeats
from sidestream.tools.server_side import CustomTool, ServerSideTool, WebSearch

SERVER_SIDE_TOOLS: frozenset[type[ServerSideTool]] = frozenset({WebSearch, CustomTool})
"""What OpenAI itself has; compatible servers have none."""

SEARCH_MODELS = "search"
"""Part of the names of models that search."""

_WHO = "The Chat Completions API"


class CompletionsTools(Struct, frozen=True):
    """Tools on the wire, the search parameters, the names of custom tools, and warnings."""

    tools: list[JsonObject]
    web_search: JsonObject | None
    custom: frozenset[str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest,
    model: str,
    display_name: str,
    server_side_tools: Collection[type[ServerSideTool]],
    *,
    has_strict: bool,
) -> CompletionsTools:
    """The tools of a request. Raises NotHostedError for what the server does not host."""
    strict = {spec.name for spec in request.tools if spec.strict and allows_strict(spec.parameters)}
    warnings = [loose_warning(spec) for spec in request.tools if spec.strict and spec.name not in strict]
    custom = [tool for tool in request.server_side_tools if isinstance(tool, CustomTool)]
    names = {tool.name for tool in custom}
    # A function that implements a custom tool is not offered a second time.
    tools = [
        _function(spec, is_strict=has_strict and spec.name in strict)
        for spec in request.tools
        if spec.name not in names
    ]
    searches: list[JsonObject] = []
    require_hosted(request.server_side_tools, server_side_tools, display_name)
    for tool in without_repeats(request.server_side_tools, CustomTool):
        if isinstance(tool, WebSearch):
            searches.append(_web_search(tool, model))
        elif isinstance(tool, CustomTool):
            tools.append(_custom(tool))
    return CompletionsTools(tools, searches[0] if searches else None, frozenset(names), warnings)


def hosted_by(model: str, tools: frozenset[type[ServerSideTool]]) -> frozenset[type[ServerSideTool]]:
    """The server-side tools that a model of a server with these tools has."""
    return tools if SEARCH_MODELS in model else tools - {WebSearch}


def _function(spec: ToolSpec, *, is_strict: bool) -> JsonObject:
    strict = {"strict": True} if is_strict else {}
    described = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": described | strict}


def _web_search(tool: WebSearch, model: str) -> JsonObject:
    if SEARCH_MODELS not in model:
        others = ", ".join(host for host in hosts_of(WebSearch) if host != WIRE)
        raise NotHostedError(
            f"the model {model} does not search: Chat Completions supports WebSearch only for models like "
            f"gpt-4o-search-preview; other models search on {others}"
        )
    refuse_others(tool, _WHO, "context_size", "location")
    location = given(tool.location) if tool.location is not None else None
    where = {"user_location": {"type": "approximate", "approximate": location}} if location else {}
    return {"search_context_size": tool.context_size, **where}


def _custom(tool: CustomTool) -> JsonObject:
    refuse_others(tool, _WHO, "name", "description", "syntax", "definition")
    body: JsonObject = {"name": tool.name} | given(tool, {"description": "description"})
    if tool.syntax is not None:
        grammar = {"syntax": tool.syntax, "definition": tool.definition}
        body["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": body}

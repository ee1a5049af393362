"""Rows of the server-side tools that hosts of this API run, by host and model. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidestream.errors import NotHostedError, UnsupportedError
from sidestream.jsontext import JsonObject, as_list, as_object, is_array, is_object
from sidestream.providers.registry import hosts_of
from sidestream.providers.shared.encoding import given
from sidestream.providers.shared.hosting import refuse_others
from sidestream.tools.server_side import (
    CodeInterpreter,
    CustomTool,
    ImageGeneration,
    ServerSideTool,
    WebFetch,
    WebSearch,
)

Row = Callable[[Any], JsonObject]
"""Encodes a tool to fields of the body. Those of several tools are joined: lists are appended, objects merged."""


class ModelHosting(Struct, frozen=True):
    """The tools that a host runs for some of its models."""

    rows: Mapping[type[ServerSideTool], Row]
    models: str = ""
    """Pattern that is searched for in a model's name. Empty means every model."""
    example: str = ""
    """Name of such a model, for error messages."""
    headers: Mapping[type[ServerSideTool], Mapping[str, str]] = {}
    """Headers that a tool needs."""


Hosting = Sequence[ModelHosting]


def hosted_kinds(hosting: Hosting, model: str | None = None) -> frozenset[type[ServerSideTool]]:
    """Return the tools that a host runs for a model, or for any model."""
    return frozenset(
        tool for entry in hosting if model is None or re.search(entry.models, model) for tool in entry.rows
    )


def row_of(
    hosting: Hosting, model: str, tool: ServerSideTool, display_name: str
) -> tuple[JsonObject, Mapping[str, str]]:
    """Return the fields and headers of a tool. Raises NotHostedError if the host does not run it for this model."""
    kind = type(tool)
    entries = [entry for entry in hosting if kind in entry.rows]
    for entry in entries:
        if re.search(entry.models, model):
            return entry.rows[kind](tool), entry.headers.get(kind, {})
    examples = " or ".join(entry.example for entry in entries)
    raise NotHostedError(
        f"the model {model} does not support {kind.__name__}: {display_name} supports it only for models like "
        f"{examples}; for other models, use {', '.join(hosts_of(kind))}"
    )


def joined(first: JsonObject, second: JsonObject) -> JsonObject:
    """Join the fields of two tools."""
    result = dict(first)
    for name, value in second.items():
        known = result.get(name)
        if is_object(value) and is_object(known):
            value = joined(as_object(known), as_object(value))
        elif is_array(value) and is_array(known):
            value = [*as_list(known), *as_list(value)]
        result[name] = value
    return result


def _one_list(tool: WebSearch | WebFetch, who: str) -> None:
    if tool.allowed_domains and tool.blocked_domains:
        raise UnsupportedError(
            f"{who} does not support allowed_domains together with blocked_domains; keep one of the two"
        )


# OpenAI

_OPENAI = "The Chat Completions API"


def _openai_search(tool: WebSearch) -> JsonObject:
    refuse_others(tool, _OPENAI, "context_size", "location")
    location = given(tool.location) if tool.location is not None else None
    where = {"user_location": {"type": "approximate", "approximate": location}} if location else {}
    return {"web_search_options": {"search_context_size": tool.context_size, **where}}


def _openai_custom(tool: CustomTool) -> JsonObject:
    refuse_others(tool, _OPENAI, "name", "description", "syntax", "definition")
    body: JsonObject = {"name": tool.name} | given(tool, {"description": "description"})
    if tool.syntax is not None:
        grammar = {"syntax": tool.syntax, "definition": tool.definition}
        body["format"] = {"type": "grammar", "grammar": grammar}
    return {"tools": [{"type": "custom", "custom": body}]}


OPENAI: Hosting = (
    ModelHosting({WebSearch: _openai_search}, "search", "gpt-4o-search-preview"),
    ModelHosting({CustomTool: _openai_custom}),
)

# Groq


def _enabled(name: str) -> JsonObject:
    return {"compound_custom": {"tools": {"enabled_tools": [name]}}}


def _compound_search(tool: WebSearch) -> JsonObject:
    refuse_others(tool, "Groq", "allowed_domains", "blocked_domains", "location")
    settings = given(tool, {"allowed_domains": "include_domains", "blocked_domains": "exclude_domains"})
    place = given(tool.location) if tool.location is not None else {}
    if place.keys() - {"country"}:
        raise UnsupportedError("Groq supports only the country of a location; remove its other fields")
    settings |= place
    return _enabled("web_search") | ({"search_settings": settings} if settings else {})


def _plain(who: str, fields: JsonObject) -> Row:
    """Build the row of a tool without settings."""

    def row(tool: ServerSideTool) -> JsonObject:
        refuse_others(tool, who)
        return fields

    return row


GROQ: Hosting = (
    ModelHosting(
        {
            WebSearch: _compound_search,
            WebFetch: _plain("Groq", _enabled("visit_website")),
            CodeInterpreter: _plain("Groq", _enabled("code_interpreter")),
        },
        r"(^|/)compound(-beta)?(-mini)?$",
        "groq/compound",
        {WebFetch: {"Groq-Model-Version": "latest"}},
    ),
    ModelHosting(
        {
            WebSearch: _plain("Groq", {"tools": [{"type": "browser_search"}]}),
            CodeInterpreter: _plain("Groq", {"tools": [{"type": "code_interpreter"}]}),
        },
        r"(^|/)gpt-oss-\d+b$",
        "openai/gpt-oss-120b",
    ),
)

# OpenRouter


def _server_tool(name: str, parameters: JsonObject) -> JsonObject:
    tool: JsonObject = {"type": f"openrouter:{name}"}
    return {"tools": [tool | ({"parameters": parameters} if parameters else {})]}


def _routed_search(tool: WebSearch) -> JsonObject:
    names = {
        "context_size": "search_context_size",
        "allowed_domains": "allowed_domains",
        "blocked_domains": "excluded_domains",
        "max_uses": "max_uses",
    }
    refuse_others(tool, "OpenRouter", *names, "location")
    _one_list(tool, "OpenRouter")
    place = given(tool.location) if tool.location is not None else {}
    where = {"user_location": {"type": "approximate", **place}} if place else {}
    return _server_tool("web_search", given(tool, names) | where)


def _routed_fetch(tool: WebFetch) -> JsonObject:
    names = ("allowed_domains", "blocked_domains", "max_uses", "max_content_tokens")
    refuse_others(tool, "OpenRouter", *names)
    return _server_tool("web_fetch", given(tool, {name: name for name in names}))


def _routed_image(tool: ImageGeneration) -> JsonObject:
    names = {name: name for name in ("model", "quality", "size", "output_format", "background", "moderation")}
    names["compression"] = "output_compression"
    refuse_others(tool, "OpenRouter", *names)
    return _server_tool("image_generation", given(tool, names))


OPENROUTER: Hosting = (
    ModelHosting({WebSearch: _routed_search, WebFetch: _routed_fetch, ImageGeneration: _routed_image}),
)
"""Its shell tools are for other APIs: Chat Completions refuses them."""

# Perplexity


def _sonar_search(tool: WebSearch) -> JsonObject:
    refuse_others(tool, "Perplexity", "context_size", "location", "allowed_domains", "blocked_domains")
    _one_list(tool, "Perplexity")
    options = given(tool, {"context_size": "search_context_size"})
    if tool.location is not None and (place := given(tool.location)):
        options["user_location"] = place
    domains = [*tool.allowed_domains, *(f"-{domain}" for domain in tool.blocked_domains)]
    fields: JsonObject = {"web_search_options": options} if options else {}
    return fields | ({"search_domain_filter": domains} if domains else {})


PERPLEXITY: Hosting = (ModelHosting({WebSearch: _sonar_search}),)
"""Its models search on every request, with or without the tool."""

"""Typed results of server-side tools, with the same fields for every provider and for tools that run locally."""

from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_list, as_object
from sidestream.parts import File
from sidestream.results.tool_facts import cut
from sidestream.text.reprs import ShortRepr

_LISTS = (
    *("sources", "results", "links", "groundingChunks", "urlMetadata"),
    *("tool_references", "tools", "browser_results"),
)
"""Fields that list findings."""
_NESTED = ("groundingMetadata", "urlContextMetadata", "item", "action", "search_results")
_KINDS = ("web", "retrievedContext", "maps", "image", "content")
"""Fields of a finding that hold its details."""


class FoundHit(ShortRepr, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page, passage or tool that a tool found."""

    title: str | None = None
    """Title of a page, name of a file or tool."""
    url: str | None = None
    snippet: str = ""
    """Beginning of its text, at most 200 characters."""
    file_id: str | None = None


class TypedResult(ShortRepr, Struct, frozen=True, kw_only=True):
    """The result of a call to any tool."""

    tool: str
    call_id: str
    error: str | None = None
    """Why the call failed."""
    files: tuple[File, ...] = ()
    result: Any = None
    """Provider's own JSON, or what a function returned."""


class WebSearchResult(TypedResult, frozen=True, kw_only=True):
    """The result of a web search."""

    queries: tuple[str, ...] = ()
    results: tuple[FoundHit, ...] = ()


class WebFetchResult(TypedResult, frozen=True, kw_only=True):
    """The result of a web fetch, with one entry per page."""

    results: tuple[FoundHit, ...] = ()


class FileSearchResult(TypedResult, frozen=True, kw_only=True):
    """The result of a file search, with one entry per passage."""

    queries: tuple[str, ...] = ()
    results: tuple[FoundHit, ...] = ()


class ToolSearchResult(TypedResult, frozen=True, kw_only=True):
    """The result of a tool search, with one entry per tool."""

    queries: tuple[str, ...] = ()
    results: tuple[FoundHit, ...] = ()


class CodeInterpreterResult(TypedResult, frozen=True, kw_only=True):
    """The result of a code run."""

    code: str | None = None
    logs: str = ""
    """What the code printed."""
    exit_code: int | None = None


class ShellResult(TypedResult, frozen=True, kw_only=True):
    """The result of shell commands."""

    code: str | None = None
    """Commands, one per line."""
    logs: str = ""
    """What the commands printed."""
    exit_code: int | None = None


class ImageGenerationResult(TypedResult, frozen=True, kw_only=True):
    """The result of an image generation, whose images are `files`."""


class MCPResult(TypedResult, frozen=True, kw_only=True):
    """The result of a call to an MCP server's tool."""

    server: str | None = None
    name: str = ""
    """Name of the tool on its server."""
    input: Any = None


TYPES: dict[str, type[TypedResult]] = {
    "web_search": WebSearchResult,
    "x_search": WebSearchResult,
    "google_maps": WebSearchResult,
    "web_fetch": WebFetchResult,
    "file_search": FileSearchResult,
    "tool_search": ToolSearchResult,
    "code_interpreter": CodeInterpreterResult,
    "programmatic_tool_calling": CodeInterpreterResult,
    "shell": ShellResult,
    "local_shell": ShellResult,
    "image_generation": ImageGenerationResult,
    "mcp": MCPResult,
}
"""Tool → class of its results. Other tools have a `TypedResult`."""

SEARCHES = frozenset(tool for tool, kind in TYPES.items() if "results" in kind.__struct_fields__)
RUNS_CODE = frozenset(tool for tool, kind in TYPES.items() if "logs" in kind.__struct_fields__)


def hits_in(value: Any) -> tuple[FoundHit, ...]:
    """Return the findings in a tool's result, or in an event that reports them."""
    fields = as_object(value)
    for name in _NESTED:
        if name in fields and (found := hits_in(fields[name])):
            return found
    listed: Any = as_list(value) or next((fields[name] for name in _LISTS if fields.get(name)), None)
    found = tuple(hit for entry in jsontext.objects(listed) if (hit := _hit(entry)) is not None)
    return found or ((page,) if (page := _hit(fields)) is not None and page.url is not None else ())


def _hit(entry: JsonObject) -> FoundHit | None:
    inner: JsonObject = next((found for name in _KINDS if (found := as_object(entry.get(name)))), as_object(None))
    places = (entry, inner)
    url = _first(places, "url", "uri", "retrievedUrl")
    title = _first(places, "title", "filename", "tool_name", "name")
    if url is None and title is None:
        return None
    text = _first((*places, as_object(inner.get("source"))), "snippet", "text", "description", "data", "content")
    return FoundHit(title=title, url=url, snippet=cut(text or ""), file_id=_first(places, "file_id"))


def _first(places: tuple[JsonObject, ...], *names: str) -> str | None:
    for fields in places:
        for name in names:
            if isinstance(text := fields.get(name), str):
                return text
    return None

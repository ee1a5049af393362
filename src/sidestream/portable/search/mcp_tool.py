"""Any MCP tool as a search engine."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from sidestream import jsontext
from sidestream.errors import ConfigurationError, SearchError
from sidestream.jsontext import JsonObject, as_object, is_array, is_object
from sidestream.portable.search.engine import Hit, Query, filtered, hits_in, parsed
from sidestream.tools.tool import Tool, ToolContext
from sidestream.tools.toolset import Toolset

_QUERY_NAMES = ("query", "q", "search_query", "searchTerm", "search_term", "question", "text", "input", "keywords")
_COUNT_NAMES = ("count", "num_results", "numResults", "max_results", "maxResults", "limit", "top_k")
_URL_NAMES = ("url", "link", "href")
_TITLE_NAMES = ("title", "name", "heading")
_SNIPPET_NAMES = ("snippet", "description", "content", "text", "highlights", "summary", "body")
_PUBLISHED_NAMES = ("published", "publishedDate", "published_date", "date", "page_age")
_LINK = re.compile(r"\[([^\]\n]{1,300})\]\((https?://[^\s)]+)\)|(https?://[^\s<>\"')\]]+)")


class McpEngine:
    """An MCP tool as an engine.

    Its input is derived from its schema, its hits from their form: JSON, or links in text.
    """

    def __init__(self, server: str, tool: str, toolset: Callable[[], Toolset]) -> None:
        self.name = f"mcp:{server}/{tool}"
        self._tool = tool
        self._make = toolset
        self._toolset: Toolset | None = None

    async def search(self, query: Query) -> list[Hit]:
        if self._toolset is None:
            self._toolset = self._make()
        tools = {tool.name: tool for tool in await self._toolset.list()}
        tool = tools.get(self._tool)
        if tool is None:
            known = ", ".join(sorted(tools)) or "none"
            raise ConfigurationError(f"{self.name}: the server has no tool {self._tool!r}; its tools are {known}")
        outcome = await tool.run(_input(tool, query), ToolContext("search", tool.name))
        if outcome.is_error:
            raise SearchError(f"{self.name} failed: {_words(outcome.result)}", code="unavailable")
        return filtered(_hits(outcome.result), query)

    async def aclose(self) -> None:
        toolset, self._toolset = self._toolset, None
        if toolset is not None:
            await toolset.aclose()


def _input(tool: Tool, query: Query) -> JsonObject:
    properties = as_object(tool.parameters.get("properties"))
    name = next((name for name in _QUERY_NAMES if name in properties), None)
    if name is None:
        texts = [key for key, schema in properties.items() if as_object(schema).get("type") == "string"]
        if len(texts) != 1:
            raise ConfigurationError(f"the input of {tool.name!r} has no field for a query: {', '.join(properties)}")
        name = texts[0]
    count = next((name for name in _COUNT_NAMES if name in properties), None)
    return {name: query.text} | ({count: query.count} if count else {})


def _hits(result: Any) -> list[Hit]:
    texts: list[str] = []
    for value in _values(result, texts):
        found = hits_in(value, _names(value))
        if found:
            return found
    return [hit for text in texts for hit in _links(text)]


def _values(value: Any, texts: list[str]) -> Iterable[list[Any]]:
    """Yield the lists of objects in a result, outer ones first.

    Strings that are JSON are parsed, others are added to `texts`.
    """
    if is_array(value):
        if any(is_object(entry) and any(name in entry for name in _URL_NAMES) for entry in value):
            yield value
        for entry in value:
            yield from _values(entry, texts)
    elif is_object(value):
        for entry in value.values():
            yield from _values(entry, texts)
    elif isinstance(value, str):
        content = parsed(value) if value.lstrip()[:1] in ("{", "[") else None
        if content is None:
            texts.append(value)
        else:
            yield from _values(content, texts)


def _names(entries: list[Any]) -> dict[str, str]:
    keys = {key for entry in entries if is_object(entry) for key in entry}
    rows = (("url", _URL_NAMES), ("title", _TITLE_NAMES), ("snippet", _SNIPPET_NAMES), ("published", _PUBLISHED_NAMES))
    return {ours: next((name for name in names if name in keys), "") for ours, names in rows}


def _links(text: str) -> Iterable[Hit]:
    """Yield the links in plain text, each with the text around it."""
    for found in _LINK.finditer(text):
        around = " ".join(text[max(0, found.start() - 200) : found.end() + 300].split())
        yield Hit(url=found[2] or found[3].rstrip(".,;"), title=found[1] or "", snippet=around)


def _words(result: Any) -> str:
    return result if isinstance(result, str) else jsontext.dumps(result).decode()[:500]

"""Lookup of search engines by name."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.portable.index import Index
from sidestream.portable.search.apis import KEYED, SEARXNG, TIMEOUT_S, ApiEngine
from sidestream.portable.search.engine import Hit, Query, SearchEngine, filtered
from sidestream.tools.toolset import Toolset
from sidestream.transport.calls import Transport

VARIABLE = "SIDESTREAM_SEARCH"
"""Environment variable with the default engine."""
CHOICES: dict[str, str] = {
    "searxng:URL": "a SearXNG instance of your own, with its JSON format enabled",
    "brave": "Brave Search; BRAVE_API_KEY",
    "exa": "Exa; EXA_API_KEY",
    "tavily": "Tavily; TAVILY_API_KEY",
    "mcp:SERVER/TOOL": "a tool of an MCP server in your mcp.json",
    "PROVIDER:MODEL": "the hosted search of another provider, e.g. google:gemini-3-flash",
    "corpus:FOLDER": "the files of a folder, without a network",
}
"""Form of a name → description."""


def engine_named(
    name: str, transport: Callable[[], Transport], limits: Limits, open_index: Callable[[], Index]
) -> SearchEngine | None:
    """Return the engine with this name, or None if it can only be a provider's model.

    Raises ConfigurationError if the name is incomplete or invalid.
    """
    kind, _, rest = name.strip().partition(":")
    limits = replace(limits, first_byte_timeout_s=TIMEOUT_S, max_retries=min(limits.max_retries, 1))
    if kind in KEYED and not rest:
        return ApiEngine(KEYED[kind], transport, limits)
    match kind:
        case "searxng":
            if not rest.startswith(("http://", "https://")):
                raise ConfigurationError("searxng needs the URL of an instance, e.g. searxng:http://127.0.0.1:8888")
            return ApiEngine(replace(SEARXNG, base_url=rest), transport, limits)
        case "mcp":
            return _mcp(rest)
        case "corpus":
            folder = Path(os.path.abspath(os.path.expanduser(rest)))
            if not rest or not folder.is_dir():
                raise ConfigurationError(f"corpus:{rest}: the folder does not exist")
            return CorpusEngine(folder, open_index())
        case _:
            return None


def no_engine() -> str:
    """Return the advice for a missing search engine."""
    rows = "; ".join(f"{name} ({what})" for name, what in CHOICES.items())
    return f"no search engine is configured. Set {VARIABLE} or WebSearch(engine=…) to one of: {rows}"


def _mcp(rest: str) -> SearchEngine:
    from sidestream.portable.search.mcp_tool import McpEngine

    server, slash, tool = rest.partition("/")
    if not (server and slash and tool):
        raise ConfigurationError(f"mcp:{rest}: name a server of your mcp.json and its tool, as in mcp:docs/search")
    return McpEngine(server, tool, lambda: _toolset(server))


def _toolset(label: str) -> Toolset:
    from sidestream.mcp import MCPServer, load_mcp_config

    config = load_mcp_config()
    for toolset in config.toolsets:
        if toolset.label == label:
            return toolset
    for remote in config.remote_servers:
        if remote.label == label:
            return MCPServer.from_remote(remote)
    known = ", ".join(
        [*(toolset.label for toolset in config.toolsets), *(entry.label for entry in config.remote_servers)]
    )
    raise ConfigurationError(f"your mcp.json has no server {label!r}; it has {known or 'none'}")


_ADDRESS = re.compile(r"^(?:url|source):\s*(https?://\S+)", re.I | re.M)


class CorpusEngine:
    """Searches the files of a folder. A line `url: https://…` in a file names the page it is a copy of."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.name = f"corpus:{folder}"
        self._folder = folder
        self._index = index
        self._is_added = False

    async def search(self, query: Query) -> list[Hit]:
        if not self._is_added:
            await self._index.add(self._folder)
            self._is_added = True
        found = await self._index.search(query.text, max(query.count * 3, 20), paths=[self._folder])
        addresses = {passage.path: await self._address(passage.path, passage.digest) for passage in found}
        hits = [
            Hit(
                url=addresses[passage.path],
                title=passage.title or passage.filename,
                snippet=passage.text,
                score=passage.score,
            )
            for passage in found
        ]
        return filtered(hits, query)

    async def aclose(self) -> None:
        await self._index.aclose()

    async def _address(self, path: str, digest: str) -> str:
        text = await self._index.text(digest) or ""
        named: Sequence[str] = _ADDRESS.findall(text[:2000])
        return named[0] if named else Path(path).as_uri()

"""Web search for every model, through an engine of the user's choice."""

import os
from collections.abc import Sequence
from typing import Any

from sidestream.errors import ConfigurationError, SearchError, SidestreamError
from sidestream.portable.index import Index
from sidestream.portable.index.opening import DEFAULT_MODEL, database_at
from sidestream.portable.search import VARIABLE, Hit, Query, SearchEngine, engine_named
from sidestream.portable.search.engines import no_engine
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.tools.execution import ToolOutcome
from sidestream.tools.server_side import WebSearch
from sidestream.tools.tool import Tool, ToolContext
from sidestream.tools.toolset import Toolset

COUNTS = {"low": 5, "medium": 8, "high": 15}
"""Hits per search, by `context_size`."""


def toolset(config: WebSearch, services: Services) -> Toolset:
    """Create the tool `web_search`.

    Raises ConfigurationError, listing the choices, if no engine is configured.
    """
    name = (config.engine or os.environ.get(VARIABLE, "")).strip()
    if not name:
        raise ConfigurationError(no_engine())
    engine = engine_named(name, services.transport, services.limits, lambda: _index(services))
    if engine is None:
        raise ConfigurationError(f"{name!r} is not a search engine: {no_engine()}")
    search = _WebSearch(config, engine)
    tool = Tool.from_function(
        search.run,
        name=config.key,
        key=config.key,
        is_open_world=True,
        reads_outside=True,
        on_interruption="retry",
    )
    return Functions(config.key, [tool], engine.aclose)


class _WebSearch:
    def __init__(self, config: WebSearch, engine: SearchEngine) -> None:
        self._config = config
        self._engine = engine
        self._uses: dict[str, int] = {}

    async def run(self, context: ToolContext, query: str) -> ToolOutcome:
        """Searches the web and returns pages with their addresses and excerpts.

        Args:
            query: What to search for, in a few words.
        """  # noqa: D401 (sent to models)
        try:
            self._count(context)
            hits = await self._engine.search(self._query(query))
        except SearchError as error:
            return _failure(error.code or "unavailable", error.message)
        except SidestreamError as error:
            return _failure("unavailable", str(error))
        return ToolOutcome({"status": "completed", "sources": [_source(hit) for hit in hits]})

    def _count(self, context: ToolContext) -> None:
        used = self._uses[context.run_id] = self._uses.pop(context.run_id, 0) + 1
        for old in list(self._uses)[:-64]:
            del self._uses[old]
        if self._config.max_uses is not None and used > self._config.max_uses:
            raise SearchError(f"this run has used its {self._config.max_uses} searches", code="max_uses_exceeded")

    def _query(self, text: str) -> Query:
        config = self._config
        location = config.location
        if not text.strip():
            raise SearchError("the query is empty", code="invalid_tool_input")
        return Query(
            text=text.strip(),
            count=config.count or COUNTS[config.context_size],
            allowed_domains=config.allowed_domains,
            blocked_domains=config.blocked_domains,
            freshness=config.freshness,
            language=config.language,
            country=location.country if location is not None else None,
        )


def _source(hit: Hit) -> dict[str, Any]:
    more = {"title": hit.title, "snippet": hit.snippet, "published": hit.published, "score": hit.score}
    return {"type": "url", "url": hit.url} | {name: value for name, value in more.items() if value not in (None, "")}


def _failure(code: str, message: str) -> ToolOutcome:
    return ToolOutcome({"status": "failed", "error": {"code": code, "message": message}}, is_error=True)


def _index(services: Services) -> Index:
    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return (await services.embed(None, texts)).vectors

    return Index(database_at(None), embed, DEFAULT_MODEL)

"""File search for every model, over local folders, files and indexes."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import SidestreamError, UnsupportedError
from sidestream.jsontext import without_none
from sidestream.portable.index import Index, Passage
from sidestream.portable.index.index import Embed
from sidestream.portable.index.opening import DEFAULT_MODEL, database_at
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.tools.execution import ToolOutcome
from sidestream.tools.server_side import INDEX, FileSearch, is_path
from sidestream.tools.tool import Tool, ToolContext
from sidestream.tools.toolset import Toolset

MAX_RESULTS = 10
"""Default maximum passages of one call, about 10,000 characters for the model to read."""
MAX_QUERIES = 5


def toolset(config: FileSearch, services: Services) -> Toolset:
    """Create the tool `file_search`.

    Raises UnsupportedError if a store is a provider's.
    """
    for store in config.stores:
        if not is_path(store) and not os.path.exists(store):
            raise UnsupportedError(
                f"FileSearch(stores=[{store!r}]) names a store at a provider, which only that provider can search; use "
                'a model that hosts it, or a folder of this machine, e.g. FileSearch(stores=["./docs"])'
            )
    search = _FileSearch(config, services)
    tool = Tool.from_function(search.run, name=config.key, key=config.key, reads_outside=True, on_interruption="retry")
    return Functions(config.key, [replace(tool, retrieve=config.retrieve)], search.aclose)


class _Store(Struct, frozen=True):
    """An index, and the path in it to search. None means all of it."""

    index: Index
    path: str | None = None


class _FileSearch:
    def __init__(self, config: FileSearch, services: Services) -> None:
        self._config = config
        self._services = services
        self._stores: list[_Store] = []
        self._opening = asyncio.Lock()

    async def run(self, context: ToolContext, queries: list[str]) -> ToolOutcome:
        """Searches the user's files and returns passages of them. Answer from these passages.

        Args:
            queries: What to look for, as one to three short questions or sets of keywords.
        """  # noqa: D401 (sent to models)
        # A small model may omit the query; fall back to the user's question.
        given = [query for query in queries if query.strip()] or [_question(context)]
        wanted = [query.strip() for query in given if query.strip()][:MAX_QUERIES]
        if not wanted:
            return ToolOutcome({"status": "failed", "queries": [], "error": "a query is empty"}, is_error=True)
        try:
            found = await self._search(wanted)
        except SidestreamError as error:
            return ToolOutcome({"status": "failed", "queries": wanted, "error": str(error)}, is_error=True)
        notes = [f"found by words only: {store.index.problem}" for store in self._stores if store.index.problem]
        result: dict[str, Any] = {"status": "completed", "queries": wanted, "results": [_result(hit) for hit in found]}
        return ToolOutcome(result | ({"notes": notes} if notes else {}))

    async def aclose(self) -> None:
        """Stop the background work and close the indexes."""
        stores, self._stores = self._stores, []
        for index in {id(store.index): store.index for store in stores}.values():
            await index.aclose()

    async def _search(self, queries: Sequence[str]) -> list[Passage]:
        config = self._config
        limit = config.max_results or MAX_RESULTS
        best: dict[tuple[str, int], Passage] = {}
        for store in await self._opened():
            for query in queries:
                found = await store.index.search(
                    query,
                    limit,
                    paths=[store.path] if store.path else (),
                    filters=config.filters,
                    weights=config.hybrid_search,
                    score_threshold=config.score_threshold or 0.0,
                )
                for passage in found:
                    key = passage.file_id, passage.start
                    if key not in best or best[key].score < passage.score:
                        best[key] = passage
        return sorted(best.values(), key=lambda passage: -passage.score)[:limit]

    async def _opened(self) -> list[_Store]:
        """Return the stores, updated with changes in their folders once per agent."""
        async with self._opening:
            if not self._stores:
                self._stores = [await self._open(store) for store in self._config.stores]
            return self._stores

    async def _open(self, store: str) -> _Store:
        if store.startswith(INDEX) or "://" in store:
            index = self._index(store.removeprefix(INDEX) or None)
            await index.counts()
            return _Store(index)
        index = self._index(None)
        await index.add(store)
        return _Store(index, _absolute(store))

    def _index(self, where: str | None) -> Index:
        return Index(database_at(where), self._embed(), self._config.embeddings or DEFAULT_MODEL)

    def _embed(self) -> Embed:
        async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
            return (await self._services.embed(self._config.embeddings, texts)).vectors

        return embed


def _question(context: ToolContext) -> str:
    """Return the user's last message."""
    texts = [message.text for message in context.history if message.role == "user"]
    return texts[-1] if texts else ""


def _result(passage: Passage) -> dict[str, Any]:
    found = {
        "file_id": passage.file_id,
        "filename": passage.filename,
        "score": passage.score,
        "text": passage.text,
        "attributes": without_none(passage.attributes),
        "start": passage.start,
        "end": passage.end,
    }
    more = {"page": passage.page, "title": passage.title, "heading": passage.heading or None}
    return found | without_none(more)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))

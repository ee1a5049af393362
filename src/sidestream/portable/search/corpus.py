"""A folder of pages used as the web: for tests, offline work, and a company's own pages."""

import re
from collections.abc import Sequence
from pathlib import Path

from sidestream.portable.index import Index
from sidestream.portable.search.engine import Hit, Query, filtered

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

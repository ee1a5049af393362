"""The file index of a server, which reads folders in the background and reports its progress."""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from sidestream.errors import SidestreamError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.server.errors import RequestError, not_found
from sidestream.text.redaction import redact

if TYPE_CHECKING:
    from sidestream.portable.index import Index
    from sidestream.portable.index.records import IndexedFile

MAX_SHOWN_PROBLEMS = 50
"""Maximum files listed with a problem, per folder."""
SEARCHED = 8
"""Passages returned by a search in the web UI."""

_log = get_logger(__name__)


class FolderReading(Struct):
    """The progress of reading one folder."""

    done: int = 0
    total: int = 0
    error: str | None = None
    task: asyncio.Task[None] | None = None


class FileIndexes:
    """The local file index as the web UI sees it. Only folders below `allowed` can be added or removed."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(os.path.realpath(os.path.expanduser(folder)) for folder in allowed)
        self._index: Index | None = None
        self._work: dict[str, FolderReading] = {}
        """Folders being read, or whose reading failed, by path."""

    @property
    def is_on(self) -> bool:
        """Whether the server has folders to index."""
        return bool(self.allowed)

    async def described(self, *, is_editable: bool) -> JsonObject:
        """Return the folders with their files and progress, and the numbers of passages and vectors."""
        index = self._opened()
        files, times, counts = await index.list(), await index.read_times(), await index.counts()
        known = dict.fromkeys([*await index.roots(), *self._work])
        return {
            "folders": [self._folder(path, files, times.get(path), is_editable=is_editable) for path in known],
            "passages": counts.passages,
            "vectors": counts.vectors,
            "problem": redact(index.problem) if index.problem else None,
        }

    def start(self, path: str) -> str:
        """Start to read a folder or file, or its changes, and return its resolved path.

        Raises RequestError if the path does not exist or must not be indexed.
        """
        found = self._checked(path)
        if not os.path.exists(found):
            raise not_found("folder", path)
        if (known := self._work.get(found)) is None or known.error is not None:
            work = self._work[found] = FolderReading()
            work.task = asyncio.create_task(self._read(found, work))
        return found

    async def settled(self) -> None:
        """Wait until all reading has finished."""
        await asyncio.gather(*(work.task for work in self._work.values() if work.task is not None))

    async def remove(self, path: str) -> int:
        """Remove a folder from the index, keeping its files, and return how many files it had."""
        found = self._checked(path)
        work = self._work.pop(found, None)
        if work is not None and work.task is not None:
            work.task.cancel()
            await asyncio.gather(work.task, return_exceptions=True)
        return await self._opened().remove(found)

    async def search(self, query: str) -> list[JsonObject]:
        """Return the best passages for a query."""
        found = await self._opened().search(query, SEARCHED)
        return [
            {
                "filename": passage.filename,
                "path": passage.path,
                "page": passage.page,
                "heading": passage.heading or None,
                "text": passage.text,
                "score": passage.score,
            }
            for passage in found
        ]

    async def aclose(self) -> None:
        """Stop reading and close the index. Unread files follow when their folder is next updated."""
        tasks = [work.task for work in self._work.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._index is not None:
            await self._index.aclose()

    def _opened(self) -> "Index":
        if self._index is None:
            from sidestream.agent.services import open_index

            self._index = open_index()
        return self._index

    async def _read(self, path: str, work: FolderReading) -> None:
        def progress(stage: str, done: int, total: int) -> None:
            work.done, work.total = done, total

        try:
            await self._opened().add(path, within=self.allowed, progress=progress)
        except (SidestreamError, OSError) as error:
            work.error = redact(str(error))
            _log.warning("folder %s: could not be indexed: %s", path, work.error)
        else:
            self._work.pop(path, None)

    def _checked(self, path: str) -> str:
        """Return the path with links resolved. Raises RequestError if the web UI must not index it."""
        plain = path.replace("\0", "").encode(errors="replace").decode()
        found = os.path.realpath(os.path.expanduser(plain))
        if plain != path or not path.strip() or not self._is_allowed(found):
            allowed = ", ".join(self.allowed)
            raise RequestError(
                403,
                f"path must be in one of the server's index folders: {allowed}",
                type="permission_error",
                param="path",
            )
        return found

    def _is_allowed(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in self.allowed)

    def _folder(
        self, path: str, files: "Sequence[IndexedFile]", updated: float | None, *, is_editable: bool
    ) -> JsonObject:
        own = [file for file in files if file.path == path or file.path.startswith(path.rstrip(os.sep) + os.sep)]
        problems = [{"path": os.path.relpath(file.path, path), "problem": file.problem} for file in own if file.problem]
        work = self._work.get(path)
        return {
            "path": path,
            "name": os.path.basename(path) or path,
            "editable": is_editable and self._is_allowed(path),
            "files": len(own),
            "passages": sum(file.passages for file in own),
            "updated": updated,
            "problems": problems[:MAX_SHOWN_PROBLEMS],
            "problemCount": len(problems),
            "reading": {"done": work.done, "total": work.total} if work is not None and work.error is None else None,
            "error": work.error if work is not None else None,
        }

"""File index: updated by content, searched by words and vectors."""

import asyncio
import hashlib
import operator as operators
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, DocumentError, SidestreamError
from sidestream.logs import get_logger
from sidestream.portable.documents import Document, DocumentLimits, mime_type_of, read, why_empty
from sidestream.portable.index import relevance
from sidestream.portable.index.chunks import chunks_of
from sidestream.portable.index.folder import UNREAD, FolderEntry, Root, absolute, message_of, root_of
from sidestream.portable.index.records import Counts, Database, IndexedFile, Json, Passage, PassageRow, file_id_of
from sidestream.portable.index.relevance import match_words
from sidestream.tools.server_side import Combination, Comparison, HybridSearch

CANDIDATES = 50
"""Minimum hits of each ranking that are compared."""


def fits(attributes: Mapping[str, Any], condition: Comparison | Combination) -> bool:
    """Return whether a file's attributes match a filter. A missing attribute equals nothing."""
    if isinstance(condition, Combination):
        results = (fits(attributes, part) for part in condition.filters)
        return all(results) if condition.operator == "and" else any(results)
    found = attributes.get(condition.attribute)
    wanted = condition.value
    match condition.operator:
        case "eq":
            return found == wanted
        case "ne":
            return found != wanted
        case "in":
            return found in _values(wanted)
        case "nin":
            return found not in _values(wanted)
        case _:
            return _ordered(found, condition.operator, wanted)


def _values(wanted: Any) -> Sequence[Any]:
    return (wanted,) if isinstance(wanted, str | int | float) else wanted


def _ordered(found: Any, operator: str, wanted: Any) -> bool:
    are_numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    are_texts = isinstance(found, str) and isinstance(wanted, str)
    return (are_numbers or are_texts) and _OPERATORS[operator](found, wanted)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operators.gt,
    "gte": operators.ge,
    "lt": operators.lt,
    "lte": operators.le,
}


T = TypeVar("T")
Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Returns the vectors of strings."""
Progress = Callable[[str, int, int], None]
"""Receives the stage (`files` or `vectors`), the number done, and the total."""

BATCH = 16
"""Strings that are embedded together. A small batch is searchable soon, and little is lost when work is stopped."""
PASSING = ("changed", "process")
"""Temporary problems, after which the next refresh reads an unchanged file again."""
MAX_QUERY_CHARS = 2000
DEFAULT_LIMIT = 10

log = get_logger(__name__)


def _ignore(stage: str, done: int, total: int) -> None:
    pass


class AddReport(Struct, frozen=True, kw_only=True):
    """Result of `add`, in numbers of files."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    problems: dict[str, str] = {}
    """Path → reason for which it could not be read."""

    def __add__(self, other: "AddReport") -> "AddReport":
        return AddReport(
            added=self.added + other.added,
            changed=self.changed + other.changed,
            unchanged=self.unchanged + other.unchanged,
            removed=self.removed + other.removed,
            problems={**self.problems, **other.problems},
        )


class Index:
    """An index of files. Use it as an async context manager, or close it.

    `add` returns when the files can be found by their words; vectors are computed in the background. `complete` waits
    for them. Any number of processes may use one index.
    """

    def __init__(
        self, database: Database, embed: Embed | None, model: str, limits: DocumentLimits | None = None
    ) -> None:
        self._database = database
        self._embed = embed
        self._model = model
        self._limits = limits or DocumentLimits()
        self._thread = ThreadPoolExecutor(1, "sidestream-index")
        self._is_open = False
        self._work: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Reason for which vectors are missing, so that files are found by their words only."""

    def __repr__(self) -> str:
        return f"Index({self._database.location!r})"

    @property
    def location(self) -> str:
        """Path of its file, or URL of its database without a password."""
        return self._database.location

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the background work and close the index. Missing vectors are computed when it is opened again."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._is_open:
            self._is_open = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=False)

    async def add(
        self,
        *paths: str | os.PathLike[str],
        attributes: Mapping[str, str | int | float | bool] | None = None,
        within: Sequence[str] = (),
        progress: Progress = _ignore,
    ) -> AddReport:
        """Index new and changed files in the paths, and remove missing ones.

        `attributes` are for filters. None keeps those that a path already has. A file has the attributes of every added
        path that contains it; those of the innermost path win. Files that cannot be read, and links that lead outside,
        are reported without stopping the others. Raises ConfigurationError if a path does not exist, or leads out of
        the folders `within`.
        """
        roots = [root_of(path) for path in paths]
        report = AddReport()
        for root in roots:
            try:
                opened = Root(root, within)
            except OSError as error:
                raise ConfigurationError(f"{root} cannot be read: {message_of(error)}") from error
            await self._call(self._database.add_root, root, attributes)
            report += await self._refresh(root, opened, progress)
        self.start()
        return report

    async def refresh(self, progress: Progress = _ignore) -> AddReport:
        """Update everything that was added. A folder that no longer exists keeps its files."""
        report = AddReport()
        for path in await self._call(self._database.roots):
            try:
                root = Root(path)
            except FileNotFoundError:
                report += AddReport(problems={path: "it does not exist; `remove` it if it is gone for good"})
            except OSError as error:
                report += AddReport(problems={path: message_of(error)})
            else:
                report += await self._refresh(path, root, progress)
        self.start()
        return report

    async def remove(self, *paths: str | os.PathLike[str]) -> int:
        """Remove files, and all files in folders. Return how many were removed."""
        wanted = [absolute(path) for path in paths]
        known = [file.path for file in await self._call(self._database.files)]
        gone = [path for path in known if any(_is_in(path, folder) for folder in wanted)]
        await self._call(self._database.remove, gone)
        for path in wanted:
            await self._call(self._database.remove_root, path)
        return len(gone)

    async def list(self) -> list[IndexedFile]:
        """Return the files, by path."""
        return await self._call(self._database.files)

    async def roots(self) -> "list[str]":
        """Return the files and folders that were added."""
        return await self._call(self._database.roots)

    async def read_times(self) -> dict[str, float]:
        """Map each added path to the time it was last read, in seconds since 1970.

        Paths that were never read completely are left out.
        """
        return await self._call(self._database.read_times)

    async def counts(self) -> Counts:
        """Return the numbers of files, passages and vectors."""
        return await self._call(self._database.counts)

    async def text(self, digest: str) -> str | None:
        """Return the text of the document that a passage belongs to, or None."""
        return await self._call(self._database.text, digest)

    async def search(
        self,
        query: str,
        limit: int = DEFAULT_LIMIT,
        *,
        paths: Sequence[str | os.PathLike[str]] = (),
        filters: Comparison | Combination | None = None,
        weights: HybridSearch | None = None,
        score_threshold: float = 0.0,
    ) -> "list[Passage]":
        """Return the best passages by words and meaning.

        Searches all files, or those in `paths`, that match the filters. A passage's score is its relevance, from 0 to
        1. Those below `score_threshold` are left out.
        """
        query = query[:MAX_QUERY_CHARS]
        digests = await self._scope(paths, filters)
        found = await self._ranked(query, digests, max(CANDIDATES, limit * 2), weights)
        ranked = [hit for hit in found if hit[1] >= score_threshold][:limit]
        rows = await self._call(self._database.rows, [number for number, _ in ranked])
        wanted = None if digests is None else _Scope(paths, filters)
        return [
            _passage(row, score)
            for number, score in ranked
            for row in rows.get(number, [])[: None if wanted else 1]
            if wanted is None or wanted.holds(row.file)
        ][:limit]

    async def _ranked(
        self, query: str, digests: Sequence[str] | None, count: int, weights: HybridSearch | None
    ) -> "list[tuple[int, float]]":
        """Return the best passages of both rankings with their relevance."""
        database = self._database
        keyword = await self._call(database.keyword, query, digests, count)
        vector = await self._vector(query)
        similarities: dict[int, float] | None = None
        if vector is not None:
            nearest = await self._call(database.nearest, vector, digests, count)
            similarities = await self._call(database.similarities, vector, list({*keyword, *nearest}))
        candidates = list({*keyword, *(similarities or ())})
        matches = await self._call(database.matches, match_words(query), candidates)
        passages = await self._call(database.passages)
        return relevance.ranked(keyword, similarities, matches, passages, weights)

    def start(self) -> None:
        """Compute missing vectors in the background."""
        if self._embed is not None and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(self._embed_quietly())

    async def complete(self, progress: Progress = _ignore) -> None:
        """Wait until every passage has a vector.

        Raises the embedding model's errors.
        """
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await self._embed_pending(progress)

    async def _scope(
        self, paths: Sequence[str | os.PathLike[str]], filters: Comparison | Combination | None
    ) -> "list[str] | None":
        if not paths and filters is None:
            return None
        scope = _Scope(paths, filters)
        return sorted({file.digest for file in await self._call(self._database.files) if scope.holds(file)})

    async def _vector(self, query: str) -> Sequence[float] | None:
        """Return the query's vector, or None if there are no vectors or the model fails.

        The search then uses words only.
        """
        if self._embed is None or await self._call(self._database.model) is None:
            return None
        await self._check_model()
        try:
            return (await self._embed([query]))[0]
        except SidestreamError as error:
            self._note(error)
            return None

    async def _refresh(self, path: str, root: Root, progress: Progress) -> AddReport:
        known = {file.path: file for file in await self._call(self._database.files) if _is_in(file.path, path)}
        known_roots = await self._call(self._database.root_attributes)
        try:
            entries = await asyncio.to_thread(root.entries)
        except (OSError, DocumentError) as error:  # Its files are kept, like those of a missing folder.
            return AddReport(problems={path: message_of(error)})
        report = AddReport()
        gone = [*known.keys() - {entry.path for entry in entries}]
        for done, entry in enumerate(entries):
            progress("files", done, len(entries))
            attributes = _inherited(known_roots, entry.path)
            try:
                report += await self._add_file(root, entry, known.get(entry.path), attributes)
            except FileNotFoundError:  # Removed since the folder was listed.
                gone += [entry.path] if entry.path in known else []
            except (OSError, DocumentError) as error:
                message = message_of(error)
                is_lasting = isinstance(error, DocumentError) and error.reason not in PASSING
                await self._put_problem(entry if is_lasting else replace(entry, stamp=UNREAD), attributes, message)
                report += AddReport(problems={entry.path: message})
        progress("files", len(entries), len(entries))
        await self._call(self._database.remove, gone)
        await self._call(self._database.set_read, path, time.time())
        return report + AddReport(removed=len(gone))

    async def _add_file(
        self, root: Root, entry: FolderEntry, known: IndexedFile | None, attributes: Mapping[str, Json]
    ) -> AddReport:
        path = entry.path
        is_known = known is not None and known.stamp == entry.stamp and known.attributes == attributes
        if known is not None and is_known and entry.problem in (None, known.problem):
            return AddReport(unchanged=1, problems={path: known.problem} if known.problem else {})
        if entry.problem is not None:
            raise DocumentError(entry.problem, "skipped")
        contents = await asyncio.to_thread(root.contents, entry, self._limits.max_bytes)
        mime_type = mime_type_of(path) or "application/octet-stream"
        # The same content in two formats is two documents.
        digest = hashlib.sha256(f"{mime_type}:{contents.digest}".encode()).hexdigest()
        file = IndexedFile(
            path=path,
            file_id=file_id_of(path),
            digest=digest,
            mime_type=mime_type,
            size=contents.stamp.size,
            modified_ns=contents.stamp.modified_ns,
            attributes=dict(attributes),
        )
        if known is not None and known.digest == digest:
            same = replace(file, title=known.title, problem=known.problem)
            if await self._call(self._database.put, same, None, ()):
                return AddReport(unchanged=1)
        document = await read(contents.data, mime_type=mime_type, name=path, limits=self._limits)
        file = replace(file, title=document.title, problem=_problem(document, file.size))
        chunks = await asyncio.to_thread(chunks_of, document)
        await self._call(self._database.put, file, document, chunks)
        problems = {path: file.problem} if file.problem else {}
        return AddReport(added=known is None, changed=known is not None, problems=problems)

    async def _put_problem(self, entry: FolderEntry, attributes: Mapping[str, Json], problem: str) -> None:
        """Record that a file cannot be read, with its stamp.

        It is not tried again until the stamp changes.
        """
        file = IndexedFile(
            path=entry.path,
            file_id=file_id_of(entry.path),
            digest="",
            mime_type=mime_type_of(entry.path) or "",
            size=entry.stamp.size,
            modified_ns=entry.stamp.modified_ns,
            attributes=dict(attributes),
            problem=problem,
        )
        await self._call(self._database.put, file, None, ())

    async def _embed_quietly(self) -> None:
        try:
            await self._embed_pending(_ignore)
        except SidestreamError as error:
            self._note(error)

    async def _embed_pending(self, progress: Progress) -> None:
        if self._embed is None:
            return
        counts = await self._call(self._database.counts)
        progress("vectors", counts.vectors, counts.passages)
        while pending := await self._call(self._database.pending, BATCH):
            await self._check_model()
            vectors = await self._embed([text.text for text in pending])
            await self._call(self._database.set_model, self._model, len(vectors[0]))
            found = {text.digest: vector for text, vector in zip(pending, vectors, strict=True)}
            await self._call(self._database.put_vectors, found)
            counts = await self._call(self._database.counts)
            progress("vectors", counts.vectors, counts.passages)
        self.problem = None

    async def _check_model(self) -> None:
        used = await self._call(self._database.model)
        if used is not None and used != self._model:
            raise ConfigurationError(
                f"the vectors of the index {self.location} were made by {used}, not {self._model}: open it with "
                f"embeddings={used!r}, or create another index"
            )

    def _note(self, error: SidestreamError) -> None:
        self.problem = str(error)
        log.warning("%s: could not compute vectors: %s", self.location, self.problem)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the database in its thread, opening it first if necessary."""
        loop = asyncio.get_running_loop()
        if not self._is_open:
            await loop.run_in_executor(self._thread, self._database.open)
            self._is_open = True
        return await loop.run_in_executor(self._thread, function, *arguments)


class _Scope:
    """The files that a search covers."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], filters: Comparison | Combination | None) -> None:
        self._folders = [absolute(path) for path in paths]
        self._filters = filters

    def holds(self, file: IndexedFile) -> bool:
        if self._folders and not any(_is_in(file.path, folder) for folder in self._folders):
            return False
        return self._filters is None or fits(file.all_attributes, self._filters)


def _inherited(roots: Mapping[str, Mapping[str, Json]], path: str) -> dict[str, Json]:
    """Return a file's attributes. Those of an inner root override those of the roots around it."""
    around = sorted((root for root in roots if _is_in(path, root)), key=len)
    return {name: value for root in around for name, value in roots[root].items()}


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/\\") + os.sep)


def _problem(document: Document, size: int) -> str | None:
    if not document.text.strip():
        return why_empty(document.mime_type, size)
    return "only its beginning was read: it is too long" if document.is_cut else None


def _passage(row: PassageRow, score: float) -> Passage:
    file = row.file
    return Passage(
        file_id=file.file_id,
        filename=file.filename,
        path=file.path,
        text=row.text,
        score=round(score, 6),
        start=row.start,
        end=row.end,
        page=row.page,
        title=file.title,
        heading=row.heading,
        digest=file.digest,
        attributes=file.all_attributes,
    )

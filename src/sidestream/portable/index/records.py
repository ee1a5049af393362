"""Records of files and passages in an index, and the `Database` protocol."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from sidestream.portable.documents import Document
from sidestream.portable.index.chunks import Chunk
from sidestream.portable.index.folder import Stamp
from sidestream.portable.index.relevance import WordMatches

Json = Any


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A file in an index."""

    path: str
    file_id: str
    digest: str
    mime_type: str = ""
    title: str | None = None
    size: int = 0
    modified_ns: int = 0
    attributes: dict[str, Json] = {}
    """Attributes given with `add`."""
    passages: int = 0
    problem: str | None = None
    """Reason for which it could not be read, or only in part."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.size, self.modified_ns)

    @property
    def filename(self) -> str:
        """Last part of its path."""
        return self.path.replace("\\", "/").rpartition("/")[2]

    @property
    def all_attributes(self) -> dict[str, Json]:
        """Attributes for filters: name, path, type, size and time, and those given with `add`."""
        name = self.filename
        return {
            "filename": name,
            "path": self.path,
            "extension": name.rpartition(".")[2].lower() if "." in name else "",
            "mime_type": self.mime_type,
            "title": self.title,
            "size": self.size,
            "modified": self.modified_ns / 1e9,
            **self.attributes,
        }


class Passage(Struct, frozen=True, kw_only=True):
    """A hit: a passage of a file. `start` and `end` count characters of the file's text, pages count from 1."""

    file_id: str
    filename: str
    path: str
    text: str
    score: float
    start: int
    end: int
    page: int | None = None
    title: str | None = None
    heading: str = ""
    digest: str = ""
    """Digest of the file's content. `Index.text` returns the corresponding text."""
    attributes: dict[str, Json] = {}


class Counts(Struct, frozen=True):
    """Size of an index. `vectors` of the `passages` can be found by meaning."""

    files: int
    passages: int
    vectors: int


class PassageRow(Struct, frozen=True, kw_only=True):
    """A stored passage, with one of the files that contain it."""

    id: int
    file: IndexedFile
    start: int
    end: int
    page: int | None
    heading: str
    text: str


class PendingText(Struct, frozen=True):
    """Text whose vector is missing."""

    digest: str
    text: str


class Database(Protocol):
    """Storage of an index. Its blocking methods are called by one thread, and all raise StoreError on failure."""

    location: str

    def open(self) -> None:
        """Create or migrate it.

        Raises NewerSchemaError if a newer version wrote it.
        """
        ...

    def close(self) -> None: ...

    def model(self) -> str | None:
        """Return the model of its vectors, or None if it has no vectors yet."""
        ...

    def set_model(self, model: str, dimensions: int) -> None: ...

    def roots(self) -> list[str]:
        """Return the folders and files that were added."""
        ...

    def add_root(self, path: str, attributes: Mapping[str, Json] | None) -> None:
        """Record that a path was added. None keeps the attributes it already has."""
        ...

    def remove_root(self, path: str) -> None: ...

    def root_attributes(self) -> dict[str, dict[str, Json]]:
        """Map each added path to its attributes."""
        ...

    def set_read(self, path: str, time: float) -> None:
        """Record that an added path was read completely at this time, in seconds since 1970."""
        ...

    def read_times(self) -> dict[str, float]:
        """Map each added path to the time it was last read. Paths that never were are left out."""
        ...

    def files(self) -> list[IndexedFile]: ...

    def put(self, file: IndexedFile, document: Document | None, chunks: Sequence[Chunk]) -> bool:
        """Store a file, replacing the previous record of its path.

        Without a document, one with the file's digest must already be stored. If none is, it returns False and changes
        nothing. A file without a digest has no document.
        """
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, and the documents that no other file has."""
        ...

    def pending(self, limit: int) -> list[PendingText]: ...

    def put_vectors(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Store vectors, by the digest of their text."""
        ...

    def counts(self) -> Counts: ...

    def passages(self) -> int:
        """Return the number of passages, which takes less than all counts."""
        ...

    def keyword(self, query: str, digests: Sequence[str] | None, limit: int) -> list[int]:
        """Return ids of passages that contain words of the query, best first.

        `digests` restricts the search to these documents.
        """
        ...

    def nearest(self, vector: Sequence[float], digests: Sequence[str] | None, limit: int) -> list[int]:
        """Return ids of passages by the distance of their vectors, nearest first."""
        ...

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        """Return the cosine similarity of passages to a vector. Passages without a vector are left out."""
        ...

    def matches(self, words: Sequence[str], ids: Sequence[int]) -> list[WordMatches]:
        """Return which of these passages contain each word, skipping words that are never indexed."""
        ...

    def rows(self, ids: Sequence[int]) -> dict[int, list[PassageRow]]:
        """Return the passages with these ids, once for each file that contains them."""
        ...

    def text(self, digest: str) -> str | None:
        """Return the text of a document, or None."""
        ...


Opens = Callable[[], Database]
READ = "read:"
"""Prefix of the keys under which the times of `set_read` are stored."""


def file_id_of(path: str) -> str:
    """Return the id of a file in results and citations, which depends only on its path."""
    return f"file_{hashlib.sha256(path.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def stored_file(row: Sequence[Any], passages: int = 0) -> IndexedFile:
    """Convert a row to a file: path, digest, type, title, size, time, attributes as JSON, problem."""
    path, digest, mime_type, title, size, modified_ns, attributes, problem = row
    return IndexedFile(
        path=path,
        file_id=file_id_of(path),
        digest=digest,
        mime_type=mime_type,
        title=title,
        size=size,
        modified_ns=modified_ns,
        attributes=json.loads(attributes),
        problem=problem,
        passages=passages,
    )


def embedded_text(title: str | None, heading: str, text: str) -> str:
    """Return the text to embed for a passage.

    It includes the headings, since a passage alone may not say what it is about. Markup is left out, since a model
    reads few tokens and learned from prose.
    """
    above = heading if title and heading.startswith(title) else "\n".join(part for part in (title, heading) if part)
    return "\n".join(part for part in (above, _prose(text)) if part)


def _prose(text: str) -> str:
    for markup in (_COMMENT, _TARGET, _RULE, _MARKS):
        text = markup.sub(" ", text)
    return " ".join(text.split())


_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TARGET = re.compile(r"(?<=\])\([^()\s]*\)")
_RULE = re.compile(r"^[-:| \t]{3,}$", re.MULTILINE)
_MARKS = re.compile(r"[`|*#\[\]_=(){}<>\"]+")


def digest_of(text: str) -> str:
    """Return the digest under which the vector for this text is stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

"""What an index keeps of files and passages, and what keeps it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from sidestream.portable.documents import Document
from sidestream.portable.index.chunks import Chunk
from sidestream.portable.index.folder import Stamp

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
    """Those that were given with `add`."""
    passages: int = 0
    problem: str | None = None
    """Why it could not be read, or only in part."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.size, self.modified_ns)

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.replace("\\", "/").rpartition("/")[2]

    @property
    def all_attributes(self) -> dict[str, Json]:
        """What filters see: its name, path, type, size and time, and the attributes that were given."""
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
    """A hit: a passage of a file. `start` and `end` are characters of the file's text, pages count from 1."""

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
    """Of the file's content: `Index.text` returns the text that it had."""
    attributes: dict[str, Json] = {}


class Counts(Struct, frozen=True):
    """How much an index holds; `vectors` of `passages` can be found by meaning."""

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
    """A text whose vector is missing."""

    digest: str
    text: str


class Database(Protocol):
    """Where an index is kept. Its methods block; they are called by one thread. All raise StoreError."""

    location: str

    def open(self) -> None:
        """Creates or migrates it. Raises NewerSchemaError if a newer version wrote it."""
        ...

    def close(self) -> None: ...

    def model(self) -> str | None:
        """The model of its vectors; None if it has none yet."""
        ...

    def set_model(self, model: str, dimensions: int) -> None: ...

    def roots(self) -> list[str]:
        """The folders and files that were added."""
        ...

    def add_root(self, path: str, attributes: Mapping[str, Json]) -> None: ...

    def remove_root(self, path: str) -> None: ...

    def root_attributes(self, path: str) -> dict[str, Json]: ...

    def set_read(self, path: str, time: float) -> None:
        """Notes that what was added was read completely at this time, in seconds since 1970."""
        ...

    def read_times(self) -> dict[str, float]:
        """What was added → when it was read last; without those that never were."""
        ...

    def files(self) -> list[IndexedFile]: ...

    def put(self, file: IndexedFile, document: Document | None, chunks: Sequence[Chunk]) -> bool:
        """Stores a file, in place of what was known of its path.

        Without a document, one of the file's digest must be stored: False, and nothing is changed, if none is. A file
        without a digest has no document.
        """
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Removes files, and the documents that no other file has."""
        ...

    def pending(self, limit: int) -> list[PendingText]: ...

    def put_vectors(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Digest of a text → its vector."""
        ...

    def counts(self) -> Counts: ...

    def keyword(self, query: str, digests: Sequence[str] | None, limit: int) -> list[int]:
        """Ids of passages that contain words of the query, best first, of these documents or of all."""
        ...

    def nearest(self, vector: Sequence[float], digests: Sequence[str] | None, limit: int) -> list[int]:
        """Ids of passages by the distance of their vectors."""
        ...

    def rows(self, ids: Sequence[int]) -> dict[int, list[PassageRow]]:
        """The passages with these ids, once for each file that contains them."""
        ...

    def text(self, digest: str) -> str | None:
        """The text of a document."""
        ...


Opens = Callable[[], Database]
READ = "read:"
"""The prefix of the keys under which the times of `set_read` are kept."""


def file_id_of(path: str) -> str:
    """The id of a file in results and citations: the same as long as its path is."""
    return f"file_{hashlib.sha256(path.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def stored_file(row: Sequence[Any], passages: int = 0) -> IndexedFile:
    """A file from a row: path, digest, type, title, size, time, attributes as JSON, problem."""
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
    """What is embedded of a passage: with its headings, since a passage alone may not say what it is about."""
    return "\n".join(part for part in (title or "", heading, text) if part)


def digest_of(text: str) -> str:
    """The digest under which the vector of a text is kept."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

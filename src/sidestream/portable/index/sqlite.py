"""Index in one SQLite file, with FTS5 for words and sqlite-vec for vectors."""

import json
import os
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sidestream.errors import ConfigurationError, NewerSchemaError, StoreError
from sidestream.portable.documents import Document
from sidestream.portable.index import records
from sidestream.portable.index.chunks import Chunk
from sidestream.portable.index.relevance import WordMatches, match_expression
from sidestream.portable.index.vectors import (
    BUSY_TIMEOUT_S,
    Driver,
    Matrix,
    Nearest,
    VectorConnection,
    VectorTable,
    connect,
    is_busy,
    store_errors,
    transaction,
)
from sidestream.store.blobs.folder import make_private
from sidestream.store.sqlite.file import use_wal

APPLICATION_ID = 0x53445349
"""Marks the file, in its header, as a Sidestream index."""
VERSION = 1
SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE roots (path TEXT PRIMARY KEY, attributes TEXT NOT NULL)",
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, title TEXT, text BLOB NOT NULL)",
    "CREATE TABLE files (path TEXT PRIMARY KEY, digest TEXT NOT NULL, mime_type TEXT NOT NULL, title TEXT, "
    "size INTEGER NOT NULL, modified_ns INTEGER NOT NULL, attributes TEXT NOT NULL, problem TEXT)",
    "CREATE INDEX files_by_digest ON files (digest)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, start INTEGER NOT NULL, "
    "stop INTEGER NOT NULL, page INTEGER, heading TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE INDEX chunks_by_document ON chunks (document)",
    "CREATE INDEX chunks_by_digest ON chunks (digest)",
    "CREATE TABLE vectors (digest TEXT PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE VIRTUAL TABLE passages USING fts5 (text, heading, tokenize = 'porter unicode61 remove_diacritics 2')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_FILE = "f.path, f.digest, f.mime_type, f.title, f.size, f.modified_ns, f.attributes, f.problem"


class SqliteIndex:
    """A `Database` in a file."""

    def __init__(self, path: str | os.PathLike[str], driver: Driver | None = None) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self.location = str(self.path)
        self._wanted: Driver | None = driver
        self._connection: VectorConnection | None = None
        self._vectors: Nearest | None = None
        self.driver: Driver | None = None
        """Driver that searches vectors, once it is open."""

    def open(self) -> None:
        if self._connection is not None:
            return
        with store_errors(self.path):
            make_private(self.path.parent)
            is_new = not self.path.exists()
            if is_new:  # SQLite would apply the umask instead.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            connection, self.driver = connect(self.path, self._wanted)
            try:
                self._create(connection)
                self._connection = connection
                self._vectors = self._made_vectors()
            except BaseException:
                self._connection = None
                connection.close()
                raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def model(self) -> str | None:
        return self._meta("model")

    def set_model(self, model: str, dimensions: int) -> None:
        with store_errors(self.path), transaction(self._db):
            known = self._meta("dimensions")
            if known is not None and int(known) != dimensions:
                raise ConfigurationError(f"the vectors of {self.location} have {known} dimensions, not {dimensions}")
            self._put_meta("model", model)
            self._put_meta("dimensions", str(dimensions))
            self._find_vectors()

    def roots(self) -> list[str]:
        return [path for (path,) in self._read("SELECT path FROM roots ORDER BY path")]

    def add_root(self, path: str, attributes: Mapping[str, records.Json] | None) -> None:
        change = "NOTHING" if attributes is None else "UPDATE SET attributes = excluded.attributes"
        with store_errors(self.path), transaction(self._db):
            sql = f"INSERT INTO roots VALUES (?, ?) ON CONFLICT (path) DO {change}"
            self._db.execute(sql, (path, json.dumps(dict(attributes or {}))))

    def remove_root(self, path: str) -> None:
        with store_errors(self.path), transaction(self._db):
            self._db.execute("DELETE FROM roots WHERE path = ?", (path,))
            self._db.execute("DELETE FROM meta WHERE key = ?", (records.READ + path,))

    def root_attributes(self) -> dict[str, dict[str, records.Json]]:
        return {path: json.loads(found) for path, found in self._read("SELECT path, attributes FROM roots")}

    def set_read(self, path: str, time: float) -> None:
        with store_errors(self.path), transaction(self._db):
            self._put_meta(records.READ + path, repr(time))

    def read_times(self) -> dict[str, float]:
        rows = self._read("SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?", (len(records.READ), records.READ))
        return {key.removeprefix(records.READ): float(value) for key, value in rows}

    def files(self) -> list[records.IndexedFile]:
        sql = (
            f"SELECT {_FILE}, count(c.id) FROM files f LEFT JOIN documents d ON d.digest = f.digest "
            "LEFT JOIN chunks c ON c.document = d.id GROUP BY f.path ORDER BY f.path"
        )
        return [records.stored_file(row[:-1], row[-1]) for row in self._read(sql)]

    def put(self, file: records.IndexedFile, document: Document | None, chunks: Sequence[Chunk]) -> bool:
        with store_errors(self.path), transaction(self._db):
            # Checked inside the transaction: another process may have stored or removed the same document meanwhile.
            if file.digest and not self._has_document(file.digest):
                if document is None:
                    return False
                self._put_document(file.digest, document, chunks)
            values = (
                file.path,
                file.digest,
                file.mime_type,
                file.title,
                file.size,
                file.modified_ns,
                json.dumps(file.attributes),
                file.problem,
            )
            self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            self._drop_unused()
            return True

    def remove(self, paths: Sequence[str]) -> None:
        with store_errors(self.path), transaction(self._db):
            self._db.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])
            self._drop_unused()

    def pending(self, limit: int) -> list[records.PendingText]:
        sql = (
            "SELECT c.digest, d.title, c.heading, p.text FROM chunks c JOIN passages p ON p.rowid = c.id "
            "JOIN documents d ON d.id = c.document LEFT JOIN vectors v ON v.digest = c.digest "
            "WHERE v.digest IS NULL GROUP BY c.digest ORDER BY c.id LIMIT ?"
        )
        rows = self._read(sql, (limit,))
        return [
            records.PendingText(digest, records.embedded_text(title, heading, text))
            for digest, title, heading, text in rows
        ]

    def put_vectors(self, vectors: Mapping[str, Sequence[float]]) -> None:
        with store_errors(self.path), transaction(self._db):
            nearest = self._find_vectors()
            assert nearest is not None, "set_model comes first"
            rows = {digest: array("f", vector).tobytes() for digest, vector in vectors.items()}
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", list(rows.items()))
            for digest, vector in rows.items():
                ids = [found for (found,) in self._read("SELECT id FROM chunks WHERE digest = ?", (digest,))]
                nearest.add([(found, vector) for found in ids])

    def counts(self) -> records.Counts:
        sql = (
            "SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM chunks), "
            "(SELECT count(*) FROM chunks c JOIN vectors v ON v.digest = c.digest)"
        )
        return records.Counts(*self._read(sql)[0])

    def passages(self) -> int:
        return self._read("SELECT count(*) FROM chunks")[0][0]

    def keyword(self, query: str, digests: Sequence[str] | None, limit: int) -> list[int]:
        expression = match_expression(query)
        if not expression:
            return []
        # Without the plus, FTS5 searches the words again for each id.
        scope = "" if digests is None else f" AND +rowid IN ({_SCOPE})"
        sql = f"SELECT rowid FROM passages WHERE passages MATCH ?{scope} ORDER BY rank LIMIT ?"
        parameters = (expression, limit) if digests is None else (expression, json.dumps(list(digests)), limit)
        return [found for (found,) in self._read(sql, parameters)]

    def nearest(self, vector: Sequence[float], digests: Sequence[str] | None, limit: int) -> list[int]:
        vectors = self._find_vectors()
        if vectors is None:
            return []
        scope: list[int] | None = None
        if digests is not None:
            scope = [found for (found,) in self._read(_SCOPE, (json.dumps(list(digests)),))]
        with store_errors(self.path):
            return vectors.search(vector, scope, limit)

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        vectors = self._find_vectors()
        with store_errors(self.path):
            return {} if vectors is None else vectors.similarities(vector, ids)

    def matches(self, words: Sequence[str], ids: Sequence[int]) -> list[WordMatches]:
        among = "SELECT rowid FROM passages WHERE passages MATCH ? AND +rowid IN (SELECT value FROM json_each(?))"
        wanted = json.dumps(list(ids))
        found: list[WordMatches] = []
        for word in words:
            ((total,),) = self._read("SELECT count(*) FROM passages WHERE passages MATCH ?", (f'"{word}"',))
            anywhere, headings = (
                frozenset(number for (number,) in self._read(among, (expression, wanted)))
                for expression in (f'"{word}"', f'heading : "{word}"')
            )
            found.append(WordMatches(total, anywhere, headings))
        return found

    def rows(self, ids: Sequence[int]) -> dict[int, list[records.PassageRow]]:
        sql = (
            f"SELECT c.id, c.start, c.stop, c.page, c.heading, p.text, {_FILE} FROM chunks c "
            "JOIN passages p ON p.rowid = c.id JOIN documents d ON d.id = c.document "
            "JOIN files f ON f.digest = d.digest WHERE c.id IN (SELECT value FROM json_each(?)) ORDER BY f.path"
        )
        found: dict[int, list[records.PassageRow]] = {}
        for number, start, stop, page, heading, text, *file in self._read(sql, (json.dumps(list(ids)),)):
            row = records.PassageRow(
                id=number, file=records.stored_file(file), start=start, end=stop, page=page, heading=heading, text=text
            )
            found.setdefault(number, []).append(row)
        return found

    def text(self, digest: str) -> str | None:
        found = self._read("SELECT text FROM documents WHERE digest = ?", (digest,))
        return zlib.decompress(found[0][0]).decode("utf-8", "surrogatepass") if found else None

    @property
    def _db(self) -> VectorConnection:
        if self._connection is None:
            raise StoreError(f"the index {self.path} is closed")
        return self._connection

    def _find_vectors(self) -> Nearest | None:
        """Return the vector search, or None if there are no vectors.

        Another process may have added the first ones meanwhile.
        """
        if self._vectors is None:
            self._vectors = self._made_vectors()
        return self._vectors

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with store_errors(self.path):
            return self._db.execute(sql, parameters).fetchall()

    def _create(self, connection: VectorConnection) -> None:
        if self._version(connection) == VERSION:
            return
        use_wal(connection.execute, BUSY_TIMEOUT_S, is_busy)
        with transaction(connection):
            # Read again: another process may be creating the file.
            if self._version(connection) == 0:
                for statement in SCHEMA:
                    connection.execute(statement)

    def _version(self, connection: VectorConnection) -> int:
        """Return the schema's version, or 0 for an empty file.

        Raises StoreError for another program's database, and NewerSchemaError for a newer schema.
        """
        sql = (
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_user_version, pragma_application_id"
        )
        version, application, tables = connection.execute(sql).fetchall()[0]
        if application != APPLICATION_ID and tables:
            raise StoreError(f"{self.path} is another program's database; choose another file for the index")
        if version > VERSION:
            raise NewerSchemaError(
                f"the index {self.path} was written by a newer version of Sidestream (schema {version}, this one knows "
                f"{VERSION}); update Sidestream, or use another file"
            )
        return version

    def _made_vectors(self) -> Nearest | None:
        dimensions = self._meta("dimensions")
        if dimensions is None:
            return None
        if self.driver == "matrix":
            return Matrix(self._db, int(dimensions))
        return VectorTable(self._db, int(dimensions))

    def _meta(self, key: str) -> str | None:
        found = self._read("SELECT value FROM meta WHERE key = ?", (key,))
        return found[0][0] if found else None

    def _put_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _has_document(self, digest: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM documents WHERE digest = ?", (digest,)).fetchall())

    def _put_document(self, digest: str, document: Document, chunks: Sequence[Chunk]) -> None:
        packed = zlib.compress(document.text.encode("utf-8", "surrogatepass"), 6)
        insert = "INSERT INTO documents (digest, title, text) VALUES (?, ?, ?) RETURNING id"
        ((number,),) = self._db.execute(insert, (digest, document.title, packed)).fetchall()
        ((last,),) = self._db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchall()
        rows: list[tuple[Any, ...]] = []
        texts: list[tuple[Any, ...]] = []
        for at, chunk in enumerate(chunks, last + 1):
            text = document.text[chunk.start : chunk.end]
            key = records.digest_of(records.embedded_text(document.title, chunk.heading, text))
            rows.append((at, number, chunk.start, chunk.end, document.page_at(chunk.start), chunk.heading, key))
            texts.append((at, text, records.embedded_text(document.title, chunk.heading, "")))
        self._db.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany("INSERT INTO passages (rowid, text, heading) VALUES (?, ?, ?)", texts)
        if (nearest := self._find_vectors()) is not None:
            sql = "SELECT c.id, v.vector FROM chunks c JOIN vectors v ON v.digest = c.digest WHERE c.document = ?"
            nearest.add(self._db.execute(sql, (number,)).fetchall())

    def _drop_unused(self) -> None:
        """Remove documents that no file uses. Their vectors are kept only if other passages have the same text."""
        unused = "SELECT id FROM documents WHERE digest NOT IN (SELECT digest FROM files)"
        documents = [found for (found,) in self._db.execute(unused).fetchall()]
        for document in documents:
            chunks = self._db.execute("SELECT id, digest FROM chunks WHERE document = ?", (document,)).fetchall()
            if (nearest := self._find_vectors()) is not None:
                nearest.remove([number for number, _ in chunks])
            self._db.executemany("DELETE FROM passages WHERE rowid = ?", [(number,) for number, _ in chunks])
            self._db.execute("DELETE FROM chunks WHERE document = ?", (document,))
            self._db.execute("DELETE FROM documents WHERE id = ?", (document,))
            sql = "DELETE FROM vectors WHERE digest = ? AND digest NOT IN (SELECT digest FROM chunks WHERE digest = ?)"
            self._db.executemany(sql, [(digest, digest) for _, digest in chunks])


_SCOPE = (
    "SELECT id FROM chunks WHERE document IN "
    "(SELECT id FROM documents WHERE digest IN (SELECT value FROM json_each(?)))"
)

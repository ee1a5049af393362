"""Nearest-vector search in an SQLite file, by sqlite-vec, or by a matrix in memory where it cannot be loaded.

The table `vectors` is authoritative; the table of sqlite-vec is derived from it. A process without the extension cannot
update that table, so it marks it as stale, and the next process with the extension updates it.
"""

import importlib
import json
import sqlite3
from array import array
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from sidestream.errors import MissingExtraError, StoreError

Driver = Literal["sqlite3", "apsw", "matrix"]
BUSY_TIMEOUT_S = 30.0
"""Seconds that a writer waits for another process."""


class Cursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class VectorConnection(Protocol):
    """The interface that both libraries share."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Any, /) -> Any: ...

    def close(self) -> None: ...


def connect(path: Path, driver: Driver | None = None) -> tuple[VectorConnection, Driver]:
    """Open a connection, and return it with the driver used. `driver` forces one.

    Raises MissingExtraError if no driver is available.
    """
    for way in _WAYS if driver is None else (driver,):
        made = _WAYS[way](path)
        if made is not None:
            return made, way
    raise MissingExtraError("index", "A file index")


def _plain(path: Path) -> sqlite3.Connection:
    # Opened and used by one thread, but possibly closed by another.
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:  # The file is damaged.
        connection.close()
        raise
    return connection


def _standard(path: Path) -> Any:
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        return None
    extension = _module("sqlite_vec")
    if extension is None:
        return None
    connection: Any = _plain(path)
    try:
        connection.enable_load_extension(True)
        extension.load(connection)
        connection.enable_load_extension(False)
    except (sqlite3.Error, OSError):
        connection.close()
        return None
    return connection


def _apsw(path: Path) -> Any:
    apsw, extension = _module("apsw"), _module("sqlite_vec")
    if apsw is None or extension is None:
        return None
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
        connection.enable_load_extension(True)
        connection.load_extension(extension.loadable_path())
        connection.enable_load_extension(False)
        connection.execute("PRAGMA synchronous = NORMAL")
    except apsw.Error:
        connection.close()
        return None
    return connection


def _matrix(path: Path) -> Any:
    return _plain(path) if _module("numpy") is not None else None


_WAYS: dict[Driver, Any] = {"sqlite3": _standard, "apsw": _apsw, "matrix": _matrix}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def library_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of the SQLite libraries."""
    apsw = _module("apsw")
    return (sqlite3.Error, apsw.Error) if apsw is not None else (sqlite3.Error,)


@contextmanager
def store_errors(path: Path) -> Generator[None]:
    """Convert SQLite and disk errors in the block to StoreError."""
    try:
        yield
    except library_errors() as error:
        raise StoreError(f"the index {path}: {_advice(error)}") from error
    except OSError as error:
        raise StoreError(f"the index {path}: {error.strerror or error}") from error


_ADVICE = {
    "BusyError": "another process is writing it; try again once it is done",
    "NotADBError": "the file is damaged or not an index; remove it, and add the folders again",
    "CorruptError": "the file is damaged; remove it, and add the folders again",
    "FullError": "the disk is full; free some space and try again",
    "ReadOnlyError": "it cannot be written; check its permissions",
    "CantOpenError": "it cannot be opened; check that its folder exists and may be written",
}
"""apsw error class → advice. The standard library's errors have the corresponding code."""
_CODES = {
    5: "BusyError",
    8: "ReadOnlyError",
    11: "CorruptError",
    13: "FullError",
    14: "CantOpenError",
    26: "NotADBError",
}


def is_busy(error: Exception) -> bool:
    """Return whether an error of either library says that another connection has locked the file."""
    return _name(error) == "BusyError"


def _name(error: Exception) -> str:
    return _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, type(error).__name__)


def _advice(error: Exception) -> str:
    return _ADVICE.get(_name(error), str(error))


@contextmanager
def transaction(connection: VectorConnection) -> Generator[None]:
    """Commit at the end of the block, or roll back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(*library_errors()):
            connection.execute("ROLLBACK")
        raise


_STALE = "stale"
_MISSING = (
    "SELECT c.id, v.vector FROM chunks c JOIN vectors v ON v.digest = c.digest "
    "WHERE c.id NOT IN (SELECT chunk FROM nearest)"
)


class Nearest(Protocol):
    """Finds vectors. Changes are made within the caller's transaction."""

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Add vectors of passages, by their ids."""
        ...

    def remove(self, ids: Sequence[int]) -> None: ...

    def search(self, vector: Sequence[float], scope: Sequence[int] | None, limit: int) -> list[int]:
        """Return ids by cosine similarity, nearest first, among all or those in the scope."""
        ...

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        """Return the cosine similarity of passages to a vector, which is 0 if either is zero."""
        ...


class VectorTable:
    """Vector search with the table of sqlite-vec."""

    def __init__(self, connection: VectorConnection, dimensions: int) -> None:
        self._connection = connection
        connection.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS nearest USING "
            f"vec0 (chunk INTEGER PRIMARY KEY, embedding float[{dimensions}] distance_metric=cosine)"
        )
        if connection.execute("SELECT 1 FROM meta WHERE key = ?", (_STALE,)).fetchall():
            self._update()

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        self.remove([number for number, _ in rows])
        self._connection.executemany("INSERT INTO nearest (chunk, embedding) VALUES (?, ?)", rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._connection.executemany("DELETE FROM nearest WHERE chunk = ?", [(number,) for number in ids])

    def search(self, vector: Sequence[float], scope: Sequence[int] | None, limit: int) -> list[int]:
        # Use `k` rather than LIMIT, which older versions of SQLite do not pass on to the table.
        sql = "SELECT chunk FROM nearest WHERE embedding MATCH ? AND k = ?"
        parameters: list[Any] = [array("f", vector).tobytes(), limit]
        if scope is not None:
            sql += " AND chunk IN (SELECT value FROM json_each(?))"
            parameters.append(json.dumps(list(scope)))
        return [number for (number,) in self._connection.execute(sql, parameters).fetchall()]

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        sql = (
            "SELECT c.id, 1 - vec_distance_cosine(v.vector, ?) FROM chunks c JOIN vectors v ON v.digest = c.digest "
            "WHERE c.id IN (SELECT value FROM json_each(?))"
        )
        parameters = array("f", vector).tobytes(), json.dumps(list(ids))
        # The distance from a zero vector is not a number, which SQLite returns as NULL.
        return {number: near or 0.0 for number, near in self._connection.execute(sql, parameters).fetchall()}

    def _update(self) -> None:
        """Update the table statement by statement. The next process continues whatever was left undone."""
        stale = "SELECT n.chunk FROM nearest n LEFT JOIN chunks c ON c.id = n.chunk WHERE c.id IS NULL"
        self.remove([number for (number,) in self._connection.execute(stale).fetchall()])
        self.add(self._connection.execute(_MISSING).fetchall())
        self._connection.execute("DELETE FROM meta WHERE key = ?", (_STALE,))


class Matrix:
    """Vector search with all vectors in memory, as fast as the table up to some ten thousand passages."""

    def __init__(self, connection: VectorConnection, dimensions: int) -> None:
        import numpy

        self._np: Any = numpy
        self._connection = connection
        self._dimensions = dimensions
        self._changes = 0
        self._loaded: tuple[tuple[int, int], Any, Any] | None = None

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        self._changed()

    def remove(self, ids: Sequence[int]) -> None:
        self._changed()

    def search(self, vector: Sequence[float], scope: Sequence[int] | None, limit: int) -> list[int]:
        np = self._np
        ids, scores = self._scores(vector, scope)
        if not len(ids):
            return []
        count = min(limit, len(ids))
        best = np.argpartition(-scores, count - 1)[:count]
        return ids[best[np.argsort(-scores[best], kind="stable")]].tolist()

    def similarities(self, vector: Sequence[float], ids: Sequence[int]) -> dict[int, float]:
        found, scores = self._scores(vector, ids)
        return dict(zip(found.tolist(), scores.tolist(), strict=True))

    def _scores(self, vector: Sequence[float], scope: Sequence[int] | None) -> tuple[Any, Any]:
        """Return the ids of the scope that have vectors, and their similarities."""
        np = self._np
        ids, matrix = self._content()
        if scope is not None:
            chosen = np.isin(ids, np.array(list(scope), dtype=np.int64))
            ids, matrix = ids[chosen], matrix[chosen]
        wanted = np.array(vector, dtype=np.float32)
        return ids, matrix @ (wanted / (np.linalg.norm(wanted) or 1.0))

    def _changed(self) -> None:
        self._changes += 1
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, '1')", (_STALE,))

    def _content(self) -> tuple[Any, Any]:
        """Return ids and normalised vectors, reloaded if this or another process has changed them."""
        np = self._np
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        state = version, self._changes
        if self._loaded is None or self._loaded[0] != state:
            sql = "SELECT c.id, v.vector FROM chunks c JOIN vectors v ON v.digest = c.digest"
            rows = self._connection.execute(sql).fetchall()
            ids = np.array([number for number, _ in rows], dtype=np.int64)
            matrix = np.frombuffer(b"".join(vector for _, vector in rows), dtype=np.float32)
            matrix = matrix.reshape(-1, self._dimensions)
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
            self._loaded = state, ids, matrix / np.where(lengths == 0, 1, lengths)
        return self._loaded[1], self._loaded[2]

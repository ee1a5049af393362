"""The nearest vectors in an SQLite file: by sqlite-vec, or by a matrix in memory where it cannot be loaded.

The table `vectors` is what counts; the table of sqlite-vec is made from it. A process without the extension cannot
update that table, so it leaves a note, and the next process with the extension does.
"""

import json
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from sidestream.portable.index.drivers import Connection

_STALE = "stale"
_MISSING = (
    "SELECT c.id, v.vector FROM chunks c JOIN vectors v ON v.digest = c.digest "
    "WHERE c.id NOT IN (SELECT chunk FROM nearest)"
)


class Nearest(Protocol):
    """Finds vectors; changes are made within the caller's transaction."""

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Vectors of passages, by their ids."""
        ...

    def remove(self, ids: Sequence[int]) -> None: ...

    def search(self, vector: Sequence[float], scope: Sequence[int] | None, limit: int) -> list[int]:
        """Ids by the cosine of their vectors, nearest first, among all or those in the scope."""
        ...


class VectorTable:
    """The table of sqlite-vec."""

    def __init__(self, connection: Connection, dimensions: int) -> None:
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
        # `k`, not LIMIT: older versions of SQLite do not pass a limit on to the table.
        sql = "SELECT chunk FROM nearest WHERE embedding MATCH ? AND k = ?"
        parameters: list[Any] = [array("f", vector).tobytes(), limit]
        if scope is not None:
            sql += " AND chunk IN (SELECT value FROM json_each(?))"
            parameters.append(json.dumps(list(scope)))
        return [number for (number,) in self._connection.execute(sql, parameters).fetchall()]

    def _update(self) -> None:
        """Statement by statement: whatever a process did not come to, the next one does."""
        stale = "SELECT n.chunk FROM nearest n LEFT JOIN chunks c ON c.id = n.chunk WHERE c.id IS NULL"
        self.remove([number for (number,) in self._connection.execute(stale).fetchall()])
        self.add(self._connection.execute(_MISSING).fetchall())
        self._connection.execute("DELETE FROM meta WHERE key = ?", (_STALE,))


class Matrix:
    """All vectors in memory: as fast as the table up to some ten thousand passages."""

    def __init__(self, connection: Connection, dimensions: int) -> None:
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
        ids, matrix = self._content()
        if scope is not None:
            chosen = np.isin(ids, np.array(list(scope), dtype=np.int64))
            ids, matrix = ids[chosen], matrix[chosen]
        if not len(ids):
            return []
        wanted = np.array(vector, dtype=np.float32)
        scores = matrix @ (wanted / (np.linalg.norm(wanted) or 1.0))
        count = min(limit, len(ids))
        best = np.argpartition(-scores, count - 1)[:count]
        return ids[best[np.argsort(-scores[best], kind="stable")]].tolist()

    def _changed(self) -> None:
        self._changes += 1
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, '1')", (_STALE,))

    def _content(self) -> tuple[Any, Any]:
        """Ids and normalised vectors; read again if this or another process has changed them."""
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

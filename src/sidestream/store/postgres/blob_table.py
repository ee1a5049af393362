"""Blobs in database tables, stored in chunks over a separate connection."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psycopg
from psycopg.errors import InvalidSchemaName, UndefinedTable

from sidestream.store.blobs.folder import GRACE_S, BlobStore, checked
from sidestream.store.postgres.serial import is_broken
from sidestream.store.postgres.server import PostgresServer

CHUNK_BYTES = 1 << 20
"""Maximum bytes per row. The server holds a row in memory several times over."""

T = TypeVar("T")
_Connection = psycopg.Connection[tuple[Any, ...]]

_SIZE = "SELECT size FROM {schema}.blobs WHERE digest = %s"
_INSERT = "INSERT INTO {schema}.blobs (digest, size) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_INSERT_CHUNK = "INSERT INTO {schema}.blob_chunks (digest, number, data) VALUES (%s, %s, %s)"
_CHUNKS = "SELECT data FROM {schema}.blob_chunks WHERE digest = %s ORDER BY number"
_DELETE = "DELETE FROM {schema}.blobs WHERE digest = ANY(%s)"
_SHARDS = "SELECT DISTINCT left(digest, 2) AS shard FROM {schema}.blobs ORDER BY shard"
_OLD = (
    "SELECT digest FROM {schema}.blobs WHERE digest >= %s AND digest < %s "
    "AND stored <= clock_timestamp() - make_interval(secs => %s) ORDER BY digest"
)


class BlobTable(BlobStore):
    """Blobs in the schema of a store, which creates the tables."""

    def __init__(self, server: PostgresServer, *, grace_s: float = GRACE_S) -> None:
        super().__init__(grace_s=grace_s)
        self._server = server
        self._lock = threading.RLock()
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        return f"BlobTable({self.place!r})"

    @property
    def place(self) -> str:
        """Name of the database."""
        return self._server.name

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes, in one transaction."""

        def work(connection: _Connection) -> None:
            size = connection.execute(self._server.sql(_SIZE), (digest,)).fetchone()
            if size == (len(data),):
                return
            with connection.transaction():
                if size is not None:
                    connection.execute(self._server.sql(_DELETE), ([digest],))
                if not connection.execute(self._server.sql(_INSERT), (digest, len(data))).rowcount:
                    return  # Another process has just stored it.
                for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
                    chunk = data[start : start + CHUNK_BYTES]
                    connection.execute(self._server.sql(_INSERT_CHUNK), (digest, number, chunk))

        self._do(work)

    def touch(self, digest: str, size: int | None = None) -> bool:
        """Return whether the blob exists, with this size if one is given."""
        found = self._select(_SIZE, (checked(digest),))
        return bool(found) and size in (None, found[0][0])

    def load(self, digest: str) -> bytes:
        """Return the bytes of all chunks."""
        if not self.touch(digest):
            raise self.missing(digest)
        return b"".join(data for (data,) in self._select(_CHUNKS, (digest,)))

    def remove(self, digests: Iterable[str]) -> None:
        """Delete those of the blobs that exist."""
        if chosen := list(digests):
            self._do(lambda connection: connection.execute(self._server.sql(_DELETE), (chosen,)))

    def shards(self) -> list[str]:
        """Return the distinct first two characters of the stored digests."""
        return [shard for (shard,) in self._select(_SHARDS, ())]

    def old(self, shard: str) -> list[str]:
        """Return the digests that start with this shard and are older than the grace period."""
        return [digest for (digest,) in self._select(_OLD, (shard, shard + "g", self.grace_s))]

    def close(self) -> None:
        """Close the connection. The next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _select(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        def work(connection: _Connection) -> list[tuple[Any, ...]]:
            try:
                return connection.execute(self._server.sql(sql), values).fetchall()
            except (UndefinedTable, InvalidSchemaName):  # Nothing was ever stored.
                return []

        return self._do(work)

    def _do(self, work: Callable[[_Connection], T]) -> T:
        """Run the work and return its result, retrying once if the connection turns out to be broken."""
        with self._lock, self._server.errors():
            connection, is_new = self._connection, self._connection is None
            if connection is None:
                connection = self._connection = self._server.connect_in_thread()
            try:
                return work(connection)
            except psycopg.Error as error:
                if is_new or not is_broken(connection, error):
                    raise
            self.close()
            connection = self._connection = self._server.connect_in_thread()
            return work(connection)

"""Checks and repairs a store in PostgreSQL."""

import asyncio

from psycopg.errors import DataCorrupted, IndexCorrupted

from sidestream.store.audit import Audit, audit_blob
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.database import rows_of
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.protocol import StoreProblem

PAGE = 1000
_LIST = "SELECT id FROM {schema}.conversations ORDER BY id"
_HEAD = "SELECT head FROM {schema}.conversations WHERE id = %s"
_ROWS = (
    "SELECT seq, time, run, kind, body, array_to_string(blobs, ' ') FROM {schema}.records "
    f"WHERE conversation = %s AND seq > %s ORDER BY seq LIMIT {PAGE}"
)
_BLOBS = (
    "SELECT digest, min(conversation) FROM {schema}.records, unnest(blobs) AS digest WHERE blobs <> '{{}}' "
    "GROUP BY digest"
)
_DELETE_ROWS = "DELETE FROM {schema}.records WHERE conversation = %s AND seq > %s"
_UPDATE_HEAD = "UPDATE {schema}.conversations SET head = %s, last = %s WHERE id = %s"
_DELETE = "DELETE FROM {schema}.conversations WHERE id = %s"


async def check(
    server: PostgresServer, connection: Connection, blobs: BlobStore, *, repair: bool
) -> list[StoreProblem]:
    """All problems of records, and of the blobs they name."""
    if not (await server.refuse_newer(connection) if repair else await server.version_of(connection)):
        return []
    try:
        found = await _check_records(server, connection, repair=repair)
        named = await (await connection.execute(server.sql(_BLOBS))).fetchall()
    except (DataCorrupted, IndexCorrupted) as error:
        message = f"{server.name}: {error}; restore the database from a backup"
        return [StoreProblem(kind="damaged", message=message)]
    for digest, conversation in named:
        problem = await asyncio.to_thread(audit_blob, blobs, digest, conversation, repair=repair)
        found += [problem] if problem else []
    return found


async def _check_records(server: PostgresServer, connection: Connection, *, repair: bool) -> list[StoreProblem]:
    found: list[StoreProblem] = []
    for (name,) in await (await connection.execute(server.sql(_LIST))).fetchall():
        # One transaction each, so that appends wait during a repair and are not seen by a check.
        async with connection.transaction():
            if not repair:
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            audit = await _audit(server, connection, name, repair=repair)
            if audit.problems and repair:
                await _truncate(server, connection, audit)
        found += audit.repaired() if repair else audit.problems
    return found


async def _audit(server: PostgresServer, connection: Connection, name: str, *, repair: bool) -> Audit:
    row = await (await connection.execute(server.sql(_HEAD + (" FOR UPDATE" if repair else "")), (name,))).fetchone()
    audit = Audit(name, row[0] if row else 0)
    last = 0
    while rows := rows_of(await (await connection.execute(server.sql(_ROWS), (name, last))).fetchall()):
        for each in rows:
            audit.feed(each)
        last = rows[-1].seq
    audit.close()
    return audit


async def _truncate(server: PostgresServer, connection: Connection, audit: Audit) -> None:
    name = audit.conversation
    await connection.execute(server.sql(_DELETE_ROWS), (name, audit.intact))
    if audit.intact:
        await connection.execute(server.sql(_UPDATE_HEAD), (audit.intact, audit.last_kind, name))
    else:
        await connection.execute(server.sql(_DELETE), (name,))

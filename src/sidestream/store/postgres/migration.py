"""Migrations of a schema that holds conversations: on request, after a backup that psql can restore."""

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, LiteralString, cast

from sidestream.store.blobs.folder import disk_errors
from sidestream.store.postgres.server import Connection, PostgresServer

_CREATED = re.compile(r"CREATE TABLE \{schema\}\.(\w+)")
_COLUMNS = (
    "SELECT column_name, is_identity = 'YES' FROM information_schema.columns WHERE table_schema = %s "
    "AND table_name = %s ORDER BY ordinal_position"
)


async def migrate(server: PostgresServer, connection: Connection, backup: Path | None) -> int:
    """Migrates the schema, in one transaction, during which nobody else writes; returns the version that it had.

    `backup` is a new file, complete before anything is changed. Nothing happens to a schema that is new or current.
    """
    version = await server.refuse_newer(connection)
    if version in (0, server.version):
        return version
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (server.lock_key,))
        # Read again: another process may have migrated the schema before the lock was acquired.
        version = await server.refuse_newer(connection)
        if version == server.version:
            return version
        await connection.execute(server.sql("LOCK TABLE {schema}.conversations, {schema}.records IN SHARE MODE"))
        if backup is not None:
            with _new_file(backup) as file:
                await _back_up(server, connection, version, file)
        await server.upgrade(connection, version)
    return version


@contextmanager
def _new_file(path: Path) -> Generator[IO[bytes]]:
    """A file for its owner only, on the disk at the end of the block, and gone if that fails."""
    with disk_errors(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


async def _back_up(server: PostgresServer, connection: Connection, version: int, file: IO[bytes]) -> None:
    """Writes a script for psql that creates the schema as it is, or fails as a whole."""
    statements = [statement for migration in server.migrations[:version] for statement in migration]
    head = [
        f"-- A store of Sidestream, version {version} of its schema. Restore it with: psql -v ON_ERROR_STOP=1 -f FILE"
    ]
    head += ["BEGIN;", f"CREATE SCHEMA {server.schema};", *(f"{server.sql(each)};" for each in statements)]
    head += [f"UPDATE {server.schema}.version SET version = {version};"]
    file.write("\n".join([*head, ""]).encode())
    for table in _tables(statements):
        found = await (await connection.execute(_COLUMNS, (server.schema, table))).fetchall()
        columns = ", ".join(name for name, _ in found)
        await _copy(connection, f"{server.schema}.{table}", columns, file)
        for name, is_identity in found:
            if is_identity:
                sequence = f"pg_get_serial_sequence('{server.schema}.{table}', '{name}')"
                last = f"(SELECT coalesce(max({name}), 0) + 1 FROM {server.schema}.{table})"
                file.write(f"SELECT setval({sequence}, {last}, false);\n".encode())
    file.write(b"COMMIT;\n")


async def _copy(connection: Connection, table: str, columns: str, file: IO[bytes]) -> None:
    file.write(f"COPY {table} ({columns}) FROM stdin;\n".encode())
    # Names of tables and columns that our own statements have created.
    query = cast(LiteralString, f"COPY {table} ({columns}) TO STDOUT")
    async with connection.cursor() as cursor, cursor.copy(query) as copied:
        async for data in copied:
            file.write(data)
    file.write(b"\\.\n")


def _tables(statements: Sequence[str]) -> list[str]:
    """The tables that the statements create, but for that of the version; those that others refer to come first."""
    names = [found[1] for statement in statements if (found := _CREATED.match(statement))]
    return [name for name in names if name != "version"]

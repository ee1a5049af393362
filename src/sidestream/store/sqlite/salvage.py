"""Saves the readable rows of a damaged SQLite store into a new file."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from msgspec.structs import astuple

from sidestream.store.protocol import StoreProblem
from sidestream.store.sqlite.file import SqliteFile
from sidestream.store.sqlite.rows import INSERT_CONVERSATION, INSERT_RECORD, INSERT_REFERENCE, select_rows
from sidestream.store.summary import summarize

_COLUMNS = {
    "conversations": "head, created, updated, title, model, last, id",
    "records": "conversation, seq, time, run, kind, body, blobs",
}
_TYPES = {
    "conversations": (int, float, float, str, str, str, str),
    "records": (str, int, float, str, str, bytes, str),
}
_ROWS_PER_PAGE = 256
"""More than fit on a page; bounds the search if the end of a table cannot be read."""


def salvage(file: SqliteFile, damage: str) -> StoreProblem:
    """Replaces the damaged file by a new one, and keeps it under another name."""
    fresh = file.sibling(file.beside("salvaged"))
    records = 0
    with closing(fresh.open_to_write()) as target:
        # The check that follows repairs references between tables.
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute("BEGIN")
        with suppress(sqlite3.DatabaseError), closing(file.open_raw()) as source:
            for values in _readable(source, "conversations"):
                target.execute(INSERT_CONVERSATION, values)
            for values in _readable(source, "records"):
                records += target.execute(INSERT_RECORD.replace("INSERT", "INSERT OR IGNORE"), values).rowcount
                conversation, seq, *_, blobs = values
                target.executemany(INSERT_REFERENCE, [(conversation, seq, digest) for digest in blobs.split()])
        target.execute("COMMIT")
    kept = file.beside("damaged")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{file.path}{suffix}", f"{kept}{suffix}")
    os.replace(fresh.path, file.path)
    message = f"{file.path}: {damage}; {records} readable records were saved, the damaged file is kept as {kept}"
    return StoreProblem(kind="damaged", message=message, is_repaired=True)


def list_again(connection: sqlite3.Connection, conversation: str) -> None:
    """Adds a conversation to the list again, with the summary of its records."""
    summary = summarize(select_rows(connection, conversation, 0), {})
    connection.execute(INSERT_CONVERSATION, (*astuple(summary), conversation))


def _readable(source: sqlite3.Connection, table: str) -> Iterator[list[Any]]:
    """Every readable row; unreadable ones are skipped."""
    query = f"SELECT rowid, {_COLUMNS[table]} FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    start, last = 1, _last_rowid(source, table)
    tries = _most_rows(source)
    while start <= last and tries >= 0:
        try:
            for rowid, *values in source.execute(query, (start,)):
                if rowid < start:
                    continue  # The order of a damaged table is not to be trusted.
                start = rowid + 1
                if (decoded := _decoded(values, _TYPES[table])) is not None:
                    yield decoded
            return
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
                return  # The table does not exist.
            start += 1
            tries -= 1


def _last_rowid(source: sqlite3.Connection, table: str) -> int:
    with suppress(sqlite3.DatabaseError):
        return source.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0
    return _most_rows(source)


def _most_rows(source: sqlite3.Connection) -> int:
    """More rows than the file can hold."""
    (pages,) = source.execute("PRAGMA page_count").fetchone()
    return pages * _ROWS_PER_PAGE


def _decoded(values: list[Any], types: tuple[type, ...]) -> list[Any] | None:
    """The values with texts decoded; None if their types show damage."""
    decoded: list[Any] = []
    for value, kind in zip(values, types, strict=True):
        if kind is str and isinstance(value, bytes):
            try:
                decoded.append(value.decode())
            except UnicodeDecodeError:
                return None
        elif type(value) is kind:
            decoded.append(value)
        else:
            return None
    return decoded

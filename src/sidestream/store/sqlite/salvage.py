"""Saves what can be read of a damaged SQLite store into a fresh file."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from sidestream.store.protocol import StoreProblem
from sidestream.store.sqlite.file import SqliteFile
from sidestream.store.sqlite.threads import RECORD, REFERENCE, ROWS, rows_of
from sidestream.store.summary import summarize

_CONVERSATION = (
    "INSERT OR IGNORE INTO conversations (id, head, created, updated, title, model, last) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_COLUMNS = {
    "conversations": "id, head, created, updated, title, model, last",
    "records": "conversation, seq, time, run, kind, body, blobs",
}
_TYPES = {
    "conversations": (str, int, float, float, str, str, str),
    "records": (str, int, float, str, str, bytes, str),
}
_ROWS_PER_PAGE = 256
"""More than a page can hold; bounds the search where the end of a table cannot be read."""


def salvage(file: SqliteFile, damage: str) -> StoreProblem:
    """Puts a fresh file in the place of the damaged one, which is kept under another name."""
    fresh = file.sibling(file.beside("salvaged"))
    records = 0
    with closing(fresh.open_to_write()) as target:
        # References between tables are made whole below and by the check that follows.
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute("BEGIN")
        with suppress(sqlite3.DatabaseError), closing(file.open_raw()) as source:
            for values in _readable(source, "conversations"):
                target.execute(_CONVERSATION, values)
            for values in _readable(source, "records"):
                records += target.execute(RECORD.replace("INSERT", "INSERT OR IGNORE"), values).rowcount
                conversation, seq, *_, blobs = values
                target.executemany(REFERENCE, [(conversation, seq, digest) for digest in blobs.split()])
        target.execute("COMMIT")
    kept = file.beside("damaged")
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{file.path}{ending}", f"{kept}{ending}")
    os.replace(fresh.path, file.path)
    words = f"{file.path}: {damage}; {records} records could be read and were saved, the damaged file is kept as {kept}"
    return StoreProblem(kind="damaged", message=words, is_repaired=True)


def adopt(connection: sqlite3.Connection, conversation: str) -> None:
    """Lists a conversation again, by what its records say."""
    rows = rows_of(connection.execute(ROWS, (conversation, 0, -1)))
    news = summarize(rows, {})
    values = (conversation, news.head, news.created, news.updated, news.title, news.model, news.last)
    connection.execute(_CONVERSATION, values)


def _readable(source: sqlite3.Connection, table: str) -> Iterator[list[Any]]:
    """Every row that can be read, whatever lies between."""
    query = f"SELECT rowid, {_COLUMNS[table]} FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    start, last = 1, _last_rowid(source, table)
    while start <= last:
        try:
            for rowid, *values in source.execute(query, (start,)):
                start = rowid + 1
                if (sound := _sound(values, _TYPES[table])) is not None:
                    yield sound
            return
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
                return  # There is no such table.
            start += 1


def _last_rowid(source: sqlite3.Connection, table: str) -> int:
    with suppress(sqlite3.DatabaseError):
        return source.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0
    (pages,) = source.execute("PRAGMA page_count").fetchone()
    return pages * _ROWS_PER_PAGE


def _sound(values: list[Any], types: tuple[type, ...]) -> list[Any] | None:
    """The values, unless damage shows in their types; texts come as bytes."""
    sound: list[Any] = []
    for value, kind in zip(values, types, strict=True):
        if kind is str and isinstance(value, bytes):
            try:
                sound.append(value.decode())
            except UnicodeDecodeError:
                return None
        elif type(value) is kind:
            sound.append(value)
        else:
            return None
    return sound

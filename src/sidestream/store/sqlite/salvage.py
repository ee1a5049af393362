"""Recovery of the readable rows of a damaged SQLite store into a new file."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

from msgspec.structs import astuple

from sidestream.store.ids import is_id
from sidestream.store.log.summary import summarize
from sidestream.store.protocol import StoreProblem
from sidestream.store.sqlite.file import SIDE_FILES, SqliteFile
from sidestream.store.sqlite.rows import (
    CONVERSATION_TYPES,
    INSERT_CONVERSATION,
    INSERT_RECORD,
    INSERT_REFERENCE,
    RECORD_TYPES,
    is_sound,
    select_rows,
)

DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors raised by reading a damaged file. The second occurs if SQLite's own message quotes bytes of the file."""

_PAGE = 4096
_PAGE_COUNT = slice(28, 32)
"""Position of the page count in the file's header."""
_ROWS_PER_PAGE = 128
"""Upper bound of rows per page, which limits the search in a table whose pages refer back to themselves."""
_MAX_ROWID = 1 << 62


class _Table(NamedTuple):
    name: str
    columns: str
    types: tuple[type, ...]
    insert: str


_CONVERSATIONS = _Table(
    "conversations",
    "id, head, created, updated, title, model, last",
    CONVERSATION_TYPES,
    "INSERT OR IGNORE INTO conversations (id, head, created, updated, title, model, last) VALUES (?, ?, ?, ?, ?, ?, ?)",
)
_RECORDS = _Table(
    "records",
    "conversation, seq, time, run, kind, body, blobs",
    (str, *RECORD_TYPES),
    INSERT_RECORD.replace("INSERT", "INSERT OR IGNORE"),
)


def salvage(file: SqliteFile, damage: str) -> StoreProblem:
    """Replace the damaged file by a new one with its readable rows, and keep it under another name."""
    fresh = file.sibling(file.beside("salvaged"))
    try:
        records = _save(file, fresh)
        kept = file.beside("damaged")
        _replace(file, fresh, str(kept))
    except BaseException:
        fresh.remove()
        raise
    message = f"{file.path}: {damage}; {records} readable records were saved, the damaged file is kept as {kept}"
    return StoreProblem(kind="damaged", message=message, is_repaired=True)


def unsound_rows(connection: sqlite3.Connection) -> int:
    """Count rows with values that Sidestream never writes, such as invalid UTF-8, on a raw connection."""
    return sum(
        not _is_ours(table, values)
        for table in (_CONVERSATIONS, _RECORDS)
        for values in connection.execute(f"SELECT {table.columns} FROM {table.name} NOT INDEXED")
    )


def list_again(connection: sqlite3.Connection, conversation: str) -> None:
    """Add a conversation to the list again, with the summary of its records."""
    summary = summarize(select_rows(connection, conversation, 0), {})
    connection.execute(INSERT_CONVERSATION, (*astuple(summary), "", conversation))


def _save(file: SqliteFile, fresh: SqliteFile) -> int:
    """Copy what can be read, and return how many records."""
    fresh.open_to_write().close()
    readable = file if _has_tables(file) else _with_first_page(file, fresh)
    records = 0
    try:
        with closing(fresh.open_to_write()) as target:
            # The check that follows repairs references between tables.
            target.execute("PRAGMA foreign_keys = OFF")
            target.execute("BEGIN")
            with suppress(*DAMAGE), closing(readable.open_raw()) as source:
                for values in _readable(source, _CONVERSATIONS):
                    target.execute(_CONVERSATIONS.insert, values)
                for values in _readable(source, _RECORDS):
                    records += target.execute(_RECORDS.insert, values).rowcount
                    conversation, seq, *_, blobs = values
                    target.executemany(INSERT_REFERENCE, [(conversation, seq, digest) for digest in blobs.split()])
            target.execute("COMMIT")
    finally:
        if readable is not file:
            readable.remove()
    return records


def _replace(file: SqliteFile, fresh: SqliteFile, kept: str) -> None:
    """Move the new file into place. A crash in between leaves the damaged file or the new one."""
    if file.path.exists():
        try:
            os.link(file.path, kept)
        except OSError:  # Not every file system has links.
            shutil.copy2(file.path, kept)
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.replace(f"{file.path}{suffix}", f"{kept}{suffix}")
    os.replace(fresh.path, file.path)


def _has_tables(file: SqliteFile) -> bool:
    try:
        with closing(file.open_raw()) as source:
            for table in (_CONVERSATIONS, _RECORDS):
                source.execute(f"SELECT {table.columns} FROM {table.name} NOT INDEXED LIMIT 0").fetchone()
    except DAMAGE:
        return False
    return True


def _with_first_page(file: SqliteFile, fresh: SqliteFile) -> SqliteFile:
    """Copy the file, replacing its first page, which holds the schema, by that of a new file.

    Tables begin at the same pages in every file, since the same statements create them.
    """
    copy = file.sibling(file.beside("copy"))
    data = bytearray(file.path.read_bytes() if file.path.exists() else b"")
    data[:_PAGE] = fresh.path.read_bytes()[:_PAGE]
    data[_PAGE_COUNT] = (len(data) // _PAGE).to_bytes(4, "big")
    with open(os.open(copy.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)
    with suppress(FileNotFoundError):
        shutil.copy2(f"{file.path}-wal", f"{copy.path}-wal")
    return copy


def _readable(source: sqlite3.Connection, table: _Table) -> Iterator[tuple[Any, ...]]:
    """Yield every readable row, some of them twice, and skip unreadable ones."""
    query = f"SELECT rowid, {table.columns} FROM {table.name} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    (pages,) = source.execute("PRAGMA page_count").fetchone()
    start, tries = 1, pages * _ROWS_PER_PAGE
    while start is not None and tries > 0:
        try:
            for rowid, *values in source.execute(query, (start,)):
                # In a damaged table, rowids may be in any order.
                start, tries = rowid + 1, tries - 1
                if tries <= 0:
                    return
                if _is_ours(table, values):
                    yield tuple(values)
            return
        except DAMAGE:
            tries -= 1
            # A cursor reads one row ahead, so the last one before the damage has not been returned.
            with suppress(*DAMAGE):
                for rowid, *values in source.execute(f"{query} LIMIT 1", (start,)):
                    start = rowid + 1
                    if _is_ours(table, values):
                        yield tuple(values)
            start = _next_readable(source, f"{query} LIMIT 1", start)


def _next_readable(source: sqlite3.Connection, query: str, start: int) -> int | None:
    """Find the first rowid after an unreadable one from which reading works again, by doubling and bisection."""

    def is_readable(rowid: int) -> bool:
        try:
            source.execute(query, (rowid,)).fetchone()
        except DAMAGE:
            return False
        return True

    step = 1
    while not is_readable(start + step):
        step *= 2
        if start + step > _MAX_ROWID:
            return None
    unreadable, readable = start + step // 2, start + step
    while readable - unreadable > 1:
        middle = (unreadable + readable) // 2
        if is_readable(middle):
            readable = middle
        else:
            unreadable = middle
    return readable


def _is_ours(table: _Table, values: Any) -> bool:
    """Return whether Sidestream may have written these values, the first of which is the conversation's id."""
    if not is_sound(values, table.types) or not is_id(values[0]):
        return False
    return table is _CONVERSATIONS or values[1] > 0

"""Rows of a SQLite store, on an open connection: written within its transaction, and read."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec.structs import astuple

from sidestream.errors import ConflictError, FencedError
from sidestream.store.database import Append, rows_of
from sidestream.store.records import Row
from sidestream.store.sqlite.file import DamagedFileError
from sidestream.store.summary import summarize

CONVERSATION_TYPES = (str, int, float, float, str, str, str)
"""Types of `id, head, created, updated, title, model, last`. SQLite itself would store any value in any column."""
RECORD_TYPES = (int, float, str, str, bytes, str)
"""Types of `seq, time, run, kind, body, blobs`."""

INSERT_RECORD = "INSERT INTO records (conversation, seq, time, run, kind, body, blobs) VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_REFERENCE = "INSERT OR IGNORE INTO blob_references (conversation, seq, digest) VALUES (?, ?, ?)"
INSERT_CONVERSATION = (
    "INSERT OR IGNORE INTO conversations (head, created, updated, title, model, last, fence, id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_CONVERSATION = (
    "UPDATE conversations SET head = ?, updated = ?, title = iif(title = '', ?, title), model = iif(? = '', model, ?), "
    "last = ?, fence = coalesce(?, fence) WHERE id = ? AND head = ? AND (? IS NULL OR fence <= ?)"
)
_IS_FENCED = "SELECT 1 FROM conversations WHERE id = ? AND fence > ?"
_SELECT_ROWS = (
    "SELECT seq, time, run, kind, body, blobs FROM records WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def append_rows(connection: sqlite3.Connection, append: Append) -> None:
    """Writes rows and their references to blobs. Raises ConflictError, before anything is written."""
    conversation, after, rows, blobs, _, token = append
    new = summarize(rows, blobs)
    if after:
        values = (new.head, new.updated, new.title, new.model, new.model, new.last, token, conversation, after)
        changed = connection.execute(_UPDATE_CONVERSATION, (*values, token, token)).rowcount
    else:
        changed = connection.execute(INSERT_CONVERSATION, (*astuple(new), token or "", conversation)).rowcount
    if not changed:
        raise FencedError(conversation) if _is_fenced(connection, append) else ConflictError(conversation)
    connection.executemany(
        INSERT_RECORD,
        [(conversation, row.seq, row.time, row.run, row.kind, row.body, " ".join(row.blobs)) for row in rows],
    )
    if references := [(conversation, row.seq, digest) for row in rows for digest in row.blobs]:
        connection.executemany(INSERT_REFERENCE, references)


def _is_fenced(connection: sqlite3.Connection, append: Append) -> bool:
    """Whether the conversation knows a later token than that of the append."""
    return append.token is not None and bool(fetch(connection, _IS_FENCED, (append.conversation, append.token)))


def fetch(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] | Mapping[str, object] = ()
) -> list[tuple[Any, ...]]:
    """All rows of a query. A query that fails keeps no lock, which one that waits for the garbage collector does."""
    with closing(connection.cursor()) as cursor:
        return cursor.execute(sql, values).fetchall()


def select_conversations(
    connection: sqlite3.Connection, sql: str, values: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The rows of a query for conversations. Raises DamagedFileError for values that are not ours."""
    return _sound(fetch(connection, sql, values), CONVERSATION_TYPES)


def select_rows(connection: sqlite3.Connection, conversation: str, after: int, limit: int | None = None) -> list[Row]:
    """The rows of a conversation after a number. Raises DamagedFileError for values that are not ours."""
    found = fetch(connection, _SELECT_ROWS, (conversation, after, -1 if limit is None else limit))
    return rows_of(_sound(found, RECORD_TYPES))


def is_sound(values: Sequence[object], types: tuple[type, ...]) -> bool:
    """Whether the values are of these types; texts must be UTF-8, and numbers finite."""
    return tuple(map(type, values)) == types and all(map(_is_sound, values))


def _is_sound(value: object) -> bool:
    match value:
        case str():
            # Invalid UTF-8 is read as surrogates.
            return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
        case float():
            return math.isfinite(value)
        case _:
            return True


def _sound(found: list[tuple[Any, ...]], types: tuple[type, ...]) -> list[tuple[Any, ...]]:
    for values in found:
        if tuple(map(type, values)) != types:
            raise DamagedFileError("a value has another type than its column")
    return found

"""Reading and writing rows of a SQLite store on an open connection."""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from msgspec.structs import astuple

from sidestream.errors import ConflictError, FencedError
from sidestream.store.database import rows_of
from sidestream.store.log.summary import summarize
from sidestream.store.protocol import Append
from sidestream.store.records import Row
from sidestream.store.sqlite.file import DamagedFileError

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
_UPDATE_CONVERSATIONS = (
    "UPDATE conversations SET head = new.column3, updated = new.column4, "
    "title = iif(title = '', new.column5, title), model = iif(new.column6 = '', model, new.column6), "
    "last = new.column7, fence = coalesce(new.column8, fence) FROM ({values}) AS new "
    "WHERE id = new.column1 AND head = new.column2 AND (new.column8 IS NULL OR fence <= new.column8)"
)
"""The same for several at once. `column1` and so on are the names that VALUES gives its columns."""
_INSERT_RECORDS = "INSERT INTO records (conversation, seq, time, run, kind, body, blobs) {values}"
_MAX_VALUES = 128
"""Maximum rows per statement."""
_IS_FENCED = "SELECT 1 FROM conversations WHERE id = ? AND fence > ?"
_SELECT_ROWS = (
    "SELECT seq, time, run, kind, body, blobs FROM records WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def append_rows(connection: sqlite3.Connection, append: Append) -> None:
    """Write rows and their references to blobs.

    Raises ConflictError or FencedError before anything is written.
    """
    conversation, after, rows, blobs, _, token = append
    new = summarize(rows, blobs)
    if after:
        values = (new.head, new.updated, new.title, new.model, new.model, new.last, token, conversation, after)
        changed = connection.execute(_UPDATE_CONVERSATION, (*values, token, token)).rowcount
    else:
        changed = connection.execute(INSERT_CONVERSATION, (*astuple(new), token or "", conversation)).rowcount
    if not changed:
        raise FencedError(conversation) if _is_fenced(connection, append) else ConflictError(conversation)
    connection.executemany(INSERT_RECORD, _record_values(append))
    if references := [(conversation, row.seq, digest) for row in rows for digest in row.blobs]:
        connection.executemany(INSERT_REFERENCE, references)


def can_be_grouped(append: Append) -> bool:
    """Return whether `append_group` can write the append."""
    return append.after > 0 and not append.blobs and not any(row.blobs for row in append.rows)


def append_group(connection: sqlite3.Connection, appends: Sequence[Append]) -> bool:
    """Write the rows of several conversations, or return False if one conflicts.

    The caller must then roll back the transaction. Each statement releases the GIL and gets it back only when the event
    loop's thread lets go of it. One statement per append would mean as many waits, so a few statements write all.
    """
    summaries: list[tuple[object, ...]] = []
    for conversation, after, rows, blobs, _, token in appends:
        new = summarize(rows, blobs)
        summaries.append((conversation, after, new.head, new.updated, new.title, new.model, new.last, token))
    if _execute_many(connection, _UPDATE_CONVERSATIONS, summaries) != len(appends):
        return False
    _execute_many(connection, _INSERT_RECORDS, [values for append in appends for values in _record_values(append)])
    return True


def _record_values(append: Append) -> list[tuple[object, ...]]:
    name = append.conversation
    return [(name, row.seq, row.time, row.run, row.kind, row.body, " ".join(row.blobs)) for row in append.rows]


def _execute_many(connection: sqlite3.Connection, sql: str, rows: list[tuple[object, ...]]) -> int:
    """Run a statement on all rows, in pieces of a power of two, and return how many rows it changed."""
    changed = 0
    for piece in _pieces(rows):
        statement = _with_values(sql, len(piece), len(piece[0]))
        changed += connection.execute(statement, [value for row in piece for value in row]).rowcount
    return changed


def _pieces(rows: list[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    """Split rows into pieces of only a few sizes, since SQLite parses a statement once if its text is the same."""
    while rows:
        size = min(1 << (len(rows).bit_length() - 1), _MAX_VALUES)
        yield rows[:size]
        rows = rows[size:]


@cache
def _with_values(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.format(values=f"VALUES {', '.join([row] * rows)}")


def _is_fenced(connection: sqlite3.Connection, append: Append) -> bool:
    """Return whether the conversation has a newer token than the append."""
    return append.token is not None and bool(fetch(connection, _IS_FENCED, (append.conversation, append.token)))


def fetch(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] | Mapping[str, object] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of a query.

    The cursor is closed at once, since a failed query would keep its lock until garbage collection.
    """
    with closing(connection.cursor()) as cursor:
        return cursor.execute(sql, values).fetchall()


def select_conversations(
    connection: sqlite3.Connection, sql: str, values: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """Return the rows of a query for conversations. Raises DamagedFileError if a value has the wrong type."""
    return _sound(fetch(connection, sql, values), CONVERSATION_TYPES)


def select_rows(connection: sqlite3.Connection, conversation: str, after: int, limit: int | None = None) -> list[Row]:
    """Return the rows of a conversation after a sequence number.

    Raises DamagedFileError if a value has the wrong type.
    """
    found = fetch(connection, _SELECT_ROWS, (conversation, after, -1 if limit is None else limit))
    return rows_of(_sound(found, RECORD_TYPES))


def is_sound(values: Sequence[object], types: tuple[type, ...]) -> bool:
    """Return whether the values are of these types, strings are valid UTF-8, and numbers are finite."""
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
            raise DamagedFileError("a value has the wrong type for its column")
    return found

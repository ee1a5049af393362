"""Rows of a SQLite store, on an open connection: written within its transaction, and read."""

import sqlite3

from msgspec.structs import astuple

from sidestream.errors import ConflictError
from sidestream.store.database import Append, rows_of
from sidestream.store.records import Row
from sidestream.store.summary import summarize

INSERT_RECORD = "INSERT INTO records (conversation, seq, time, run, kind, body, blobs) VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_REFERENCE = "INSERT OR IGNORE INTO blob_references (conversation, seq, digest) VALUES (?, ?, ?)"
INSERT_CONVERSATION = (
    "INSERT OR IGNORE INTO conversations (head, created, updated, title, model, last, id) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_CONVERSATION = (
    "UPDATE conversations SET head = ?, updated = ?, title = iif(title = '', ?, title), model = iif(? = '', model, ?), "
    "last = ? WHERE id = ? AND head = ?"
)
_SELECT_ROWS = (
    "SELECT seq, time, run, kind, body, blobs FROM records WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def append_rows(connection: sqlite3.Connection, append: Append) -> None:
    """Writes rows and their references to blobs. Raises ConflictError, before anything is written."""
    conversation, after, rows, blobs, _ = append
    new = summarize(rows, blobs)
    if after:
        values = (new.head, new.updated, new.title, new.model, new.model, new.last, conversation, after)
        changed = connection.execute(_UPDATE_CONVERSATION, values).rowcount
    else:
        changed = connection.execute(INSERT_CONVERSATION, (*astuple(new), conversation)).rowcount
    if not changed:
        raise ConflictError(conversation)
    connection.executemany(
        INSERT_RECORD,
        [(conversation, row.seq, row.time, row.run, row.kind, row.body, " ".join(row.blobs)) for row in rows],
    )
    if references := [(conversation, row.seq, digest) for row in rows for digest in row.blobs]:
        connection.executemany(INSERT_REFERENCE, references)


def select_rows(connection: sqlite3.Connection, conversation: str, after: int, limit: int | None = None) -> list[Row]:
    """The rows of a conversation after a number."""
    return rows_of(connection.execute(_SELECT_ROWS, (conversation, after, -1 if limit is None else limit)))

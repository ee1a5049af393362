"""Checks and repairs a SQLite store."""

import sqlite3
from contextlib import closing, suppress

from sidestream.store.audit import Audit, audit_blob, orphan
from sidestream.store.blobs.folder import BlobStore, is_digest
from sidestream.store.protocol import StoreProblem
from sidestream.store.sqlite.file import SqliteFile, Transaction
from sidestream.store.sqlite.rows import INSERT_REFERENCE, fetch, select_rows
from sidestream.store.sqlite.salvage import DAMAGE, list_again, salvage, unsound_rows

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The last one: our statements are valid, so they fail only where a table is not ours any more."""
_REFERENCED = "SELECT conversation, seq, blobs FROM records WHERE blobs <> ''"
_REFERENCES = "SELECT CAST(conversation AS BLOB), seq, CAST(digest AS BLOB) FROM blob_references"
"""As bytes, since nothing says that what a damaged table holds is UTF-8."""


def check(file: SqliteFile, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    """All problems; with `repair`, no other connection may be open."""
    with file.errors():
        if repair:
            _refuse_newer(file)
        damage = _damage(file)
        if damage is None:
            return _check_content(file, blobs, repair=repair)
        if repair:
            return [salvage(file, damage), *_check_content(file, blobs, repair=True)]
        return [StoreProblem(kind="damaged", message=f"{file.path}: {damage}; a repair saves what can be read")]


def _damage(file: SqliteFile) -> str | None:
    """The damage that SQLite itself finds in the file, or rows with values that are not ours."""
    try:
        connection = file.open_to_read()
        if connection is None:
            return None
        with closing(connection):
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check(10)")]
        if lines != ["ok"]:
            return " ".join("; ".join(lines).split())
        with closing(file.open_raw()) as raw:
            fetch(raw, "SELECT conversation, seq, digest FROM blob_references LIMIT 1")
            unsound = unsound_rows(raw)
    except UnicodeDecodeError as error:
        return str(error)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise
        _refuse_newer(file)
        return str(error)
    return f"{unsound} rows hold values that are not ours, or texts that are not UTF-8" if unsound else None


def _refuse_newer(file: SqliteFile) -> None:
    with suppress(*DAMAGE):
        if connection := file.open_to_read():
            with closing(connection):
                file.refuse_newer(connection)


def _check_content(file: SqliteFile, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    connection = file.open_to_write() if repair else file.open_to_read()
    if connection is None:
        return []
    with closing(connection), Transaction(connection, "BEGIN IMMEDIATE" if repair else "BEGIN"):
        if repair:
            found = _repair_records(file, connection)
        else:
            found = _unlisted(connection, is_repaired=False)
            found += [problem for audit in _audits(connection) for problem in audit.problems]
        found += _check_references(file, connection, repair=repair)
        return found + _check_blobs(connection, blobs, repair=repair)


def _repair_records(file: SqliteFile, connection: sqlite3.Connection) -> list[StoreProblem]:
    unlisted = _unlisted(connection, is_repaired=True)
    if unlisted or any(audit.problems for audit in _audits(connection)):
        file.copy_to(file.beside("before-repair"))
    for problem in unlisted:
        list_again(connection, problem.conversation or "")
    broken = [audit for audit in _audits(connection) if audit.problems]
    for audit in broken:
        _truncate(connection, audit)
    return unlisted + [problem for audit in broken for problem in audit.repaired()]


def _unlisted(connection: sqlite3.Connection, *, is_repaired: bool) -> list[StoreProblem]:
    names = connection.execute("SELECT conversation FROM records EXCEPT SELECT id FROM conversations").fetchall()
    outcome = "it was listed again" if is_repaired else "a repair lists it again"
    return [
        StoreProblem(
            kind="gap",
            message=f"{name!r} has records, but is not in the list of conversations; {outcome}",
            conversation=name,
            is_repaired=is_repaired,
        )
        for (name,) in names
    ]


def _audits(connection: sqlite3.Connection) -> list[Audit]:
    found: list[Audit] = []
    for name, head in connection.execute("SELECT id, head FROM conversations ORDER BY id").fetchall():
        audit = Audit(name, head)
        for row in select_rows(connection, name, 0):
            audit.feed(row)
        audit.close()
        found.append(audit)
    return found


def _truncate(connection: sqlite3.Connection, audit: Audit) -> None:
    name = audit.conversation
    connection.execute("DELETE FROM records WHERE conversation = ? AND seq > ?", (name, audit.intact))
    if audit.intact:
        values = (audit.intact, audit.last_kind, name)
        connection.execute("UPDATE conversations SET head = ?, last = ? WHERE id = ?", values)
    else:
        connection.execute("DELETE FROM conversations WHERE id = ?", (name,))


def _check_references(file: SqliteFile, connection: sqlite3.Connection, *, repair: bool) -> list[StoreProblem]:
    """Whether each blob that a record names is referred to: what is not would be collected."""
    named = {(name, seq, digest) for name, seq, blobs in fetch(connection, _REFERENCED) for digest in blobs.split()}
    if {(name.encode(), seq, digest.encode()) for name, seq, digest in named} == set(fetch(connection, _REFERENCES)):
        return []
    if repair:
        connection.execute("DELETE FROM blob_references")
        connection.executemany(INSERT_REFERENCE, named)
    outcome = "they were listed again" if repair else "a repair lists them again"
    message = f"{file.path}: the list of references to blobs is not that of the records; {outcome}"
    return [StoreProblem(kind="damaged", message=message, is_repaired=repair)]


def _check_blobs(connection: sqlite3.Connection, blobs: BlobStore, *, repair: bool) -> list[StoreProblem]:
    referenced = fetch(connection, _REFERENCED)
    # What is no digest makes its record unreadable, which was reported.
    known = {digest: name for name, _, digests in referenced for digest in digests.split() if is_digest(digest)}
    found = [audit_blob(blobs, digest, conversation, repair=repair) for digest, conversation in known.items()]
    orphans = [digest for shard in blobs.shards() for digest in blobs.old(shard) if digest not in known]
    if repair:
        blobs.sweep()
        blobs.remove(orphans)
    return [problem for problem in found if problem] + [orphan(digest, is_removed=repair) for digest in orphans]

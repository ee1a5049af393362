"""The SQLite file of a store, with its creation and migrations, and the conversion of its errors."""

import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from sidestream.errors import NewerSchemaError, StoreError
from sidestream.store.blobs.folder import FORBIDDEN, FULL, disk_error, disk_errors, make_private
from sidestream.store.database import Migration, refuse_newer

FileIdentity = tuple[int, int]
"""Device and inode."""

APPLICATION_ID = 0x53445354
"""Marker in the file's header for a Sidestream log."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE conversations (id TEXT PRIMARY KEY, head INTEGER NOT NULL, created REAL NOT NULL, "
        "updated REAL NOT NULL, title TEXT NOT NULL, model TEXT NOT NULL, last TEXT NOT NULL)",
        "CREATE INDEX conversations_by_time ON conversations (updated)",
        "CREATE TABLE records (conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE, "
        "seq INTEGER NOT NULL, time REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, "
        "blobs TEXT NOT NULL, PRIMARY KEY (conversation, seq))",
        "CREATE INDEX records_by_run ON records (run) WHERE kind = 'run-started'",
        "CREATE INDEX records_by_end ON records (time) WHERE kind = 'finish'",
        # The digests of `records.blobs`, indexed.
        "CREATE TABLE blob_references (conversation TEXT NOT NULL, seq INTEGER NOT NULL, digest TEXT NOT NULL, "
        "PRIMARY KEY (conversation, seq, digest), "
        "FOREIGN KEY (conversation, seq) REFERENCES records ON DELETE CASCADE) WITHOUT ROWID",
        "CREATE INDEX blob_references_by_digest ON blob_references (digest)",
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
    (
        # Token of the latest claim; writers with an older one may not append.
        "ALTER TABLE conversations ADD COLUMN fence TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE tasks (conversation TEXT PRIMARY KEY REFERENCES conversations ON DELETE CASCADE, "
        "queue TEXT NOT NULL, position INTEGER NOT NULL, state TEXT NOT NULL, due REAL NOT NULL, since REAL NOT NULL, "
        "worker TEXT NOT NULL DEFAULT '', token TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0, "
        "beats INTEGER NOT NULL DEFAULT 0, takeovers INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, "
        "woken INTEGER NOT NULL DEFAULT 0, later INTEGER NOT NULL DEFAULT 0)",
        "CREATE INDEX tasks_by_state ON tasks (state, due)",
        "CREATE TABLE posts (id INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, kind TEXT NOT NULL, "
        "body BLOB NOT NULL)",
        "CREATE INDEX posts_by_conversation ON posts (conversation)",
    ),
)

SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside the database."""
MAX_WAL_PAGES = 16_384
"""Size of the write-ahead log, in pages of 4 kB, at which the writer makes a checkpoint because none in the background
succeeded."""
KEPT_WAL_BYTES = 1 << 20
_TABLES = ("conversations", "records", "blob_references")
_WAL_WAIT_S = 0.01
_DAMAGED = "the file is damaged or not a database; `sidestream logs check --repair` saves what can be read"
_LOCKED = "another process has locked the database; try again once it is done"
_MESSAGES = {
    sqlite3.SQLITE_PERM: FORBIDDEN,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: FORBIDDEN,
    sqlite3.SQLITE_IOERR: "the disk reports an error or is full; check it, then try again",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its folder exists and may be written",
    sqlite3.SQLITE_TOOBIG: "a record is too large for SQLite; store large content as blobs",
}


class DamagedFileError(sqlite3.DatabaseError):
    """Raised for readable content that Sidestream did not write."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _size(path: str) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class SqliteFile:
    """The file of a store, and the schema it must have."""

    def __init__(self, path: Path, migrations: Sequence[Migration], busy_timeout_s: float) -> None:
        self.path = path
        self.version = len(migrations)
        # As strings, since each write checks both.
        self._path, self._wal = os.fspath(path), f"{path}-wal"
        self._migrations = migrations
        self._busy_timeout_s = busy_timeout_s

    def errors(self) -> "_StoreErrors":
        """Convert SQLite and disk errors in the block to StoreError."""
        return _StoreErrors(self)

    def store_error(self, error: BaseException) -> StoreError | None:
        """Convert a SQLite or disk error to StoreError, or return None for any other error."""
        match error:
            case sqlite3.Error():
                return self._store_error(error)
            case UnicodeDecodeError():  # SQLite's own message quotes bytes of a damaged file.
                return StoreError(f"{self.path}: {_DAMAGED}")
            case OSError():
                return disk_error(error, self.path)
            case _:
                return None

    def open_to_write(self) -> sqlite3.Connection:
        """Open a connection for writing, creating or migrating the file if necessary."""
        self._create()
        connection = self._connect("rw")
        try:
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def open_to_read(self) -> sqlite3.Connection | None:
        """Open a read-only connection, or return None if nothing was ever stored. An older file is migrated first."""
        with disk_errors(self.path):
            if self._is_empty():
                self._refuse_lone_wal()
                return None
        connection = self._connect("ro", is_immutable=not self._can_share_wal())
        try:
            version = self._own_version(connection)
            if 0 < version < self.version:
                self.open_to_write().close()
        except BaseException:
            connection.close()
            raise
        if version:
            return connection
        connection.close()
        return None

    def open_to_checkpoint(self) -> sqlite3.Connection:
        """Open a connection to a file that another connection has open for writing."""
        return sqlite3.connect(self._address("rw"), uri=True, timeout=self._busy_timeout_s, isolation_level=None)

    def open_raw(self) -> sqlite3.Connection:
        """Open a connection to a file that may be damaged. Invalid UTF-8 is returned as surrogates."""
        if self._is_empty():
            self._refuse_lone_wal()
        connection = self._connect("ro")
        connection.text_factory = _lenient_text
        # Makes SQLite accept a file that is shorter than its header claims.
        connection.execute("PRAGMA writable_schema = ON")
        return connection

    def wal_bytes(self) -> int:
        """Return the size of the write-ahead log, or 0 if it does not exist."""
        return _size(self._wal)

    def sibling(self, path: Path) -> "SqliteFile":
        """Return another file with the same schema."""
        return SqliteFile(path, self._migrations, self._busy_timeout_s)

    def remove(self) -> None:
        """Delete the file and what SQLite keeps beside it."""
        for suffix in ("", *SIDE_FILES):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def is_still(self, identity: FileIdentity) -> bool:
        """Return whether the path still leads to the file with this identity."""
        try:
            return self.identity() == identity
        except OSError:
            return False

    def identity(self) -> FileIdentity:
        """Return a value that distinguishes the file at the path from one that replaces it."""
        status = os.stat(self._path)
        return status.st_dev, status.st_ino

    def beside(self, suffix: str) -> Path:
        """Return an unused path beside the file, such as `talks.db.suffix` or `talks.db.suffix-2`."""
        path = self.path.with_name(f"{self.path.name}.{suffix}")
        number = 1
        while path.exists():
            number += 1
            path = self.path.with_name(f"{self.path.name}.{suffix}-{number}")
        return path

    def copy_to(self, target: Path) -> None:
        """Copy the committed content into a new file."""
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(self._connect("ro")) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)

    def refuse_newer(self, connection: sqlite3.Connection) -> int:
        """Return the schema's version. Call it within a transaction.

        Raises NewerSchemaError if the version is above ours.
        """
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return refuse_newer(version, self.version, str(self.path), alternative="file")

    def _create(self) -> None:
        with disk_errors(self.path):
            make_private(self.path.parent)
            if self._is_empty():
                self._refuse_lone_wal()
            # SQLite would use the umask; its other files get the mode of this one.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _is_empty(self) -> bool:
        return not _size(self._path)

    def _refuse_lone_wal(self) -> None:
        """Raise DamagedFileError if only a write-ahead log is left, which SQLite would delete with its content."""
        # Check again: another process that creates the file writes its header first, then the log.
        if _size(self._wal) and self._is_empty():
            raise DamagedFileError(f"the file is missing or empty, but {os.path.basename(self._wal)} is not")

    def _can_share_wal(self) -> bool:
        # In a read-only folder SQLite cannot create the files that readers of a WAL share.
        return os.access(self.path.parent, os.W_OK) or self.path.with_name(self.path.name + "-shm").exists()

    def _connect(self, mode: str, *, is_immutable: bool = False) -> sqlite3.Connection:
        if mode == "ro" and not is_immutable:
            self._roll_back()
        address = self._address(mode) + ("&immutable=1" if is_immutable else "")
        # Opened and used by one thread, but possibly closed by another.
        connection = sqlite3.connect(
            address, uri=True, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            if mode == "rw":
                self._own_version(connection)  # Leave another program's database unchanged.
                use_wal(connection.execute, self._busy_timeout_s, _is_busy)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_PAGES}")
                # Truncate the log once it was moved into the file, so that its size shows how much it holds.
                connection.execute(f"PRAGMA journal_size_limit = {KEPT_WAL_BYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self, mode: str) -> str:
        return f"file:{quote(str(self.path.absolute()))}?mode={mode}"

    def _roll_back(self) -> None:
        """Roll back a file creation that a killed process left half done, which a read-only connection cannot do."""
        journal = self.path.with_name(self.path.name + "-journal")
        if not journal.exists() or not os.access(self.path.parent, os.W_OK):
            return
        with closing(sqlite3.connect(self._address("rw"), uri=True, timeout=self._busy_timeout_s)) as connection:
            # SQLite does it before the first read. A journal that another process still writes is left alone.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _own_version(self, connection: sqlite3.Connection) -> int:
        """Return the schema's version, or 0 for an empty file. Raises StoreError for another program's database."""
        # In one statement, since another process may be creating the file.
        version, application, tables = connection.execute(
            "SELECT user_version, application_id, (SELECT group_concat(name) FROM sqlite_master WHERE type = 'table') "
            "FROM pragma_user_version, pragma_application_id"
        ).fetchone()
        if application == APPLICATION_ID and version > 0:
            return version
        if application == APPLICATION_ID or set(_TABLES) <= set((tables or "").split(",")):
            raise DamagedFileError("the file header is damaged")
        if tables:
            raise StoreError(f"{self.path} belongs to another program; choose another file for the log")
        return 0

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._own_version(connection) == self.version:
            return
        with Transaction(connection):
            # Read again: another process may have migrated the file before the transaction began.
            version = self._own_version(connection)
            self.refuse_newer(connection)
            if 0 < version < self.version:
                self.copy_to(self.beside(f"v{version}-backup"))
            for statement in itertools.chain.from_iterable(self._migrations[version:]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self.version}")

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        # Python raises an error without a code for a string that is not UTF-8.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_ERROR:
            # Our statements are valid, so they fail only on a schema that is not ours.
            return NewerSchemaError(
                f"{self.path} has a schema that this version cannot read ({error}); update Sidestream"
            )
        return StoreError(f"{self.path}: {_MESSAGES.get(code, f'{error}; check the file and its folder')}")


def use_wal(execute: Callable[[str], Any], timeout_s: float, is_busy: Callable[[Exception], bool]) -> None:
    """Enable WAL mode, waiting for other processes that create the file, which SQLite does not do here."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except Exception as error:
            if not is_busy(error) or time.monotonic() >= deadline_s:
                raise
            time.sleep(_WAL_WAIT_S)


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _lenient_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class _StoreErrors:
    """The context manager of `SqliteFile.errors`.

    A class, like `Transaction`, because every write enters both and a generator costs more.
    """

    __slots__ = ("_file",)

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (known := self._file.store_error(error)) is not None:
            raise known from error


class Transaction:
    """A transaction that commits at the end of the block, or rolls back if it raises."""

    __slots__ = ("_begin", "_connection")

    def __init__(self, connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> None:
        self._connection = connection
        self._begin = begin

    def __enter__(self) -> None:
        self._connection.execute(self._begin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        if error is not None:
            self._roll_back()

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

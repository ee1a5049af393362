"""A SQLite file as a store needs it: made, opened, brought to today's schema, and its errors in words."""

import os
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from sidestream.errors import NewerSchemaError, StoreError
from sidestream.store.disk import FULL, disk_error, disk_errors, make_private

Migration = Sequence[str]
"""The statements that lead from one version of the schema to the next."""

APPLICATION_ID = 0x53445354
"""Says in the file's header that it is a log of Sidestream."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE conversations (id TEXT PRIMARY KEY, head INTEGER NOT NULL, created REAL NOT NULL, "
        "updated REAL NOT NULL, title TEXT NOT NULL, model TEXT NOT NULL, last TEXT NOT NULL)",
        "CREATE INDEX conversations_by_time ON conversations (updated)",
        "CREATE TABLE records (conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE, "
        "seq INTEGER NOT NULL, time REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, "
        "blobs TEXT NOT NULL, PRIMARY KEY (conversation, seq))",
        # What `records.blobs` says, to be found by digest.
        "CREATE TABLE blob_references (conversation TEXT NOT NULL, seq INTEGER NOT NULL, digest TEXT NOT NULL, "
        "PRIMARY KEY (conversation, seq, digest), "
        "FOREIGN KEY (conversation, seq) REFERENCES records ON DELETE CASCADE) WITHOUT ROWID",
        "CREATE INDEX blob_references_by_digest ON blob_references (digest)",
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
)

_WAL_WAIT_S = 0.01
_DAMAGED = "the file is damaged or no database; `sidestream logs check --repair` saves what can be read"
_FORBIDDEN = "this user may not write there; change the permissions or choose another place"
_WORDS = {
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_BUSY: "another process holds the database; try again once it is done",
    sqlite3.SQLITE_LOCKED: "another process holds the database; try again once it is done",
    sqlite3.SQLITE_READONLY: _FORBIDDEN,
    sqlite3.SQLITE_IOERR: "the disk reports an error or is full; check it, then try again",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; does its folder exist, and may this user write there?",
    sqlite3.SQLITE_TOOBIG: "a record is too large for SQLite; store large content as blobs",
}


class SqliteFile:
    """The file of a store, and the schema that it must have."""

    def __init__(self, path: Path, migrations: Sequence[Migration], busy_timeout_s: float) -> None:
        self.path = path
        self.version = len(migrations)
        self._migrations = migrations
        self._busy_timeout_s = busy_timeout_s

    @contextmanager
    def errors(self) -> Generator[None]:
        """Around work on the file: what fails comes out as StoreError."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._told(error) from error
        except OSError as error:
            raise disk_error(error, self.path) from error

    def open_to_write(self) -> sqlite3.Connection:
        """A connection for writing; the file is made or migrated where it must be."""
        self._make()
        connection = self._connect("rw")
        try:
            self._bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def open_to_read(self) -> sqlite3.Connection | None:
        """A connection for reading, which changes nothing; None where there is nothing to read yet.

        An older file is migrated before.
        """
        with disk_errors(self.path):
            if not self.path.exists() or not self.path.stat().st_size:
                return None
        connection = self._connect("ro", is_fixed=not self._may_write())
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

    def open_raw(self) -> sqlite3.Connection:
        """A connection that expects nothing of the file; texts come as bytes, since they may be none."""
        connection = self._connect("ro")
        connection.text_factory = bytes
        # It is the switch by which SQLite puts up with a file that is shorter than it should be.
        connection.execute("PRAGMA writable_schema = ON")
        return connection

    def sibling(self, path: Path) -> "SqliteFile":
        """A file elsewhere with the same schema."""
        return SqliteFile(path, self._migrations, self._busy_timeout_s)

    def is_same(self, mark: tuple[int, int]) -> bool:
        """Whether the path still leads to the file that was marked."""
        with suppress(OSError):
            return self.mark() == mark
        return False

    def mark(self) -> tuple[int, int]:
        """What tells the file at the path from another that takes its place."""
        status = self.path.stat()
        return status.st_dev, status.st_ino

    def beside(self, word: str) -> Path:
        """A path beside the file that is free: `talks.db.word`, `talks.db.word-2` and so on."""
        path = self.path.with_name(f"{self.path.name}.{word}")
        number = 1
        while path.exists():
            number += 1
            path = self.path.with_name(f"{self.path.name}.{word}-{number}")
        return path

    def copy_to(self, target: Path) -> None:
        """Copies what is committed into a new file."""
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(self._connect("ro")) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)

    def refuse_newer(self, connection: sqlite3.Connection) -> int:
        """The schema's version, to be asked for within a transaction. Raises NewerSchemaError above ours."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > self.version:
            raise NewerSchemaError(
                f"{self.path} was written by a newer version of Sidestream (schema {version}, this one knows "
                f"{self.version}); it can be read, but not written: update Sidestream, or use another file"
            )
        return version

    def _make(self) -> None:
        with disk_errors(self.path):
            make_private(self.path.parent)
            # SQLite would follow the umask; its other files take the mode of this one.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _may_write(self) -> bool:
        # Without a folder to write in, SQLite cannot make the files that readers of a WAL share.
        return os.access(self.path.parent, os.W_OK) or self.path.with_name(self.path.name + "-shm").exists()

    def _connect(self, mode: str, *, is_fixed: bool = False) -> sqlite3.Connection:
        address = f"file:{quote(str(self.path.absolute()))}?mode={mode}{'&immutable=1' if is_fixed else ''}"
        # It is opened by one thread, used by one, and closed by whoever gives up on it.
        connection = sqlite3.connect(
            address, uri=True, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            if mode == "rw":
                self._own_version(connection)  # Another program's database is left as it is.
                self._use_wal(connection)
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """SQLite does not wait for others here by itself: several may be making the file at once."""
        deadline_s = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                    raise
                time.sleep(_WAL_WAIT_S)

    def _own_version(self, connection: sqlite3.Connection) -> int:
        """The schema's version; 0 for an empty file. Raises StoreError for another program's database."""
        # In one statement: somebody may be making the file at this moment.
        version, application, has_tables = connection.execute(
            "SELECT user_version, application_id, EXISTS (SELECT 1 FROM sqlite_master) "
            "FROM pragma_user_version, pragma_application_id"
        ).fetchone()
        if application == APPLICATION_ID:
            return version
        if has_tables:
            raise StoreError(f"{self.path} is the database of another program; choose another file for the log")
        return 0

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        if self._own_version(connection) == self.version:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Others may have come first; from here on nobody can.
            version = self._own_version(connection)
            self.refuse_newer(connection)
            if 0 < version < self.version:
                self.copy_to(self.beside(f"v{version}-backup"))
            for step in self._migrations[version:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self.version}")
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _told(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_ERROR:
            # A statement that fits our schema fails only on another one.
            return NewerSchemaError(
                f"{self.path} has a schema that this version cannot read ({error}); update Sidestream"
            )
        return StoreError(f"{self.path}: {_WORDS.get(code, f'{error}; check the file and its folder')}")

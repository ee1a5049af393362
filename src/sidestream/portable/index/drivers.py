"""Connections to SQLite that can search vectors: by the standard library, by apsw, or without the extension.

Many Python builds cannot load extensions of SQLite. apsw brings an SQLite of its own that can.
"""

import importlib
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from sidestream.errors import MissingExtraError, StoreError

Driver = Literal["sqlite3", "apsw", "matrix"]
BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process."""


class Cursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What both libraries have in common."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Any, /) -> Any: ...

    def close(self) -> None: ...


def connect(path: Path, driver: Driver | None = None) -> tuple[Connection, Driver]:
    """A connection, and which way was found; with `driver`, that way. Raises MissingExtraError if none is possible."""
    for way in _WAYS if driver is None else (driver,):
        made = _WAYS[way](path)
        if made is not None:
            return made, way
    raise MissingExtraError("index", "A file index")


def _plain(path: Path) -> sqlite3.Connection:
    # Opened and used by one thread, but possibly closed by another.
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _standard(path: Path) -> Any:
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        return None
    extension = _module("sqlite_vec")
    if extension is None:
        return None
    connection: Any = _plain(path)
    try:
        connection.enable_load_extension(True)
        extension.load(connection)
        connection.enable_load_extension(False)
    except (sqlite3.Error, OSError):
        connection.close()
        return None
    return connection


def _apsw(path: Path) -> Any:
    apsw, extension = _module("apsw"), _module("sqlite_vec")
    if apsw is None or extension is None:
        return None
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
        connection.enable_load_extension(True)
        connection.load_extension(extension.loadable_path())
        connection.enable_load_extension(False)
        connection.execute("PRAGMA synchronous = NORMAL")
    except apsw.Error:
        connection.close()
        return None
    return connection


def _matrix(path: Path) -> Any:
    return _plain(path) if _module("numpy") is not None else None


_WAYS: dict[Driver, Any] = {"sqlite3": _standard, "apsw": _apsw, "matrix": _matrix}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def library_errors() -> tuple[type[Exception], ...]:
    """The errors of the libraries."""
    apsw = _module("apsw")
    return (sqlite3.Error, apsw.Error) if apsw is not None else (sqlite3.Error,)


@contextmanager
def store_errors(path: Path) -> Generator[None]:
    """Raises StoreError for what SQLite and the disk report in the block."""
    try:
        yield
    except library_errors() as error:
        raise StoreError(f"the index {path}: {_advice(error)}") from error
    except OSError as error:
        raise StoreError(f"the index {path}: {error.strerror or error}") from error


_ADVICE = {
    "BusyError": "another process is writing it; try again once it is done",
    "NotADBError": "the file is damaged or no index; remove it, and add the folders again",
    "CorruptError": "the file is damaged; remove it, and add the folders again",
    "FullError": "the disk is full; free some space and try again",
    "ReadOnlyError": "it cannot be written; check its permissions",
    "CantOpenError": "it cannot be opened; check that its folder exists and may be written",
}
"""Error of apsw → what to do; those of the standard library have the code of the same meaning."""
_CODES = {
    5: "BusyError",
    8: "ReadOnlyError",
    11: "CorruptError",
    13: "FullError",
    14: "CantOpenError",
    26: "NotADBError",
}


def _advice(error: Exception) -> str:
    name = _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, type(error).__name__)
    return _ADVICE.get(name, str(error))


@contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """Commits at the end of the block, or rolls back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(*library_errors()):
            connection.execute("ROLLBACK")
        raise

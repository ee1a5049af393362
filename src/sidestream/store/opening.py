"""Opens a store by its path or URL, or at the default location."""

import os
from typing import cast
from urllib.parse import unquote, urlsplit

from sidestream.errors import ConfigurationError
from sidestream.folders import data_folder
from sidestream.redaction import Secret, redact_url
from sidestream.store.protocol import Store

VARIABLE = "SIDESTREAM_STORE"
"""The environment variable with the default location."""


def open_store(where: str | os.PathLike[str] | Store | None = None) -> Store:
    """The store at a path or URL; without one, at `SIDESTREAM_STORE`, or else a file in the platform's data folder.

    Nothing is opened before the first use. A store is returned unchanged.
    """
    if isinstance(where, Store):
        return where
    # It may hold a password, which a traceback with locals would show.
    where = Secret(where) if isinstance(where, str) and "://" in where else where
    if where is None:
        where = default_location()
    # The caller may be untyped.
    if not isinstance(cast(object, where), str | os.PathLike):
        raise ConfigurationError(f"a store is a path or a URL, not {type(where).__name__}")
    address = os.fspath(where)
    scheme = address.partition("://")[0].lower() if isinstance(where, str) and "://" in address else ""
    match scheme:
        case "":
            return _sqlite(address)
        case "sqlite":
            return _sqlite(_path(address))
        case "postgresql" | "postgres":
            from sidestream.store.postgres.store import PostgresStore

            return PostgresStore(address)
        case _:
            raise ConfigurationError(
                f"{redact_url(address)!r} is not a store: use a path, sqlite:///path or postgresql://user@host/database"
            )


def default_location() -> str | os.PathLike[str]:
    """Where conversations are stored if nothing else is said. A URL may hold a password."""
    return os.environ.get(VARIABLE) or data_folder() / "log.db"


def _sqlite(path: str) -> Store:
    from sidestream.store.sqlite.store import SqliteStore

    return SqliteStore(path)


def _path(url: str) -> str:
    path = _path_in(url)
    if path is None:
        raise ConfigurationError(
            f"{redact_url(url)!r} names no file: write sqlite:///talks.db or sqlite:////folder/talks.db"
        )
    return path


def _path_in(url: str) -> str | None:
    parts = urlsplit(url)
    return None if parts.netloc or parts.query or parts.fragment else unquote(parts.path)[1:] or None

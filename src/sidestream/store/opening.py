"""Opening a store by its path or URL, or at the default location."""

import os
from functools import cache
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from sidestream.errors import ConfigurationError
from sidestream.files.folders import data_folder
from sidestream.store.protocol import Store
from sidestream.text.redaction import Secret, redact_url

if TYPE_CHECKING:
    from sidestream.store.blobs.folder import BlobStore

VARIABLE = "SIDESTREAM_STORE"
"""Environment variable with the default location."""


def open_store(
    where: str | os.PathLike[str] | Store | None = None,
    *,
    blobs: "str | os.PathLike[str] | BlobStore | None" = None,
) -> Store:
    """Open the store at a path or URL, by default at `SIDESTREAM_STORE`, else in the platform's data folder.

    ```python
    store = open_store("talks.db")  # or "postgresql://user@host/database"
    await Chat(agent, store=store, id="support-42").send("Hello")
    await store.aclose()
    ```

    `blobs`, or `?blobs=` in the URL, sets where its blobs are stored: a folder, `s3://bucket/prefix`, or for PostgreSQL
    `database`. The store connects on first use. A store that is passed is returned unchanged.
    """
    if _are_stores(type(where)):
        if blobs is not None:
            raise ConfigurationError("blobs cannot be changed for an existing store; pass blobs= when you open it")
        return cast(Store, where)
    where = cast("str | os.PathLike[str] | None", where)
    # It may hold a password, which a traceback with locals would show.
    where = Secret(where) if isinstance(where, str) and "://" in where else where
    if where is None:
        where = default_location()
    # The caller may be untyped.
    if not isinstance(cast(object, where), str | os.PathLike):
        raise ConfigurationError(f"store must be a path or a URL, not {type(where).__name__}")
    address = os.fspath(where)
    scheme = address.partition("://")[0].lower() if isinstance(where, str) and "://" in address else ""
    match scheme:
        case "":
            return _sqlite(address, blobs)
        case "sqlite":
            path, chosen = _path(address)
            return _sqlite(path, blobs or chosen)
        case "postgresql" | "postgres":
            from sidestream.store.postgres.store import PostgresStore

            return PostgresStore(address, blobs)
        case _:
            raise ConfigurationError(
                f"{redact_url(address)!r} is not a store: use a path, sqlite:///path or postgresql://host/database"
            )


@cache
def _are_stores(kind: type) -> bool:
    # Every chat asks, and a check against a protocol takes as long as a write.
    return issubclass(kind, Store)


def default_location() -> str | os.PathLike[str]:
    """Return the location of the default store. A URL may hold a password."""
    return os.environ.get(VARIABLE) or data_folder() / "log.db"


def _sqlite(path: str, blobs: "str | os.PathLike[str] | BlobStore | None") -> Store:
    from sidestream.store.sqlite.store import SqliteStore

    if blobs == "database":
        raise ConfigurationError("blobs='database' needs PostgreSQL; use a folder or s3://bucket/prefix")
    return SqliteStore(path, blobs)


def _path(url: str) -> tuple[str, str | None]:
    """Return the file path and blob location of a SQLite URL. Raises ConfigurationError if the URL names no file."""
    found = _parsed(url)
    if found is None:
        raise ConfigurationError(
            f"{redact_url(url)!r} does not name a file; write sqlite:///talks.db or sqlite:////folder/talks.db"
        )
    return found


def _parsed(url: str) -> tuple[str, str | None] | None:
    """Parse a SQLite URL, or return None if it names no file.

    This is a separate function so that a password in the URL does not appear in the frames of the error.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = unquote(parts.path)[1:]
    is_wrong = parts.netloc or parts.fragment or not path or options.keys() - {"blobs"}
    return None if is_wrong else (path, options.get("blobs"))

"""The database of an index by its path or URL, or at the default location."""

import os

from sidestream.errors import ConfigurationError
from sidestream.files.folders import data_folder
from sidestream.portable.index.records import Database

VARIABLE = "SIDESTREAM_INDEX"
"""The environment variable with the default location."""
DEFAULT_MODEL = "local"
"""The model string of the embeddings unless another is chosen: the embedded model needs no key."""


def database_at(where: str | os.PathLike[str] | None = None) -> Database:
    """The database at a path or URL; without one, at `SIDESTREAM_INDEX`, or else a file in the platform's data folder.

    Nothing is opened before the first use.
    """
    place = os.fspath(where) if where is not None else os.environ.get(VARIABLE) or str(data_folder() / "index.db")
    scheme = place.partition("://")[0].lower() if "://" in place else ""
    match scheme:
        case "":
            from sidestream.portable.index.sqlite import SqliteIndex

            return SqliteIndex(place)
        case "postgresql" | "postgres":
            from sidestream.portable.index.postgres import PostgresIndex

            return PostgresIndex(place)
        case _:
            raise ConfigurationError(f"an index is a path or a postgresql:// URL, not {scheme}://…")

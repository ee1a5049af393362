"""Choice of an index's database by path or URL, with a default location."""

import os

from sidestream.errors import ConfigurationError
from sidestream.files.folders import data_folder
from sidestream.portable.index.records import Database

VARIABLE = "SIDESTREAM_INDEX"
"""Environment variable with the default location."""
DEFAULT_MODEL = "local"
"""Default model string of the embeddings. The embedded model needs no key."""


def database_at(where: str | os.PathLike[str] | None = None) -> Database:
    """Return the database at a path or URL.

    The default is `SIDESTREAM_INDEX`, or else a file in the platform's data folder. It is opened on first use.
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
            raise ConfigurationError(f"an index must be a path or a postgresql:// URL, not {scheme}://…")

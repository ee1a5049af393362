"""The event log in PostgreSQL, with the extra `postgres`."""

from sidestream.errors import MissingExtraError

try:
    import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise MissingExtraError("postgres", "a store in PostgreSQL") from error

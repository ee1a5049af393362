"""The event log in PostgreSQL, which needs the extra `postgres`."""

from importlib import import_module

from sidestream.errors import MissingExtraError

try:
    import_module("psycopg")
except ImportError as error:
    raise MissingExtraError("postgres", "a store in PostgreSQL") from error

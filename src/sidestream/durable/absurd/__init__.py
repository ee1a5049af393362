"""The engine Absurd: tasks in PostgreSQL, with the extra `absurd`. Nothing runs besides the database.

Imports `durable`'s port and the connections of the store in PostgreSQL.
"""

from importlib import import_module

from sidestream.errors import MissingExtraError

try:
    import_module("absurd_sdk")
    import_module("psycopg")
except ImportError as error:
    raise MissingExtraError("absurd", "the engine Absurd") from error

from sidestream.durable.absurd.engine import AbsurdEngine

__all__ = ["AbsurdEngine"]

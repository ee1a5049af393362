"""Versions of a database's schema."""

from collections.abc import Sequence

from sidestream.errors import NewerSchemaError

Migration = Sequence[str]
"""The statements that lead from one version of the schema to the next."""


def refuse_newer(version: int, known: int, name: str, *, alternative: str) -> int:
    """The version found in a database. Raises NewerSchemaError if it is above the one we know."""
    if version > known:
        raise NewerSchemaError(
            f"{name} was written by a newer version of Sidestream (schema {version}, this one knows {known}); "
            f"it can be read, but not written: update Sidestream, or use another {alternative}"
        )
    return version

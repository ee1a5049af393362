"""Looking into JSON of unknown shape."""

from typing import Any, TypeGuard

Json = dict[str, Any]


def is_object(value: Any) -> TypeGuard[Json]:
    """True for a JSON object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """True for a JSON array."""
    return isinstance(value, list)


def objects(value: Any) -> list[Json]:
    """The objects in an array; nothing where it is none."""
    return [entry for entry in value if is_object(entry)] if is_array(value) else []


def text_in(value: Json, key: str) -> str | None:
    """The text under a key, None where there is none."""
    found = value.get(key)
    return found if isinstance(found, str) else None

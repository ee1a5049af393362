"""Schemas that a small model cannot run away in: every text and list has an end. Pure."""

from typing import Any

from sidestream.jsontext import JsonObject, is_array, is_object

MAX_TEXT = 200
MAX_ITEMS = 20
_BOUNDS: dict[str, JsonObject] = {"string": {"maxLength": MAX_TEXT}, "array": {"maxItems": MAX_ITEMS}}
_CLOSED = frozenset({"enum", "const", "pattern", "format"})
"""What gives a text its form already."""
_NAMED = frozenset({"properties", "$defs", "definitions"})
"""Keys whose values are schemas by name, so that a name is not taken for a keyword."""


def bounded(schema: Any) -> Any:
    """The schema with a longest length for each text and list that has none."""
    if is_array(schema):
        return [bounded(entry) for entry in schema]
    if not is_object(schema):
        return schema
    made: JsonObject = {}
    for key, value in schema.items():
        if key in _NAMED and is_object(value):
            made[key] = {name: bounded(entry) for name, entry in value.items()}
        else:
            made[key] = value if key in ("enum", "const", "default", "examples") else bounded(value)
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _BOUNDS and not _CLOSED & schema.keys():
        return _BOUNDS[kind] | made
    return made

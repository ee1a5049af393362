"""JSON schemas: walking them, and what strict mode takes."""

from collections.abc import Iterator
from typing import Any

from sidestream.jsontext import JsonObject, is_object

_NOT_STRICT = frozenset(
    {
        "allOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "dependentRequired",
        "dependentSchemas",
        "propertyNames",
    }
)


def allows_strict(schema: Any) -> bool:
    """True if strict mode takes the schema: objects closed, all properties required, no foreign keyword."""
    if not is_object(schema):
        return False
    node = schema
    kinds = node.get("type")
    if _NOT_STRICT & node.keys():
        return False
    if "properties" in node or kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        properties: JsonObject = node.get("properties") or {}
        if node.get("additionalProperties") is not False or set(node.get("required") or ()) != properties.keys():
            return False
    return all(allows_strict(part) for part in _subschemas(node))


def _subschemas(node: JsonObject) -> Iterator[Any]:
    for keyword in ("properties", "$defs", "definitions"):
        yield from (node.get(keyword) or {}).values()
    for keyword in ("anyOf", "prefixItems"):
        yield from node.get(keyword) or ()
    if "items" in node:
        yield node["items"]

"""JSON schemas: traversal, and the subset that strict modes can enforce.

pydantic is loaded by `schema_generator`, not when this module is imported.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sidestream.jsontext import JsonObject, as_list, as_object, dumps, is_array, is_object, loads, shown

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

# fmt: off
# Keywords whose value is a schema, a list of schemas, or schemas by name.
_SINGLE = frozenset(("items", "propertyNames", "contains", "not", "if", "then", "else"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
# Keywords about the remaining properties and items: a schema for them, or whether they are allowed.
_REST = frozenset(("additionalProperties", "unevaluatedItems", "unevaluatedProperties"))
# Keywords and formats that every strict mode enforces, and keywords that at least one cannot enforce.
PORTABLE_KEYWORDS = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs",
    "description",
))
PORTABLE_FORMATS = frozenset((
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
))
_NOT_ENFORCED = frozenset((
    "allOf", "oneOf", "not", "if", "contains", "prefixItems", "patternProperties", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "dependentRequired", "dependentSchemas",
))
_REFUSED_IF_STRICT = _NOT_ENFORCED - {"contains", "prefixItems", "unevaluatedItems", "unevaluatedProperties"}
_DESCRIBING = frozenset(("$ref", "anyOf", "oneOf", "allOf", "enum", "const"))
# fmt: on

TYPES: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
"""Type name → check for that type. The first match is the narrowest."""


def walk(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the schema and every schema in it, each with its path.

    A schema is an object, or a boolean that accepts any or no value. It may be changed before the next one is
    requested.
    """
    pending: list[tuple[str, Any]] = [(path, schema)]
    while pending:
        path, node = pending.pop()
        yield path, node
        if is_object(node):
            pending += reversed(_subschemas(path, node))
        elif is_array(node):  # `items` of older drafts
            pending += reversed([(path, inner) for inner in node])


def nodes(schema: Any) -> Iterator[JsonObject]:
    """Yield the schema and every schema in it that is an object, in the order of `walk`."""
    return (node for _, node in walk(schema) if is_object(node))


def _subschemas(path: str, node: JsonObject) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for keyword, value in node.items():
        if keyword in _MAPS:
            found += [(f"{path}.{name}", inner) for name, inner in as_object(value).items()]
        elif keyword in _LISTS:
            found += [(path, inner) for inner in as_list(value)]
        elif keyword in _SINGLE or (keyword in _REST and is_object(value)):
            found.append((f"{path}[]" if keyword == "items" else path, value))
    return found


def strings(value: Any) -> list[str]:
    """Return the strings of a keyword whose value is a string or a list of them, such as `type` and `required`."""
    return [entry for entry in (value if is_array(value) else [value]) if isinstance(entry, str)]


def is_record(node: JsonObject) -> bool:
    """Return whether the node is an object schema."""
    kind = node.get("type")
    return kind == "object" or "properties" in node or (is_array(kind) and "object" in kind)


def resolve(root: Any, reference: str) -> Any:
    """Return the target of a reference within the schema, or None if it is missing or external."""
    start, *steps = reference.split("/")
    for step in steps if start == "#" else [reference]:
        root = as_object(root).get(step.replace("~1", "/").replace("~0", "~"))
    return root


def inline_root(schema: JsonObject) -> JsonObject:
    """Inline a reference at the schema's root, which providers refuse."""
    reference = schema.pop("$ref", None)
    if reference is None:
        return schema
    root = schema | copy.deepcopy(resolve(schema, reference))
    if all(node.get("$ref") != reference for node in nodes(root)):
        del root["$defs"][reference.rpartition("/")[2]]
    return root if root["$defs"] else {keyword: root[keyword] for keyword in root if keyword != "$defs"}


def wrap(schema: JsonObject) -> JsonObject:
    """Wrap the schema in an object as its property `value`.

    Definitions move to the root, and references are adapted.
    """
    for node in nodes(schema):
        reference = str(node.get("$ref"))
        if reference.startswith("#") and not reference.startswith(("#/$defs/", "#/definitions/")):
            node["$ref"] = "#/properties/value" + reference[1:]
    moved = {keyword: schema.pop(keyword) for keyword in ("$defs", "definitions") if keyword in schema}
    root = {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}
    return root | moved


def drop_titles(schema: JsonObject) -> None:
    """Remove the titles that pydantic generates from names, since the model reads those anyway."""
    for node in nodes(schema):
        if isinstance(node.get("title"), str):
            del node["title"]


def close(schema: JsonObject) -> JsonObject:
    """Return a copy in which every object with properties is closed, unless it sets `additionalProperties`."""
    closed = copy.deepcopy(schema)
    for node in nodes(closed):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
    return closed


def tighten(schema: JsonObject) -> JsonObject:
    """Return a narrower copy that strict modes may enforce: all objects closed, all properties required.

    Constraints that not every strict mode supports move into the description, where the model reads them.
    """
    tight = copy.deepcopy(schema)
    for node in nodes(tight):
        node.pop("discriminator", None)
        if "oneOf" in node and "anyOf" not in node:
            node["anyOf"] = node.pop("oneOf")
        items = as_list(node.get("prefixItems"))
        if items and all(item == items[0] for item in items):
            node["items"] = node.pop("prefixItems")[0]
        if "type" not in node and "enum" in node:
            kinds = [next(kind for kind, has_type in TYPES.items() if has_type(value)) for value in node["enum"]]
            node["type"] = kinds[0] if len(set(kinds)) == 1 else list(dict.fromkeys(kinds))
        require_all(node)
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        known = PORTABLE_KEYWORDS | _NOT_ENFORCED | {"format" if node.get("format") in PORTABLE_FORMATS else ""}
        if others := [keyword for keyword in node if keyword not in known]:
            note = ", ".join(f"{keyword}: {shown(node.pop(keyword))}" for keyword in others)
            node["description"] = f"{node.get('description', '')} ({note})".lstrip()
    return tight


def require_all(node: JsonObject) -> None:
    """Require every property, and separate a reference from its sibling keywords, which strict modes refuse."""
    if "properties" in node:
        node["required"] = list(node["properties"])
    if "$ref" in node and len(node) > 1:
        node["anyOf"] = [{"$ref": node.pop("$ref")}]


def is_strict(schema: JsonObject) -> bool:
    """Return whether every strict mode can enforce the schema.

    Its objects must be closed and its properties required, and nothing may be left open.
    """
    return all(
        not node.keys() & _NOT_ENFORCED and _is_complete(node) and not leaves_open(node) for node in nodes(schema)
    )


def allows_strict(schema: Any) -> bool:
    """Return whether OpenAI's strict mode accepts the schema.

    Its objects must be closed and its properties required, without keywords that the mode refuses.
    """
    return _allows_strict(dumps(schema))


@functools.lru_cache(maxsize=256)
def _allows_strict(schema: bytes) -> bool:
    # Keyed by JSON, since each request of a run has the same schemas, and none of them is hashable.
    return all(
        is_object(node) and not node.keys() & _REFUSED_IF_STRICT and _is_complete(node)
        for _, node in walk(loads(schema))
    )


def _is_complete(node: JsonObject) -> bool:
    """Return whether the node is not an object schema, or is closed and requires all its properties."""
    return not is_record(node) or (
        node.get("additionalProperties") is False
        and set(strings(node.get("required"))) == as_object(node.get("properties")).keys()
    )


def leaves_open(node: JsonObject) -> bool:
    """Return whether the schema accepts values that it does not describe: any value, any list, further properties."""
    kinds = strings(node.get("type"))
    if not kinds:
        return not node.keys() & _DESCRIBING
    if "object" in kinds and node.get("additionalProperties", "properties" not in node) is not False:
        return True
    return "array" in kinds and not is_object(node.get("items")) and "prefixItems" not in node


def is_recursive(schema: JsonObject) -> bool:
    """Return whether a definition refers to itself, directly or through others."""
    links = {
        name: {str(inner["$ref"]).rpartition("/")[2] for inner in nodes(node) if "$ref" in inner}
        for name, node in as_object(schema.get("$defs")).items()
    }
    while leaves := [name for name, targets in links.items() if not targets & links.keys()]:
        for name in leaves:
            del links[name]
    return bool(links)


@functools.cache
def schema_generator() -> "type[GenerateJsonSchema]":
    """Return pydantic's schema generator, with its warnings silenced."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def emit_warning(self, kind: "JsonSchemaWarningKind", detail: str) -> None:
            """Ignore a default without a JSON form, since the model does not need it."""

    return Generator

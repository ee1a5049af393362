"""Checks JSON values against the structural keywords of JSON schema.

Not the `jsonschema` package: it takes 0.1 s to import and brings four distributions, and of a union it reports that no
member fits, where a model needs to read what is wrong with the nearest one.
"""

from collections.abc import Iterator
from typing import Any

from sidestream.jsontext import JsonObject, as_list, as_object, dumps, is_object, shown
from sidestream.output.json_schema import TYPES, resolve, strings
from sidestream.output.problems import MISSING, problem_at


def problems_of(value: Any, schema: JsonObject) -> Iterator[str]:
    """One line for each violation, as far as `output_type` says that it is checked."""
    return _problems(value, schema, schema)


def _problems(value: Any, node: Any, root: JsonObject, path: str = "", followed: tuple[str, ...] = ()) -> Iterator[str]:
    schema = as_object(node)
    kinds = [kind for kind in strings(schema.get("type")) if kind in TYPES]
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        yield problem_at(path, f"must be {' or '.join(kinds)}; it was {shown(value)}")
        return
    allowed = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
    # As text, since True == 1 in Python.
    if allowed and dumps(value) not in map(dumps, allowed):
        yield problem_at(path, f"must be one of {shown(allowed)}; it was {shown(value)}")
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        yield from _problems(value, resolve(root, reference), root, path, (*followed, reference))
    for part in as_list(schema.get("allOf")):
        yield from _problems(value, part, root, path, followed)
    for keyword in ("anyOf", "oneOf"):
        tried = [list(_problems(value, choice, root, path, followed)) for choice in as_list(schema.get(keyword))]
        yield from min(tried, key=len, default=())
    for index, item in enumerate(as_list(value)):
        yield from _problems(item, schema.get("items"), root, f"{path}[{index}]")
    if is_object(value):
        yield from _object_problems(value, schema, root, path)


def _object_problems(value: JsonObject, schema: JsonObject, root: JsonObject, path: str) -> Iterator[str]:
    properties, others = as_object(schema.get("properties")), schema.get("additionalProperties")
    for name in strings(schema.get("required")):
        if name not in value:
            yield problem_at(f"{path}.{name}", MISSING)
    for name, item in value.items():
        if name not in properties and others is False:
            yield problem_at(f"{path}.{name}", f"unknown property; known: {', '.join(properties) or 'none'}")
        yield from _problems(item, properties.get(name, others), root, f"{path}.{name}")

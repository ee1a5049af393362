"""The rules of each strict mode, side by side: one table of schemas, and what each rule set says of them."""

import copy
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import WithJsonSchema, create_model

from sidestream.errors import ConfigurationError
from sidestream.output import output_type
from sidestream.output.json_schema import allows_strict, is_recursive, nodes, walk
from sidestream.providers.anthropic.encode.tools import closed, is_closed
from sidestream.tools.tool import Tool

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
CLOSED: Schema = {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False}
OPEN: Schema = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}


class Row(NamedTuple):
    """A schema, and for each rule set whether a closed object with it as the type of a property is strict."""

    schema: Schema
    rules: str
    """A letter for each rule set that accepts it: see RULES."""


def root_of(schema: Schema) -> Schema:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}


def is_strict_dict(schema: Schema) -> bool:
    return output_type(root_of(schema)).schema.strict


def is_strict_model(schema: Schema) -> bool:
    return output_type(create_model("Model", x=(Annotated[Any, WithJsonSchema(schema)], ...))).schema.strict


def is_strict_tool(schema: Schema, strict: bool | None = None) -> bool:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = Annotated[Any, WithJsonSchema(schema)]
    try:
        return Tool.from_function(function, strict=strict).strict
    except ConfigurationError:
        return False


RULES = {
    "d": is_strict_dict,  # an output type that is a JSON schema
    "m": is_strict_model,  # an output type that is a Python type: it may be narrowed to become strict
    "o": lambda schema: allows_strict(root_of(schema)),  # OpenAI's strict mode
    "a": lambda schema: is_closed(root_of(schema)),  # Anthropic's strict tools
    "t": is_strict_tool,  # a tool that does not say whether it is strict
    "T": lambda schema: is_strict_tool(schema, True),  # a tool with strict=True
}

ROWS = {
    "a string": Row(TEXT, "dmoatT"),
    "several types": Row({"type": ["string", "null"]}, "dmoatT"),
    "anything": Row({}, "oa"),
    "a description alone": Row({"description": "x"}, "oa"),
    "an enum": Row({"enum": [1, "a"]}, "dmoatT"),
    "a const": Row({"const": 1}, "dmoatT"),
    "any of": Row({"anyOf": [TEXT, {"type": "null"}]}, "dmoatT"),
    "a format that all providers have": Row({"type": "string", "format": "date"}, "dmoatT"),
    "another format": Row({"type": "string", "format": "uri"}, "dmoaT"),
    "a constraint": Row({"type": "string", "minLength": 1}, "dmoaT"),
    "a default": Row({"type": "string", "default": "a"}, "dmoaT"),
    "a default that looks like a schema": Row({"type": "string", "default": OPEN}, "dmoaT"),
    "an unknown keyword": Row({"type": "string", "x-note": OPEN}, "dmoaT"),
    "a list": Row({"type": "array", "items": TEXT}, "dmoatT"),
    "a list of anything": Row({"type": "array"}, "oa"),
    "a list whose items are true": Row({"type": "array", "items": True}, "a"),
    "a tuple": Row({"type": "array", "prefixItems": [TEXT, {"type": "integer"}]}, "oaT"),
    "a tuple of one type": Row({"type": "array", "prefixItems": [TEXT, TEXT]}, "moaT"),
    "a closed object": Row(CLOSED, "dmoatT"),
    "an object that does not say whether it is closed": Row(OPEN, "dmtT"),
    "an object that allows more": Row({**OPEN, "additionalProperties": True}, ""),
    "an object with an optional property": Row({**CLOSED, "required": []}, "maT"),
    "an object without properties": Row({"type": "object"}, ""),
    "an empty object": Row({"type": "object", "properties": {}, "additionalProperties": False}, "dmoatT"),
    "a closed object without properties": Row({"type": "object", "additionalProperties": False}, "dmoatT"),
    "a map": Row({"type": "object", "additionalProperties": TEXT}, ""),
    "properties without a type": Row({key: CLOSED[key] for key in CLOSED if key != "type"}, "oa"),
    "a property called items": Row({**CLOSED, "properties": {"items": TEXT}, "required": ["items"]}, "dmoatT"),
    "a property that is true": Row({**CLOSED, "properties": {"a": True}}, "dmatT"),
    "any of anything": Row({"anyOf": [True, TEXT]}, "dmatT"),
    "a closed object or null": Row({**CLOSED, "type": ["object", "null"]}, "dmoatT"),
    "any object or null": Row({"type": ["object", "null"]}, ""),
    "a map of objects, or null": Row({"type": ["object", "null"], "additionalProperties": OPEN}, ""),
    "any of, with an object": Row({"anyOf": [OPEN, TEXT]}, "dmtT"),
    "any of, with an optional property": Row({"anyOf": [{**CLOSED, "required": []}, TEXT]}, "maT"),
    "a list of objects": Row({"type": "array", "items": OPEN}, "dmtT"),
    "an object in an object": Row({**CLOSED, "properties": {"a": OPEN}}, "dmtT"),
    "a tuple of objects": Row({"type": "array", "prefixItems": [OPEN, OPEN]}, "mT"),
    "one of": Row({"oneOf": [TEXT, CLOSED]}, "maT"),
    "one of, with an object": Row({"oneOf": [TEXT, OPEN]}, "mT"),
    "all of": Row({"allOf": [TEXT]}, "aT"),
    "all of, with an object": Row({"allOf": [OPEN]}, "T"),
    "not": Row({"type": "string", "not": {"const": "a"}}, "aT"),
    "not, with an object": Row({"type": "string", "not": OPEN}, "T"),
    "if": Row({"type": "string", "if": {"const": "a"}, "then": {}}, "a"),
    "contains": Row({"type": "array", "items": TEXT, "contains": TEXT}, "oaT"),
    "contains, with an object": Row({"type": "array", "items": TEXT, "contains": OPEN}, "T"),
    "pattern properties": Row({**CLOSED, "patternProperties": {"^x": TEXT}}, "aT"),
    "property names": Row({**CLOSED, "propertyNames": TEXT}, "aT"),
    "dependent required": Row({**CLOSED, "dependentRequired": {"a": ["b"]}}, "aT"),
    "dependent schemas": Row({**CLOSED, "dependentSchemas": {"a": CLOSED}}, "aT"),
    "unevaluated properties": Row({**CLOSED, "unevaluatedProperties": False}, "oaT"),
    "unevaluated items": Row({"type": "array", "items": TEXT, "unevaluatedItems": False}, "oaT"),
    "definitions": Row({"type": "string", "$defs": {"d": OPEN}}, "dmtT"),
    "definitions of older drafts": Row({"type": "string", "definitions": {"d": OPEN}}, "dmT"),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_rule_set_accepts_its_strict_schemas(name: str):
    row = ROWS[name]
    given = copy.deepcopy(row.schema)
    assert "".join(letter for letter, accepts in RULES.items() if accepts(row.schema)) == row.rules
    assert row.schema == given


@pytest.mark.parametrize("schema", [None, True, [], "text", 5])
def test_non_object_schema_is_not_strict(schema: Any):
    assert not allows_strict(schema)
    assert closed(schema) == schema


def closing(schema: Schema) -> Schema:
    return {**schema, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, TEXT),
        (OPEN, closing(OPEN)),
        (CLOSED, CLOSED),
        ({"type": "object"}, closing({"type": "object"})),
        ({"properties": {"a": TEXT}}, closing({"properties": {"a": TEXT}})),
        ({"type": "object", "additionalProperties": OPEN}, {"type": "object", "additionalProperties": closing(OPEN)}),
        ({**OPEN, "additionalProperties": True}, {**OPEN, "additionalProperties": True}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": closing(OPEN)}),
        ({"type": "array", "prefixItems": [OPEN, TEXT]}, {"type": "array", "prefixItems": [closing(OPEN), TEXT]}),
        ({"anyOf": [OPEN, TEXT]}, {"anyOf": [closing(OPEN), TEXT]}),
        ({"oneOf": [OPEN]}, {"oneOf": [closing(OPEN)]}),
        ({"allOf": [OPEN]}, {"allOf": [closing(OPEN)]}),
        ({"type": "array", "items": [OPEN]}, {"type": "array", "items": [closing(OPEN)]}),
        ({"type": ["object", "null"]}, closing({"type": ["object", "null"]})),
        ({"type": "array", "contains": OPEN}, {"type": "array", "contains": closing(OPEN)}),
        ({"$ref": "#/$defs/d", "$defs": {"d": OPEN}}, {"$ref": "#/$defs/d", "$defs": {"d": closing(OPEN)}}),
        ({"$ref": "#/definitions/d", "definitions": {"d": OPEN}},
         {"$ref": "#/definitions/d", "definitions": {"d": closing(OPEN)}}),
        ({**CLOSED, "properties": {"type": OPEN, "properties": TEXT}},
         {**CLOSED, "properties": {"type": closing(OPEN), "properties": TEXT}}),
        ({"enum": [OPEN], "const": OPEN, "default": OPEN, "examples": [OPEN]},
         {"enum": [OPEN], "const": OPEN, "default": OPEN, "examples": [OPEN]}),
    ],
)  # fmt: skip
def test_every_object_is_closed_unless_declared_open(schema: Schema, expected: Schema):
    given = copy.deepcopy(schema)
    assert closed(schema) == expected
    assert schema == given


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, TEXT),
        ({"type": "string", "title": "A text"}, TEXT),
        ({"type": "string", "minLength": 1}, {"type": "string", "description": "(minLength: 1)"}),
        (
            {"type": "string", "description": "A name", "pattern": "x", "maxLength": 9},
            {"type": "string", "description": 'A name (maxLength: 9, pattern: "x")'},
        ),
        ({"type": "string", "format": "uri"}, {"type": "string", "description": '(format: "uri")'}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b"], "type": "string"}),
        ({"enum": ["a", 1, None]}, {"enum": ["a", 1, None], "type": ["string", "integer", "null"]}),
        ({"oneOf": [TEXT, OPEN], "discriminator": {}}, {"anyOf": [TEXT, CLOSED]}),
        ({"type": "array", "prefixItems": [TEXT, TEXT], "minItems": 2, "maxItems": 2},
         {"type": "array", "items": TEXT, "description": "(maxItems: 2, minItems: 2)"}),
        ({**OPEN, "required": []}, CLOSED),
    ],
)  # fmt: skip
def test_output_type_is_narrowed_to_strict_features(schema: Schema, expected: Schema):
    made = output_type(create_model("Model", x=(Annotated[Any, WithJsonSchema(schema)], ...))).schema
    assert made.strict
    assert made.schema == root_of(expected)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "default": "a"}, TEXT),
        ({"type": "string", "minLength": 1}, {"type": "string", "minLength": 1}),
        ({**OPEN, "required": []}, CLOSED),
        ({"oneOf": [TEXT, OPEN]}, {"oneOf": [TEXT, CLOSED]}),
        ({"type": "string", "not": OPEN}, {"type": "string", "not": CLOSED}),
        ({"type": "array", "prefixItems": [OPEN]}, {"type": "array", "prefixItems": [CLOSED]}),
    ],
)
def test_strict_tool_has_closed_objects_with_all_required(schema: Schema, expected: Schema):
    def function(x: Any = None) -> None: ...

    function.__annotations__["x"] = Annotated[Any, WithJsonSchema(schema)]
    made = Tool.from_function(function, strict=True)
    assert made.parameters == root_of(expected)


def test_walk_visits_every_schema_and_no_values():
    at = {keyword: {"const": keyword} for keyword in ("items", "additionalProperties", "not", "if", "then", "else")}
    schema: Schema = {
        **at,
        "properties": {"enum": {"const": "properties"}},
        "patternProperties": {"x": {"const": "patternProperties"}},
        "dependentSchemas": {"x": {"const": "dependentSchemas"}},
        "$defs": {"x": {"const": "$defs"}},
        "definitions": {"x": {"const": "definitions"}},
        **{keyword: [{"const": keyword}, True] for keyword in ("anyOf", "oneOf", "allOf", "prefixItems")},
        **{keyword: {"const": keyword} for keyword in ("contains", "propertyNames")},
        **{keyword: [{"const": "a value"}] for keyword in ("enum", "examples")},
        "default": {"const": "a value"},
    }
    assert {node["const"] for node in nodes(schema) if "const" in node} == schema.keys() - {
        "enum",
        "examples",
        "default",
    }


def test_walk_names_paths_and_visits_changed_nodes():
    schema: Schema = {"properties": {"a": {"items": {"anyOf": [TEXT]}}}, "oneOf": [CLOSED]}
    paths: list[str] = []
    for path, node in walk(schema, "root"):
        if "oneOf" in node:
            node["anyOf"] = node.pop("oneOf")
        paths.append(path)
    assert paths == ["root", "root.a", "root.a[]", "root.a[]", "root", "root.a"]


def test_walk_does_not_depend_on_recursion_limit():
    schema: Schema = {}
    for _ in range(5000):
        schema = {"not": schema}
    assert sum(1 for _ in nodes(schema)) == 5001


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ({"a": TEXT}, False),
        ({"a": {"$ref": "#/$defs/b"}, "b": TEXT}, False),
        ({"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, True),
        ({"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"properties": {"a": {"$ref": "#/$defs/a"}}}}, True),
    ],
)
def test_self_referring_definitions_are_recursive(definitions: Schema, expected: bool):
    assert is_recursive({"$ref": "#/$defs/a", "$defs": definitions}) == expected

"""Schemas get an end for every text and list, and stay what they were otherwise."""

import copy
from typing import Any

import pytest

from sidestream.providers.local.provider import MAX_ITEMS, MAX_TEXT, bounded


def test_strings_and_lists_are_bounded_at_any_depth() -> None:
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "next": {"$ref": "#/$defs/type"}},
        "$defs": {"type": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["tags"],
    }
    text = {"type": "string", "maxLength": MAX_TEXT}
    assert bounded(schema) == {
        **schema,
        "properties": {
            "tags": {"type": "array", "maxItems": MAX_ITEMS, "items": text},
            "next": {"$ref": "#/$defs/type"},
        },
        "$defs": {"type": {"anyOf": [text, {"type": "null"}]}},
    }


def test_bounded_schema_is_unchanged() -> None:
    schema = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "maxLength": 3},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "day": {"type": "string", "format": "date"},
            "few": {"type": "array", "maxItems": 2, "items": {"type": "integer"}},
        },
        "default": {"type": "string"},
    }
    assert bounded(schema) == schema


TEXT = {"type": "string"}
SHORT = {"type": "string", "maxLength": MAX_TEXT}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "array", "prefixItems": [TEXT]}, {"type": "array", "maxItems": MAX_ITEMS, "prefixItems": [SHORT]}),
        ({"type": "object", "additionalProperties": TEXT}, {"type": "object", "additionalProperties": SHORT}),
        ({"oneOf": [TEXT], "allOf": [TEXT]}, {"oneOf": [SHORT], "allOf": [SHORT]}),
        ({"definitions": {"d": TEXT}}, {"definitions": {"d": SHORT}}),
        ({"type": "object", "properties": {"type": TEXT}}, {"type": "object", "properties": {"type": SHORT}}),
        ({"type": "string", "const": "a"}, {"type": "string", "const": "a"}),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "a"}),
        ({"enum": [TEXT], "examples": [TEXT], "default": TEXT}, {"enum": [TEXT], "examples": [TEXT], "default": TEXT}),
    ],
)
def test_bounds_are_added_to_schemas_never_to_values(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    given = copy.deepcopy(schema)
    assert bounded(schema) == expected
    assert schema == given

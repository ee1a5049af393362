"""Schemas get an end for every text and list, and stay what they were otherwise."""

from sidestream.providers.local.schemas import MAX_ITEMS, MAX_TEXT, bounded


def test_texts_and_lists_get_an_end_at_any_depth() -> None:
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


def test_what_has_an_end_is_left_as_it_is() -> None:
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

"""Forms that a server has a person fill in: `{"message": …, "schema": …}`, or `{"message": …, "url": …}` to visit.

The schema describes an object whose properties are texts, numbers, booleans or lists of texts.
"""

from typing import Any

from sidestream.jsontext import JsonObject, as_list, as_object, is_array
from sidestream.output.json_schema import TYPES


def defaults(schema: JsonObject | None) -> JsonObject:
    """The values that a form starts with."""
    fields = as_object((schema or {}).get("properties")).items()
    return {name: as_object(field)["default"] for name, field in fields if "default" in as_object(field)}


def problem_with(form: JsonObject | None, answers: JsonObject | None) -> str | None:
    """Why the answers do not fit the form, without their values. None if they fit."""
    schema = as_object((form or {}).get("schema"))
    if not schema:
        return "there is no form to fill in" if answers else None
    fields = as_object(schema.get("properties"))
    values = defaults(schema) | (answers or {})
    if unknown := [name for name in values if name not in fields]:
        return f"the form has no field {', '.join(unknown)}"
    if missing := [str(name) for name in as_list(schema.get("required")) if name not in values]:
        return f"the form needs {', '.join(missing)}"
    wrong = [name for name in answers or {} if not _fits(as_object(fields[name]), values[name])]
    return f"the form does not accept the value of {', '.join(wrong)}" if wrong else None


def _fits(field: JsonObject, value: Any) -> bool:
    kind = field.get("type")
    if isinstance(kind, str) and kind in TYPES and not TYPES[kind](value):
        return False
    entries = value if is_array(value) else [value]
    if any(entry is not None and not isinstance(entry, str | int | float) for entry in entries):
        return False
    allowed = choices(field)
    return not allowed or all(entry in allowed for entry in entries)


def choices(field: JsonObject) -> list[Any]:
    """The values that a field accepts; empty if it accepts all of its type."""
    options = as_object(field.get("items")) if field.get("type") == "array" else field
    titled = as_list(options.get("oneOf")) or as_list(options.get("anyOf"))
    return as_list(options.get("enum")) or [as_object(option).get("const") for option in titled]

"""Parsing of `--schema`: JSON, a file, a stored name, a Python type, or the short form `name, age int: in years`."""

import difflib
import json
import re
from pathlib import Path
from typing import Any

import click

from sidestream import jsontext
from sidestream.cli.inputs.imports import NAME, import_object
from sidestream.cli.inputs.named_files import NamedFiles
from sidestream.errors import ConfigurationError

STORED = NamedFiles("schema", ".json")
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""JSON schema types, by short form."""

JSON_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

_FIELD = re.compile(r"\s*([A-Za-z_]\w*)(?:\s+([A-Za-z]+))?(?:\s*:\s*(.*))?\s*", re.DOTALL)


def read_schema(text: str) -> Any:
    """Parse a schema as a dict or a Python type. Raises UsageError if it is neither."""
    if text.lstrip().startswith("{"):
        return _parsed(text)
    if text in STORED.names():
        return _parsed(STORED.read(text))
    path = Path(text).expanduser()
    if text.endswith(".json") or "/" in text or _is_file(path):
        try:
            return _parsed(path.read_text("utf-8-sig"))
        except OSError as error:
            raise click.UsageError(f"--schema: cannot read {text}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise click.UsageError(f"--schema: {text} is not UTF-8 text") from None
    if NAME.fullmatch(text):
        found = import_object(text)
        if isinstance(found, type | dict):
            return found  # pyright: ignore[reportUnknownVariableType]
        raise click.UsageError(f"--schema: {text} is {type(found).__name__}, not a class or a JSON schema")
    return _short_form(text)


def list_of(schema: Any) -> Any:
    """Return the schema of a list of these. As a JSON schema, it is an object with the list as `items`."""
    if isinstance(schema, type):
        return list[schema]
    items: dict[str, Any] = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"items": items}, "required": ["items"], "additionalProperties": False}


def short_form_of(name: str) -> str:
    """Describe a stored schema's fields and types, in the short form where possible."""
    try:
        properties = jsontext.as_object(_parsed(STORED.read(name)).get("properties"))
    except (click.UsageError, ConfigurationError) as error:
        return f"unreadable: {error}"
    kinds = {kind: short for short, kind in TYPES.items()}
    fields = {field: str(jsontext.as_object(schema).get("type", "any")) for field, schema in properties.items()}
    return ", ".join(f"{field} {kinds.get(kind, kind)}".removesuffix(" str") for field, kind in fields.items())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # For example, a name that is too long.
        return False


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--schema: invalid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise click.UsageError("--schema: must be a JSON object")
    _check_types(schema)
    return schema  # pyright: ignore[reportUnknownVariableType]


def _check_types(schema: Any) -> None:
    """Check the schema's types. Raises UsageError if JSON schema does not define one."""
    for entry in jsontext.as_list(schema):
        _check_types(entry)
    fields = jsontext.as_object(schema)
    kind = fields.get("type")
    if isinstance(kind, str) and kind not in JSON_TYPES:
        near = difflib.get_close_matches(kind, JSON_TYPES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"--schema: unknown JSON schema type {kind!r}{hint}")
    for name in ("items", "anyOf", "allOf", "oneOf"):
        if name in fields:
            _check_types(fields[name])
    for name in ("properties", "$defs"):
        for inner in jsontext.as_object(fields.get(name)).values():
            _check_types(inner)


def _short_form(text: str) -> dict[str, Any]:
    """Parse fields separated by newlines or commas, each written as NAME [TYPE][: DESCRIPTION]."""
    properties: dict[str, Any] = {}
    for entry in filter(str.strip, text.split("\n" if "\n" in text.strip() else ",")):
        found = _FIELD.fullmatch(entry)
        if found is None:
            raise click.UsageError(
                f"--schema: {entry.strip()!r} is not a field: "
                "write 'name, age int: in years', JSON, a file or MODULE:CLASS"
            )
        name, kind, description = found[1], found[2] or "str", (found[3] or "").strip()
        if kind not in TYPES:
            near = difflib.get_close_matches(kind, TYPES, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"--schema: unknown type {kind!r} of {name}: use {', '.join(TYPES)}{hint}")
        properties[name] = {"type": TYPES[kind]} | ({"description": description} if description else {})
    if not properties:
        raise click.UsageError(
            "--schema is empty: write fields as 'name, age int: in years', JSON, a file or MODULE:CLASS"
        )
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }

"""Functions of a request, which its client runs, and schemas: checked before anything is started."""

from collections.abc import Sequence

import msgspec

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.output import output_type
from sidestream.output.json_schema import inline_root
from sidestream.server.errors import RequestError
from sidestream.tools.tool import ExternalTool

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}
ANY_OBJECT: JsonObject = {"type": "object"}
"""The schema of an answer that must be a JSON object, and no other thing."""


Declared = tuple[str, str, str | None, JsonObject | None, bool | None]
"""A function in a request: its place, name, description, schema, and whether it is strict."""


def functions_of(declared: Sequence[Declared], *, schema_name: str = "parameters") -> tuple[JsonObject, ...]:
    """The functions of a request, as a job has them. Raises RequestError."""
    check_names([(name, f"{at}.name") for at, name, *_ in declared])
    return tuple(function_fields(*entry, schema_name=schema_name) for entry in declared)


def function_fields(
    at: str,
    name: str,
    description: str | None,
    schema: JsonObject | None,
    strict: bool | None = None,
    *,
    schema_name: str = "parameters",
) -> JsonObject:
    """The fields of an `ExternalTool`, from what stands `at` this place of a request. Raises RequestError."""
    fields: JsonObject = {"name": name, "description": description or "", "schema": schema or NO_ARGUMENTS}
    if strict is not None:
        fields["strict"] = strict
    for given, place in (({**fields, "schema": NO_ARGUMENTS}, "name"), (fields, schema_name)):
        try:
            msgspec.convert(given, ExternalTool)
        except (ConfigurationError, msgspec.ValidationError, UnicodeEncodeError) as error:
            raise RequestError(400, str(error), param=f"{at}.{place}") from None
        except RecursionError:
            raise RequestError(400, "the schema is nested too deeply", param=f"{at}.{place}") from None
    return fields


def checked_output(schema: JsonObject, at: str) -> JsonObject:
    """The schema of an answer. Raises RequestError for one that no provider accepts: it must be that of an object."""
    try:
        rooted = inline_root(dict(schema)) if "$ref" in schema else schema
        whole = {"type": "object", **rooted} if "properties" in rooted else rooted
        is_wrapped = output_type(whole).is_wrapped
    except RecursionError:
        raise RequestError(400, "the schema is nested too deeply", param=at) from None
    except (ConfigurationError, UnicodeEncodeError, LookupError, TypeError) as error:
        raise RequestError(400, f"this is not a valid schema: {error}", param=at) from None
    if is_wrapped:
        raise RequestError(400, "the schema must be that of an object, with type 'object'", param=at)
    return whole


def unknown_tool(name: str | None, at: str) -> RequestError:
    """The error for a choice that names no tool of its request."""
    return RequestError(400, f"the request has no tool {name!r:.80}", param=at, code="unknown_tool")


def check_names(names: Sequence[tuple[str, str]]) -> None:
    """Raises RequestError if two functions have one name. `names` are pairs of a name and its place."""
    known: set[str] = set()
    for name, at in names:
        if name in known:
            raise RequestError(400, f"two tools are called {name!r}", param=at)
        known.add(name)

"""Tool arguments: their JSON schema, and their validation when a model calls the tool.

pydantic is loaded when the first schema is built, not when this module is imported.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_object, shown
from sidestream.tools.context import ToolContext

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

ArgumentBinder = Callable[[object, ToolContext], dict[str, Any]]
"""Converts the model's arguments to keyword arguments. Raises InvalidArgumentsError if they do not fit the schema."""


class InvalidArgumentsError(Exception):
    """The arguments do not fit the schema; the message is for the model."""


class Parameter(Struct, frozen=True):
    """A function parameter that the model sets."""

    name: str
    annotation: Any
    default: Any
    description: str | None


def arguments_model(parameters: list[Parameter], label: str) -> "tuple[type[BaseModel], JsonObject]":
    """Build a pydantic model of the arguments, and its JSON schema.

    Raises ConfigurationError, naming the parameter, if one has no JSON schema.
    """
    try:
        return _build_model(parameters)
    except Exception as error:
        for parameter in parameters:
            try:
                _build_model([parameter])
            except Exception as cause:
                reason = next(iter(str(cause).splitlines()), type(cause).__name__)
                where = f"{label}: parameter {parameter.name!r}"
                raise ConfigurationError(f"{where} has a type without a JSON schema: {reason}") from cause
        raise ConfigurationError(f"{label}: cannot build a JSON schema for its parameters: {error}") from error


def _build_model(parameters: list[Parameter]) -> "tuple[type[BaseModel], JsonObject]":
    from pydantic import ConfigDict, Field, create_model
    from pydantic.fields import FieldInfo

    from sidestream.output import json_schema

    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        own = FieldInfo.from_annotated_attribute(parameter.annotation, default)
        extra: dict[str, Any] = {}
        if own.alias is None and own.validation_alias is None:
            extra["alias"] = parameter.name
        if own.description is None and parameter.description:
            extra["description"] = parameter.description
        # Numbered fields with aliases, since a parameter may be called `schema`, `copy` or `_x`.
        fields[f"p{index}"] = (Annotated[parameter.annotation, Field(**extra)], default)
    model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema(schema_generator=json_schema.schema_generator())
    json_schema.drop_titles(schema)
    return model, schema


def fits_strict(schema: JsonObject) -> bool:
    """Return whether strict mode would leave the schema unchanged.

    It would if every property is required, nothing is left open, and all keywords are enforced.
    """
    from sidestream.output import json_schema

    return (
        all(
            node.keys() <= json_schema.PORTABLE_KEYWORDS | {"format"}
            and node.get("format", "uuid") in json_schema.PORTABLE_FORMATS
            for node in json_schema.nodes(schema)
        )
        and json_schema.is_strict(json_schema.close(schema))
        and not json_schema.is_recursive(schema)
    )


def make_strict(schema: JsonObject, label: str) -> None:
    """Close every object and require every property, in place. Defaults lose their effect.

    Raises ConfigurationError if the schema leaves something open.
    """
    from sidestream.output import json_schema

    for path, node in json_schema.walk(schema, "arguments"):
        if not is_object(node):
            continue
        if json_schema.leaves_open(node):
            raise ConfigurationError(
                f"{label} cannot be strict: {path} allows values that the schema does not describe"
            )
        node.pop("default", None)
        json_schema.require_all(node)
        if "properties" in node:
            node["additionalProperties"] = False


class ArgumentBinding:
    """Validates the arguments of a function with a model.

    `contexts` are the parameters that receive the ToolContext.
    """

    def __init__(
        self,
        model: "type[BaseModel]",
        schema: JsonObject,
        parameters: list[Parameter],
        contexts: list[str],
        label: str,
    ) -> None:
        from pydantic import ValidationError
        from pydantic.fields import FieldInfo

        self.contexts = contexts
        self._validate = model.__pydantic_validator__.validate_json
        self._invalid = ValidationError
        self._schema = schema
        self._label = label
        # Python applies defaults in the signature; only pydantic knows those in a Field.
        self._always = {
            f"p{index}"
            for index, parameter in enumerate(parameters)
            if parameter.default is inspect.Parameter.empty or isinstance(parameter.default, FieldInfo)
        }
        self._names = {f"p{index}": parameter.name for index, parameter in enumerate(parameters)}

    def __call__(self, arguments: object, context: ToolContext) -> dict[str, Any]:
        if not isinstance(arguments, dict):
            raise InvalidArgumentsError(f"{self._label} needs a JSON object of arguments, not {shown(arguments)}.")
        try:
            # Validate as JSON, so that types which are strict in Python still accept their JSON form.
            text = _as_json(arguments)  # pyright: ignore[reportUnknownArgumentType]
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgumentsError(f"The arguments of {self._label} are not JSON values.") from None
        try:
            values = self._validate(text)
        except self._invalid as error:
            raise InvalidArgumentsError(_problems(error, self._label, self._schema)) from error
        given = values.model_fields_set | self._always
        keywords = {name: getattr(values, field) for field, name in self._names.items() if field in given}
        return keywords | dict.fromkeys(self.contexts, context) if self.contexts else keywords


_SCALARS = frozenset({str, int, bool, type(None)})


def _as_json(arguments: dict[Any, Any]) -> str | bytes:
    """Encode arguments as JSON. Raises TypeError, ValueError or RecursionError if they are not JSON values."""
    if _SCALARS.issuperset(map(type, arguments.values())) and _TEXT.issuperset(map(type, arguments)):
        with suppress(UnicodeEncodeError, OverflowError):  # a lone surrogate, or an integer of more than 64 bits
            return msgspec.json.encode(arguments)
    import json

    return json.dumps(arguments)


_TEXT = frozenset({str})


def _problems(error: "ValidationError", label: str, schema: JsonObject) -> str:
    from sidestream.output.validators import MISSING, listing, path_of, problem_at

    lines: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        match problem["type"]:
            case "missing":
                what = MISSING
            case "extra_forbidden" if len(problem["loc"]) == 1:
                what = f"unknown argument; known: {', '.join(schema.get('properties', ())) or 'none'}"
            case _:
                what = f"{problem['msg']}; it was {shown(problem['input'])}"
        lines.append(problem_at(path_of(problem["loc"]), what, whole="arguments"))
    return listing(f"The arguments of {label} do not fit its schema, so it was not called:", lines)

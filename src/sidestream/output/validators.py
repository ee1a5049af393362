"""Schemas of types, and validators that turn an answer's JSON into a value: by pydantic, by msgspec, by JSON schema."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, shown
from sidestream.output.json_schema import inline_root, schema_generator
from sidestream.output.problems import MISSING, misfit, path_of, problem_at
from sidestream.output.subset import problems_of

Validator = Callable[[str, Any], Any]
"""From JSON text and its parsed form to the typed value. Raises OutputError."""

SchemaReader = Callable[[Any, bool], tuple[JsonObject, Validator]]
"""From a type, and whether it is wrapped in an object, to its schema and validator."""


def reader_of(spec: Any) -> tuple[SchemaReader, JsonObject, Validator]:
    """The library that supports the type, with the type's schema and validator. Raises ConfigurationError."""
    try:
        return with_pydantic, *with_pydantic(spec, False)
    except Exception as error:
        try:
            return with_msgspec, *with_msgspec(spec, False)
        except Exception:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigurationError(f"{spec!r} cannot be an output type: {reason}") from error


def with_pydantic(spec: Any, is_wrapped: bool) -> tuple[JsonObject, Validator]:
    """Schema and validator of a type that pydantic supports. Raises what pydantic raises for others."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

    if is_wrapped:
        spec = create_model("Output", __config__=ConfigDict(extra="forbid"), value=(spec, ...))
    adapter: TypeAdapter[Any] = TypeAdapter(spec)

    def validate(body: str, value: Any) -> Any:
        try:
            # As JSON, so that types which are strict in Python still accept their JSON form.
            found = adapter.validate_json(body.encode("utf-8", "surrogatepass"))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise misfit([_pydantic_problem(problem, value) for problem in problems]) from error
        return found.value if is_wrapped else found

    return inline_root(adapter.json_schema(schema_generator=schema_generator())), validate


def _pydantic_problem(problem: Mapping[str, Any], value: Any) -> str:
    """One problem, by its place in the answer. Other steps of pydantic's location name a member of a union."""
    steps: list[str | int] = []
    tried = ""
    is_missing = problem["type"] == "missing"
    for place, step in enumerate(problem["loc"], 1):
        inner: dict[Any, Any] = jsontext.as_object(value) or dict(enumerate(jsontext.as_list(value)))
        if step in inner or (is_missing and place == len(problem["loc"])):
            steps.append(step)
            value = inner.get(step)
        else:
            tried = f" (as {step})"
    path = path_of(steps) + tried
    if is_missing or problem["type"] == "json_invalid":
        return problem_at(path, MISSING if is_missing else problem["msg"])
    return problem_at(path, f"{problem['msg']}; it was {shown(problem['input'])}")


def with_msgspec(spec: Any, is_wrapped: bool) -> tuple[JsonObject, Validator]:
    """Schema and validator of a type that msgspec supports. Raises what msgspec raises for others."""
    if is_wrapped:
        spec = msgspec.defstruct("Output", [("value", spec)], forbid_unknown_fields=True)
    decoder = msgspec.json.Decoder(spec)

    def validate(body: str, value: Any) -> Any:
        try:
            found = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeError) as error:
            what, _, path = str(error).partition(" - at `$")
            raise misfit([problem_at(path.removesuffix("`"), what)]) from error
        return found.value if is_wrapped else found

    return inline_root(msgspec.json.schema(spec)), validate


def with_json_schema(schema: JsonObject, is_wrapped: bool) -> Validator:
    """Validator of a JSON schema, by its structural keywords."""

    def validate(body: str, value: Any) -> Any:
        if problems := list(problems_of(value, schema)):
            raise misfit(problems)
        return value["value"] if is_wrapped else value

    return validate

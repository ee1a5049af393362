"""Schemas of types, validators that convert an answer's JSON to a value, and problems worded for the model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.jsontext import JsonObject, as_list, as_object, dumps, is_object, shown
from sidestream.output.json_schema import TYPES, inline_root, resolve, schema_generator, strings

MAX_PROBLEMS = 20
MISSING = "required, but missing"


class OutputError(SidestreamError, ValueError):
    """An answer does not fit its type. `problem` says where and why, in words that a model can act on."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = str(self)


def not_json(body: str, error: ValueError | RecursionError) -> OutputError:
    """Return the error for an answer that is not JSON."""
    from json import JSONDecodeError

    near = body[error.pos : error.pos + 40] if isinstance(error, JSONDecodeError) else ""
    where = f", before {shown(near)}" if near else ""
    return OutputError(f"The answer is not JSON: {error if body else 'it is empty'}{where}.")


def misfit(problems: Sequence[str]) -> OutputError:
    """Return the error for JSON that does not fit its schema."""
    return OutputError(listing("The answer does not fit its schema:", problems))


def listing(headline: str, problems: Sequence[str]) -> str:
    """Join a headline and one line per problem, up to `MAX_PROBLEMS`."""
    more = [f"- and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    return "\n".join([headline, *problems[:MAX_PROBLEMS], *more])


def problem_at(path: str, what: str, whole: str = "answer") -> str:
    """Format one line of a listing. `whole` names the value itself."""
    return f"- {path.lstrip('.') or whole}: {what}"


def path_of(steps: Iterable[str | int]) -> str:
    """Format keys and indices as a path, e.g. `.cities[0].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def problems_of(value: Any, schema: JsonObject) -> Iterator[str]:
    """Yield one line per violation of the keywords that `output_type` says are checked."""
    return _problems(value, schema, schema)


def _problems(value: Any, node: Any, root: JsonObject, path: str = "", followed: tuple[str, ...] = ()) -> Iterator[str]:
    schema = as_object(node)
    kinds = [kind for kind in strings(schema.get("type")) if kind in TYPES]
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        yield problem_at(path, f"must be {' or '.join(kinds)}; it was {shown(value)}")
        return
    allowed = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
    # Compare as JSON, since True == 1 in Python.
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


Validator = Callable[[str, Any], Any]
"""Converts JSON text and its parsed form to the typed value. Raises OutputError if it does not fit."""

SchemaReader = Callable[[Any, bool], tuple[JsonObject, Validator]]
"""Returns the schema and validator of a type. The second argument is whether it is wrapped in an object."""


def reader_of(spec: Any) -> tuple[SchemaReader, JsonObject, Validator]:
    """Return the library that supports the type, with the type's schema and validator.

    Raises ConfigurationError if no library supports it.
    """
    try:
        return with_pydantic, *with_pydantic(spec, False)
    except Exception as error:
        try:
            return with_msgspec, *with_msgspec(spec, False)
        except Exception:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigurationError(f"{spec!r} cannot be an output type: {reason}") from error


def with_pydantic(spec: Any, is_wrapped: bool) -> tuple[JsonObject, Validator]:
    """Return schema and validator of a type that pydantic supports. Raises pydantic's own errors for other types."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

    if is_wrapped:
        spec = create_model("Output", __config__=ConfigDict(extra="forbid"), value=(spec, ...))
    adapter: TypeAdapter[Any] = TypeAdapter(spec)

    def validate(body: str, value: Any) -> Any:
        try:
            # Validate as JSON, so that types which are strict in Python still accept their JSON form.
            found = adapter.validate_json(body.encode("utf-8", "surrogatepass"))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise misfit([_pydantic_problem(problem, value) for problem in problems]) from error
        return found.value if is_wrapped else found

    return inline_root(adapter.json_schema(schema_generator=schema_generator())), validate


def _pydantic_problem(problem: Mapping[str, Any], value: Any) -> str:
    """Describe one problem by its path in the answer.

    Other steps of pydantic's location name a member of a union.
    """
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
    """Return schema and validator of a type that msgspec supports. Raises msgspec's own errors for other types."""
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
    """Return a validator for a JSON schema that checks its structural keywords."""

    def validate(body: str, value: Any) -> Any:
        if problems := list(problems_of(value, schema)):
            raise misfit(problems)
        return value["value"] if is_wrapped else value

    return validate

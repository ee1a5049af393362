"""Output types: the schema of an answer, and the parsing of its text."""

import re
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, as_list, as_object, is_object
from sidestream.output.json_schema import close, drop_titles, is_strict, tighten, wrap
from sidestream.output.validators import not_json

if TYPE_CHECKING:
    from sidestream.output.validators import Validator


T = TypeVar("T")

_FENCE = r"\s*```(?:json|JSON)?[ \t]*\r?\n"


class OutputSchema(Struct, frozen=True):
    """The JSON schema that the answer's text must follow."""

    name: str
    schema: dict[str, Any]
    strict: bool = True
    description: str | None = None


class OutputType(Struct, Generic[T], frozen=True, eq=False):
    """The type of an answer: the schema for the provider, and the parser for the answer's text."""

    schema: OutputSchema
    is_wrapped: bool
    """Whether the value is wrapped in an object, as its property `value`, since providers require an object."""
    validate: "Validator"

    def parse(self, text: str) -> T:
        """Parse a complete answer: JSON alone, or in one code fence.

        Raises OutputError if the text is not JSON or does not fit the type. A ValueError in a validator of the type
        becomes an OutputError; any other exception is raised unchanged.
        """
        body = text.strip()
        if (start := _body_start(body)) and body.endswith("```"):
            body = body[start:-3].strip()
        try:
            value = jsontext.loads(body)
        except (ValueError, RecursionError) as error:
            raise not_json(body, error) from error
        return self.validate(body, value)

    def partial(self, text: str) -> Any | None:
        """Parse an incomplete answer, without validation. Returns None before the value begins.

        Strings may be cut anywhere, numbers appear once they are complete. Each call parses the text from its start.
        """

        found = partial_json(text[_body_start(text) :])
        if not is_object(found):
            return None
        return found.get("value") if self.is_wrapped else found


@overload
def output_type(spec: OutputType[T]) -> OutputType[T]: ...
@overload
def output_type(spec: type[T]) -> OutputType[T]: ...
@overload
def output_type(spec: Any) -> OutputType[Any]: ...
def output_type(spec: Any) -> OutputType[Any]:
    """Create an output type from a Python type or a JSON schema.

    ```python
    city = output_type(TypedDict("City", {"name": str}))
    print(city.parse('{"name": "Paris"}'))  # {'name': 'Paris'}
    ```

    It accepts what pydantic accepts (models, dataclasses, TypedDicts, enums, Literals, unions, lists, plain types),
    else what msgspec accepts (Structs; before Python 3.12 the TypedDicts of `typing`, whose pydantic Fields are then
    ignored), and a JSON schema as a dict. Where strict mode is possible, the schema requires every property, whatever
    its default, and moves what not every provider can enforce into descriptions; `parse` validates the type itself.

    With a JSON schema, the output is the JSON value. `parse` then checks type, enum, const, properties, required,
    additionalProperties, items, anyOf, oneOf (as anyOf), allOf and references within the schema, and nothing else.

    Raises ConfigurationError if the type has no JSON schema.
    """
    if isinstance(spec, OutputType):
        return cast(OutputType[Any], spec)
    if isinstance(spec, dict):
        return _of_json_schema(cast(JsonObject, spec))
    from sidestream.output.validators import reader_of

    reader, schema, validate = reader_of(spec)
    is_wrapped = schema.get("type") != "object"
    schema, validate = reader(spec, True) if is_wrapped else (schema, validate)
    drop_titles(schema)
    return OutputType(_schema(getattr(spec, "__name__", ""), schema, tighten(schema)), is_wrapped, validate)


def _of_json_schema(spec: JsonObject) -> OutputType[Any]:
    try:
        schema: JsonObject = jsontext.loads(jsontext.dumps(spec))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON schema of the output type has no JSON form: {error}") from error
    is_wrapped = schema.get("type") != "object"
    schema = wrap(schema) if is_wrapped else schema
    from sidestream.output.validators import with_json_schema

    validate = with_json_schema(schema, is_wrapped)
    return OutputType(_schema(str(spec.get("title", "")), schema, close(schema)), is_wrapped, validate)


def _schema(label: str, schema: JsonObject, narrowed: JsonObject) -> OutputSchema:
    """Return the narrowed schema if strict modes can enforce it, else the original schema."""
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", label).strip("_")[:64] or "output"
    strict = is_strict(narrowed)
    return OutputSchema(name, narrowed if strict else schema, strict)


def _body_start(text: str) -> int:
    return fence.end() if (fence := re.match(_FENCE, text)) else 0


def partial_json(text: str) -> Any:
    """Parse the start of a JSON text, leaving out a number that may still grow.

    Strings may be cut anywhere. Returns None while there is no value.
    """
    from pydantic_core import from_json

    def parse(part: str) -> Any:
        try:
            return from_json(part, allow_partial="trailing-strings")
        except (ValueError, TypeError):  # not JSON, or half a character
            return None

    found = parse(text)
    head = text.rstrip("0123456789.+-eE")
    if len(head) < len(text) and type(_last(found)) in (int, float) and _last(parse(head + "null")) is None:
        # The text ends in a number that may be incomplete, rather than in a string or a key that ends in digits.
        return parse(head)
    return found


def _last(value: Any) -> Any:
    while entries := as_list(value) or list(as_object(value).values()):
        value = entries[-1]
    return value

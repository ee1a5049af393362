"""Typed output: from a type to the schema of an answer, and from the answer's text to a value.

pydantic is loaded when the first type is read, not when this module is imported.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast, overload

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, SidestreamError

__all__ = ["OutputError", "OutputType", "output_type"]

T = TypeVar("T")
Schema = dict[str, Any]
Read = Callable[[str, Any], Any]
"""From JSON text, and the value that it means, to the typed value. Raises OutputError."""

_MAX_FAULTS = 20
_MAX_SHOWN = 100


class OutputSchema(Struct, frozen=True):
    """The JSON schema that the answer's text must follow."""

    name: str
    schema: dict[str, Any]
    strict: bool = True
    description: str | None = None


class OutputError(SidestreamError, ValueError):
    """An answer does not fit its type. `problem` says where and why, in words that a model can act on."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class OutputType(Struct, Generic[T], frozen=True, eq=False):
    """What an answer must be: the schema for the provider, and the way back from the answer's text."""

    schema: OutputSchema
    is_wrapped: bool
    """True: providers want an object, which the type is not, so the value stands under `value` of one."""
    read: Read

    def parse(self, text: str) -> T:
        """The value of a whole answer: JSON alone, or in one code fence. Raises OutputError.

        Validators of the type speak to the model with ValueError; whatever else they raise comes out as it is.
        """
        body = text.strip()
        if (start := _body_start(body)) and body.endswith("```"):
            body = body[start:-3].strip()
        try:
            value = jsontext.loads(body)
        except (ValueError, RecursionError) as error:
            raise OutputError(_not_json(body, error)) from error
        return self.read(body, value)

    def partial(self, text: str) -> Any | None:
        """The JSON value so far of an answer that still grows, unchecked; None while nothing is there.

        Strings may be cut anywhere, numbers come when they are whole. Each call reads the text from its beginning.
        """
        found = _so_far(text[_body_start(text) :])
        if not isinstance(found, dict):
            return None
        return cast(Schema, found).get("value") if self.is_wrapped else cast(Schema, found)


@overload
def output_type(spec: OutputType[T]) -> OutputType[T]: ...
@overload
def output_type(spec: type[T]) -> OutputType[T]: ...
@overload
def output_type(spec: Any) -> OutputType[Any]: ...
def output_type(spec: Any) -> OutputType[Any]:
    """What an answer of this type must be. Raises ConfigurationError where the type has no JSON schema.

    It takes what pydantic takes (models, dataclasses, TypedDicts, enums, Literals, unions, lists, plain types), else
    what msgspec takes (Structs; before Python 3.12 the TypedDicts of `typing`, whose pydantic Fields then say nothing),
    and a JSON schema as a dict. Where strict mode is possible, the schema requires every property, whatever its
    default, and says in descriptions what not every provider can enforce; `parse` checks the type as it is.

    With a JSON schema, the output is the JSON value. `parse` then checks type, enum, const, properties, required,
    additionalProperties, items, anyOf, oneOf (as anyOf), allOf and references within the schema, and nothing else.
    """
    if isinstance(spec, OutputType):
        return cast(OutputType[Any], spec)
    if isinstance(spec, dict):
        return _of_json_schema(cast(Schema, spec))
    reader, schema, read = _reader(spec)
    is_wrapped = schema.get("type") != "object"
    schema, read = reader(spec, True) if is_wrapped else (schema, read)
    for node in _nodes(schema):
        if isinstance(node.get("title"), str):
            del node["title"]
    tight = _tightened(schema)
    is_strict = _is_strict(tight)
    made = OutputSchema(_name(getattr(spec, "__name__", "")), tight if is_strict else schema, is_strict)
    return OutputType(made, is_wrapped, read)


def _reader(spec: Any) -> tuple[Callable[[Any, bool], tuple[Schema, Read]], Schema, Read]:
    """Who can read the type (on request wrapped in an object), its schema, and how."""
    try:
        return _with_pydantic, *_with_pydantic(spec, False)
    except Exception as error:
        try:
            return _with_msgspec, *_with_msgspec(spec, False)
        except Exception:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigurationError(f"{spec!r} cannot be an output type: {reason}") from error


def _with_pydantic(spec: Any, is_wrapped: bool) -> tuple[Schema, Read]:
    from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

    class Generator(GenerateJsonSchema):
        def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
            """A default without JSON form is no fault: the model need not know it."""

    if is_wrapped:
        spec = create_model("Output", __config__=ConfigDict(extra="forbid"), value=(spec, ...))
    adapter: TypeAdapter[Any] = TypeAdapter(spec)

    def read(body: str, value: Any) -> Any:
        try:
            # As JSON, so that types which are strict in Python still take their JSON form.
            found = adapter.validate_json(body.encode("utf-8", "surrogatepass"))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise _misfit([_pydantic_fault(problem, value) for problem in problems]) from error
        return found.value if is_wrapped else found

    return _rooted(adapter.json_schema(schema_generator=Generator)), read


def _pydantic_fault(problem: Mapping[str, Any], value: Any) -> str:
    """Steps of the location that are not in the answer name the member of a union that was tried."""
    path, tried = "", ""
    is_missing = problem["type"] == "missing"
    for place, step in enumerate(problem["loc"], 1):
        inner: dict[Any, Any] = jsontext.as_object(value) or dict(enumerate(jsontext.as_list(value)))
        if step in inner or (is_missing and place == len(problem["loc"])):
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
            value = inner.get(step)
        else:
            tried = f" (as {step})"
    if is_missing or problem["type"] == "json_invalid":
        return _fault(path + tried, "required, but missing" if is_missing else problem["msg"])
    return _fault(path + tried, f"{problem['msg']}; it was {_shown(problem['input'])}")


def _with_msgspec(spec: Any, is_wrapped: bool) -> tuple[Schema, Read]:
    if is_wrapped:
        spec = msgspec.defstruct("Output", [("value", spec)], forbid_unknown_fields=True)
    decoder = msgspec.json.Decoder(spec)

    def read(body: str, value: Any) -> Any:
        try:
            found = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeError) as error:
            what, _, path = str(error).partition(" - at `$")
            raise _misfit([_fault(path.removesuffix("`"), what)]) from error
        return found.value if is_wrapped else found

    return _rooted(msgspec.json.schema(spec)), read


def _of_json_schema(spec: Schema) -> OutputType[Any]:
    try:
        schema: Schema = jsontext.loads(jsontext.dumps(spec))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON schema of the output type has no JSON form: {error}") from error
    is_wrapped = schema.get("type") != "object"
    schema = _wrapped(schema) if is_wrapped else schema
    closed = copy.deepcopy(schema)
    for node in _nodes(closed):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
    is_strict = _is_strict(closed)

    def read(body: str, value: Any) -> Any:
        if faults := list(_faults(value, schema, schema)):
            raise _misfit(faults)
        return value["value"] if is_wrapped else value

    made = OutputSchema(_name(str(spec.get("title", ""))), closed if is_strict else schema, is_strict)
    return OutputType(made, is_wrapped, read)


def _wrapped(schema: Schema) -> Schema:
    """An object with the value; definitions move to its root, other references follow the value."""
    for node in _nodes(schema):
        reference = str(node.get("$ref"))
        if reference.startswith("#") and not reference.startswith(("#/$defs/", "#/definitions/")):
            node["$ref"] = "#/properties/value" + reference[1:]
    moved = {keyword: schema.pop(keyword) for keyword in ("$defs", "definitions") if keyword in schema}
    root = {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}
    return root | moved


_TYPES: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _faults(value: Any, node: Any, root: Schema, path: str = "", followed: tuple[str, ...] = ()) -> Iterator[str]:
    """What a value breaks of a JSON schema, as far as `output_type` says that it is checked."""
    schema = jsontext.as_object(node)
    kinds = [kind for kind in _strings(schema.get("type")) if kind in _TYPES]
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        yield _fault(path, f"must be {' or '.join(kinds)}; it was {_shown(value)}")
        return
    allowed = [schema["const"]] if "const" in schema else jsontext.as_list(schema.get("enum"))
    # As text, since True is 1 to Python.
    if allowed and jsontext.dumps(value) not in map(jsontext.dumps, allowed):
        yield _fault(path, f"must be one of {_shown(allowed)}; it was {_shown(value)}")
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        yield from _faults(value, _resolved(root, reference), root, path, (*followed, reference))
    for part in jsontext.as_list(schema.get("allOf")):
        yield from _faults(value, part, root, path, followed)
    for keyword in ("anyOf", "oneOf"):
        tried = [list(_faults(value, choice, root, path, followed)) for choice in jsontext.as_list(schema.get(keyword))]
        yield from min(tried, key=len, default=())
    for index, item in enumerate(jsontext.as_list(value)):
        yield from _faults(item, schema.get("items"), root, f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _object_faults(cast(Schema, value), schema, root, path)


def _object_faults(value: Schema, schema: Schema, root: Schema, path: str) -> Iterator[str]:
    properties, others = jsontext.as_object(schema.get("properties")), schema.get("additionalProperties")
    for name in _strings(schema.get("required")):
        if name not in value:
            yield _fault(f"{path}.{name}", "required, but missing")
    for name, item in value.items():
        if name not in properties and others is False:
            yield _fault(f"{path}.{name}", f"no such property; there are: {', '.join(properties) or 'none'}")
        yield from _faults(item, properties.get(name, others), root, f"{path}.{name}")


def _resolved(root: Any, reference: str) -> Any:
    """What a reference within the schema points at; None, which every value fits, for others."""
    start, *steps = reference.split("/")
    for step in steps if start == "#" else [reference]:
        root = jsontext.as_object(root).get(step.replace("~1", "/").replace("~0", "~"))
    return root


def _strings(value: Any) -> list[str]:
    return [entry for entry in (jsontext.as_list(value) or [value]) if isinstance(entry, str)]


# What the strict modes of all providers take, and what says more than they can enforce.
# fmt: off
_PORTABLE = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs",
    "description",
))
_LOOSE = frozenset((
    "allOf", "oneOf", "not", "if", "contains", "prefixItems", "patternProperties", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "dependentRequired", "dependentSchemas",
))
_FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
# fmt: on


def _nodes(schema: Schema) -> Iterator[Schema]:
    """The schema and all schemas in it. Each may be changed when it comes by."""
    yield schema
    inner = [schema.get("items"), schema.get("additionalProperties")]
    for keyword in ("properties", "$defs", "definitions"):
        inner += jsontext.as_object(schema.get(keyword)).values()
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner += jsontext.as_list(schema.get(keyword))
    for node in inner:
        if isinstance(node, dict):
            yield from _nodes(cast(Schema, node))


def _rooted(schema: Schema) -> Schema:
    """The same schema without a reference at its root, which providers refuse."""
    reference = schema.pop("$ref", None)
    if reference is None:
        return schema
    root = schema | copy.deepcopy(_resolved(schema, reference))
    if all(node.get("$ref") != reference for node in _nodes(root)):
        del root["$defs"][reference.rpartition("/")[2]]
    return root if root["$defs"] else {keyword: root[keyword] for keyword in root if keyword != "$defs"}


def _tightened(schema: Schema) -> Schema:
    """A narrower schema that strict modes may take: all objects closed, all properties required."""
    tight = copy.deepcopy(schema)
    for node in _nodes(tight):
        node.pop("discriminator", None)
        if "oneOf" in node and "anyOf" not in node:
            node["anyOf"] = node.pop("oneOf")
        items = jsontext.as_list(node.get("prefixItems"))
        if items and all(item == items[0] for item in items):
            node["items"] = node.pop("prefixItems")[0]
        if "properties" in node:
            node["required"] = list(node["properties"])
            node.setdefault("additionalProperties", False)
        if "type" not in node and "enum" in node:
            kinds = [next(kind for kind, holds in _TYPES.items() if holds(value)) for value in node["enum"]]
            node["type"] = kinds[0] if len(set(kinds)) == 1 else list(dict.fromkeys(kinds))
        if "$ref" in node and len(node) > 1:
            node["anyOf"] = [{"$ref": node.pop("$ref")}]
        _note_constraints(node)
    return tight


def _note_constraints(node: Schema) -> None:
    """Moves what not every strict mode takes into the description, where the model reads it."""
    known = _PORTABLE | _LOOSE | {"format" if node.get("format") in _FORMATS else ""}
    if others := [keyword for keyword in node if keyword not in known]:
        note = ", ".join(f"{keyword}: {_shown(node.pop(keyword))}" for keyword in others)
        node["description"] = f"{node.get('description', '')} ({note})".lstrip()


def _is_strict(schema: Schema) -> bool:
    """Whether strict modes can enforce it: all objects closed, all properties required, nothing left open."""
    for node in _nodes(schema):
        kinds = _strings(node.get("type"))
        required, properties = _strings(node.get("required")), jsontext.as_object(node.get("properties"))
        is_object = "object" in kinds or "properties" in node
        if (
            node.keys() & _LOOSE
            or not (kinds or node.keys() & {"$ref", "anyOf", "enum", "const"})
            or (is_object and (node.get("additionalProperties") is not False or set(required) != properties.keys()))
            or ("array" in kinds and not isinstance(node.get("items"), dict))
        ):
            return False
    return True


_FENCE = re.compile(r"\s*```(?:json|JSON)?[ \t]*\r?\n")


def _body_start(text: str) -> int:
    return fence.end() if (fence := _FENCE.match(text)) else 0


def _not_json(body: str, error: ValueError | RecursionError) -> str:
    near = body[error.pos : error.pos + 40] if isinstance(error, json.JSONDecodeError) else ""
    where = f", before {_shown(near)}" if near else ""
    return f"The answer is not JSON: {error if body else 'it is empty'}{where}."


def _misfit(faults: list[str]) -> OutputError:
    more = [f"- and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else []
    return OutputError("\n".join(["The answer does not fit its schema:", *faults[:_MAX_FAULTS], *more]))


def _fault(path: str, what: str) -> str:
    return f"- {path.lstrip('.') or 'answer'}: {what}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _so_far(text: str) -> Any:
    from pydantic_core import from_json

    def read(part: str) -> Any:
        try:
            return from_json(part, allow_partial="trailing-strings")
        except (ValueError, TypeError):  # no JSON, or half a character
            return None

    found = read(text)
    head = text.rstrip("0123456789.+-eE")
    if len(head) < len(text) and type(_last(found)) in (int, float) and _last(read(head + "null")) is None:
        # The text ends in a number that may go on, and not in a string or a key that ends like one.
        return read(head)
    return found


def _last(value: Any) -> Any:
    while entries := jsontext.as_list(value) or list(jsontext.as_object(value).values()):
        value = entries[-1]
    return value


def _name(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", label).strip("_")[:64] or "output"

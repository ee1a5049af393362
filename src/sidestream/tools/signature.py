"""From a function's signature and docstring to a tool's schema, and from a model's arguments to a call.

pydantic and griffe are loaded when the first function is read, not when this module is imported.
"""

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.stream.parts import Json, StreamPart
from sidestream.tools.approvals import Suspended

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Schema = dict[str, Any]


def _ignore(value: Json) -> None:
    pass


class ToolContext(Struct, frozen=True):
    """What a tool may know of its call. A parameter with this type is filled in and is no part of the schema.

    `progress` takes any value that has a JSON form, from any thread; once the call is over, it does nothing.
    """

    call_id: str
    name: str
    progress: Callable[[Json], None] = _ignore
    forward: Callable[[StreamPart], None] = _ignore
    """For tools that are agents: tells a part of their own run in the stream of this one."""
    suspended: Suspended | None = None
    """For tools that are agents: where they stopped, and what was decided since."""


Bind = Callable[[object, ToolContext], dict[str, Any]]
"""From the model's arguments to keyword arguments. Raises InvalidArgumentsError."""


class InvalidArgumentsError(Exception):
    """The arguments do not fit; the message is for the model."""


class Blueprint(Struct, frozen=True):
    """What a function says about itself."""

    description: str
    parameters: Schema
    strict: bool
    bind: Bind


class _Parameter(Struct, frozen=True):
    name: str
    annotation: Any
    default: Any
    description: str | None


def read_function(function: Callable[..., Any], label: str, strict: bool | None) -> Blueprint:
    """Reads signature and docstring. Raises ConfigurationError that names the parameter at fault."""
    hints = _signature(function, label)
    contexts = [name for name, (annotation, _) in hints.items() if _is_context(annotation)]
    described = {name: hint for name, hint in hints.items() if name not in contexts}
    description, documented = _read_docstring(_documentation(function), described)
    parameters = [
        _Parameter(name, annotation, default, _annotated_text(annotation) or documented.get(name))
        for name, (annotation, default) in described.items()
    ]
    model, schema = _arguments_model(parameters, label)
    is_strict = _fits_strict(schema) if strict is None else strict
    if is_strict:
        _make_strict(schema, label)
    return Blueprint(description, schema, is_strict, _binder(model, schema, parameters, contexts, label))


def implementation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callable without its partials: a function, a method or an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _signature(function: Callable[..., Any], label: str) -> dict[str, tuple[Any, Any]]:
    bound = _bound_names(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"{label} has no signature that can be read: wrap it in a function") from error
    found: dict[str, tuple[Any, Any]] = {}
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.name in bound:
            continue
        where = f"{label}: parameter {parameter.name!r}"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{where} is positional-only, but arguments come by name: remove the '/'")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"{where} has no names to tell the model: take a list or a dict instead")
        if index == 0 and parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            raise ConfigurationError(f"{where} is not bound: make the tool from a method of an object")
        found[parameter.name] = (_resolve(function, parameter, where), parameter.default)
    return found


def _bound_names(function: Callable[..., Any]) -> Container[str]:
    """What a partial has bound is not for the model to see or to set: it may be a secret."""
    return cast("functools.partial[Any]", function).keywords if isinstance(function, functools.partial) else ()


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    target = implementation(function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    scope = getattr(inspect.unwrap(target), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        try:
            hints = typing.get_type_hints(holder, globalns=scope, include_extras=True)
        except NameError:
            # A type of the function that makes the tool, or a ToolContext imported for type checkers only.
            scope = {"ToolContext": ToolContext, **_caller_locals(), **scope}
            hints = typing.get_type_hints(holder, globalns=scope, include_extras=True)
    except Exception as error:
        raise ConfigurationError(f"{where} has a type that cannot be resolved: {error}") from error
    return hints[parameter.name]


def _caller_locals() -> dict[str, Any]:
    frame = inspect.currentframe()
    package = __name__.partition(".")[0]
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) in (Annotated, typing.Union, types.UnionType):
        return any(_is_context(argument) for argument in get_args(annotation))
    return annotation is ToolContext


def _annotated_text(annotation: Any) -> str | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((note for note in annotation.__metadata__ if isinstance(note, str)), None)


def _documentation(function: Callable[..., Any]) -> str:
    target = implementation(function)
    if inspect.isroutine(target):
        return inspect.getdoc(target) or ""
    return inspect.cleandoc(type(target).__call__.__doc__ or type(target).__doc__ or "")


def _read_docstring(text: str, names: Container[str]) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter; the style is the one that knows most of the names.

    What a function returns or raises, and examples, are for programmers and are left out.
    """
    import griffe

    best: tuple[int, str, dict[str, str]] = (-1, text, {})
    styles: tuple[typing.Literal["google", "numpy", "sphinx"], ...] = ("google", "numpy", "sphinx")
    for style in styles:
        sections = griffe.Docstring(text, lineno=1).parse(style, warnings=False)
        prose: list[str] = []
        documented: dict[str, str] = {}
        for section in sections:
            if isinstance(section, griffe.DocstringSectionText):
                prose.append(section.value)
            elif isinstance(section, griffe.DocstringSectionAdmonition):
                prose.append(f"{section.title}:\n{section.value.description}")
            elif isinstance(section, griffe.DocstringSectionParameters):
                documented |= {item.name: item.description for item in section.value if item.name in names}
        score = 2 * len(documented) + (len(sections) > 1)
        if score > best[0]:
            best = (score, "\n\n".join(filter(None, prose)), documented)
    return best[1], best[2]


def _arguments_model(parameters: list[_Parameter], label: str) -> "tuple[type[BaseModel], Schema]":
    try:
        return _build_model(parameters)
    except Exception as error:
        for parameter in parameters:
            try:
                _build_model([parameter])
            except Exception as cause:
                reason = next(iter(str(cause).splitlines()), type(cause).__name__)
                where = f"{label}: parameter {parameter.name!r}"
                raise ConfigurationError(f"{where} has a type without JSON schema: {reason}") from cause
        raise ConfigurationError(f"{label}: its parameters have no JSON schema together: {error}") from error


def _build_model(parameters: list[_Parameter]) -> "tuple[type[BaseModel], Schema]":
    from pydantic import ConfigDict, Field, create_model
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

    class Generator(GenerateJsonSchema):
        def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
            """A default without JSON form is no fault: the model need not know it."""

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
    schema = model.model_json_schema(schema_generator=Generator)
    for _, node in _nodes(schema):
        if isinstance(node.get("title"), str):
            del node["title"]
    return model, schema


_BY_NAME = ("properties", "patternProperties", "$defs")
_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ALONE = ("items", "additionalProperties", "propertyNames", "not", "contains")


def _nodes(schema: Schema, path: str = "arguments") -> Iterator[tuple[str, Schema]]:
    """The schema and all schemas in it, each with a path for people. Each may be changed when it comes by."""
    yield path, schema
    inner: list[tuple[str, Any]] = []
    for keyword in _BY_NAME:
        inner += [(f"{path}.{name}", node) for name, node in schema.get(keyword, {}).items()]
    for keyword in _IN_LISTS:
        inner += [(path, node) for node in schema.get(keyword, [])]
    inner += [(f"{path}[]" if keyword == "items" else path, schema.get(keyword)) for keyword in _ALONE]
    for where, node in inner:
        if isinstance(node, dict):
            yield from _nodes(cast(Schema, node), where)


# What the strict modes of all providers have in common.
# fmt: off
_STRICT_KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref",
    "$defs", "description", "format",
}
_STRICT_FORMATS = {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
# fmt: on


def _fits_strict(schema: Schema) -> bool:
    """Whether every strict mode takes the schema as it is: all is required and nothing is left open."""
    for _, node in _nodes(schema):
        required = set(node.get("required", ()))
        if (
            not _STRICT_KEYWORDS.issuperset(node)
            or node.get("format", "uuid") not in _STRICT_FORMATS
            or required != set(node.get("properties", ()))
            or _is_open(node)
        ):
            return False
    return not _is_recursive(schema)


def _is_open(node: Schema) -> bool:
    """Whether values fit the schema of which it says nothing."""
    match node.get("type"):
        case "object":
            return node.get("additionalProperties", False) is not False or "properties" not in node
        case "array":
            return not isinstance(node.get("items"), dict) and "prefixItems" not in node
        case None:
            return not node.keys() & {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
        case _:
            return False


def _is_recursive(schema: Schema) -> bool:
    links = {
        name: {str(inner["$ref"]).rpartition("/")[2] for _, inner in _nodes(node) if "$ref" in inner}
        for name, node in schema.get("$defs", {}).items()
    }
    while leaves := [name for name, targets in links.items() if not targets & links.keys()]:
        for name in leaves:
            del links[name]
    return bool(links)


def _make_strict(schema: Schema, label: str) -> None:
    """Closes every object and requires every property, as strict modes ask; defaults lose their meaning."""
    for path, node in _nodes(schema):
        if _is_open(node):
            raise ConfigurationError(f"{label} cannot be strict: {path} takes values that the schema does not name")
        node.pop("default", None)
        if "properties" in node:
            node["required"] = list(node["properties"])
            node["additionalProperties"] = False
        if "$ref" in node and len(node) > 1:
            # Strict modes refuse a reference that has neighbours.
            node["anyOf"] = [{"$ref": node.pop("$ref")}]


def _binder(
    model: "type[BaseModel]", schema: Schema, parameters: list[_Parameter], contexts: list[str], label: str
) -> Bind:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    # A default that stands in the signature is left to Python; one in a Field is known to pydantic only.
    always = {
        f"p{index}"
        for index, parameter in enumerate(parameters)
        if parameter.default is inspect.Parameter.empty or isinstance(parameter.default, FieldInfo)
    }
    names = {f"p{index}": parameter.name for index, parameter in enumerate(parameters)}

    def bind(arguments: object, context: ToolContext) -> dict[str, Any]:
        if not isinstance(arguments, dict):
            raise InvalidArgumentsError(f"{label} takes a JSON object of arguments, not {_shown(arguments)}.")
        try:
            # As JSON, so that types which are strict in Python still take their JSON form.
            text = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgumentsError(f"The arguments of {label} are no JSON values.") from None
        try:
            values = model.model_validate_json(text)
        except ValidationError as error:
            raise InvalidArgumentsError(_complaint(error, label, schema)) from error
        given = values.model_fields_set | always
        keywords = {name: getattr(values, field) for field, name in names.items() if field in given}
        return keywords | dict.fromkeys(contexts, context)

    return bind


_MAX_COMPLAINTS = 20


def _complaint(error: "ValidationError", label: str, schema: Schema) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = [f"The arguments of {label} do not fit, so it was not called:"]
    for problem in problems[:_MAX_COMPLAINTS]:
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem["loc"]).lstrip(".")
        match problem["type"]:
            case "missing":
                what = "required, but missing"
            case "extra_forbidden" if len(problem["loc"]) == 1:
                what = f"no such argument; there are: {', '.join(schema.get('properties', ())) or 'none'}"
            case _:
                what = f"{problem['msg']}; it was {_shown(problem['input'])}"
        lines.append(f"- {where or 'arguments'}: {what}")
    if len(problems) > _MAX_COMPLAINTS:
        lines.append(f"- and {len(problems) - _MAX_COMPLAINTS} more")
    return "\n".join(lines)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 100 else f"{text[:100]}…"

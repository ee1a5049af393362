"""Parsing of `-o` and `-T`: model settings, provider options, limits and tools, typed by their fields.

A dot selects a field of a nested config (`reasoning.effort`), commas separate list entries, and every field accepts
JSON.
"""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.cli.inputs.imports import NAME, import_object
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import ChatModel, HasOptions
from sidestream.tools.configs import Config, allowed_values, config_fields
from sidestream.tools.server_side import ALIASES, TOOLS, ServerSideTool, tool_named
from sidestream.tools.tool import Tool

_JSON_STARTS = ("{", "[", '"')


def read_fields(kind: type[Config], given: Iterable[tuple[str, str]], owner: str) -> dict[str, Any]:
    """Parse name and value pairs as a config's fields. A repeated name extends a list, or replaces another value.

    Raises ConfigurationError, which names `owner`, if a name is unknown or a value is invalid.
    """
    fields: dict[str, Any] = {}
    nested: dict[str, list[tuple[str, str]]] = {}
    for path, text in given:
        name, dot, rest = path.strip().partition(".")
        name = name.replace("-", "_")
        known = config_fields(kind)
        if name not in known:
            raise ConfigurationError(unknown_field(name, known, owner))
        if dot:
            nested.setdefault(name, []).append((rest, text))
            continue
        value = read_value(known[name][0], text, f"{owner}: {name}", is_secret=name in kind.secrets)
        is_list = isinstance(value, list) and isinstance(fields.get(name), list)
        fields[name] = [*fields[name], *value] if is_list else value
    for name, pairs in nested.items():
        fields[name] = _read_nested(config_fields(kind)[name][0], pairs, f"{owner}: {name}")
    return fields


def unknown_field(name: str, known: Iterable[str], owner: str) -> str:
    """Return the message for an unknown name, with the nearest known name or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"{owner} has no {name!r}; {hint}"


def read_value(kind: Any, text: str, where: str, *, is_secret: bool = False) -> Any:
    """Parse JSON, list entries or a scalar as a value of this type. Raises ConfigurationError if it does not fit."""
    shown = "the value" if is_secret else repr(text)
    if text.lstrip().startswith(_JSON_STARTS):
        try:
            return _converted(jsontext.loads(text), kind)
        except (ValueError, RecursionError):
            if _config_in(kind) is not None:
                raise _unfit(kind, shown, where) from None
    texts: list[Any] = [text]
    if _takes_list(kind):
        texts.insert(0, [entry.strip() for entry in text.split(",") if entry.strip()])
    for value in texts:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            continue
    raise _unfit(kind, shown, where)


def _unfit(kind: Any, shown: str, where: str) -> ConfigurationError:
    config = _config_in(kind)
    fields = "" if config is None else f" (its fields are {', '.join(config_fields(config))})"
    allowed = allowed_values(kind).removesuffix(" or nothing")
    return ConfigurationError(f"{where}: {shown} is not valid: use {allowed}{fields}")


def _converted(value: Any, kind: Any) -> Any:
    config = _config_in(kind)
    if config is not None and isinstance(value, Mapping) and "type" not in value:
        names: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        # Use the constructor, so that its checks run and unknown names are reported.
        return config(**read_fields(config, ((name, _text(inner)) for name, inner in names.items()), config.__name__))
    return msgspec.convert(value, kind)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


def _read_nested(kind: Any, pairs: list[tuple[str, str]], where: str) -> Any:
    config = _config_in(kind)
    if config is not None:
        return config(**read_fields(config, pairs, where))
    if any(get_origin(option) is dict for option in _options(kind)):
        return dict(pairs)
    raise ConfigurationError(f"{where} has no fields of its own: use {allowed_values(kind)}")


def _options(kind: Any) -> list[Any]:
    """Return the types of a union, without annotations, or the type itself."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) is Union or isinstance(kind, UnionType):
        return [option for entry in get_args(kind) for option in _options(entry)]
    return [kind]


def _config_in(kind: Any) -> type[Config] | None:
    """Return the config class in the type, if there is exactly one."""
    found = [option for option in _options(kind) if isinstance(option, type) and issubclass(option, Config)]
    return found[0] if len(found) == 1 else None


def _takes_list(kind: Any) -> bool:
    """Return whether the type takes a list but not a string, in which commas could be literal."""
    options = _options(kind)
    return str not in options and any(get_origin(option) in (list, Sequence, Set, frozenset) for option in options)


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Parsed options, grouped by the parameter they are passed as."""

    settings: dict[str, Any] = {}
    options: Any = None
    limits: dict[str, Any] = {}


def read_options(model: ChatModel, given: tuple[tuple[str, str], ...], *, skips_unknown: bool = False) -> ModelOptions:
    """Parse the options of a model. Raises ConfigurationError if a name is unknown or a value is invalid.

    With `skips_unknown`, the options were given for another provider, so those that this one lacks are ignored.
    """
    portable = config_fields(ModelSettings)
    kind = model.options_type if isinstance(model, HasOptions) else None
    own = config_fields(kind) if kind is not None else {}
    limits = {field.name: field.type for field in msgspec.structs.fields(Limits)}
    sorted_by: dict[str, list[tuple[str, str]]] = {"settings": [], "options": [], "limits": []}
    for path, text in given:
        name = path.partition(".")[0].replace("-", "_")
        place = next(
            (place for place, names in (("settings", portable), ("options", own), ("limits", limits)) if name in names),
            None,
        )
        if place is not None:
            sorted_by[place].append((path, text))
        elif not skips_unknown:
            raise ConfigurationError(_unknown(name, model, [*portable, *own, *limits]))
    owner = f"-o ({model.provider})"
    options = read_fields(kind, sorted_by["options"], owner) if kind is not None else {}
    return ModelOptions(
        settings=read_fields(ModelSettings, sorted_by["settings"], "-o"),
        options=kind(**options) if kind is not None and options else None,
        limits={
            name.replace("-", "_"): read_value(limits[name.replace("-", "_")], text, f"-o {name}")
            for name, text in sorted_by["limits"]
        },
    )


def _unknown(name: str, model: ChatModel, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"sidestream models options {model.provider} lists them"
    return f"-o: {model.provider} has no option {name!r}; {hint}"


class DescribedOption(NamedTuple):
    """What an option takes and what it does."""

    values: str
    description: str


def described_options(name: str) -> list[tuple[str, dict[str, DescribedOption]]]:
    """Return the options of a model, as groups of a title and the options by name."""
    from sidestream.providers.protocol import Settings
    from sidestream.providers.registry import ModelString, find_provider

    parsed = ModelString.parse(name)
    provider = find_provider(parsed.provider)
    # Describing a model needs no key.
    settings = Settings(auth=dict[str, str])
    model = provider.chat_model(parsed.models.get("chat") or provider.default_models.get("chat", ""), settings)
    supported = getattr(model, "portable_settings", frozenset[str]())
    portable = {name: kind for name, (kind, _) in config_fields(ModelSettings).items() if name in supported}
    described = [("settings", _described(portable, _field_docs(ModelSettings)))]
    if isinstance(model, HasOptions):
        own = {name: kind for name, (kind, _) in config_fields(model.options_type).items()}
        options = _described(own, _field_docs(model.options_type))
        described.append((f"options of {model.provider} ({model.options_type.__name__})", options))
    return described


def _described(kinds: dict[str, Any], docs: dict[str, str]) -> dict[str, DescribedOption]:
    return {name: DescribedOption(_values(kind), docs.get(name, "")) for name, kind in kinds.items()}


def _values(kind: Any) -> str:
    return allowed_values(kind).removesuffix(" or nothing")


def _field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstrings of a class's fields, by name, on one line each. Empty if there is no source code."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("sidestream."):
            found |= _docs_in(base)
    return found


def _docs_in(kind: type[Any]) -> dict[str, str]:
    import ast
    import inspect

    try:
        tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    except OSError:
        return {}
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    body = classes.get(kind.__name__, [])
    found: dict[str, str] = {}
    for node, after in pairwise(body):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


ClientTool = Tool | Callable[..., Any]

SHORT_FORMS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "mcp": {"approval": ("require_approval", {"ask": "always", "run": "never"})},
}
"""Parameters that the command line names differently, by tool: the field, and the renamed values."""

EXAMPLES = {
    "custom": "custom:name=sql,description=…",
    "file_search": "file_search:stores=vs_1",
    "mcp": "mcp:label=docs,url=https://…,approval=ask",
}
"""Examples, by tool that needs parameters."""

_PARAMETER = re.compile(r"\s*([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


def read_tool(text: str) -> ServerSideTool | ClientTool:
    """Parse a `-T` option. Raises ConfigurationError with the nearest name if the tool is unknown."""
    name, colon, rest = text.partition(":")
    key = _key(name)
    if key in TOOLS and (colon or TOOLS[key].needs):
        return _configured(key, rest)
    if not colon:
        return tool_named(name)
    if NAME.fullmatch(text):
        found = import_object(text)
        if not callable(found):
            raise ConfigurationError(f"-T {text} is {type(found).__name__}, not a function")
        return found
    return tool_named(name)


def tool_names() -> list[str]:
    """Return the names of all server-side tools, for completion."""
    return sorted({*TOOLS, *ALIASES})


def _key(name: str) -> str:
    key = name.strip().lower().replace("-", "_")
    return ALIASES.get(key, key)


def _configured(key: str, text: str) -> ServerSideTool:
    kind = TOOLS[key]
    if not text and key in EXAMPLES:
        raise ConfigurationError(f"the tool {key} needs parameters: -T '{EXAMPLES[key]}'")
    fields = read_fields(kind, (_long_form(key, *pair) for pair in _parameters(text, key)), f"the tool {key}")
    try:
        return kind(**fields)
    except TypeError as error:  # A required field is missing.
        example = f": -T '{EXAMPLES[key]}'" if key in EXAMPLES else ""
        raise ConfigurationError(f"the tool {key}: {error}{example}") from None


def _parameters(text: str, key: str) -> list[tuple[str, str]]:
    if text.lstrip().startswith("{"):
        try:
            fields = jsontext.as_object(jsontext.loads(text))
        except (ValueError, RecursionError):
            raise ConfigurationError(f"the tool {key}: its parameters are not valid JSON") from None
        return [
            (name, value if isinstance(value, str) else jsontext.dumps(value).decode())
            for name, value in fields.items()
        ]
    pairs: list[tuple[str, str]] = []
    for piece in text.split(",") if text.strip() else ():
        found = _PARAMETER.fullmatch(piece)
        if found is not None:
            pairs.append((found[1], found[2].strip()))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece}")  # The next list entry, or a comma in a string.
        else:
            raise ConfigurationError(f"the tool {key}: write parameters as NAME=VALUE,NAME=VALUE, not {piece!r}")
    return pairs


def _long_form(key: str, name: str, value: str) -> tuple[str, str]:
    field, words = SHORT_FORMS.get(key, {}).get(name, (name, {}))
    return field, words.get(value, value)

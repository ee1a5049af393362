"""Fields of a config from text, as `-o` and `-T` take them: typed by the field, with the nearest name for a wrong one.

A dot reaches into a nested config (`reasoning.effort`), commas separate the entries of a list, and JSON is accepted
for every field.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence, Set
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.tools.configs import Config, allowed_values, config_fields

_JSON_STARTS = ("{", "[", '"')


def read_fields(kind: type[Config], given: Iterable[tuple[str, str]], owner: str) -> dict[str, Any]:
    """Name and text pairs as the fields of a config. A name that is given again adds to its list, or replaces it.

    Raises ConfigurationError that names `owner`, for an unknown name or a value that does not fit.
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
    """The message for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"{owner} has no {name!r}; {hint}"


def read_value(kind: Any, text: str, where: str, *, is_secret: bool = False) -> Any:
    """The text as a value of this type: JSON, the entries of a list, or a scalar. Raises ConfigurationError."""
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
    return ConfigurationError(f"{where}: {shown} does not fit: use {allowed}{fields}")


def _converted(value: Any, kind: Any) -> Any:
    config = _config_in(kind)
    if config is not None and isinstance(value, Mapping) and "type" not in value:
        names: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        # Made by its class, so that its own checks run and wrong names are reported.
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
    """The types of a union, without annotations; of any other type, itself."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) is Union or isinstance(kind, UnionType):
        return [option for entry in get_args(kind) for option in _options(entry)]
    return [kind]


def _config_in(kind: Any) -> type[Config] | None:
    """The config that the type holds, if there is exactly one."""
    found = [option for option in _options(kind) if isinstance(option, type) and issubclass(option, Config)]
    return found[0] if len(found) == 1 else None


def _takes_list(kind: Any) -> bool:
    """True for a list, unless a text would do as well: then commas may be part of it."""
    options = _options(kind)
    return str not in options and any(get_origin(option) in (list, Sequence, Set, frozenset) for option in options)

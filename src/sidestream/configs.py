"""Configuration as frozen values: validated when they are created, with errors that name the allowed values."""

from collections.abc import Iterator, Sequence, Set
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from sidestream.errors import ConfigurationError


class Config(Struct, frozen=True, kw_only=True):
    """A frozen value whose fields are validated against their types. Its repr hides the fields in `secrets`."""

    secrets: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, (kind, default) in config_fields(type(self)).items():
            value = getattr(self, name)
            if value is default:
                continue
            try:
                checked = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                shown = f"{type(self).__name__}({name}={'…' if name in self.secrets else repr(value)})"
                raise ConfigurationError(f"{shown} is invalid: use {allowed_values(kind)}. {error}") from None
            msgspec.structs.force_setattr(self, name, _frozen(checked))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._shown())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self._shown())

    def _shown(self) -> Iterator[tuple[str, Any]]:
        for name, (_, default) in config_fields(type(self)).items():
            value = getattr(self, name)
            if value != default:
                yield name, "***" if name in self.secrets else value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return frozenset(value) if isinstance(value, set) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


@cache
def config_fields(config: type[Config]) -> dict[str, tuple[Any, Any]]:
    """Name → type and default, for each field."""
    return {
        field.name: (
            field.type,
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
        )
        for field in msgspec.structs.fields(config)
    }


def allowed_values(kind: Any) -> str:
    """The values that a type allows, in words."""
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        meta = next((extra for extra in arguments[1:] if isinstance(extra, Meta)), Meta())
        return meta.description or _range(meta) or allowed_values(arguments[0])
    if get_origin(kind) is Literal:
        return ", ".join(str(value) for value in arguments)
    if get_origin(kind) in (Sequence, Set):
        return f"a list of {allowed_values(arguments[0])}"
    if get_origin(kind) is Union or isinstance(kind, UnionType):
        return " or ".join(allowed_values(argument) for argument in arguments)
    return "nothing" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _range(meta: Meta) -> str:
    bounds = (("at least", meta.ge), ("at most", meta.le), ("at most", meta.max_length))
    return " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)

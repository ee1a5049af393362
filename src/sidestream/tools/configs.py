"""Configuration as frozen values: validated when they are created, with errors that name the allowed values."""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, StructMeta

from sidestream.errors import ConfigurationError

ConfigT = TypeVar("ConfigT", bound="Config")

AGENT_LEVEL, CALL_LEVEL = 0, 1
"""Where a field was set: a call takes precedence over its agent."""

MERGED_BY_KEY = frozenset({"extra_body", "extra_headers"})
"""Fields whose dicts are merged by key. All other fields are replaced as a whole, nested configs too."""

_LEVELS = "_levels"


class _RecordsFields(StructMeta):
    """Records the fields that a value is created with: a field that is set to its default was set."""

    if not TYPE_CHECKING:  # Type checkers take the signature of each class.

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                created = super().__call__(*args, **fields)
            except Exception:
                fields.clear()  # some are secrets, which a traceback with locals would show
                raise
            vars(created)[_LEVELS] = dict.fromkeys(fields, AGENT_LEVEL)
            return created


class Config(Struct, metaclass=_RecordsFields, frozen=True, kw_only=True, dict=True):
    """A frozen value whose fields are validated against their types. Its repr hides the fields in `secrets`.

    It remembers which fields were set (`levels_of`), which does not count for equality. A value that msgspec itself
    creates (`msgspec.structs.replace`, decoding) has no such record: fields that differ from their defaults count.
    """

    secrets: ClassVar[frozenset[str]] = frozenset()
    tool_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that switch on server-side tools, or configure them."""

    unsent: ClassVar[frozenset[str]] = frozenset()
    """Fields that no provider sees."""

    def __post_init__(self) -> None:
        for name, (kind, default) in config_fields(type(self)).items():
            value = getattr(self, name)
            if value is default:
                continue
            try:
                checked = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                value = "…" if name in self.secrets else repr(value)  # under its name: tracebacks with locals show it
                shown = f"{type(self).__name__}({name}={value})"
                raise ConfigurationError(f"{shown} is invalid: use {allowed_values(kind)}. {error}") from None
            msgspec.structs.force_setattr(self, name, _frozen(checked))
        self.register_secrets()

    def register_secrets(self) -> None:
        """Registers the secrets that it holds for redaction; again when they are sent, since old ones are dropped."""

    def __copy__(self) -> Self:
        return _rebuilt(type(self), _set_fields(self), dict(levels_of(self)))

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self), _set_fields(self), dict(levels_of(self)))

    def __replace__(self, **changes: Any) -> Self:
        return changed(self, **changes)

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


def levels_of(config: Config) -> Mapping[str, int]:
    """The fields that were set → the level at which they were."""
    recorded: dict[str, int] | None = vars(config).get(_LEVELS)
    if recorded is not None:
        return recorded
    fields = config_fields(type(config))
    return {name: AGENT_LEVEL for name, (_, default) in fields.items() if getattr(config, name) != default}


def changed(config: ConfigT, **fields: Any) -> ConfigT:
    """The config with other values in these fields; it keeps the record of which fields were set."""
    levels = {**dict.fromkeys(fields, AGENT_LEVEL), **levels_of(config)}
    return _rebuilt(type(config), _set_fields(config) | fields, levels)


def merged_configs(base: ConfigT | None, over: ConfigT) -> ConfigT:
    """`over` on top of `base`, field by field: the fields that were set in `over` count, even if set to a default."""
    below: Mapping[str, int] = levels_of(base) if base is not None else {}
    fields = _set_fields(base) if base is not None else {}
    for name, value in _set_fields(over).items():
        is_added = name in MERGED_BY_KEY and name in fields
        fields[name] = {**fields[name], **value} if is_added else value
    return _rebuilt(type(over), fields, {**below, **dict.fromkeys(levels_of(over), CALL_LEVEL)})


def without_tools(config: ConfigT) -> ConfigT:
    """Return the same options without the server-side tools that they switch on."""
    if not any(name in config.tool_fields for name in levels_of(config)):
        return config
    kept = {name: value for name, value in _set_fields(config).items() if name not in config.tool_fields}
    return _rebuilt(type(config), kept, {name: level for name, level in levels_of(config).items() if name in kept})


def _set_fields(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in levels_of(config)}


def _rebuilt(kind: type[ConfigT], fields: Mapping[str, Any], levels: dict[str, int]) -> ConfigT:
    created = kind(**fields)
    vars(created)[_LEVELS] = levels
    return created


@cache
def unsent_fields(config: type[Config]) -> frozenset[str]:
    """The fields that no provider sees, of the class and those that it is derived from."""
    return frozenset[str]().union(*(getattr(kind, "unsent", ()) for kind in config.__mro__))


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

"""Configuration as frozen values, validated on creation with errors that name the allowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, StructMeta

from sidestream.errors import ConfigurationError

ConfigT = TypeVar("ConfigT", bound="Config")

AGENT_LEVEL, CALL_LEVEL = 0, 1
"""Level at which a field was set. A call takes precedence over its agent."""

MERGED_BY_KEY = frozenset({"extra_body", "extra_headers"})
"""Fields whose dicts are merged by key. All other fields, including nested configs, are replaced as a whole."""

_LEVELS = "_levels"


class _RecordsFields(StructMeta):
    """Metaclass that records the fields passed to the constructor, including those set to their default."""

    if not TYPE_CHECKING:  # Type checkers use the signature of each class.

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                created = super().__call__(*args, **fields)
            except Exception:
                fields.clear()  # keep secrets out of tracebacks with locals
                raise
            vars(created)[_LEVELS] = dict.fromkeys(fields, AGENT_LEVEL)
            return created


class Config(Struct, metaclass=_RecordsFields, frozen=True, kw_only=True, dict=True):
    """A frozen value whose fields are validated against their types. Its repr hides the fields in `secrets`.

    It remembers which fields were set (`levels_of`); equality ignores that. A value created by msgspec itself
    (`msgspec.structs.replace`, decoding) has no such record, so the fields that differ from their defaults count as
    set.
    """

    secrets: ClassVar[frozenset[str]] = frozenset()
    tool_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that enable or configure server-side tools."""

    unsent: ClassVar[frozenset[str]] = frozenset()
    """Fields that are never sent to a provider."""

    def __post_init__(self) -> None:
        for name, default in defaults_of(type(self)).items():
            value = getattr(self, name)
            if value is default:
                continue
            if type(default) is dict and value == default == {}:
                # Valid whatever its type. Copied, since the caller may change theirs later.
                msgspec.structs.force_setattr(self, name, {})
                continue
            kind, _ = config_fields(type(self))[name]
            try:
                checked = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                value = "…" if name in self.secrets else repr(value)  # rebind: tracebacks with locals show `value`
                shown = f"{type(self).__name__}({name}={value})"
                raise ConfigurationError(f"{shown} is invalid: use {allowed_values(kind)}. {error}") from None
            msgspec.structs.force_setattr(self, name, _frozen(checked))
        self.register_secrets()

    def register_secrets(self) -> None:
        """Register the config's secrets for redaction.

        Call it again whenever they are sent, since the registry drops old ones.
        """

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
        for name, default in defaults_of(type(self)).items():
            value = getattr(self, name)
            if value != default:
                yield name, "***" if name in self.secrets else value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return frozenset(value) if isinstance(value, set) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def levels_of(config: Config) -> Mapping[str, int]:
    """Map each field that was set to the level at which it was set."""
    recorded: dict[str, int] | None = vars(config).get(_LEVELS)
    if recorded is not None:
        return recorded
    defaults = defaults_of(type(config))
    return {name: AGENT_LEVEL for name, default in defaults.items() if getattr(config, name) != default}


def changed(config: ConfigT, **fields: Any) -> ConfigT:
    """Return a copy with other values in these fields. It keeps the record of which fields were set."""
    levels = {**dict.fromkeys(fields, AGENT_LEVEL), **levels_of(config)}
    return _rebuilt(type(config), _set_fields(config) | fields, levels)


def merged_configs(base: ConfigT | None, over: ConfigT) -> ConfigT:
    """Merge two configs field by field.

    Fields that were set in `over` take precedence, even if set to a default.
    """
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
    """Return the fields of the class and its bases that are never sent to a provider."""
    return frozenset[str]().union(*(getattr(kind, "unsent", ()) for kind in config.__mro__))


@cache
def defaults_of(config: type[Config]) -> dict[str, Any]:
    """Map each field's name to its default, or to NODEFAULT if it has none."""
    # Not by `msgspec.structs.fields`, which evaluates the annotations of all fields. For options that are not set, a
    # first run would spend a millisecond on that.
    names, defaults = config.__struct_fields__, config.__struct_defaults__
    required = [msgspec.NODEFAULT] * (len(names) - len(defaults))
    created = [default.factory() if hasattr(default, "factory") else default for default in defaults]
    return dict(zip(names, [*required, *created], strict=True))


@cache
def config_fields(config: type[Config]) -> dict[str, tuple[Any, Any]]:
    """Map each field's name to its type and default."""
    defaults = defaults_of(config)
    return {field.name: (field.type, defaults[field.name]) for field in msgspec.structs.fields(config)}


def allowed_values(kind: Any) -> str:
    """Describe the values that a type allows, for an error message."""
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


# Values inside the settings of tools


Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", description="a date such as 2026-11-18")]


class Comparison(Config, frozen=True, kw_only=True, tag="comparison"):
    """A comparison of a file's attribute with a value."""

    attribute: str
    """Attribute of the file."""
    operator: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"] = "eq"
    """How to compare."""
    value: str | int | float | bool | Sequence[str | int | float]
    """Value to compare with."""


class Combination(Config, frozen=True, kw_only=True, tag="combination"):
    """Several filters, of which all or any must match."""

    operator: Literal["and", "or"] = "and"
    """Whether all filters must match, or any."""
    filters: Sequence[Comparison | Combination]
    """The filters."""


class HybridSearch(Config, frozen=True, kw_only=True):
    """Weights of semantic and keyword matches."""

    embedding_weight: float
    """Weight of matches by meaning."""
    text_weight: float
    """Weight of matches by words."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Location(Config, frozen=True, kw_only=True):
    """Approximate location of the user. `Location()` means unknown."""

    city: str | None = None
    """City."""
    region: str | None = None
    """Region or state."""
    country: str | None = None
    """Country, as two letters."""
    timezone: str | None = None
    """Time zone, such as `Europe/Helsinki`."""


class DomainSecret(Config, frozen=True, kw_only=True):
    """A secret that the sandbox may send to one domain; the model sees its name only."""

    secrets = frozenset({"value"})

    domain: str
    """Domain whose requests get the secret."""
    name: str
    """Name by which code refers to it."""
    value: str
    """The secret, which code does not see."""


class Network(Config, frozen=True, kw_only=True):
    """Network access of a sandbox: none, or the domains named here."""

    allowed_domains: Sequence[str] = ()
    """Domains that code may reach."""
    domain_secrets: Sequence[DomainSecret] = ()
    """Secrets for these domains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain_secrets and not self.allowed_domains:
            raise ConfigurationError("Network(domain_secrets=…) needs the allowed_domains that they may be sent to")


class Svg(Config, frozen=True, kw_only=True):
    """The model that writes an SVG image, and its reasoning effort."""

    model: str | None = None
    """Model that draws."""
    effort: Effort | None = None
    """How much it works on it."""


class ToolFilter(Config, frozen=True, kw_only=True):
    """A selection of a server's tools: by name, or the read-only ones."""

    names: Sequence[str] = ()
    """Names of tools."""
    read_only: bool | None = None
    """Whether to match tools that only read."""


class MCPApproval(Config, frozen=True, kw_only=True):
    """The tools of a server that always need approval, and those that never do."""

    always: Sequence[str] | ToolFilter = ()
    """Tools whose calls need approval."""
    never: Sequence[str] | ToolFilter = ()
    """Tools whose calls do not."""


class SkillReference(Config, frozen=True, kw_only=True, tag="reference"):
    """A skill that the provider stores."""

    id: str
    """Id of the skill."""
    version: str | None = None
    """Version of the skill. None means the current one."""


class InlineSkill(Config, frozen=True, kw_only=True, tag="inline"):
    """A skill sent with the request, as a zip archive."""

    name: str
    """Name of the skill."""
    description: str
    """What it is for, which the model reads."""
    archive: bytes
    """Files of the skill as a zip."""


class LocalSkill(Config, frozen=True, kw_only=True, tag="local"):
    """A skill in a folder beside a local shell."""

    name: str
    """Name of the skill."""
    description: str
    """What it is for, which the model reads."""
    path: str
    """Folder of the skill on the machine of the shell."""


INDEX = "index:"
"""The store of a file search that is this machine's index, or the prefix of a store that is another index."""


def is_path(store: str) -> bool:
    """Return whether a store is a local folder, file or index. Provider ids do not look like one."""
    return store.startswith((".", "/", "~", "\\\\", INDEX, "postgres://", "postgresql://")) or store[1:3] in (
        ":\\",
        ":/",
    )


def refuse_together(tool: Config, name: str, others: Sequence[str]) -> None:
    """Raise ConfigurationError if a field and one of others are both set."""
    if getattr(tool, name):
        idle = [other for other in others if getattr(tool, other)]
        if idle:
            raise ConfigurationError(f"{type(tool).__name__}: {', '.join(idle)} cannot be combined with {name}")

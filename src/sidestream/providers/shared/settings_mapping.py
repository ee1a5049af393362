"""Portable settings in a request: each provider has a table that maps them to fields of its own options. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from sidestream.errors import UnsupportedError
from sidestream.jsontext import without_none
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.registry import providers_with
from sidestream.providers.shared.encoding import merged
from sidestream.tools.configs import MERGED_BY_KEY, Config, changed, config_fields, levels_of

OptionsT = TypeVar("OptionsT", bound=Config)
Thinking = str | int

PORTABLE = frozenset(config_fields(ModelSettings)) - {"unsupported"}
"""The names of all portable settings."""


class Target(Struct, frozen=True, kw_only=True):
    """What the mapping of a setting may depend on besides its value."""

    provider: str
    """Its display name, for errors."""
    model: str
    settings: ModelSettings
    options: Any

    def refuse(self, reason: str) -> NoReturn:
        """Raises UnsupportedError: this model does not support the value, for this reason."""
        raise UnsupportedError(f"{self.provider}: {self.model or 'the model'} {reason}")


Row = Callable[[Any, Target], Mapping[str, Any]]
"""Value of a portable setting → the fields of the options that express it. Raises UnsupportedError."""


def as_option(name: str) -> Row:
    """The setting is sent as this option, unchanged."""
    return lambda value, target: {name: value}


def stop_list(value: str | tuple[str, ...], target: Target) -> Mapping[str, Any]:
    """The setting `stop` for an API that expects a list as `stop_sequences`."""
    return {"stop_sequences": [value] if isinstance(value, str) else value}


TOOL_CHOICES = ("auto", "required")
"""Values of the setting `tool_choice` that are no names of functions."""


def thinking_of(value: Any) -> Thinking:
    """The setting `thinking` as a level or a budget."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def thinks(settings: ModelSettings) -> bool:
    """True if the settings request thinking."""
    return settings.thinking is not None and thinking_of(settings.thinking) != "off"


def with_settings(
    options: OptionsT, settings: ModelSettings, rows: Mapping[str, Row], provider: str, model: str
) -> tuple[OptionsT, list[str]]:
    """The options with the portable settings in them, and warnings of those that are left out.

    An option that was set at the same level takes precedence over a portable setting; settings of a call take
    precedence over options of the agent.
    """
    warnings: list[str] = []
    if not levels_of(settings):
        return options, warnings
    target = Target(provider=provider, model=model, settings=settings, options=options)
    at, fields = levels_of(options), {name: getattr(options, name) for name in levels_of(options)}
    for name, value in given_settings(settings).items():
        try:
            mapped = rows[name](value, target) if name in rows else _lacks(name, provider)
        except UnsupportedError as error:
            if settings.unsupported == "raise":
                raise
            warnings.append(f"{name} is left out. {error}")
            continue
        wins = {field: levels_of(settings)[name] > at.get(field, -1) for field in mapped}
        for field, new in mapped.items():
            if field in MERGED_BY_KEY:
                old = fields.get(field, {})
                fields[field] = merged(old, new) if wins[field] else merged(new, old)
            elif wins[field]:
                fields[field] = new
    return type(options)(**fields), warnings


def supported_settings(
    settings: ModelSettings, supported: Collection[str], provider: str
) -> tuple[ModelSettings, list[str]]:
    """The settings that a model maps, and warnings of the others. Raises UnsupportedError, unless it is to warn."""
    missing = [name for name in given_settings(settings) if name not in supported]
    if not missing:
        return settings, []
    if settings.unsupported == "raise":
        _lacks(missing[0], provider)
    warnings = [f"{name} is left out. {provider} has no such setting" for name in missing]
    return changed(settings, **dict.fromkeys(missing)), warnings


def given_settings(settings: ModelSettings) -> dict[str, Any]:
    """The settings that were set, with their values. None is the provider's default."""
    values = {name: getattr(settings, name) for name in levels_of(settings) if name in PORTABLE}
    return without_none(values)


def _lacks(name: str, provider: str) -> NoReturn:
    others = ", ".join(providers_with(name)) or "no installed provider"
    raise UnsupportedError(
        f"{provider} has no {name}; it is a setting of {others}. Remove it, or set unsupported='warn' to leave it out"
    )

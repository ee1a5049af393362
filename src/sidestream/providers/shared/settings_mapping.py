"""Mapping of portable settings to a provider's own options, by a table per provider. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from sidestream.errors import UnsupportedError
from sidestream.jsontext import without_none
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.registry import providers_with
from sidestream.providers.shared.encoding import merged
from sidestream.tools.configs import MERGED_BY_KEY, Config, changed, defaults_of, levels_of

OptionsT = TypeVar("OptionsT", bound=Config)
Thinking = str | int

PORTABLE = frozenset(defaults_of(ModelSettings)) - {"unsupported"}
"""Names of all portable settings."""


class Target(Struct, frozen=True, kw_only=True):
    """The context in which a setting is mapped."""

    provider: str
    """Display name, for errors."""
    model: str
    settings: ModelSettings
    options: Any

    def refuse(self, reason: str) -> NoReturn:
        """Raise UnsupportedError, with the reason why this model does not support the value."""
        raise UnsupportedError(f"{self.provider}: {self.model or 'the model'} {reason}")


Row = Callable[[Any, Target], Mapping[str, Any]]
"""Maps the value of a portable setting to option fields. Raises UnsupportedError if the model does not support it."""


def as_option(name: str) -> Row:
    """Map a setting to this option, unchanged."""
    return lambda value, target: {name: value}


def stop_list(value: str | tuple[str, ...], target: Target) -> Mapping[str, Any]:
    """Map `stop` to the list `stop_sequences`."""
    return {"stop_sequences": [value] if isinstance(value, str) else value}


TOOL_CHOICES = ("auto", "required")
"""Values of `tool_choice` that are not function names."""


def thinking_of(value: Any) -> Thinking:
    """Convert the setting `thinking` to a level or a budget."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def thinks(settings: ModelSettings) -> bool:
    """Return whether the settings request thinking."""
    return settings.thinking is not None and thinking_of(settings.thinking) != "off"


def with_settings(
    options: OptionsT, settings: ModelSettings, rows: Mapping[str, Row], provider: str, model: str
) -> tuple[OptionsT, list[str]]:
    """Merge portable settings into options. Returns them with warnings about settings that were left out.

    An option set at the same level takes precedence over a portable setting. Settings of a call take precedence over
    options of the agent.
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
            warnings.append(f"{name} is left out: {error}")
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
    """Return the settings that a model supports, and warnings about the others.

    Raises UnsupportedError for the others unless `settings.unsupported` is `warn`.
    """
    missing = [name for name in given_settings(settings) if name not in supported]
    if not missing:
        return settings, []
    if settings.unsupported == "raise":
        _lacks(missing[0], provider)
    warnings = [f"{name} is left out: {provider} does not support it" for name in missing]
    return changed(settings, **dict.fromkeys(missing)), warnings


def given_settings(settings: ModelSettings) -> dict[str, Any]:
    """Return the settings that were set, with their values. None means the provider's default and is skipped."""
    values = {name: getattr(settings, name) for name in levels_of(settings) if name in PORTABLE}
    return without_none(values)


def _lacks(name: str, provider: str) -> NoReturn:
    others = ", ".join(providers_with(name)) or "no installed provider"
    raise UnsupportedError(
        f"{provider} does not support {name}, which is supported by {others}; "
        "remove it, or set unsupported='warn' to leave it out"
    )

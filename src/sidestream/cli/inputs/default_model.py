"""The model of a command that names none, the user's aliases, and suggestions for misspelled names."""

import difflib
import os
import re

import click
from msgspec import Struct

from sidestream.cli import preferences
from sidestream.errors import ConfigurationError, UnknownProviderError
from sidestream.providers.registry import ModelString, ProviderInfo, find_provider, installed_providers

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def model_of(text: str) -> str:
    """The model string behind an alias; any other text as it is."""
    return preferences.load().aliases.get(text, text)


def add(name: str, model: str) -> str:
    """Stores an alias, in place of one of the same name; returns its model string.

    Raises ConfigurationError for a name that cannot be one or is that of a provider, and for an unknown provider.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be an alias: use letters, digits, '.', '_' and '-'")
    if name in names_of_providers():
        raise ConfigurationError(f"{name!r} is the name of a provider; choose another alias")
    check_model(model)
    preferences.change(aliases={**preferences.load().aliases, name: model})
    return model


def remove(name: str) -> None:
    """Forgets an alias. Raises ConfigurationError for an unknown one, with the nearest name."""
    known = preferences.load().aliases
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(f"no alias {name!r}; {hint}")
    preferences.change(aliases={key: model for key, model in known.items() if key != name})


EMBEDDED = "local"
_PREFERRED = ("openai-responses", "anthropic", "google")

FAMILIES = {
    "gpt": "openai-responses",
    "chatgpt": "openai-responses",
    "o1": "openai-responses",
    "o3": "openai-responses",
    "o4": "openai-responses",
    "claude": "anthropic",
    "gemini": "google",
    "smollm": "local",
}
"""How the name of a model begins → the provider that has it."""
PROVIDER_NAMES = {"openai": "openai-responses"}
"""Name in front of a slash → the provider that is meant, where that is another."""


class ChosenModel(Struct, frozen=True):
    """A model, and why it was chosen: None if the user chose it."""

    name: str
    reason: str | None = None


def default_model() -> str:
    """The model of a command that names none."""
    return chosen_model().name


def chosen_model() -> ChosenModel:
    """The saved default; else the first provider with a key, those with most server-side tools before the others; else
    the embedded model."""
    saved = preferences.load().model
    if saved:
        return ChosenModel(saved)
    found = {provider.name: provider for provider in installed_providers() if provider.has_key}
    name = next((name for name in (*_PREFERRED, *sorted(found)) if name in found), None)
    if name is None:
        return ChosenModel(EMBEDDED, "no API key is set; sidestream keys set NAME stores one")
    variable = next(variable for variable in found[name].key_variables if os.environ.get(variable, "").strip())
    return ChosenModel(name, f"{variable} is set; sidestream models default NAME sets another")


def chosen_by_default(model: str | None, *, is_quiet: bool = False) -> str:
    """The model that was named, else the default; one that the user did not choose is named on standard error."""
    if model is not None:
        return model
    chosen = chosen_model()
    if chosen.reason is not None and not is_quiet:
        click.echo(f"model: {chosen.name} ({chosen.reason})", err=True)
    return chosen.name


def check_model(text: str) -> None:
    """Raises ConfigurationError for a text that names no provider, with the model string that was probably meant."""
    provider = ModelString.parse(text).provider
    try:
        find_provider(provider)
    except UnknownProviderError as error:
        meant = suggestion(text)
        if meant is None:
            raise
        raise ConfigurationError(f"unknown provider {provider!r}: write -m {meant}") from error


def names_of_providers() -> dict[str, str]:
    """Name or alias of a provider → its name."""
    return {alias: info.name for info in installed_providers() for alias in (info.name, *info.aliases)}


def suggestion(text: str) -> str | None:
    """The model string, or the user's own alias, that was probably meant; None if nothing is near."""
    providers = installed_providers()
    names = names_of_providers()
    before, slash, after = text.partition("/")
    if slash and after:
        owner = PROVIDER_NAMES.get(before.lower()) or names.get(before.lower())
        if owner is not None:
            return f"{owner}:{after}"
    family = next((owner for start, owner in FAMILIES.items() if text.lower().startswith(start)), None)
    if family is not None and ":" not in text:
        return f"{family}:{text}"
    head, colon, rest = text.partition(":")
    aliases = preferences.load().aliases
    near = difflib.get_close_matches(head.lower(), [*names, *aliases, *_known_models(providers)], n=1)
    if not near:
        return None
    if near[0] in aliases:
        return near[0]
    owner = names.get(near[0])
    if owner is None:
        return next(f"{info.name}:{near[0]}" for info in providers if near[0] in info.default_models.values())
    return f"{owner}{colon}{rest}"


def _known_models(providers: list[ProviderInfo]) -> list[str]:
    return [name for info in providers for name in info.default_models.values()]

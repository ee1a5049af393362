"""The default model, the user's aliases, and suggestions for misspelled names."""

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import suppress

import click
from msgspec import Struct

from sidestream.cli import preferences
from sidestream.errors import ConfigurationError, UnknownProviderError
from sidestream.providers.registry import ModelString, ProviderInfo, find_provider, installed_providers

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def model_of(text: str) -> str:
    """Return the model string of an alias. Any other string is returned unchanged."""
    return preferences.load().aliases.get(text, text)


def add(name: str, model: str) -> str:
    """Store or replace an alias and return its model string.

    Raises ConfigurationError if the name is invalid or a provider's, or if the model's provider is unknown.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be an alias: use letters, digits, '.', '_' and '-'")
    if name in names_of_providers():
        raise ConfigurationError(f"{name!r} is the name of a provider; choose another alias")
    check_model(model)
    preferences.change(aliases={**preferences.load().aliases, name: model})
    return model


def remove(name: str) -> None:
    """Remove an alias. Raises ConfigurationError with the nearest name if the alias is unknown."""
    known = preferences.load().aliases
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(f"no alias {name!r}; {hint}")
    preferences.change(aliases={key: model for key, model in known.items() if key != name})


EMBEDDED = "local"
_NOT_CHAT = re.compile(r"embed|image|audio|realtime|transcribe|tts|whisper|moderation|video|veo|imagen|live|dall-e")
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
"""Providers, by the beginning of their models' names."""
PROVIDER_NAMES = {"openai": "openai-responses"}
"""Providers, by the name before a slash where that differs."""


class ChosenModel(Struct, frozen=True):
    """A model and the reason for choosing it. None means that the user chose it."""

    name: str
    reason: str | None = None


def default_model() -> str:
    """Return the model for commands that name none."""
    return chosen_model().name


def chosen_model() -> ChosenModel:
    """Choose the default model.

    It is the saved default, else the first provider with a key, else the embedded model. Providers with the most
    server-side tools come first.
    """
    saved = preferences.load().model
    if saved:
        return ChosenModel(saved)
    ready = [provider for provider in installed_providers() if provider.has_key and not provider.missing_variables]
    found = {provider.name: provider for provider in ready}
    name = next((name for name in (*_PREFERRED, *sorted(found)) if name in found), None)
    if name is None:
        return ChosenModel(EMBEDDED, "no API key is set; store one with sidestream keys set NAME")
    variable = next(variable for variable in found[name].key_variables if os.environ.get(variable, "").strip())
    return ChosenModel(name, f"{variable} is set; choose another with sidestream models default NAME")


def chosen_by_default(model: str | None, *, is_quiet: bool = False) -> str:
    """Return the given model or the default.

    Prints the default's name and the reason if the user did not choose it and does not know it yet.
    """
    if model is not None:
        return model
    chosen = chosen_model()
    if chosen.reason is not None and not is_quiet and preferences.load().known_model != chosen.name:
        click.echo(f"model: {chosen.name} ({chosen.reason})", err=True)
        with suppress(ConfigurationError):  # Then the notice is printed again next time.
            preferences.change(known_model=chosen.name)
    return chosen.name


def matching_model(queries: Sequence[str]) -> str:
    """Return the first known model whose name contains all texts, and print it.

    Models of providers with a key are known: their defaults, then those in the price table, newest first. Raises
    ConfigurationError if none matches.
    """
    wanted = [query.lower() for query in queries]
    for name, target in preferences.load().aliases.items():
        if all(query in f"{name} {target}".lower() for query in wanted):
            return _said(target, queries)
    ready = {info.name: info for info in installed_providers() if info.has_key}
    for owner in dict.fromkeys((*(name for name in _PREFERRED if name in ready), *ready)):
        for model in _models_of(ready[owner]):
            if all(query in f"{owner}:{model}".lower() for query in wanted):
                return _said(f"{owner}:{model}", queries)
    raise ConfigurationError(f"no known model contains {' and '.join(queries)}; see sidestream models list PROVIDER")


def _said(model: str, queries: Sequence[str]) -> str:
    click.echo(f"model: {model} (-q {' '.join(queries)})", err=True)
    return model


def _models_of(info: ProviderInfo) -> list[str]:
    """Return the known models of a provider that can chat: its default, then those with a price, newest first."""
    from sidestream.prices.pricing import price_table
    from sidestream.providers.protocol import Settings

    default = info.default_models.get("chat")
    if default is None:
        return []
    model = find_provider(info.name).chat_model(default, Settings(auth=dict[str, str]))
    priced = price_table().lists.get(getattr(model, "price_list", None) or "", {})
    names = [name for name in priced if not _NOT_CHAT.search(name)]
    return [default, *sorted(names, key=_version, reverse=True)]


def _version(name: str) -> tuple[bool, list[int], int]:
    """Return a sort key by the version in a model's name. A name without a date comes before one with it."""
    undated = re.sub(r"-(\d{8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4})$", "", name)
    return undated == name, [int(number) for number in re.findall(r"\d+", undated)], -len(name)


def check_model(text: str) -> None:
    """Check that a model string names a provider. Raises ConfigurationError with a suggestion if it does not."""
    provider = ModelString.parse(text).provider
    try:
        find_provider(provider)
    except UnknownProviderError as error:
        meant = suggestion(text)
        if meant is None:
            raise
        raise ConfigurationError(f"unknown provider {provider!r}; did you mean {meant}?") from error


def names_of_providers() -> dict[str, str]:
    """Return the providers' names, by name and alias."""
    return {alias: info.name for info in installed_providers() for alias in (info.name, *info.aliases)}


def suggestion(text: str) -> str | None:
    """Return the model string or alias that was probably meant, or None if none is similar."""
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
    near = difflib.get_close_matches(head.lower(), [*names, *aliases, *_known_models(providers)], n=1, cutoff=0.7)
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

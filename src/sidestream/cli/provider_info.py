"""What the installed providers need and have, for people to read."""

import os
from typing import Any

from msgspec import Struct

from sidestream.providers.protocol import Provider
from sidestream.providers.registry import providers


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """One provider."""

    name: str
    display_name: str
    aliases: tuple[str, ...] = ()
    default_models: dict[str, str] = {}
    key_variables: tuple[str, ...] = ()
    """Any one of them is enough; none where no key is needed."""
    has_key: bool = False
    server_side_tools: tuple[str, ...] = ()


def facts() -> list[ProviderInfo]:
    """All installed providers, by name."""
    return [_facts(provider) for provider in sorted(providers().values(), key=lambda provider: provider.name)]


def variables() -> dict[str, list[str]]:
    """Variable that holds a key → the providers that read it."""
    readers: dict[str, list[str]] = {}
    for provider in facts():
        for variable in provider.key_variables:
            readers.setdefault(variable, []).append(provider.name)
    return readers


def _facts(provider: Provider) -> ProviderInfo:
    names = key_variables(provider)
    return ProviderInfo(
        name=provider.name,
        display_name=provider.display_name,
        aliases=tuple(provider.aliases),
        default_models=dict(provider.default_models),
        key_variables=names,
        has_key=any(os.environ.get(name, "").strip() for name in names),
        server_side_tools=tuple(sorted(tool.key for tool in provider.server_side_tools)),
    )


def key_variables(provider: Any) -> tuple[str, ...]:
    """The variables that a provider takes its key from, where it says so."""
    one = getattr(provider, "key_variable", None)
    return tuple(getattr(provider, "key_variables", ())) or ((one,) if one else ())

"""The installed providers, as `sidestream models`, `sidestream keys` and the server list them."""

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from sidestream.providers.protocol import Provider
from sidestream.providers.registry import providers
from sidestream.transport.base_urls import base_url_in


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """A provider: its default models, key variables and server-side tools."""

    name: str
    display_name: str
    aliases: tuple[str, ...] = ()
    default_models: dict[str, str] = {}
    key_variables: tuple[str, ...] = ()
    """Any one of them is enough; empty if no key is needed."""
    has_key: bool = False
    server_side_tools: tuple[str, ...] = ()


def installed_providers() -> list[ProviderInfo]:
    """All installed providers, sorted by name."""
    return [_provider_info(provider) for provider in sorted(providers().values(), key=lambda provider: provider.name)]


def providers_by_key_variable() -> dict[str, list[str]]:
    """Environment variable of a key → the names of the providers that use it."""
    names: dict[str, list[str]] = {}
    for provider in installed_providers():
        for variable in provider.key_variables:
            names.setdefault(variable, []).append(provider.name)
    return names


def base_urls() -> dict[str, str]:
    """Environment variable of a base URL → the URL that it holds, or that its provider has without it."""
    found: dict[str, str] = {}
    for provider in providers().values():
        declared: Mapping[str, str] = getattr(provider, "base_urls", {})
        found |= {variable: base_url_in(variable) or url for variable, url in declared.items()}
    return found


def _provider_info(provider: Provider) -> ProviderInfo:
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
    """The environment variables that a provider reads its key from, if it declares any."""
    variable = getattr(provider, "key_variable", None)
    return tuple(getattr(provider, "key_variables", ())) or ((variable,) if variable else ())

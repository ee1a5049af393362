"""Model strings, the provider registry, and the list of installed providers."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidestream.errors import ConfigurationError, SidestreamError, UnknownProviderError
from sidestream.providers.capabilities import Capabilities, declared_caps
from sidestream.providers.protocol import ChatModel, Provider, Settings
from sidestream.text.redaction import redact_url
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.base_urls import base_url_in, missing_variables, url_from_variables

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


GROUP = "sidestream.providers"


class ModelString(Struct, frozen=True):
    """A parsed model string: `provider`, `provider:model` or `provider?chat=…&embeddings=…&media=…`."""

    provider: str
    models: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> "ModelString":
        """Parse a model string, in which the model name may contain `:` and `/`.

        Raises ConfigurationError if the provider is missing or a model kind is unknown.
        """
        head, colon, model = text.partition(":")
        if "?" in head or not colon:
            from urllib.parse import parse_qs

            provider, _, query = text.partition("?")
            kinds = {kind: values[-1] for kind, values in parse_qs(query, keep_blank_values=False).items()}
            unknown = kinds.keys() - {"chat", "embeddings", "media"}
            if unknown:
                raise ConfigurationError(
                    f"unknown model kind {', '.join(sorted(unknown))} in {redact_url(text)!r}; "
                    "use chat, embeddings or media"
                )
            return cls(_named(provider, text), kinds)
        return cls(_named(head, text), {"chat": model} if model else {})


def _named(provider: str, text: str) -> str:
    if not provider.strip():
        raise ConfigurationError(f"the model string {redact_url(text)!r} has no provider; write provider:model")
    return provider.strip()


_registered: dict[str, Provider] = {}


def register_provider(provider: Provider) -> None:
    """Register a provider in this process, under its name and aliases. It takes precedence over installed ones.

    Packages use an entry point of the group `sidestream.providers` instead.
    """
    for name in (provider.name, *provider.aliases):
        _registered[name] = provider


def providers() -> dict[str, Provider]:
    """Return all registered and installed providers, by name."""
    everyone = {provider.name: provider for provider in _registered.values()}
    for entry in _installed(_places()):
        if entry.name not in everyone:
            everyone[entry.name] = entry.load()
    return everyone


def _places() -> tuple[tuple[str, int], ...]:
    """Return the folders in which packages are installed, with their modification times."""

    def changed(path: str) -> int:
        try:
            return os.stat(path or ".").st_mtime_ns
        except OSError:
            return 0

    return tuple((path, changed(path)) for path in sys.path)


@lru_cache(maxsize=1)
def _installed(places: tuple[tuple[str, int], ...]) -> "EntryPoints":
    """Return the entry points of all packages, cached until `places` changes. Reading takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def find_provider(name: str) -> Provider:
    """Return the provider with this name or alias. Raises UnknownProviderError if there is none.

    Other providers are imported only if the name is an alias or unknown.
    """
    if name in _registered:
        return _registered[name]
    if (packaged := _packaged(name)) is not None:
        return packaged
    for entry in _named_entries(name):
        return entry.load()
    names = {alias: provider for provider in providers().values() for alias in (provider.name, *provider.aliases)}
    if name in names:
        return names[name]
    import difflib

    near = [meant] if (meant := _model_meant(name, names)) else difflib.get_close_matches(name, names, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known providers: {', '.join(sorted(names))}."
    raise UnknownProviderError(f"unknown provider {redact_url(name)!r}. {hint}")


@lru_cache
def model_for_prices(model: str) -> ChatModel | None:
    """Return a model for its prices and bills, without a key, or None if its provider is unknown here."""
    try:
        parsed = ModelString.parse(model)
        provider = find_provider(parsed.provider)
        name = parsed.models.get("chat") or provider.default_models.get("chat", "")
        return provider.chat_model(name, Settings(auth=dict[str, str], base_url="http://127.0.0.1"))
    except SidestreamError:
        return None


def _model_meant(text: str, names: dict[str, Provider]) -> str | None:
    """Return the model string for a model without its provider, or with a slash. None if its provider is unknown."""
    before, slash, after = text.partition("/")
    if slash and after:
        return f"{names[before.lower()].name}:{after}" if before.lower() in names else None
    if "-" not in text:
        return None
    family = f"{text.lower().partition('-')[0]}-"
    owners = [each for each in names.values() if each.default_models.get("chat", "").startswith(family)]
    # Of a vendor's APIs, the one that hosts the most tools.
    owner = max(owners, key=lambda each: len(each.server_side_tools), default=None)
    return None if owner is None else f"{owner.name}:{text}"


_OPENAI = {"openai": "openai.chat", "openai-responses": "openai.responses"}


def _packaged(name: str) -> Provider | None:
    """Import a bundled provider by name, without reading entry points, which would load twenty more modules."""
    module = _OPENAI.get(name) or name.replace("-", "_")
    if name not in _OPENAI and not module.isidentifier():
        return None
    try:
        found = getattr(import_module(f"{__package__}.{module}"), "PROVIDER", None)
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{module}":
            raise
        return None
    return found if found is not None and found.name == name else None


def _named_entries(name: str) -> "EntryPoints":
    """Return our own entry point of this name, or else those of other packages, since scanning all of them is slow."""
    from importlib.metadata import PackageNotFoundError, distribution

    with suppress(PackageNotFoundError):
        if own := distribution("sidestream").entry_points.select(group=GROUP, name=name):
            return own
    return _installed(_places()).select(name=name)


def caps_of(provider: object, model: str = "") -> Capabilities:
    """Return the capabilities of a provider, of a model string such as `google:interactions/MODEL`, or of a model.

    ```python
    print(caps_of("anthropic").documents_in)  # True
    ```

    Returns `UNKNOWN` if the provider declares none. Raises UnknownProviderError for an unknown name, and
    ConfigurationError if `provider` is neither a string, a provider nor a model.
    """
    if isinstance(provider, str):
        parsed = ModelString.parse(provider)
        provider, model = find_provider(parsed.provider), model or parsed.models.get("chat", "")
    elif isinstance(provider, ChatModel):
        provider, model = find_provider(provider.provider), model or provider.name
    if not hasattr(provider, "chat_model"):
        raise ConfigurationError(
            f"{provider!r:.80} is not a provider; use caps_of('google'), caps_of('google:MODEL') or caps_of(model)"
        )
    return declared_caps(provider, model)


def is_of_this_machine(model: str) -> bool:
    """Return whether a model string names a local file, or sets options of a local server.

    A provider with such models declares `is_of_this_machine(model)`. Raises ConfigurationError for an invalid string.
    """
    parsed = ModelString.parse(model)
    declared = getattr(find_provider(parsed.provider), "is_of_this_machine", None)
    return declared is not None and any(map(declared, parsed.models.values()))


def hosts_of(tool: type[ServerSideTool]) -> list[str]:
    """Return the names of the providers that host a server-side tool, for error messages."""
    return sorted(provider.name for provider in providers().values() if tool in provider.server_side_tools)


def providers_with(setting: str) -> list[str]:
    """Return the names of the providers that support a portable setting, for error messages."""
    everyone = providers().values()
    return sorted(provider.name for provider in everyone if setting in declared_caps(provider).settings)


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """A description of a provider."""

    name: str
    display_name: str
    short_name: str
    """Name of the vendor, for users who do not choose between its APIs."""
    aliases: tuple[str, ...] = ()
    default_models: dict[str, str] = {}
    key_variables: tuple[str, ...] = ()
    """Environment variables for the key. One is enough. Empty if no key is needed."""
    has_key: bool = False
    credentials: str = ""
    """Other credentials that work in place of a key. Whether there are any is not known before a request."""
    missing_variables: tuple[str, ...] = ()
    """Other environment variables that requests need and that are not set."""
    server_side_tools: tuple[str, ...] = ()


def installed_providers() -> list[ProviderInfo]:
    """List all providers, sorted by name."""
    return [_provider_info(provider) for provider in sorted(providers().values(), key=lambda provider: provider.name)]


def providers_by_key_variable() -> dict[str, list[str]]:
    """Map each key variable to the names of the providers that read it."""
    names: dict[str, list[str]] = {}
    for provider in installed_providers():
        for variable in provider.key_variables:
            names.setdefault(variable, []).append(provider.name)
    return names


def base_urls() -> dict[str, str]:
    """Map each base URL variable to the URL that it holds, or to the provider's default.

    Defaults that need other variables are left out unless these are set.
    """
    found: dict[str, str] = {}
    for provider in providers().values():
        declared: Mapping[str, str] = getattr(provider, "base_urls", {})
        for variable, template in declared.items():
            with suppress(ConfigurationError):
                found[variable] = base_url_in(variable) or url_from_variables(template, who=provider.display_name)
    return found


def _provider_info(provider: Provider) -> ProviderInfo:
    names = key_variables(provider)
    return ProviderInfo(
        name=provider.name,
        display_name=provider.display_name,
        short_name=getattr(provider, "short_name", "") or provider.display_name,
        aliases=tuple(provider.aliases),
        default_models=dict(provider.default_models),
        key_variables=names,
        has_key=any(os.environ.get(name, "").strip() for name in names),
        credentials=getattr(provider, "credentials", ""),
        missing_variables=_missing_variables(provider),
        server_side_tools=tuple(sorted(tool.key for tool in provider.server_side_tools)),
    )


def _missing_variables(provider: Any) -> tuple[str, ...]:
    """Return the variables that a provider says it lacks, or those that its default base URL needs and lacks."""
    declared: tuple[str, ...] | None = getattr(provider, "missing_variables", None)
    template: Any = getattr(provider, "base_url", None)
    if (
        declared is not None
        or not isinstance(template, str)
        or base_url_in(getattr(provider, "base_url_variable", None))
    ):
        return declared or ()
    return missing_variables(template)


def key_variables(provider: Any) -> tuple[str, ...]:
    """Return the environment variables that a provider reads its key from, or none if it declares none."""
    variable = getattr(provider, "key_variable", None)
    return tuple(getattr(provider, "key_variables", ())) or ((variable,) if variable else ())

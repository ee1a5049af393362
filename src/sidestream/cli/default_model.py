"""The model of a command that names none."""

from sidestream.providers.installed import installed_providers

EMBEDDED = "local"
_PREFERRED = ("openai-responses", "anthropic", "google")


def default_model() -> str:
    """The first provider with a key, those with most server-side tools before the others; else the embedded model."""
    found = {provider.name for provider in installed_providers() if provider.has_key}
    return next((name for name in (*_PREFERRED, *sorted(found)) if name in found), EMBEDDED)

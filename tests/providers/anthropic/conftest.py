"""The provider, by its name, and no key of the machine."""

import pytest

from sidestream.providers.anthropic import PROVIDER
from sidestream.providers.registry import register_provider


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    register_provider(PROVIDER)

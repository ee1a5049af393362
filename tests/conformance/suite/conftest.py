"""Whom each test of the suite runs for.

`subject`: every provider, scripted and embedded, or with `make live` the real ones. `wired`: scripted ones only, for
what a real server cannot be asked to do.
"""

import os
from collections.abc import Generator

import pytest

from conformance.suite import subjects


def is_live(config: pytest.Config) -> bool:
    """Whether this run is against the real APIs."""
    return config.pluginmanager.hasplugin(subjects.LIVE_PLUGIN)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wired" in metafunc.fixturenames:
        metafunc.parametrize("wired", subjects.scripted(), ids=lambda subject: subject.id)
    if "subject" in metafunc.fixturenames:
        everyone = subjects.live(os.environ)[0] if is_live(metafunc.config) else _here()
        metafunc.parametrize("subject", everyone, ids=lambda subject: subject.id)


def _here() -> list[object]:
    return [*subjects.scripted(), *subjects.clouds(), _embedded()]


def _embedded() -> object:
    local, reason = subjects.embedded()
    return pytest.param(local, marks=pytest.mark.skipif(reason is not None, reason=reason or ""))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_live(config):
        items[:] = [item for item in items if "subject" in getattr(item, "fixturenames", ())]


@pytest.fixture(scope="session", autouse=True)
def embedded_server_ends() -> Generator[None]:
    """Ends the server that the tests of the embedded model have started."""
    yield
    from sidestream.providers.local.server import stop_now

    stop_now()


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """What this machine has set for a provider changes nothing, but for the real APIs."""
    if is_live(pytestconfig):
        return
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)

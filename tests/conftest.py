"""Settings and fixtures that every test shares."""

import inspect
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sidestream.testing import no_leaks

RECORDINGS = Path(__file__).resolve().parents[2] / "shared" / "recordings"

# The same examples on every run, so that a red test is red again; `deep` looks for new ones.
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of what the providers really sent, which lies beside the project."""
    if not RECORDINGS.is_dir():
        pytest.skip(f"no recordings: {RECORDINGS} is not there")
    return RECORDINGS


@pytest.fixture
async def leaves_nothing_behind() -> AsyncGenerator[None]:
    """Around every async test: no task, socket or thread may outlive it."""
    async with no_leaks():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "leaves_nothing_behind")

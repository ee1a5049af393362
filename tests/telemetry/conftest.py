"""Spans of each test are collected, and all of them must have ended."""

from collections.abc import Generator

import pytest

from conformance.suite import subjects
from telemetry.collected import Collected


@pytest.fixture
def collected() -> Generator[Collected]:
    found = Collected()
    yield found
    found.close()
    assert found.open.names == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wired" in metafunc.fixturenames:
        metafunc.parametrize("wired", subjects.scripted(), ids=lambda subject: subject.id)

"""Sandboxes that tests share."""

import pytest

from support.sandboxes import refusal


@pytest.fixture(scope="session", autouse=True)
def sandboxes() -> None:
    """What a backend keeps for the whole process is started before leaks are counted."""
    for backend in ("bubblewrap", "runsc", "monty"):
        refusal(backend)

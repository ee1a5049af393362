"""Each sandbox against the escape battery, as whoever runs the tests, and as a normal user where that is root."""

import json
import os
from pathlib import Path

import pytest

import escapes
from requirements import requirement
from sandboxes import needs, run_as_user

BACKENDS = ["bubblewrap", "runsc", "monty", "none"]


def expected(backend: str) -> dict[str, str]:
    return {name: "open" if name in escapes.OPEN[backend] else "held" for name in escapes.tried(backend)}


def test_the_battery_has_thirty_attempts_besides_what_must_work() -> None:
    assert len(escapes.ATTEMPTS.keys() - escapes.MUST_WORK) >= 30
    assert all(escapes.OPEN[backend] <= escapes.ATTEMPTS.keys() for backend in BACKENDS)


@requirement("R122")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore::sidestream.portable.sandbox.bare.UnisolatedWarning")
async def test_every_attempt_ends_as_the_table_of_the_sandbox_says(backend: str) -> None:
    needs(backend)
    assert await escapes.battery(backend, escapes.tried(backend)) == expected(backend)


@requirement("R122")
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as a normal user already")
@pytest.mark.parametrize("backend", ["bubblewrap", "runsc"])
def test_the_same_holds_for_a_normal_user(backend: str) -> None:
    needs(backend)
    done = run_as_user(Path(escapes.__file__), backend)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes == expected(backend)

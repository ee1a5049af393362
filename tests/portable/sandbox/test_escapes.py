"""Each sandbox against the escape battery, as whoever runs the tests, and as a normal user where that is root."""

import json
import os
from pathlib import Path

import pytest

import escapes
from requirements import requirement
from support.sandboxes import needs, run_as_user

IS_ROOT = os.geteuid() == 0
BACKENDS = ["bubblewrap", "runsc", "monty", "none"]
WITH_WORKSPACE = [
    ("bubblewrap", "workspace"),
    ("none", "workspace of root" if IS_ROOT else "workspace"),
    *([("bubblewrap", "workspace of root")] if IS_ROOT else []),
]
WARNINGS = [
    "ignore::sidestream.portable.sandbox.bare.UnisolatedWarning",
    "ignore::sidestream.portable.sandbox.workspace.RootWorkspaceWarning",
]


def test_battery_has_fifty_escape_attempts() -> None:
    assert len(escapes.ATTEMPTS.keys() - escapes.MUST_WORK) >= 50
    assert all(names <= escapes.ATTEMPTS.keys() for names in escapes.OPEN.values())


@requirement("R122", "F52")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings(*WARNINGS)
async def test_escape_attempts_end_as_documented(backend: str) -> None:
    needs(backend)
    assert await escapes.battery(backend, escapes.tried(backend)) == escapes.expected(backend, as_root=IS_ROOT)


@requirement("F47")
@pytest.mark.parametrize(("backend", "kind"), WITH_WORKSPACE)
@pytest.mark.filterwarnings(*WARNINGS)
async def test_escape_attempts_in_workspace_end_as_documented(backend: str, kind: str) -> None:
    needs(backend)
    outcomes = await escapes.battery(backend, escapes.tried(backend, kind), kind)
    assert outcomes == escapes.expected(backend, kind, as_root=IS_ROOT, has_cgroup=escapes.has_cgroup())


@requirement("R122", "F47")
@pytest.mark.skipif(not IS_ROOT, reason="the tests run as a normal user already")
@pytest.mark.parametrize(
    ("backend", "kind"), [("bubblewrap", "container"), ("bubblewrap", "workspace"), ("runsc", "container"), ("none", "workspace")]
)  # fmt: skip
@requirement("F52")
@pytest.mark.filterwarnings(*WARNINGS)
def test_escape_attempts_of_normal_user_end_as_documented(backend: str, kind: str) -> None:
    needs(backend)
    done = run_as_user(Path(escapes.__file__), backend, kind)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == escapes.expected(backend, kind, as_root=False)

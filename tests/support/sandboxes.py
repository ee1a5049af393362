"""Sandboxes of this machine, for tests: which of them work, and processes that are not root."""

import asyncio
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sidestream
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import ContainerSpec, SandboxError
from sidestream.portable.sandbox.workspace import Stage

USER = 1000
PACKAGED = ("bubblewrap", "monty")
"""What the pinned extras bring: missing in CI, they are a failure."""


@cache
def refusal(backend: str) -> str | None:
    """Why no container starts here; None if one does."""

    async def probe() -> None:
        container = await choice.start(backend, ContainerSpec(packages=()))
        await container.kill()

    found: list[str] = []

    def run() -> None:
        try:
            asyncio.run(probe())
        except SandboxError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)  # the test may have a running loop
    thread.start()
    thread.join(110)
    return found[0] if found else None


def needs(backend: str) -> None:
    """Skips the test where the sandbox does not work; in CI, one that the extras bring must work."""
    reason = refusal(backend)
    if reason is not None:
        message = f"the sandbox {backend} does not work here: {reason}"
        if os.environ.get("CI") == "true" and backend in PACKAGED:
            pytest.fail(message)
        pytest.skip(message)


def given_to_user(folder: Path) -> Path:
    """Gives a folder with all that is in it to a normal user, if root runs the tests."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
    return folder


def run_as_user(script: Path, *arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Runs a script as a normal user who can read the interpreter and the packages, wherever root keeps them."""
    results: list[Any] = []

    def run() -> None:
        try:
            stage = Stage()
            try:
                prefix = stage.views((sys.base_prefix,))[0]
                python = os.path.join(prefix, "bin", os.path.basename(os.path.realpath(sys.executable)))
                ours = str(Path(sidestream.__file__).parents[1])
                packages = [stage.view(path) for path in (ours, *sys.path) if path.endswith(("src", "site-packages"))]
                environment = {"PYTHONPATH": os.pathsep.join(packages), "LD_LIBRARY_PATH": os.path.join(prefix, "lib")}
                results.append(
                    subprocess.run(
                        [python, "-W", "ignore", os.path.join(stage.view(str(script.parent)), script.name), *arguments],
                        user=USER, group=USER, extra_groups=[], env={"PATH": os.environ.get("PATH", os.defpath), **environment},
                        capture_output=True, text=True, timeout=timeout_s, cwd="/",
                    )
                )  # fmt: skip
            finally:
                stage.close()
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)  # the view belongs to the thread
    thread.start()
    thread.join(110)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]

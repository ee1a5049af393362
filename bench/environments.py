"""Creates the peers' environments, each in its own folder, separate from the project's."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / ".envs"
ROOT = FOLDER.parents[1]

PEERS: dict[str, tuple[str, ...]] = {
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "google-genai": ("google-genai",),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic,google]",),
    "openai-agents": ("openai-agents",),
    "langchain-openai": ("langchain-openai",),
    "langchain-anthropic": ("langchain-anthropic",),
    # Its Responses call imports mcp, which it does not declare.
    "litellm": ("litellm", "mcp"),
    "litellm-proxy": ("litellm[proxy]",),
}
"""Packages of each environment, by name."""

_INSTALLERS = 4
"""Environments that are created at a time."""

_SHOWN = {"pydantic-ai": "pydantic-ai-slim", "litellm-proxy": "litellm"}
_OURS = ("sidestream", "aiohttp", "msgspec", "mcp")


def prepare(
    names: Iterable[str], report: Callable[[str], None], *, upgrade: bool = False
) -> tuple[dict[str, Path], dict[str, str]]:
    """Create the environments, and return the Python of each and the reasons for which others were skipped."""
    names = list(names)
    stale = [name for name in names if upgrade or not _is_installed(name)]
    # Mostly downloads, and each environment has its own folder.
    with ThreadPoolExecutor(_INSTALLERS) as pool:
        failures = pool.map(lambda name: _installed(name, report), stale)
        left_out = {name: reason for name, reason in zip(stale, failures, strict=True) if reason}
    for name, reason in left_out.items():
        report(f"{name} is skipped: {reason}")
    return {name: FOLDER / name / "bin" / "python" for name in names if name not in left_out}, left_out


def _is_installed(name: str) -> bool:
    stamp = FOLDER / name / ".installed"
    return stamp.exists() and stamp.read_text("utf-8") == " ".join(PEERS[name])


def _installed(name: str, report: Callable[[str], None]) -> str | None:
    """Create an environment. Returns the reason if that fails."""
    report(f"installing {' '.join(PEERS[name])}")
    try:
        _install(name, PEERS[name])
    except (OSError, subprocess.CalledProcessError) as error:
        output = (getattr(error, "stderr", None) or str(error)).strip()
        return output.splitlines()[-1][:200] if output else "not installed"
    (FOLDER / name / ".installed").write_text(" ".join(PEERS[name]), "utf-8")
    return None


def versions(pythons: dict[str, Path]) -> dict[str, str]:
    """Return the measured versions by name, ours and its dependencies first, then the peers."""
    known = {name: version(name) for name in _OURS}
    for name, python in pythons.items():
        program = f"import importlib.metadata as m, json; print(json.dumps(m.version({_SHOWN.get(name, name)!r})))"
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        known[name] = json.loads(done.stdout)
    return known


def _install(name: str, packages: tuple[str, ...]) -> None:
    folder, uv = FOLDER / name, _uv()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if uv is None:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade", *packages])
        return
    _run([uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", sys.executable, str(folder)])
    _run([uv, "pip", "install", "--quiet", "--upgrade", "--python", str(folder / "bin" / "python"), *packages])


def _uv() -> str | None:
    """Return the path of make's uv, or of another one. None means to fall back to pip."""
    for candidate in (os.environ.get("UV"), "uv", str(ROOT / ".uv" / "bin" / "uv")):
        path = shutil.which(candidate) if candidate else None
        if path is not None:
            return path
    return None


def _run(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)

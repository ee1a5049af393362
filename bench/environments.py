"""Creates the peers' environments, each in its own folder, separate from the project's."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
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

_SHOWN = {"pydantic-ai": "pydantic-ai-slim", "litellm-proxy": "litellm"}
_OURS = ("sidestream", "aiohttp", "msgspec", "mcp")


def prepare(
    names: Iterable[str], report: Callable[[str], None], *, upgrade: bool = False
) -> tuple[dict[str, Path], dict[str, str]]:
    """Create the environments, and return the Python of each and the reasons for which others were skipped."""
    found: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for name in names:
        python = FOLDER / name / "bin" / "python"
        stamp = FOLDER / name / ".installed"
        wanted = " ".join(PEERS[name])
        if upgrade or not stamp.exists() or stamp.read_text("utf-8") != wanted:
            report(f"installing {wanted}")
            try:
                _install(name, PEERS[name])
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", None) or str(error)
                left_out[name] = output.strip().splitlines()[-1][:200] if output.strip() else "not installed"
                report(f"{name} is skipped: {left_out[name]}")
                continue
            stamp.write_text(wanted, "utf-8")
        found[name] = python
    return found, left_out


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
    FOLDER.mkdir(exist_ok=True)
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

"""`make test-pythons`: the tests on every supported Python that this machine has, each in a venv of its own."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".pythons"
PLACES = (
    "~/.pyenv/versions/{version}*/bin",
    "~/.local/share/uv/python/cpython-{version}*/bin",
    "/opt/python/{version}*/bin",
)
"""Where Pythons are that may not be on PATH."""


def supported() -> list[str]:
    """The versions that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in found if match]


def interpreter(version: str) -> str | None:
    """A Python of this version that runs: a name on PATH may be a shim that does not."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.get_exec_path()]
    for place in PLACES:
        pattern = Path(place.format(version=version)).expanduser()
        folders += sorted(Path("/").glob(str(pattern).lstrip("/")), reverse=True)
    for folder in folders:
        path = shutil.which(name, path=str(folder))
        shown = "import sys; print('%d.%d' % sys.version_info[:2])"
        if (
            path
            and subprocess.run([path, "-c", shown], capture_output=True, text=True, timeout=60).stdout.strip()
            == version
        ):
            return path
    return None


def prepared(version: str, python: str) -> str:
    """The Python of a venv with all that the tests need."""
    venv, uv = VENVS / version, os.environ.get("UV", "uv")
    inside = str(venv / "bin" / "python")
    install = [uv, "pip", "install", "--quiet", "--python", inside]
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--no-python-downloads", "--python", python, str(venv)],
        [*install, "--require-hashes", "-r", "constraints.txt"],
        [*install, "--no-deps", "--no-build-isolation", "--editable", "."],
    ):
        subprocess.run(command, cwd=ROOT, check=True, timeout=1800)
    return inside


def tested(version: str, arguments: list[str]) -> str:
    """What came of the tests on this version, in a few words."""
    python = interpreter(version)
    if python is None:
        return "not on this machine"
    print(f"\n== Python {version}: {python}", flush=True)
    try:
        inside = prepared(version, python)
    except subprocess.CalledProcessError:
        return "what the tests need could not be installed"
    code = subprocess.run([inside, "-m", "pytest", *arguments], cwd=ROOT, timeout=7200).returncode
    return "passed" if code == 0 else f"FAILED with exit code {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="only this version")
    parser.add_argument("--pytest", default="-n auto", help="arguments for pytest")
    options = parser.parse_args()
    outcomes = {version: tested(version, shlex.split(options.pytest)) for version in options.python or supported()}
    print()
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}")
    return 0 if all(outcome in ("passed", "not on this machine") for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

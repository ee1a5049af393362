"""`make test-lowest`: run the tests with the lowest dependency versions that pyproject.toml allows.

An SDK shares its environment with other packages, so its lower bounds are as low as the tests permit.
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".lowest"


def prepared(uv: str) -> str:
    """Create the venv with the lowest versions, and return its Python."""
    inside = str(VENV / "bin" / "python")
    bounds = VENV / "lowest.txt"
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV)], cwd=ROOT, check=True)
    resolve = [uv, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--resolution", "lowest-direct"]
    lowest = [*resolve, "--python", inside, "--all-extras", "--group", "dev", "--output-file", str(bounds)]
    subprocess.run([*lowest, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    install = [uv, "pip", "install", "--quiet", "--python", inside]
    subprocess.run([*install, "--requirement", str(bounds)], cwd=ROOT, check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", "."], cwd=ROOT, check=True)
    return inside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pytest", default="-n auto", help="arguments for pytest")
    arguments = shlex.split(parser.parse_args().pytest)
    inside = prepared(os.environ.get("UV", "uv"))
    print((VENV / "lowest.txt").read_text("utf-8"), flush=True)
    return subprocess.run([inside, "-m", "pytest", *arguments], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())

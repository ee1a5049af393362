"""`make release-check`: build the packages and try them as users get them.

For each supported Python on this machine, it installs the wheel into clean environments, without extras and with each
extra, and runs the examples and the demo with all extras. It prints sizes and times, and exits with 1 if anything
fails.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pythons import interpreter, supported  # noqa: E402  # the same search as `make test-pythons`

UV = os.environ.get("UV", "uv")
MAX_WHEEL_MB = 5.0
"""Limit for the web UI, the demo's recordings and the code. A larger wheel contains something by mistake."""
SKIPPED = {"fastapi_stream": "it serves until it is stopped"}
SMOKE = """
import importlib, sys
import sidestream
heavy = {"aiohttp", "pydantic", "mcp", "starlette", "rich"} & sys.modules.keys()
assert not heavy, heavy
for name in sidestream.__all__:
    try:
        getattr(sidestream, name)
    except sidestream.errors.MissingExtraError as error:
        assert error.extra, name
print(sidestream.__version__)
"""
TRIES = {
    "cli": ["-m", "sidestream", "--version"],
    "fetch": ["-c", "import html_to_markdown, selectolax, pypdfium2, docx; import sidestream.portable.documents"],
    "index": ["-c", "import apsw, numpy, sqlite_vec; import sidestream.portable.index"],
    "keyring": ["-c", "import keyring"],
    "local": ["-c", "import xllamacpp; from sidestream import Agent; Agent('local')"],
    "mcp": ["-c", "import sidestream.mcp; sidestream.mcp.MCPServer"],
    "otel": ["-c", "import sidestream.telemetry.spans"],
    "postgres": ["-c", "import sidestream.store.postgres"],
    "s3": ["-c", "import obstore"],
    "server": ["-c", "from sidestream.server import create_app; create_app"],
}
"""Python arguments that must work with each extra."""


class Failures:
    """Failures, in order of occurrence."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, what: str, command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> bool:
        """Run a command, and record a failure and return False if it fails."""
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800
        )
        mark = "ok" if done.returncode == 0 else "FAILED"
        print(f"  {what:<44} {mark:<7} {time.monotonic() - started:6.1f} s", flush=True)
        if done.returncode:
            self.lines.append(f"{what}: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.returncode == 0


def build(folder: Path, failures: Failures) -> Path | None:
    """Build the wheel from the source distribution, check it, and return its path."""
    if not failures.run("build", [UV, "build", "--quiet", "--out-dir", str(folder)]):
        return None
    files = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz")]
    failures.run("twine check", [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    for path in files:
        print(f"  {path.name:<44} {path.stat().st_size / 1e6:7.2f} MB")
    (wheel,) = (path for path in files if path.suffix == ".whl")
    if wheel.stat().st_size > MAX_WHEEL_MB * 1e6:
        failures.lines.append(f"{wheel.name} has more than {MAX_WHEEL_MB} MB")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("sidestream/py.typed", "sidestream/server/page/index.html"):
        if needed not in names:
            failures.lines.append(f"{wheel.name} lacks {needed}")
    return wheel


def extras() -> list[str]:
    """Return the project's extras, with `all` last."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return sorted(found, key=lambda extra: (extra == "all", extra))


def try_extra(python: str, wheel: Path, extra: str, folder: Path, failures: Failures) -> str | None:
    """Install the wheel with this extra into a clean environment, and return its Python if everything works."""
    venv, inside = folder / (extra or "none"), str(folder / (extra or "none") / "bin" / "python")
    what = f"{wheel.name.split('-')[0]}[{extra}]" if extra else "no extra"
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    made = failures.run(
        f"{what}: venv", [UV, "venv", "--quiet", "--no-python-downloads", "--python", python, str(venv)]
    )
    if not made or not failures.run(
        f"{what}: pip install", [UV, "pip", "install", "--quiet", "--python", inside, requirement]
    ):
        return None
    works = failures.run(f"{what}: import", [inside, "-c", SMOKE])
    if extra in TRIES:
        works = failures.run(f"{what}: first use", [inside, *TRIES[extra]]) and works
    return inside if works else None


def example_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each command in examples/README.md."""
    page = (ROOT / "examples" / "README.md").read_text("utf-8")
    block = re.search(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        words = shlex.split(line)
        if words[:1] == ["python"]:
            yield Path(words[1]).stem, words[1:]


def try_examples(inside: str, folder: Path, failures: Failures) -> None:
    """Run the examples and the demo in a folder without the package's source."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    demo = folder / "src" / "sidestream" / "cli" / "commands" / "demo"
    recordings = shutil.ignore_patterns("*.py", "__pycache__")
    shutil.copytree(ROOT / "src" / "sidestream" / "cli" / "commands" / "demo", demo, ignore=recordings)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__", "site"))
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    env = {**kept, "HOME": str(folder)}
    for name, arguments in example_commands():
        if name in SKIPPED:
            print(f"  {name:<44} left out: {SKIPPED[name]}")
        else:
            options = ["--yes"] if "--yes" in (ROOT / "examples" / f"{name}.py").read_text("utf-8") else []
            failures.run(f"examples/{name}.py", [inside, *arguments, *options], cwd=folder, env=env)
    failures.run("sidestream demo --fast", [inside, "-m", "sidestream", "demo", "--fast"], cwd=folder, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="only this version")
    parser.add_argument("--extra", action="append", help="only this extra")
    chosen = parser.parse_args()
    failures = Failures()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("the packages")
        wheel = build(folder / "dist", failures)
        for version in (chosen.python or supported()) if wheel else []:
            python = interpreter(version)
            if python is None:
                print(f"Python {version}: not on this machine")
                continue
            print(f"Python {version}: {python}")
            inside = None
            for extra in chosen.extra or ["", *extras()]:
                assert wheel is not None
                inside = try_extra(python, wheel, extra, folder / version, failures)
            if inside is not None and not chosen.extra:
                (folder / version / "work").mkdir()
                try_examples(inside, folder / version / "work", failures)
    print(*(["", "FAILED:", *failures.lines] if failures.lines else ["", "everything works"]), sep="\n")
    return 1 if failures.lines else 0


if __name__ == "__main__":
    sys.exit(main())

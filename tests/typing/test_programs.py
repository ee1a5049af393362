"""Type checkers accept typical programs of users, and report typical mistakes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import requirement
from support.places import ROOT

HERE = Path(__file__).parent
FILES = [str(HERE / name) for name in ("programs.py", "mistakes.py")]
BIN = Path(sys.executable).parent
CHECKED_S = 280.0
"""Without a cache, mypy needs half a minute of one processor, which others may use too."""
pytestmark = pytest.mark.timeout(CHECKED_S + 20)


def expected() -> set[tuple[str, int]]:
    lines = (HERE / "mistakes.py").read_text("utf-8").splitlines()
    return {("mistakes.py", number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def output_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=CHECKED_S, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


@requirement("R203")
def test_pyright_reports_exactly_mistakes():
    found = json.loads(output_of(str(BIN / "pyright"), "--outputjson", *FILES))["generalDiagnostics"]
    errors = [entry for entry in found if entry["severity"] == "error"]
    lines = {(Path(entry["file"]).name, entry["range"]["start"]["line"] + 1) for entry in errors}
    assert lines == expected(), [entry["message"] for entry in errors]


@requirement("R203")
def test_mypy_reports_exactly_mistakes():
    text = output_of(str(BIN / "mypy"), "--strict", "--no-error-summary", "--hide-error-context", *FILES)
    found = re.findall(r"^(\S+?):(\d+): error: ", text, re.MULTILINE)
    assert {(Path(file).name, int(line)) for file, line in found} == expected(), text

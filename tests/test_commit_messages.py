"""The commit-msg hook that `make setup` installs."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / "tools/hooks/commit-msg"
REFUSED = {
    "": "must not be empty",
    "x" * 73: "must have at most 72 characters, not 73",
    "fix the pipe": "capital letter",
    "Fix the pipe.": "period",
    "The pipe is closed": "imperative verb",
    "Closes the pipe": "imperative verb",
    "Closed the pipe": "imperative verb",
    "Close the pipe\nand the file": "second line must be blank",
}


def run_hook(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "message"
    file.write_text(message)
    return subprocess.run([HOOK, file], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("message", REFUSED)
def test_commit_hook_refuses_invalid_subject(message: str, tmp_path: Path) -> None:
    outcome = run_hook(message, tmp_path)
    assert outcome.returncode == 1
    assert REFUSED[message] in outcome.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Close the pipe",
        "Close the pipe\n\nIts reader waited for the end.",
        "Process frames in order",
        f"Close {66 * 'ä'}",
        "# A comment of git\nClose the pipe",
        "Merge branch 'main' into feature with a name that is longer than the limit for subjects",
    ],
)
def test_commit_hook_accepts_valid_message(message: str, tmp_path: Path) -> None:
    assert run_hook(message, tmp_path).returncode == 0

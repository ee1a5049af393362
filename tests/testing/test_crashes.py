"""The crash loop, in programs of their own: it forks."""

import subprocess
import sys
from pathlib import Path

from requirements import requirement

LOOP = """
import sqlite3, sys
from pathlib import Path
from sidestream.testing import CrashLoopError, crash_loop, failpoint

failpoint()  # nothing happens outside of a loop

def program(folder):
{body}

try:
    for run in crash_loop(program, Path(sys.argv[1]), timeout_s={timeout_s}, max_runs={max_runs}):
        print(run.point, run.is_complete, *sorted(path.name for path in run.folder.iterdir()))
except CrashLoopError as error:
    print("error:", error)
"""


def looped(folder: Path, *body: str, timeout_s: float = 30, max_runs: int = 20) -> list[str]:
    """What is printed by the loop over a program of these lines."""
    program = LOOP.format(body="\n".join(f"    {line}" for line in body), timeout_s=timeout_s, max_runs=max_runs)
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@requirement("F32")
def test_program_is_killed_at_each_file_operation_and_failpoint(tmp_path: Path):
    lines = ('(folder / "a").write_text("x")', "failpoint()", '(folder / "b").mkdir()')
    assert looped(tmp_path, *lines) == [
        "0 False",
        "1 False a",
        "2 False a",
        "3 True a b",
    ]


@requirement("F32")
def test_program_is_killed_at_each_database_statement(tmp_path: Path):
    lines = (
        'database = sqlite3.connect(folder / "x.db", isolation_level=None)',
        'database.execute("CREATE TABLE t (n)")',
        'database.execute("INSERT INTO t VALUES (1)")',
    )
    runs = looped(tmp_path, *lines)
    assert len(runs) >= 3
    assert runs[-1].split()[1:3] == ["True", "x.db"]
    assert all(run.split()[1] == "False" for run in runs[:-1])


def test_program_failing_by_itself_is_not_crash(tmp_path: Path):
    (line,) = looped(tmp_path, "raise ValueError")
    assert line.startswith("error: the run in")


def test_hanging_program_is_ended(tmp_path: Path):
    (line,) = looped(tmp_path, "import time", "time.sleep(60)", timeout_s=0.2)
    assert line.startswith("error: the run in")


def test_program_with_too_many_points_is_error(tmp_path: Path):
    *runs, last = looped(tmp_path, "for _ in range(10):", "    failpoint()", max_runs=3)
    assert [run.split() for run in runs] == [[str(number), "False"] for number in range(3)]
    assert last.startswith("error: ")

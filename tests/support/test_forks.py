"""Tests in forks: each runs once, failures and ended workers are reported, and the rest still runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.forks import NOBODY, Shares
from support.warm import run

TESTS = Path(__file__).parents[1]


def forked(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in two forks, with only its own plugins, on one file of tests."""
    (folder / "test_it.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "support.forks",
        "--forks",
        "2",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)


def test_each_test_runs_once_in_its_own_folder_of_worker(tmp_path: Path):
    source = """
import os, pathlib, pytest
from support.waiting import wait_until
LOG = pathlib.Path(__file__).with_name("log")
@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path):
    assert os.environ["PYTEST_XDIST_WORKER"] in str(tmp_path)
    with LOG.open("a") as log:
        log.write(f"{number} {os.getpid()}\\n")
    wait_until(lambda: len({line.split()[1] for line in LOG.read_text().splitlines()}) == 2)
"""
    ended = forked(tmp_path, source)
    assert ended.returncode == 0, ended.stdout
    assert "40 passed" in ended.stdout
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(40))
    assert len({pid for _, pid in lines}) == 2


def test_failure_shows_its_output_and_other_tests_run(tmp_path: Path):
    source = "def test_a(): pass\ndef test_b():\n    print('seen here')\n    assert 1 == 2\ndef test_c(): pass\n"
    ended = forked(tmp_path, source)
    assert ended.returncode == 1
    assert re.search(r"1 failed, 2 passed", ended.stdout)
    assert "assert 1 == 2" in ended.stdout
    assert ended.stdout.count("seen here") == 2  # In the source and in the captured output.


def test_ended_worker_fails_its_test_and_is_replaced(tmp_path: Path):
    source = "import os, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_n(n):\n    if n == 1: os._exit(3)\n"
    ended = forked(tmp_path, source)
    assert ended.returncode == 1
    assert "ended with status 3 in test_it.py::test_n[1]" in ended.stdout
    assert "1 failed, 8 passed" in ended.stdout


def test_maxfail_stops_all_workers(tmp_path: Path):
    source = "import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_n(n): assert False\n"
    ended = forked(tmp_path, source, "-x", "--tb=no")
    assert ended.returncode == 1
    assert int(re.search(r"(\d+) failed", ended.stdout)[1]) < 200  # pyright: ignore[reportOptionalSubscript]


def test_worker_without_tests_takes_half_of_largest_share():
    shares = Shares(12, 2)
    ran = {shares.advance(0)[0] for _ in range(6)}
    assert ran == {0, 1, 2, 3, 4, 5}
    assert shares.advance(0) == (9, 10)
    rest = [shares.advance(1)[0] for _ in range(4)]
    assert rest == [6, 7, 8, 11]
    assert [shares.advance(0)[0], shares.advance(0)[0], shares.advance(1)[0]] == [10, NOBODY, NOBODY]

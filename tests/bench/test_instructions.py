"""Eight cases execute no more than their numbers in `bench/instructions.json`."""

# pyright: reportMissingImports=false

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the bench is no part of the package

from bench.counting import Count, Counter  # noqa: E402
from bench.instructions import ACCEPT, COUNTED, VERSION, compared, known  # noqa: E402
from bench.processes import environment  # noqa: E402

PATIENCE_S = 100


@pytest.mark.filterwarnings("default:.*Lower the number:UserWarning")
def test_cases_stay_within_their_numbers() -> None:
    numbers = known()
    if not numbers:
        pytest.skip(f"bench/instructions.json has no numbers for Python {VERSION}; write them with `{ACCEPT}`")
    command = [sys.executable, "-m", "bench.instructions", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = {name: Count(**count) for name, count in json.loads(done.stdout).items()}
    assert measured.keys() == COUNTED.keys()
    above, below = compared(measured, numbers)
    for line in below:
        warnings.warn(line, stacklevel=1)
    if above:
        pytest.fail("\n".join(above), pytrace=False)


@pytest.mark.parametrize(
    ("measured", "is_above", "is_below"),
    [
        (Count(1030, 100), False, False),
        (Count(1031, 100), True, False),
        (Count(1000, 104), True, False),
        (Count(970, 97), False, False),
        (Count(969, 100), False, True),
        (Count(960, 104), True, True),
    ],
)
def test_three_percent_above_number_is_allowed(measured: Count, is_above: bool, is_below: bool) -> None:
    above, below = compared({"loop": measured}, {"loop": Count(1000, 100)})
    assert (bool(above), bool(below)) == (is_above, is_below)


def test_failure_names_case_counts_and_command() -> None:
    (line,), below = compared({"loop": Count(1100, 100)}, {"loop": Count(1000, 100)})
    assert not below
    assert all(said in line for said in ("loop", "1,100 bytecodes", "1,000", "10.0%", ACCEPT))


def test_case_without_number_fails() -> None:
    (line,), _ = compared({"loop": Count(1, 1)}, {"log": Count(1, 1)})
    assert "loop" in line
    assert ACCEPT in line


def nothing() -> None:
    pass


def lean(values: list[str]) -> None:
    for value in values:
        value.strip()


def wasteful(values: list[str]) -> None:
    for value in values:
        value.strip()
        nothing()


def count_of(function: Callable[[list[str]], None]) -> Count:
    counter, values = Counter(), ["a"] * 100
    counter.start()
    try:
        function(values)
        counter.reset()
        function(values)
    finally:
        counter.stop()
    return counter.total()


def test_counter_repeats_and_notices_needless_call() -> None:
    once, more = count_of(lean), count_of(wasteful)
    assert once == count_of(lean)
    assert once.calls == 101
    assert more.calls == once.calls + 100
    assert more.bytecodes > once.bytecodes + 300

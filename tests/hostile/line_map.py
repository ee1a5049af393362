"""A pytest plugin that records which test executes which lines of the package, and how long each test takes.

It needs the environment variable LINE_MAP, the folder for its files.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

VARIABLE = "LINE_MAP"
Lines = dict[str, dict[int, list[str]]]
"""Path below the source folder → line → ids of the tests that execute it."""


class LineMap:
    """Switches the context of the measurement to each test."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.times: dict[str, float] = {}
        self.failed: set[str] = set()
        self._times_file = folder / f"{os.getpid()}.json"
        self._coverage = coverage.Coverage(
            data_file=str(folder / f"{os.getpid()}.lines"), source=[str(source)], config_file=False, messages=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times[report.nodeid] = self.times.get(report.nodeid, 0.0) + report.duration
        self.failed |= {report.nodeid} if report.failed else set()

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._times_file.write_text(json.dumps({test: s for test, s in self.times.items() if test not in self.failed}))


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("numprocesses", None):  # Not in the process that only distributes tests.
        config.pluginmanager.register(LineMap(Path(os.environ[VARIABLE]), config.rootpath / "src"))


def read(folder: Path, source: Path) -> tuple[Lines, dict[str, float]]:
    """Return the tests of each line, and the seconds of each test that passed."""
    lines: Lines = {}
    times: dict[str, float] = {}
    for path in folder.glob("*.lines"):
        data = coverage.CoverageData(str(path))
        data.read()
        for name in data.measured_files():
            known = lines.setdefault(Path(name).relative_to(source).as_posix(), defaultdict(list))
            for line, tests in data.contexts_by_lineno(name).items():
                known[line] += filter(None, tests)
    for path in folder.glob("*.json"):
        times |= json.loads(path.read_text())
    return lines, times

"""A pytest plugin that runs each test again with each mutant that it executes.

All mutants are compiled into the package, each behind a switch, so one process tries many of them: a mutant is worth
no more than a few further runs of a test. The plugin must be loaded before the package, so name it in PYTEST_PLUGINS; the
environment variable MUTANTS names the folder with `mutants.json`, which gets the outcomes.
"""

import ast
import builtins
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple, cast

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings
from pytest_timeout import Settings

VARIABLE = "MUTANTS"
PACKAGE = "sidestream"
SEEN = "__seen__"
ACTIVE = "__active__"
MAX_CASES = 20
"""Runs of a mutant with cases of one test."""
SLOW_S = 2.0
"""Tests from this duration on are run again only with mutants that few others have tried."""
FEW = 3
MAX_NOTES = 200
"""Tests that each process notes for a mutant without a switch."""
MAX_TEST_S = 30.0
"""Longer tests are not run again."""
MAX_CPU_S = 60.0
"""Processor time of the runs of a mutant that do not notice it, in one process."""
seen: set[str] = set()
"""Mutants that the current test has executed."""
active: set[str] = set()
"""The mutant that is switched on, if any."""


class Change(NamedTuple):
    """A part of a file and the code that replaces it. A mutant without code only notes that its file is used."""

    id: str
    start: tuple[int, int]
    end: tuple[int, int]
    code: str | None


class Switches(ast.NodeTransformer):
    """Puts changes beside the code that they change, behind a switch."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes: dict[tuple[int, int, int, int], list[Change]] = defaultdict(list)
        for change in changes:
            if change.code is not None:
                self._changes[*change.start, *change.end].append(change)
        self._notes = [change.id for change in changes if change.code is None]

    def visit(self, node: ast.AST) -> ast.AST:
        found = self._found(node) if isinstance(node, ast.expr | ast.stmt) else ()
        node = self.generic_visit(node)
        for change in found:
            assert change.code is not None
            [new] = ast.parse(change.code).body
            if isinstance(node, ast.stmt):
                node = ast.copy_location(ast.If(_switch(change.id), [new], [node]), node)
            elif isinstance(node, ast.expr):
                node = ast.copy_location(ast.IfExp(_switch(change.id), cast("ast.Expr", new).value, node), node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._notes:
            at = int(ast.get_docstring(node) is not None)
            node.body[at:at] = [ast.Expr(_call(id)) for id in self._notes]
        return node

    def _found(self, node: ast.expr | ast.stmt) -> Sequence[Change]:
        place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        # A statement of one expression has the same place, and a parent comes before its children.
        if isinstance(node, ast.Expr) and any(change.code != "pass" for change in self._changes.get(place, ())):
            return ()
        return self._changes.pop(place, ())


def _call(id: str) -> ast.Call:
    return ast.Call(ast.Name(SEEN, ast.Load()), [ast.Constant(id)], [])


def _switch(id: str) -> ast.expr:
    is_active = ast.Compare(ast.Constant(id), [ast.In()], [ast.Name(ACTIVE, ast.Load())])
    return ast.BoolOp(ast.Or(), [_call(id), is_active])


class Loader(SourceFileLoader):
    """Compiles a module with its mutants, and keeps no bytecode of it."""

    changes: Sequence[Change] = ()

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path))
        Switches(self.changes).visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Finder:
    """Finds the modules that have mutants, for the loader."""

    def __init__(self, changes: dict[str, list[Change]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        file = spec.loader.path
        place = Path(file[file.rindex(f"{os.sep}{PACKAGE}{os.sep}") + 1 :]).as_posix()
        if place in self._changes:
            spec.loader = Loader(spec.loader.name, file)
            spec.loader.changes = self._changes[place]
        return spec


class Trials:
    """Runs tests again, and writes what has come of it."""

    def __init__(self, folder: Path, changes: dict[str, list[Change]]) -> None:
        self._folder = folder
        every = [change for found in changes.values() for change in found]
        self._switched = {change.id for change in every if change.code is not None}
        self._open = {change.id for change in every}
        self._runs = Counter[str]()
        self._cases = Counter[tuple[str, str]]()
        self._cpu_s: dict[str, float] = defaultdict(float)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8")

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._open = {id for id in self._open if self._is_open(id)}
        if not self._open:
            item.session._setupstate.teardown_exact(None)
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        seen.clear()
        begin = time.monotonic()
        reports = run(item, 120)
        usual_s = time.monotonic() - begin
        reached = sorted(seen)
        if all(report.passed for report in reports) and usual_s < MAX_TEST_S:
            for id in reached:
                if id in self._switched and (usual_s < SLOW_S or self._runs[id] < FEW):
                    self._try(item, id, 10 + 10 * usual_s)
                elif id not in self._switched:
                    self._runs[id] += 1
                    self._write(id, "reached", item, usual_s)
        try:
            item.session._setupstate.teardown_exact(nextitem)
        except Exception as error:
            print(f"{item.nodeid}: {error!r}", file=sys.stderr)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _try(self, item: pytest.Item, id: str, timeout_s: float) -> None:
        case = (id, item.nodeid.partition("[")[0])
        if self._cases[case] == MAX_CASES or not self._is_open(id):
            return
        self._cases[case] += 1
        self._runs[id] += 1
        begin, begin_cpu_s = time.monotonic(), time.process_time()
        active.add(id)
        seen.clear()
        try:
            is_missed = all(report.passed for report in run(item, timeout_s))
        except BaseException:
            is_missed = False  # A timeout may come between two phases of the test.
        finally:
            active.clear()
        self._cpu_s[id] += time.process_time() - begin_cpu_s
        if is_missed:
            # A fixture that other tests use too has executed it, and was kept.
            self._write(id, "missed" if id in seen else "reached", item, time.monotonic() - begin)
            return
        is_sure = all(report.passed for report in run(item, timeout_s))  # Without the mutant.
        self._write(id, "noticed" if is_sure else "unsure", item, time.monotonic() - begin)
        if is_sure:
            (self._folder / id).touch()

    def _is_open(self, id: str) -> bool:
        """Whether a mutant is worth another test."""
        if id in self._switched:
            return self._cpu_s[id] <= MAX_CPU_S and not (self._folder / id).exists()
        return self._runs[id] < MAX_NOTES

    def _write(self, id: str, outcome: str, item: pytest.Item, seconds: float) -> None:
        line = {"id": id, "outcome": outcome, "test": item.nodeid, "s": round(seconds, 3)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def run(item: pytest.Item, timeout_s: float) -> list[pytest.TestReport]:
    """Run a test once, with its own fixtures new and those of its module kept."""
    timer = Settings(timeout_s, "signal", func_only=False, disable_debugger_detection=False)
    item.ihook.pytest_timeout_cancel_timer(item=item)
    item.ihook.pytest_timeout_set_timer(item=item, settings=timer)
    if isinstance(item, pytest.Function):
        item._initrequest()
    try:
        return runtestprotocol(item, nextitem=cast("pytest.Item", item.parent), log=False)
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)


def read(folder: Path) -> dict[str, list[Change]]:
    """Return the changes by path, which starts with the package."""
    found = json.loads((folder / "mutants.json").read_text("utf-8"))
    return {
        path: [Change(id, tuple(start), tuple(end), code) for id, start, end, code in changes]
        for path, changes in found.items()
    }


if os.environ.get(VARIABLE):
    place = Path(os.environ[VARIABLE])
    mutants = read(place)
    setattr(builtins, SEEN, seen.add)
    setattr(builtins, ACTIVE, active)
    sys.meta_path.insert(0, Finder(mutants))  # type: ignore[arg-type]

    def pytest_configure(config: pytest.Config) -> None:
        if not config.getoption("numprocesses", None):  # Not in the process that only distributes tests.
            config.pluginmanager.register(Trials(place, mutants))
        # A failing example needs not be the smallest.
        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

"""`make mutate`: changes the code in small ways and looks whether a test notices.

A mutant is one change of one file. The tests run once to find out which of them execute which line; then each mutant is
tried with tests that execute its line, in a copy of the project, so the working tree is never touched. A mutant that no
test notices survives: a test is missing, or the change means nothing.
"""

import argparse
import ast
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

from hostile.line_map import VARIABLE, read
from support.places import ROOT

SOURCE = Path("src") / "sidestream"
PACKAGES = ("turn", "tools", "run", "store", "providers", "wire", "protocols", "server", "durable")
SLOW = ("bench", "docs", "examples", "hostile", "page", "prices", "support", "telemetry", "testing")
"""Folders of tests that are not asked: they are slow or are about something else."""
MAX_TESTS = 60
MAX_SECONDS = 40.0
"""Of the tests of one mutant, in the order of their duration."""
MAX_MODULES = 8
"""Modules of tests that are loaded for one mutant."""
MAX_TEST_S = 300.0
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


class Mutant(NamedTuple):
    """One change: lines of a file, and what they become."""

    path: Path
    line: int
    end: int
    what: str
    code: str
    """The whole file with the change."""


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of a file."""
    code = (ROOT / path).read_text("utf-8")
    for node, new, what in changes(ast.parse(code)):
        changed = replaced(code, node, new)
        if changed != code:
            yield Mutant(path, node.lineno, node.end_lineno or node.lineno, what, changed)


def changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """(node, the code in its place, what was done)."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[op]) if type(op) in SWAPS:
                yield node, swapped(node, "ops", [SWAPS[type(op)]()]), "comparison"
            case ast.BoolOp(op=op):
                yield node, swapped(node, "op", SWAPS[type(op)]()), "and/or"
            case ast.BinOp(op=ast.Add() | ast.Sub() as op):
                yield node, swapped(node, "op", SWAPS[type(op)]()), "arithmetic"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, ast.unparse(operand), "negation removed"
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield test, f"(not ({ast.unparse(test)}))", "negated condition"
            case ast.Constant(value=bool() as value):
                yield node, str(not value), "constant"
            case ast.Constant(value=int() as value):
                yield node, f"({value + 1})", "constant"
            case ast.Return(value=ast.expr() as value) if not is_none(value):
                yield node, "return None", "returns None"
            case (
                ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break()
            ):
                yield node, "pass", "statement removed"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield node, "pass", "statement removed"
            case _:
                pass


def is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def swapped(node: ast.expr, field: str, value: object) -> str:
    """The node's code with another operator; the node stays as it is."""
    old = getattr(node, field)
    setattr(node, field, value)
    try:
        return f"({ast.unparse(node)})"
    finally:
        setattr(node, field, old)


def replaced(code: str, node: ast.expr | ast.stmt, new: str) -> str:
    """The code with other text in the place of a node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = code.encode().splitlines(keepends=True)  # columns count bytes
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = code.encode()
    return (data[:start] + new.encode() + data[end:]).decode()


def copied(folder: Path) -> None:
    """The project without what it made, beside the same recordings."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for name in tracked.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if (ROOT.parent / "shared").is_dir():
        (folder.parent / "shared").symlink_to(ROOT.parent / "shared")


class Tests:
    """Which tests execute which line, and how long they take."""

    def __init__(self, folder: Path) -> None:
        """Run the tests of a copy of the project once."""
        places = [f"tests/{path.name}" for path in sorted((ROOT / "tests").iterdir()) if has_tests(path)]
        with tempfile.TemporaryDirectory() as place:
            command = [*PYTEST, "-n", "auto", "-p", "hostile.line_map", *places]
            done = subprocess.run(command, cwd=folder, env=environment(folder, place), check=False, timeout=7200)
            if done.returncode not in (0, 1):
                sys.exit("the tests could not be run")
            self._lines, self._times = read(Path(place), folder / "src")

    def of(self, mutant: Mutant) -> list[str]:
        """Return tests that execute the lines of a mutant: its own folder's first, then the quickest."""
        lines = self._lines.get(mutant.path.relative_to("src").as_posix(), {})
        executed = {test for line in range(mutant.line, mutant.end + 1) for test in lines.get(line, ())}
        found = executed & self._times.keys()  # The others fail without any change.
        near = f"tests/{mutant.path.relative_to(SOURCE).parts[0]}/"
        chosen: list[str] = []
        modules: set[str] = set()
        left_s = MAX_SECONDS
        for test in sorted(found, key=lambda test: (not test.startswith(near), self._times[test])):
            module = test.partition("::")[0]
            if len(chosen) == MAX_TESTS or (module not in modules and len(modules) == MAX_MODULES):
                continue
            left_s -= self._times[test]
            if left_s < 0 and chosen:
                break
            chosen.append(test)
            modules.add(module)
        # What runs as a module is imported belongs to no test.
        return chosen or [near] * (ROOT / near).is_dir()


def has_tests(path: Path) -> bool:
    return path.is_dir() and path.name not in SLOW and any(path.rglob("test_*.py"))


def environment(folder: Path, place: str = "") -> dict[str, str]:
    paths = os.pathsep.join([str(folder / "src"), str(folder / "tests")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", VARIABLE: place}


def is_noticed(folder: Path, tests: list[str]) -> bool:
    """Whether the tests of a copy fail; tests that do not end have noticed too."""
    command = [*PYTEST, "-x", "-n", "0", "-p", "no:randomly", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment(folder), capture_output=True, timeout=MAX_TEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def diff_of(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text("utf-8").splitlines(keepends=True)
    lines = difflib.unified_diff(before, mutant.code.splitlines(keepends=True), n=1)
    return "".join(line for line in lines if not line.startswith(("---", "+++")))


def tried(mutant: Mutant, tests: Tests, folders: SimpleQueue[Path]) -> bool:
    """Whether the tests of a mutant notice it."""
    chosen = tests.of(mutant)
    if not chosen:
        return False
    folder = folders.get()
    try:
        (folder / mutant.path).write_text(mutant.code, "utf-8")
        return is_noticed(folder, chosen)
    finally:
        shutil.copy2(ROOT / mutant.path, folder / mutant.path)
        folders.put(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--count", type=int, default=150, help="mutants in all")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=7200, help="after which no further mutant is tried")
    options = parser.parse_args()
    files = [path for name in options.packages for path in sorted((ROOT / SOURCE / name).rglob("*.py"))]
    every = [mutant for path in files for mutant in mutants_of(path.relative_to(ROOT))]
    drawn = Random(options.seed).sample(every, min(options.count, len(every)))
    print(f"seed {options.seed}: {len(drawn)} of {len(every)} mutants", flush=True)
    until = time.monotonic() + options.seconds
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(processors) as threads:
        folders = SimpleQueue[Path]()
        copies = [Path(place) / str(number) / "project" for number in range(processors)]
        for folder in copies:
            copied(folder)
            folders.put(folder)
        tests = Tests(copies[0])
        outcomes = threads.map(
            lambda mutant: tried(mutant, tests, folders) if time.monotonic() < until else None, drawn
        )
        noticed = survived = 0
        for mutant, outcome in zip(drawn, outcomes, strict=True):
            if outcome is None:
                continue
            noticed, survived = noticed + outcome, survived + (not outcome)
            if not outcome:
                count = len(tests.of(mutant))
                print(f"\nSURVIVED {count} tests: {mutant.path}:{mutant.line} ({mutant.what})\n{diff_of(mutant)}")
            print(f"{noticed} of {noticed + survived} noticed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

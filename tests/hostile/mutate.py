"""`make mutate`: changes the code in small ways and looks whether a test notices.

A mutant is one change of one file. Only the tests that matter for its package run, in a copy of the project, so the
working tree is never touched. A mutant that no test notices survives: a test is missing, or the change means nothing.
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
from pathlib import Path
from random import Random
from typing import NamedTuple

from support.places import ROOT

SOURCE = Path("src") / "sidestream"
TESTS: dict[str, list[str]] = {
    "messages": [
        "tests/messages",
        "tests/run",
        "tests/results",
        "tests/turn",
        "tests/providers/test_histories.py",
        "tests/providers/test_follow_ups.py",
    ],
    "stream": ["tests/stream", "tests/testing/test_grammar.py", "tests/run/test_failures.py"],
    "turn": ["tests/turn", "tests/run", "tests/results", "tests/tools/test_approvals.py", "tests/agent/test_chat.py"],
    "tools": ["tests/tools", "tests/run", "tests/results", "tests/agent", "tests/turn"],
    "output": [
        "tests/output/test_output.py",
        "tests/agent/test_typed_output.py",
        "tests/conformance/suite/test_typed_output.py",
    ],
    "run": ["tests/run", "tests/results", "tests/agent", "tests/faults", "tests/turn"],
    "wire": ["tests/wire", "tests/faults", "tests/conformance/suite/test_faults.py"],
    "store": ["tests/store", "tests/turn/test_left_runs.py"],
    "mcp": ["tests/mcp"],
    "providers/openai/responses": ["tests/providers/openai/responses", "tests/faults", "tests/property"],
    "providers/openai/chat": ["tests/providers/openai/chat", "tests/conformance/test_openai_chat.py"],
    "providers/anthropic": ["tests/providers/anthropic", "tests/conformance/test_anthropic.py"],
    "providers/google": ["tests/providers/google", "tests/conformance/test_google.py"],
}
"""Package → the tests that must notice."""
MAX_TEST_S = 300.0
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
    what: str
    code: str
    """The whole file with the change."""


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of a file."""
    code = (ROOT / path).read_text("utf-8")
    for node, new, what in changes(ast.parse(code)):
        changed = replaced(code, node, new)
        if changed != code:
            yield Mutant(path, node.lineno, what, changed)


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


def is_noticed(folder: Path, tests: list[str]) -> bool:
    """Whether the tests of a copy fail; tests that do not end have noticed too."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *tests], cwd=folder, env=environment, capture_output=True, timeout=MAX_TEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def diff_of(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text("utf-8").splitlines(keepends=True)
    lines = difflib.unified_diff(before, mutant.code.splitlines(keepends=True), n=1)
    return "".join(line for line in lines if not line.startswith(("---", "+++")))


def mutated(package: str, count: int, random: Random, until: float, folder: Path) -> tuple[int, list[Mutant]]:
    """How many mutants of a package were tried, and which survived."""
    files = sorted((ROOT / SOURCE / package).rglob("*.py")) or [ROOT / SOURCE / f"{package}.py"]
    every = [mutant for path in files for mutant in mutants_of(path.relative_to(ROOT))]
    tests = TESTS[package]
    if is_noticed(folder, tests):
        sys.exit(f"{package}: the tests fail without any change: {' '.join(tests)}")
    survivors: list[Mutant] = []
    tried = 0
    for mutant in random.sample(every, min(count, len(every))):
        if time.monotonic() > until:
            break
        tried += 1
        (folder / mutant.path).write_text(mutant.code, "utf-8")
        if not is_noticed(folder, tests):
            survivors.append(mutant)
            print(f"\nSURVIVED {mutant.path}:{mutant.line} ({mutant.what})\n{diff_of(mutant)}", flush=True)
        shutil.copy2(ROOT / mutant.path, folder / mutant.path)
    noticed = tried - len(survivors)
    print(
        f"{package}: {noticed} of {tried} noticed ({noticed / max(tried, 1):.0%}), of {len(every)} mutants", flush=True
    )
    return tried, survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=["turn", "messages", "stream", "tools"], help=", ".join(TESTS))
    parser.add_argument("--count", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_args()
    if unknown := [name for name in options.packages if name not in TESTS]:
        parser.error(f"no tests are named for {', '.join(unknown)}; use {', '.join(TESTS)}")
    print(f"seed {options.seed}", flush=True)
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        copied(folder)
        random = Random(options.seed)
        outcomes = [mutated(name, options.count, random, until, folder) for name in options.packages]
    tried, survived = sum(count for count, _ in outcomes), sum(len(left) for _, left in outcomes)
    print(f"\nall: {tried - survived} of {tried} noticed ({(tried - survived) / max(tried, 1):.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

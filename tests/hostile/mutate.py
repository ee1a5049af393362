"""`make mutate`: changes the code in small ways and looks whether a test notices.

A mutant is one change of one file. All of them are compiled into a copy of the project, each behind a switch, and each
test that executes a mutant runs again with it (`mutant_switch.py`). Mutants of code that runs on import have no switch;
each is tried in a process of its own. A mutant that no test notices survives: a test is missing, or the change means
nothing. Those that mean nothing are in `equivalents.py`, with the reason, and are not drawn.
"""

import argparse
import ast
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hostile.equivalents import EQUIVALENTS
from hostile.mutant_switch import VARIABLE
from support.places import ROOT

SOURCE = Path("src") / "sidestream"
PACKAGES = ("turn", "tools", "run", "store", "providers", "wire", "protocols", "server", "durable")
SLOW = ("bench", "docs", "examples", "hostile", "page", "prices", "support", "telemetry", "testing")
"""Folders of tests that are not asked: they are slow or are about something else."""
KEPT = ROOT / ".mutate"
"""The outcomes of the last run with each seed."""
MAX_TESTS = 60
MAX_CASES = 3
"""Of one test, in a process that tries one mutant."""
MAX_IMPORTERS = 3
"""Test modules that import the module of a mutant, and are run as a whole."""
MIN_NAME = 6
"""Shorter names are in too many tests."""
MAX_SECONDS = 40.0
"""Of the tests that one process runs, when they passed."""
MAX_RUN_S = 4 * 3600.0
MAX_ALONE_S = 900.0
UNKNOWN_TEST = 4
"""Exit code of pytest."""
PATHS = {path for path, _, _ in EQUIVALENTS}
STATIC = ("frozen", "kw_only", "gc")
"""Keywords of classes that the type checker enforces, or that are only about speed."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
TOGETHER = ("--forks", "2", "-n", "0", "-o", "faulthandler_timeout=0", "-r", "N")
ALONE = ("-n", "0", "-x", "-rfE")
Place = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of a start and an end."""
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
    """One change: a part of a file, and what it becomes."""

    path: Path
    start: tuple[int, int]
    end: tuple[int, int]
    what: str
    before: str
    after: str
    code: str
    """The whole file with the change."""

    number: int
    """Of the same change in the same file."""

    def rank(self, seed: int) -> str:
        return hashlib.sha256(f"{seed}:{self.id}".encode()).hexdigest()

    @property
    def id(self) -> str:
        """The same as long as its code stays, whatever else changes."""
        name = f"{self.path.as_posix()}:{self.before}:{self.after}:{self.number}"
        return hashlib.sha256(name.encode()).hexdigest()[:16]

    @property
    def package(self) -> str:
        return self.path.relative_to(SOURCE).parts[0]

    @property
    def lines(self) -> tuple[str, str]:
        """The line where the change starts, before and after it."""
        old = (ROOT / self.path).read_text("utf-8").splitlines()
        new = self.code.splitlines()
        return old[self.start[0] - 1].strip(), new[self.start[0] - 1].strip()

    @property
    def is_equivalent(self) -> bool:
        """Whether the change is known to mean nothing."""
        path = self.path.relative_to(SOURCE).as_posix()
        return path in PATHS and (path, *self.lines) in EQUIVALENTS


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of a file."""
    code = (ROOT / path).read_text("utf-8")
    same = Counter[tuple[str, str]]()
    for node, new, what in changes(ast.parse(code)):
        before = ast.unparse(node)
        same[before, new] += 1
        yield Mutant(path, *place_of(node), what, before, new, replaced(code, node, new), same[before, new])


def changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield each node to change, the code in its place and what was done."""
    static = {
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for keyword in node.keywords
        if keyword.arg in STATIC
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant() if node in static:
                pass
            case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
                pass  # The type checker proves that it is never reached.
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


def switchable(path: Path) -> Callable[[Mutant], bool]:
    """Return a function that says whether a mutant of a file can be switched on and off: its code is in a function."""
    tree = ast.parse((ROOT / path).read_bytes())
    bodies: list[Place] = []
    patterns: list[Place] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                bodies.append((place_of(body[0])[0], place_of(body[-1])[1]))
            case ast.Lambda(body=value):
                bodies.append(place_of(value))
            case ast.MatchValue(value=value):
                patterns.append(place_of(value))
            case _:
                pass

    def is_in(mutant: Mutant, places: list[Place]) -> bool:
        return any(start <= mutant.start and mutant.end <= end for start, end in places)

    return lambda mutant: is_in(mutant, bodies) and not is_in(mutant, patterns)


def place_of(node: ast.expr | ast.stmt) -> Place:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def run_all(mutants: list[Mutant], project: Path, folder: Path, tests: list[str]) -> None:
    """Run the tests of a copy of the project, each again with the mutants that it executes."""
    changes: dict[str, list[object]] = defaultdict(list)
    for mutant in mutants:
        code = mutant.after if switchable(mutant.path)(mutant) else None
        changes[mutant.path.relative_to("src").as_posix()].append((mutant.id, mutant.start, mutant.end, code))
    (folder / "mutants.json").write_text(json.dumps(changes), "utf-8")
    plugin = {"PYTEST_PLUGINS": "hostile.mutant_switch", VARIABLE: str(folder)}
    done = subprocess.run(
        [*PYTEST, *TOGETHER, *tests],
        cwd=project,
        env={**environment(project), **plugin},
        timeout=MAX_RUN_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.exit("the tests could not be run")


class Trial(NamedTuple):
    """A run of a test with a mutant, or with one that cannot be switched on."""

    id: str
    outcome: Literal["noticed", "missed", "unsure", "reached"]
    test: str
    s: float

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def trials_in(folder: Path) -> dict[str, list[Trial]]:
    """Return the trials of all mutants."""
    found: dict[str, list[Trial]] = defaultdict(list)
    for path in folder.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            trial = Trial(**json.loads(line))
            found[trial.id].append(trial)
    return found


def test_folders() -> list[str]:
    """Return the folders of tests that are asked."""
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in SLOW]
    return [f"tests/{path.name}" for path in sorted(folders) if any(path.rglob("test_*.py"))]


def best(trials: list[Trial], mutant: Mutant) -> list[str]:
    """Return the best tests that reached a mutant.

    First those whose modules name most of what the changed line names, then those of its own folder, then the quickest.
    """
    names = {name for name in re.findall(r"\w+", mutant.lines[0]) if len(name) >= MIN_NAME}
    files = {trial.file: (ROOT / trial.file).read_text("utf-8") for trial in trials}
    named = {file: sum(name in text for name in names) for file, text in files.items()}
    near = f"tests/{mutant.package}/"
    tests: list[str] = []
    cases = Counter[str]()
    left_s = MAX_SECONDS
    for trial in sorted(trials, key=lambda trial: (-named[trial.file], not trial.test.startswith(near), trial.s)):
        function = trial.test.partition("[")[0]
        cases[function] += 1
        if cases[function] > MAX_CASES:
            continue
        left_s -= trial.s
        if len(tests) == MAX_TESTS or left_s < 0 < len(tests):
            break
        tests.append(trial.test)
    return tests


def importers(mutant: Mutant, places: list[str]) -> list[str]:
    """Return the test modules in some folders that import a mutant's module.

    They may read its tables without calling it, or run it in a child process, and so do not count as reaching it.
    """
    package, _, name = ".".join(mutant.path.relative_to("src").with_suffix("").parts).rpartition(".")
    imports = re.compile(
        rf"^\s*(?:from|import) {re.escape(package)}(?:\.{name}\b| import (?:\([^)]*|.*)\b{name}\b)", re.MULTILINE
    )
    paths = [ROOT / place.partition("::")[0] for place in places]
    files = {file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])}
    found = [file.relative_to(ROOT).as_posix() for file in sorted(files) if imports.search(file.read_text("utf-8"))]
    own, near = f"test_{name}.py", f"tests/{mutant.package}/"
    return sorted(found, key=lambda file: (not file.endswith(own), not file.startswith(near)))[:MAX_IMPORTERS]


def environment(project: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(project / "src"), str(project / "tests")])}


def is_noticed(project: Path, tests: list[str]) -> bool:
    """Whether the tests of a copy fail, twice: one that fails only once had bad luck.

    Tests that do not end are stopped by their own timeout, and fail.
    """
    done = run(tests, project)
    if done.returncode == UNKNOWN_TEST:  # A mutant may have renamed cases, or nothing can be imported.
        tests = sorted({test.partition("::")[0] for test in tests})
        done = run(tests, project)
    if done.returncode == 1:
        failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        modules = {name.partition("::")[0] for name in failed}
        again = [test for test in tests if test in failed or test in modules]
        return not again or run(again, project).returncode != 0
    return done.returncode != 0


def run(tests: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    command = [*PYTEST, *ALONE, *tests]
    env = environment(project)
    try:
        return subprocess.run(
            command, cwd=project, env=env, capture_output=True, encoding="utf-8", timeout=MAX_ALONE_S, check=False
        )
    except subprocess.TimeoutExpired:  # A mutant that hangs is noticed.
        return subprocess.CompletedProcess(command, UNKNOWN_TEST + 1, "", "")


def diff_of(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text("utf-8").splitlines(keepends=True)
    lines = difflib.unified_diff(before, mutant.code.splitlines(keepends=True), n=1)
    return "".join(line for line in lines if not line.startswith(("---", "+++")))


def is_noticed_alone(mutant: Mutant, trials: list[Trial], project: Path, places: list[str]) -> bool:
    """Whether tests notice a mutant that is written into a copy of the project."""
    tests = [*best([trial for trial in trials if trial.outcome == "reached"], mutant), *importers(mutant, places)]
    try:
        (project / mutant.path).write_text(mutant.code, "utf-8")
        return bool(tests) and is_noticed(project, tests)
    finally:
        shutil.copy2(ROOT / mutant.path, project / mutant.path)


def drawn_mutants(packages: list[str], count: int, seed: int) -> tuple[list[Mutant], int]:
    """Return mutants of the packages that mean something, and how many there are in all.

    A seed draws the same mutants as long as their code does not change, whatever else does.
    """
    files = [path for name in packages for path in sorted((ROOT / SOURCE / name).rglob("*.py"))]
    every = [mutant for path in files for mutant in mutants_of(path.relative_to(ROOT))]
    told = [mutant for mutant in every if not mutant.is_equivalent]
    return sorted(told, key=lambda mutant: mutant.rank(seed))[:count], len(every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--count", type=int, default=150, help="mutants in all")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--tests", nargs="*", help="modules or folders of tests to ask instead of all")
    parser.add_argument("--go-on", action="store_true", help="keep the outcomes of the last run with this seed")
    parser.add_argument("--list", action="store_true", help="list the drawn mutants, and try none")
    options = parser.parse_args()
    drawn, total = drawn_mutants(options.packages, options.count, options.seed)
    print(f"seed {options.seed}: {len(drawn)} of {total} mutants, {len(EQUIVALENTS)} known as equivalent", flush=True)
    if options.list:
        for mutant in drawn:
            print(f"{mutant.path}:{mutant.start[0]} ({mutant.what})\n{diff_of(mutant)}")
        return 0
    folder = KEPT / str(options.seed)
    if not options.go_on:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "project"
        copied(project)
        places = options.tests or test_folders()
        run_all(drawn, project, folder, places)
        trials = trials_in(folder)
        outcomes: dict[str, Counter[bool]] = defaultdict(Counter)
        for mutant in drawn:
            tried = trials[mutant.id]
            noticed = next((trial.test for trial in tried if trial.outcome == "noticed"), None)
            outcomes_of = {trial.outcome for trial in tried}
            if noticed is None and ("reached" in outcomes_of or "missed" not in outcomes_of):
                noticed = "alone" if is_noticed_alone(mutant, tried, project, places) else None
            outcomes[mutant.package][noticed is not None] += 1
            where = f"{mutant.path}:{mutant.start[0]} ({mutant.what})"
            if noticed is not None:
                print(f"noticed {where}: {noticed}", flush=True)
            else:
                counts = Counter(trial.outcome for trial in tried)
                print(f"SURVIVED {where}: {dict(counts)}\n{diff_of(mutant)}", flush=True)
    for package, counts in sorted(outcomes.items()):
        print(f"{package}: {counts[True]} of {counts.total()} noticed")
    noticed_count = sum(counts[True] for counts in outcomes.values())
    print(f"{noticed_count} of {len(drawn)} noticed, {noticed_count / max(len(drawn), 1):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The manifest and the tests agree, both ways."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

import pytest

from requirements import MANIFEST, SOURCES, Deferred, Entry, Partial, deferred, open_ids, partial, proven
from support.places import SHARED, TESTS

MARK = re.compile(r"\brequirement\s*\(")
Test = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def problems(manifest: Mapping[str, Entry], sources: Mapping[str, str]) -> list[str]:
    """Every way in which a manifest and the sources of test modules disagree."""
    found: list[str] = []
    carried: dict[str, list[str]] = {}
    for path, source in sources.items():
        tree = ast.parse(source, path)
        on_tests = {id(mark): mark for mark in marks_on_tests(tree)}
        # A look at every node takes seconds.
        is_all = len(MARK.findall(source)) == len(on_tests)
        for mark in on_tests.values() if is_all else marks(ast.walk(tree)):
            where = f"{path}:{mark.lineno}"
            if id(mark) not in on_tests:
                found.append(f"{where}: this requirement stands on no test that runs")
                continue
            for argument in mark.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    carried.setdefault(argument.value, []).append(where)
                else:
                    found.append(f"{where}: an id must be a plain string")
    for name, places in carried.items():
        if name not in manifest:
            found.append(f"{places[0]}: {name} is not in the manifest")
        elif isinstance(manifest[name].state, Deferred):
            found.append(f"{places[0]}: {name} is deferred, yet a test carries it")
    found += [
        f"{name} counts as proven, yet no test carries it"
        for name, entry in manifest.items()
        if entry.state == proven and name not in carried
    ]
    for name, entry in manifest.items():
        if isinstance(entry.state, Partial):
            if name not in carried:
                found.append(f"{name} counts as partial, yet no test carries it")
            if not entry.state.missing.strip():
                found.append(f"{name} is partial, yet does not name what is missing")
    return found


def marks_on_tests(scope: ast.Module | ast.ClassDef) -> Iterator[ast.Call]:
    """The marks of a module or class and of the tests in it; none where nothing in it runs."""
    tests = [node for node in scope.body if runs(node)]
    for node in tests:
        yield from marks(part for mark in node.decorator_list for part in ast.walk(mark))
        if isinstance(node, ast.ClassDef):
            yield from marks_on_tests(node)
    if tests:
        yield from marks(part for mark in pytestmarks(scope) for part in ast.walk(mark))


def runs(node: ast.stmt) -> TypeGuard[Test]:
    """Whether a test function, or some test of a test class, runs and may not fail."""
    if not isinstance(node, Test) or is_excused(node):
        return False
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test") and any(runs(member) for member in node.body)
    return node.name.startswith("test")


def is_excused(node: Test) -> bool:
    """Whether a test is always skipped or may fail, and so proves nothing."""
    return any(
        isinstance(part, ast.Attribute) and part.attr in ("skip", "xfail")
        for mark in node.decorator_list
        for part in ast.walk(mark)
    )


def pytestmarks(scope: ast.Module | ast.ClassDef) -> Iterator[ast.expr]:
    for node in scope.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield value
            case _:
                pass


def marks(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="requirement") | ast.Attribute(attr="requirement")):
                yield node
            case _:
                pass


def test_state_of_every_id_agrees_with_tests():
    paths = sorted(TESTS.glob("**/test_*.py"))
    sources = {str(path.relative_to(TESTS)): path.read_text("utf-8") for path in paths}
    found = problems(MANIFEST, sources)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("page", "pattern"),
    [("REQUIREMENTS.md", r"^- (R\d+) "), ("FAULTS.md", r"^- \*\*(F\d+) ")],
)
def test_manifest_holds_exactly_ids_of(page: str, pattern: str):
    path = SHARED / page
    if not path.is_file():
        pytest.skip(f"no list of ids to compare with: {path} is not there")
    ids = re.findall(pattern, path.read_text("utf-8"), re.MULTILINE)
    kind = page[0]
    assert [name for name in MANIFEST if name.startswith(kind)] == ids


def test_every_entry_is_one_sentence_with_known_sources():
    for name, entry in MANIFEST.items():
        assert entry.sentence.endswith("."), name
        sources = set(entry.sources.split(", "))
        assert sources <= SOURCES.keys(), name
        assert (sources == {"faults"}) == name.startswith("F"), name
        assert not isinstance(entry.state, Deferred) or entry.state.reason, name


def test_open_ids_are_deferred_and_partial_ones():
    states = {name: entry.state for name, entry in MANIFEST.items()}
    assert open_ids() == [name for name, state in states.items() if isinstance(state, Deferred | Partial)]
    assert open_ids(MIXED) == ["R2", "R3"]


# The check itself, on small made-up inputs.

SMALL = {
    "R1": Entry("It works.", "users", proven),
    "R2": Entry("It will work.", "users", deferred("not built yet")),
}
MIXED = {**SMALL, "R3": Entry("It works and never fails.", "users", partial("it fails at night"))}


@pytest.mark.parametrize(
    "source",
    [
        '@requirement("R1")\ndef test_it(): ...',
        '@requirement("R1")\nasync def test_it(): ...',
        '@pytest.mark.requirement("R1")\ndef test_it(): ...',
        '@requirement("R1")\nclass TestIt:\n    def test_it(self): ...',
        'class TestIt:\n    @requirement("R1")\n    def test_it(self): ...',
        'class TestIt:\n    pytestmark = requirement("R1")\n    def test_it(self): ...',
        'pytestmark = [requirement("R1")]\ndef test_it(): ...',
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=requirement("R1"))])\ndef test_it(x): ...',
        '@pytest.mark.skipif(windows, reason="no signals")\n@requirement("R1")\ndef test_it(): ...',
    ],
)
def test_mark_counts_in_every_place_pytest_accepts(source: str):
    assert problems(SMALL, {"test_small.py": source}) == []


def test_proven_id_without_test_is_problem():
    assert problems(SMALL, {"test_small.py": "def test_it(): ..."}) == ["R1 counts as proven, yet no test carries it"]


def test_partial_id_carries_tests():
    assert problems(MIXED, {"test_small.py": '@requirement("R1", "R3")\ndef test_it(): ...'}) == []


def test_partial_id_without_test_is_problem():
    source = '@requirement("R1")\ndef test_it(): ...'
    assert problems(MIXED, {"test_small.py": source}) == ["R3 counts as partial, yet no test carries it"]


@pytest.mark.parametrize("missing", ["", " "])
def test_partial_id_without_missing_part_is_problem(missing: str):
    manifest = {**SMALL, "R3": Entry("It works and never fails.", "users", partial(missing))}
    source = '@requirement("R1", "R3")\ndef test_it(): ...'
    assert problems(manifest, {"test_small.py": source}) == ["R3 is partial, yet does not name what is missing"]


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ('requirement("R1", "R2")', "test_small.py:1: R2 is deferred, yet a test carries it"),
        ('requirement("R1", "R9")', "test_small.py:1: R9 is not in the manifest"),
        ('requirement("R1", name)', "test_small.py:1: an id must be a plain string"),
    ],
)
def test_deferred_unknown_or_computed_id_on_test_is_problem(mark: str, problem: str):
    assert problems(SMALL, {"test_small.py": f"@{mark}\ndef test_it(): ..."}) == [problem]


@pytest.mark.parametrize(
    "source",
    [
        '@requirement("R1")\ndef helper(): ...',
        '@requirement("R1")\nclass TestEmpty: ...',
        'pytestmark = requirement("R1")',
        '@requirement("R1")\n@pytest.mark.skip\ndef test_it(): ...',
        '@requirement("R1")\n@pytest.mark.xfail(reason="not yet")\ndef test_it(): ...',
        '@pytest.mark.skip\nclass TestIt:\n    @requirement("R1")\n    def test_it(self): ...',
        'def test_outer():\n    @requirement("R1")\n    def test_inner(): ...',
    ],
)
def test_mark_on_unexecuted_test_is_problem(source: str):
    stray, unproven = problems(SMALL, {"test_small.py": source})
    assert stray.endswith(": this requirement stands on no test that runs")
    assert unproven == "R1 counts as proven, yet no test carries it"

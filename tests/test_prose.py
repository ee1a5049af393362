"""Prose rules that can be counted: openings of docstrings, habits to avoid, and names of tests."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "is no (is not a)": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|such\b|need\b|way\b)[a-z]+",
    "None: (None means)": r"\b(?:None|True|False): (?=[a-z])",
    "nobody, somebody, whoever (name who acts)": r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever)\b",
    "is over (has ended)": r"\b(?:is|are|was|were) over\b(?! \d| the cap| a| its)",
    "fronted of (start with the noun)": r"(?:^|[;:.] )Of (?:a|an|the|two|several|what|which|those|these|such|them)\b",
    "says of (says about)": r"\b(?:says?|said|known?|knows|claims?|reports?) of\b",
    "so many (at most N)": r"\b(?:after|at most|for) so (?:many|long|much)\b",
    "anew, for ever, any more": r"\b(?:anew|in vain|for ever|any more)\b",
    "a text (a string)": r"\ba text\b",
    "on its way": r"\bon (?:its|their) way\b",
    "stands (is)": r"\bstands?\b(?! for\b| in for\b|alone)",
}
OPENING = re.compile(
    r"^(What|Whatever|Who|Whoever|Whose|Which|Where|How|When|Why|Of|By|From|In|At|On|With|Without|Until|After|Before|As|"
    r"Nothing|Nobody|There (is|are))\b"
)
"""A function says what it does for its caller, so it opens with a verb."""
CODE_ONLY = re.compile(r"^`[^`]+`\.?$")
TEST_NAME = re.compile(r"^\s*(?:async )?def (test_\w+)", re.M)
MAX_TEST_NAME = 60
ALLOWED: dict[str, set[str]] = {}
"""Pattern → sentences in which its words are right."""


def attribute_docs(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings after assignments, in a module or a class."""
    body = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
    for before, after in pairwise(body):
        value = after.value if isinstance(after, ast.Expr) else None
        if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Constant):
            yield value


def definitions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the definitions in it. Only statements hold them: a walk over expressions takes ten times as long."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, ())
        for statement in inner if isinstance(inner, list) else ():
            yield from definitions(statement)


@cache
def prose() -> list[tuple[str, str, bool]]:
    """Return place, text, and whether it is a function's docstring, for every docstring and attribute description."""
    found: list[tuple[str, str, bool]] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        place = str(path.relative_to(ROOT))
        for node in definitions(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                is_function = not isinstance(node, ast.ClassDef | ast.Module)
                if text := ast.get_docstring(node):
                    found.append((f"{place}:{getattr(node, 'lineno', 1)}", text, is_function))
            found += [(f"{place}:{doc.lineno}", str(doc.value), False) for doc in attribute_docs(node)]
    return found


@pytest.mark.parametrize("habit", PATTERNS)
def test_docstrings_avoid_habit(habit: str) -> None:
    allowed = ALLOWED.get(habit, set())
    found = [
        f"{place}: {text[max(match.start() - 30, 0) : match.end() + 20]!r}"
        for place, text, _ in prose()
        for match in re.finditer(PATTERNS[habit], text)
        if not any(sentence in text for sentence in allowed)
    ]
    assert not found, "\n".join(found)


def test_function_docstrings_open_with_verb() -> None:
    found = [
        f"{place}: {text[:60]!r}"
        for place, text, is_function in prose()
        if is_function and (OPENING.match(text) or CODE_ONLY.match(text))
    ]
    assert not found, "\n".join(found)


def test_test_names_are_short_and_without_articles() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in TEST_NAME.findall(path.read_text())
        if len(name) > MAX_TEST_NAME or re.match(r"test_(a|an|the|what)_", name)
    ]
    assert not found, "\n".join(found)

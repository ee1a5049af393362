"""Source code in an index: passages begin and end with definitions."""

import itertools

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.portable.documents import Document, mime_type_of
from sidestream.portable.index.chunks import MAX_CHARS, Chunk, chunks_of, definitions_in

PYTHON = '''\
"""A module."""

import os

LIMIT = 3


# Says hello.
@cached
def hello(name: str) -> str:
    """Greets."""

    return f"hello {name}"


class Tall:
    """Many methods."""

    def first(self) -> int:
        return 1

    @property
    async def second(self) -> int:

        return 2


if __name__ == "__main__":
    hello("x")
'''


def names(text: str, max_chars: int = 10_000) -> list[tuple[str, str]]:
    """Name → the first line of each span."""
    return [(each.name, text[each.start : each.end].splitlines()[0]) for each in definitions_in(text, max_chars)]


def chunks(text: str, name: str = "a.py") -> list[Chunk]:
    return chunks_of(Document(text=text, mime_type=mime_type_of(name) or ""))


@requirement("R126")
def test_definition_spans_decorators_and_preceding_comment():
    assert names(PYTHON) == [
        ("", '"""A module."""'),
        ("", "import os"),
        ("", "LIMIT = 3"),
        ("hello", "# Says hello."),
        ("Tall", "class Tall:"),
        ("", 'if __name__ == "__main__":'),
    ]


def test_long_class_is_split_at_members():
    found = names(PYTHON, max_chars=120)
    assert found[4:7] == [
        ("Tall", "class Tall:"),
        ("first", "    def first(self) -> int:"),
        ("second", "    @property"),
    ]


@requirement("R126")
def test_functions_stay_whole_and_passages_name_their_parents():
    body = "".join(f"    total += step_{n}(values)\n" for n in range(20))
    code = "".join(f"def part_{n}(values):\n    total = 0\n{body}    return total\n\n\n" for n in range(5))
    found = chunks(code)
    assert [chunk.heading for chunk in found] == [f"part_{n}" for n in range(5)]
    for number, chunk in enumerate(found):
        text = code[chunk.start : chunk.end]
        assert text.startswith(f"def part_{number}(")
        assert text.endswith("return total")


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        (
            "a.go",
            "func (s *Store) Get(k string) int {\n\treturn 1\n}\n\ntype Store struct {\n\tn int\n}\n",
            ["Get", "Store"],
        ),
        ("a.rs", "#[test]\npub fn run<T>(x: T) {\n    x();\n}\n\nimpl Store {\n    fn a() {}\n}\n", ["run", "Store"]),
        (
            "a.ts",
            "export const add = (a: number) => {\n  return a;\n};\n\nexport default class Box {\n}\n",
            ["add", "Box"],
        ),
        ("a.c", "static int add(int a, int b) {\n  return a;\n}\n\nint x = 3;\n", ["add", ""]),
        ("a.java", "public class A {\n  void run() {\n  }\n}\n", ["A"]),
        ("a.sql", "CREATE TABLE users (\n  id INT\n);\n\nSELECT 1;\n", ["users", ""]),
        ("a.rb", "class A\n  def x\n  end\nend\n\ndef y\nend\n", ["A", "y"]),
    ],
)
def test_definitions_are_found_in_other_languages(name: str, code: str, expected: list[str]):
    assert [each.name for each in definitions_in(code, 10_000)] == expected
    assert (mime_type_of(name) or "").startswith("text/x-")


@given(st.text(alphabet="def class(){}:@#/* \n\tab\"';=>", max_size=400))
def test_only_white_space_is_lost_between_definitions(text: str):
    found = chunks(text)
    assert "".join("".join(text[chunk.start : chunk.end].split()) for chunk in found) == "".join(text.split())
    assert all(chunk.end - chunk.start <= MAX_CHARS for chunk in found)
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))

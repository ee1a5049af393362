"""What the repository may hold, and what the package ships."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.places import ROOT

PACKAGE = ROOT / "src" / "sidestream"
LONG_FILE = 400
MAX_LINES = 600

# Written in pieces, so that this file does not hold what it looks for.
HOSTS = [
    ".".join(pieces)
    for pieces in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("crates", "io"),
    )
]
ADDRESSES = re.compile(
    "|".join(
        (
            *(rf"(?<![\w-]){re.escape(host)}\b" for host in HOSTS),
            r"--(?:extra-)?index[-]url[ =]\S*:/[/]",
            r"--find[-]links[ =]\S*:/[/]",
            r"[\"']?resolved[\"']?:?\s+[\"']https?:/[/]",
            r"\bregistry\s*=\s*[\"']https?:/[/]",
            r"https?:/[/]\S+\.(?:whl|tar\.gz|tgz)\b",
        )
    )
)

WORDS = [*HOSTS, "index" + "-url", "find" + "-links", "resolved", "registry", ".whl", ".tar.gz", ".tgz"]
CONDITIONAL = re.compile(r"^\s*assert\b[^\n]*(?:\bif\b|[(\[{\\]\s*(?:#.*)?$)", re.MULTILINE)
"""An assertion that has a condition in its first line, or more lines."""


def files() -> list[Path]:
    """What git has or would take: tracked files, and new ones that it does not ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout, so its files are not known")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def addresses(text: str) -> list[str]:
    # Every address holds one of these, which are found much faster.
    return [match[0] for match in ADDRESSES.finditer(text)] if any(word in text for word in WORDS) else []


def test_no_file_names_registry_or_download_url():
    found = {
        path.relative_to(ROOT).as_posix(): hits
        for path in files()
        if (hits := addresses(path.read_text("utf-8", errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        f"see {HOSTS[0]} for it",
        "files." + HOSTS[1],
        "--index" + "-url https://mirror.example/simple",
        '"resolved": "' + "https://mirror.example/left-pad",
        'source = { registry = "' + 'https://mirror.example/simple" }',
        "https://mirror.example/left_pad-1.0-py3-none-any" + ".whl",
    ],
)
def test_registry_and_download_urls_are_detected(text: str):
    assert addresses(text)


@pytest.mark.parametrize("text", ["msgspec==0.22.0 --hash=sha256:0067", "https://example.com/page", "my-crates.iota"])
def test_other_text_is_not_detected(text: str):
    assert not addresses(text)


def test_no_lock_file_contains_urls():
    assert [path for path in files() if path.name in ("uv.lock", "poetry.lock", "Pipfile.lock")] == []


def test_wheel_ships_every_package_file(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "SIDESTREAM_WITHOUT_PAGE": "1"},  # The page that is there is shipped, and none is built.
        capture_output=True,
        timeout=60,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("sidestream/")}
    page = [path for path in (PACKAGE / "server" / "page").glob("**/*") if path.is_file()]  # built, so git ignores it
    sources = [path for path in files() if PACKAGE in path.parents]
    expected = {path.relative_to(PACKAGE.parent).as_posix() for path in (*sources, *page)}
    assert "sidestream/py.typed" in shipped
    assert shipped == expected


def test_most_source_files_are_short():
    lengths = [len(path.read_text("utf-8").splitlines()) for path in PACKAGE.glob("**/*.py")]
    long = [length for length in lengths if length > LONG_FILE]
    assert len(long) <= len(lengths) / 10
    assert max(lengths) <= MAX_LINES


def conditional_asserts(source: str) -> list[int]:
    """The lines with `assert a == b if c else d`, which asserts `d` alone where `c` is false."""
    if not any(is_conditional(source[match.start() :]) for match in CONDITIONAL.finditer(source)):
        return []  # Parsing all sources takes seconds.
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.Assert) and isinstance(node.test, ast.IfExp)]


def is_conditional(text: str) -> bool:
    """Whether a text that begins with an assertion begins with such a one."""
    lines: list[str] = []
    for line in text.lstrip().split("\n"):
        lines.append(line)
        try:
            (statement,) = ast.parse("\n".join(lines)).body
        except (SyntaxError, ValueError):
            continue
        return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.IfExp)
    return True


def test_no_assert_is_conditional_expression():
    paths = (ROOT / "tests").glob("**/*.py")
    found = {path.relative_to(ROOT).as_posix(): conditional_asserts(path.read_text("utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert conditional_asserts("assert code == 0 if is_here else 1") == [1]
    assert conditional_asserts("assert code == (0 if is_here else 1)") == []
    assert conditional_asserts(
        "def f():\n    assert (  # one\n        code == 0\n        if is_here else 1\n    )"
    ) == [2]

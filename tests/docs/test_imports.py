"""The docs and the examples import public names only, and their links have targets."""

import ast
import importlib
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

from support.places import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
FENCE = re.compile(r"^```python[^\n`]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:]+)\)")
PUBLIC = {
    "sidestream",
    "sidestream.actions",
    "sidestream.durable",
    "sidestream.mcp",
    "sidestream.errors",
    "sidestream.messages",
    "sidestream.parts",
    "sidestream.prices",
    "sidestream.providers",
    "sidestream.providers.anthropic",
    "sidestream.providers.google",
    "sidestream.providers.local",
    "sidestream.providers.openai",
    "sidestream.providers.openai.chat",
    "sidestream.providers.openai.responses",
    "sidestream.store",
    "sidestream.server",
    "sidestream.portable.sandbox",
    "sidestream.evidence",
    "sidestream.results",
    "sidestream.telemetry",
    "sidestream.testing",
    "sidestream.tools",
    "sidestream.turn",
    "sidestream.wire",
}


@cache
def generated() -> dict[Path, str]:
    """Return the pages of the site that are made when it is built."""
    pages: dict[str, str] = runpy.run_path(str(ROOT / "tools/docs/reference.py"))["pages"]()
    return {ROOT / "docs" / name: text for name, text in pages.items()}


def imports(source: str) -> set[tuple[str, str]]:
    """The names that the source imports from Sidestream, each with its module."""
    compiled = compile(source, "<docs>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(compiled, ast.Module)
    found: set[tuple[str, str]] = set()
    for node in ast.walk(compiled):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "sidestream":
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "sidestream"}
    return found


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


SOURCES = [
    (path.relative_to(ROOT).as_posix(), source) for path in PAGES for source in FENCE.findall(path.read_text("utf-8"))
] + [(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in EXAMPLES]


@pytest.mark.parametrize("where", sorted({where for where, _ in SOURCES}))
def test_only_public_names_are_imported(where: str) -> None:
    found = {name for page, source in SOURCES if page == where for name in imports(source)}
    assert {module for module, _ in found} <= PUBLIC
    private = {(module, name) for module, name in found if name and name not in importlib.import_module(module).__all__}
    assert private == set()


def test_every_public_package_is_listed_in_docs() -> None:
    page = (ROOT / "docs/api.md").read_text("utf-8")
    listed = {name if name[0] != "." else f"sidestream.providers{name}" for name in re.findall(r"`([\w.]+)`", page)}
    assert listed >= PUBLIC


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_have_targets(path: Path) -> None:
    for link in LINK.findall(path.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists() or found in generated(), link
        if anchor:
            page = generated().get(found) or found.read_text("utf-8")
            assert anchor in anchors(page), link


def test_import_finder_sees_both_forms() -> None:
    source = "import sidestream.store\nfrom sidestream import Agent\nfrom sidestream.wire.http import HttpTransport\n"
    assert imports(source) == {
        ("sidestream.store", ""),
        ("sidestream", "Agent"),
        ("sidestream.wire.http", "HttpTransport"),
    }


def test_anchors_match_headings() -> None:
    assert anchors("# API keys and base URLs\n```sh\n# no heading\n```\n## What's new, in C++?\n") == {
        "api-keys-and-base-urls",
        "whats-new-in-c",
    }

"""The site of the docs builds, strictly: every link, every anchor and every page of the navigation exists."""

import os
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream.providers import anthropic, google, openai
from support.places import ROOT


@cache
def reference() -> dict[str, Any]:
    """The names of the program that makes the reference pages."""
    return runpy.run_path(str(ROOT / "tools/docs/reference.py"))


@requirement("R172")
@pytest.mark.timeout(300)
def test_site_builds_without_warnings(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        # The search index and the layout of signatures, by a formatter, cannot warn.
        env={**os.environ, "DOCS_FINISH": "false"},
        capture_output=True,
        encoding="utf-8",
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.html")}
    expected = {"index.html", "reference/cli.html", "reference/errors.html", "changelog.html", "from/openai.html"}
    assert expected <= pages
    reference = (tmp_path / "site/reference/api/sidestream.html").read_text("utf-8")
    assert 'id="sidestream.Agent.send_stream"' in reference


@requirement("R204")
@pytest.mark.parametrize("page", ["parts", "tools", "options", "settings", "limits"])
def test_every_field_has_description(page: str):
    text: str = reference()[f"{page}_page"]()
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    assert len(rows) > 5
    assert [row for row in rows if not row.removesuffix("|").rpartition("|")[2].strip()] == []
    assert "\\|" not in text


def test_options_page_has_every_provider():
    text: str = reference()["options_page"]()
    named = {name for package in (anthropic, google, openai) for name in package.__all__ if name.endswith("Options")}
    assert {name for name in named if f".{name}`" not in text} == set()

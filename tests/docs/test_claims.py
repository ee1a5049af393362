"""The claims of the README and the guides, and the tests that prove them."""

import re

from sidestream.store.log.writer import INCREMENT_BYTES, LogDetail
from sidestream.store.postgres.server import OLDEST_SERVER
from support.places import ROOT, TESTS

README = (ROOT / "README.md").read_text("utf-8")
CLAIMS = (TESTS / "README.md").read_text("utf-8")
WITHOUT_CLAIM = {"index", "architecture", "platforms"}
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", CLAIMS)


def rows(text: str) -> list[str]:
    """Return the first cells of the rows of Markdown tables."""
    return [cell.strip() for cell in re.findall(r"^\| *([^|]+?) *\|", text, re.M)]


def test_named_tests_exist() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED
        if not re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.M)
    ]
    assert len(NAMED) > 60
    assert missing == []


def test_every_readme_feature_has_test() -> None:
    features = README.partition("## Features")[2].partition("\n## ")[0]
    wanted = {cell for cell in rows(features) if not set(cell) <= {"-"}}
    assert len(wanted) > 15
    assert wanted - set(rows(CLAIMS)) == set()


def test_every_guide_has_test() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/start").glob("*.md")]
    wanted = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in pages} - WITHOUT_CLAIM
    assert wanted - set(rows(CLAIMS)) == set()


def test_docs_name_oldest_postgresql() -> None:
    for page in ("platforms.md", "store.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert re.findall(r"PostgreSQL (\d+)", text) == [str(OLDEST_SERVER)], page


def test_docs_name_increments_of_log() -> None:
    expected = f"{LogDetail().interval_s * 1000:.0f} ms or {INCREMENT_BYTES // 1024} kB"
    for page in ("README.md", "docs/store.md", "docs/performance.md", "docs/architecture.md"):
        assert set(re.findall(r"\d+ ms or \d+ kB", (ROOT / page).read_text("utf-8"))) == {expected}, page


def test_install_pages_name_python() -> None:
    oldest = re.findall(r'requires-python = ">=(\d\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    for page in ("README.md", "docs/start/install.md"):
        assert re.findall(r"Python (\d\.\d+) or newer", (ROOT / page).read_text("utf-8")) == oldest, page


def test_install_pages_name_checkout() -> None:
    for page in ("README.md", "docs/start/install.md"):
        text = (ROOT / page).read_text("utf-8")
        assert "not on the package index yet" in text
        commands = re.findall(r"^(?:pip|uv tool) install .*$", text, re.MULTILINE)
        assert commands
        assert all(".[cli,local]" in command for command in commands)


def test_untested_systems_are_marked() -> None:
    systems = re.findall(
        r"^\| (macOS|Windows) \| (.*) \|$", (ROOT / "docs/platforms.md").read_text("utf-8"), re.MULTILINE
    )
    assert [(name, text.startswith("**not tested.**")) for name, text in systems] == [
        ("macOS", True),
        ("Windows", True),
    ]
    assert "OS Independent" not in (ROOT / "pyproject.toml").read_text("utf-8")


def test_messages_of_troubleshooting_exist() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)  # A long message is written as several strings.
    assert len(messages) > 15
    assert [message for message in messages if message not in joined] == []

"""Command lines in the README and the docs are understood by the command. docs/cli.md has tests of its own."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.command import parse
from requirements import requirement
from sidestream.cli.main import commands
from support.places import ROOT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"\s*```\s*(\w*)")


def shell_lines(text: str) -> list[str]:
    """The lines with `sidestream` in the shell blocks of a page, without prompts and comments."""
    language: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if fence := FENCE.match(line):
            language = fence[1] if language is None else None
        elif language is not None and (language in ("", "sh") or (language == "console" and line.startswith("$ "))):
            line = re.split(r"\s+#", line.removeprefix("$ "))[0].strip()
            if re.search(r"(?:^|\| |-m |^\w+=\S+ )sidestream\b", line) and not line.startswith(("pip ", "#")):
                lines.append(line)
    return lines


def command_lines(text: str) -> list[str]:
    """The calls of `sidestream` in the shell blocks of a page, without what stands around them."""
    lines = [re.split(r"\s[|>]\s", line[line.index("sidestream") :])[0] for line in shell_lines(text)]
    return [line.strip() for line in lines if not line.startswith("sidestream --version")]


CALLS = {call: path.relative_to(ROOT).as_posix() for path in PAGES for call in command_lines(path.read_text("utf-8"))}


@requirement("R172")
@pytest.mark.parametrize("call", sorted(call for call in CALLS if "…" not in call))
def test_documented_command_line_parses(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The agent of `--agent support@2=shop:agent`.
    (tmp_path / "shop.py").write_text("from sidestream import Agent\nagent = Agent('local')\n")
    monkeypatch.syspath_prepend(tmp_path)
    parse(commands, "sidestream", shlex.split(call)[1:])


def test_calls_are_found_and_invalid_ones_refused():
    page = "```sh\nKEY=1 sidestream demo  # plays\nsidestream logs list | head\nls\n```\n"
    assert command_lines(page) == ["sidestream demo", "sidestream logs list"]
    with pytest.raises(click.UsageError):
        parse(commands, "sidestream", ["demo", "--no-such-option"])

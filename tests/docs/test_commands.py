"""Command lines in the README and the docs are understood by the command. docs/cli.md has tests of its own."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.command import parse
from requirements import requirement
from sidestream.cli.main import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> list[str]:
    """The calls of `sidestream` in the shell blocks of a page, without comments and what follows a pipe."""
    lines = [line.removeprefix("$ ") for block in BLOCK.findall(text) for line in block.splitlines()]
    calls = [re.split(r"\s+#|\s[|>]\s", line)[0] for line in lines if re.match(r"(\w+=\S+ )*sidestream\b", line)]
    return [call[call.index("sidestream") :].strip() for call in calls]


CALLS = {call: path.relative_to(ROOT).as_posix() for path in PAGES for call in command_lines(path.read_text("utf-8"))}


@requirement("R172")
@pytest.mark.parametrize("call", sorted(call for call in CALLS if "…" not in call))
def test_a_command_line_is_understood(call: str):
    parse(commands, "sidestream", shlex.split(call)[1:])


def test_calls_are_found_and_wrong_ones_refused():
    page = "```sh\nKEY=1 sidestream demo  # plays\nsidestream logs list | head\nls\n```\n"
    assert command_lines(page) == ["sidestream demo", "sidestream logs list"]
    with pytest.raises(click.UsageError):
        parse(commands, "sidestream", ["demo", "--no-such-option"])

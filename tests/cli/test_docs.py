"""docs/cli.md is about the command as it is, and its console blocks show what is printed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.command import Run, parse
from sidestream.cli import exit_codes
from sidestream.cli.chat.chat_commands import COMMANDS
from sidestream.cli.main import COMMANDS as COMMAND_TABLE, commands
from sidestream.testing import FakeProvider, responses_text, sse
from support.places import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
EXAMPLES = [line for line in SHELL.splitlines() if "sidestream" in line and "python -m" not in line]


@pytest.mark.parametrize("line", EXAMPLES)
def test_documented_example_parses(line: str):
    words = shlex.split(line[line.index("sidestream") :].split(" | ")[0].split(" > ")[0])
    parse(commands, "sidestream", words[1:])


def every_command(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}".strip(), command
        if isinstance(command, click.Group) and name != "local":  # It has a page of its own.
            yield from every_command(command, name)


PERSON = '{"name": "Ada", "age": 36}'
PEOPLE = '{"items": [{"name": "Ada", "age": 36}, {"name": "Alan", "age": 41}]}'
ANSWERS = [PERSON, PEOPLE, PERSON, "A short summary."]
"""What the model answers to the prompts of the page, in order."""


def test_documented_output_matches_actual_output(sidestream: Run):
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE)
    assert len(steps) >= 8
    with FakeProvider([sse(responses_text(text)) for text in ANSWERS]).in_thread() as fake:
        for line, expected in steps:
            done = sidestream(*shlex.split(line)[1:], base_url=fake.base_url)
            pattern = re.escape(expected.replace(str(Path.home()), "~")).replace("…", ".*")
            assert re.fullmatch(pattern, done.stdout + done.stderr), (line, done.stdout + done.stderr)
    assert len(fake.requests) == len(ANSWERS)
    assert fake.requests[-1].json["instructions"] == "Answer in 5 words."


def test_command_list_matches_help_of_each_command():
    context = click.Context(commands)
    for name, lazy in COMMAND_TABLE.items():
        command = commands.get_command(context, name)
        assert command is not None
        assert (command.help or "").startswith(lazy.help.rstrip(".")), name


def test_every_command_and_option_is_documented():
    named = set(re.findall(r"(?<![\w-])-{0,2}\w[\w-]*", PAGE))
    missing = [
        f"{path} {name}"
        for path, command in every_command(commands)
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name not in named
    ]
    assert missing == []
    assert [path for path, _ in every_command(commands) if not set(path.split()) <= named] == []


def test_every_exit_code_and_chat_command_is_documented():
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
    assert set(re.findall(r"^\| `(/\w+)", PAGE, re.MULTILINE)) == set(COMMANDS)

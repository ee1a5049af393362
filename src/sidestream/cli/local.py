"""`sidestream local`: the files of the embedded models."""

import sys

import click

from sidestream.cli import exit_codes


@click.group()
def local() -> None:
    """Bring, check or remove the embedded models."""


@local.command()
def install() -> int:
    """Fetch the model files (190 MB) and check their digests. What is here already stays."""
    from sidestream.providers.local.install import install

    install(_say)
    return exit_codes.OK


@local.command()
def status() -> int:
    """Say what is here and whether it is whole. Exit code 1 where something is missing."""
    from sidestream.providers.local.install import status

    lines, is_complete = status()
    for line in lines:
        print(line)
    return exit_codes.OK if is_complete else exit_codes.FAILED


@local.command()
def remove() -> int:
    """Remove the files that `install` brought."""
    from sidestream.providers.local.install import remove

    remove(_say)
    return exit_codes.OK


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

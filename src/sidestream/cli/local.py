"""`sidestream local`: manages the files of the embedded models."""

import sys

import click

from sidestream.cli import exit_codes


@click.group()
def local() -> None:
    """Install, check or remove the embedded models."""


@local.command()
def install() -> int:
    """Download the model files (190 MB) and verify their digests. Files that are already installed are kept."""
    from sidestream.providers.local.install import install

    install(_print_progress)
    return exit_codes.OK


@local.command()
def status() -> int:
    """Show which files are installed and intact. Exits with code 1 if any is missing."""
    from sidestream.providers.local.install import status

    lines, is_complete = status()
    for line in lines:
        print(line)
    return exit_codes.OK if is_complete else exit_codes.FAILED


@local.command()
def remove() -> int:
    """Remove the files that `install` downloaded."""
    from sidestream.providers.local.install import remove

    remove(_print_progress)
    return exit_codes.OK


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

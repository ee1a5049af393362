"""How tests start the command."""

import subprocess
import sys
from collections.abc import Callable

import click

COMMAND = [sys.executable, "-m", "sidestream.cli"]
KEY = "sk-canary-51f0a7c2d94e4b6f"

Run = Callable[..., subprocess.CompletedProcess[str]]


def parse(command: click.Command, name: str, args: list[str], parent: click.Context | None = None) -> None:
    """Raises UsageError where the command does not take these arguments; runs nothing."""
    context = command.make_context(name, args, parent=parent)
    first = context._protected_args if hasattr(context, "_protected_args") else context.protected_args  # click 8.1
    rest = [*first, *context.args]
    if isinstance(command, click.Group) and rest:
        name, inner, rest = command.resolve_command(context, rest)
        assert name is not None
        assert inner is not None
        parse(inner, name, rest, context)

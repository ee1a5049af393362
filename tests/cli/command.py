"""How tests start the command."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

COMMAND = [sys.executable, "-m", "sidestream.cli"]
KEY = "sk-canary-51f0a7c2d94e4b6f"

Run = Callable[..., subprocess.CompletedProcess[str]]


def runner(start: Run, environment: dict[str, str], folder: Path) -> Run:
    """Return what runs the command to its end with `subprocess.run`, or with what replaces it."""

    def run(*args: str, base_url: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        where = {} if base_url is None else {"OPENAI_BASE_URL": base_url}
        given = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
        done = start(
            [*COMMAND, *args],
            env={**environment, **where, **options.pop("env", {})},
            cwd=folder,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=60,
            **given,
            **options,
        )
        assert KEY not in (done.stdout or "") + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


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

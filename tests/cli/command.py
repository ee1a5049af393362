"""How tests start the command."""

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

COMMAND = [sys.executable, "-m", "sidestream.cli"]
KEY = "sk-canary-51f0a7c2d94e4b6f"

Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def started(*args: str, **options: Any) -> Generator[subprocess.Popen[Any], None, None]:
    """A process that a failing test does not leave behind."""
    with subprocess.Popen(args, **options) as process:
        try:
            yield process
        finally:
            process.kill()

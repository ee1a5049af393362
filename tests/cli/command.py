"""How tests start the command."""

import subprocess
import sys
from collections.abc import Callable

COMMAND = [sys.executable, "-m", "sidestream.cli"]
KEY = "sk-canary-51f0a7c2d94e4b6f"

Run = Callable[..., subprocess.CompletedProcess[str]]

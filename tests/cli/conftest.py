"""The command as users have it: a process with its own environment."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.command import COMMAND, KEY, Run


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A key, and nothing of the machine that could change what is printed."""
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "LANG": "C.UTF-8", "TERM": "xterm", "OPENAI_API_KEY": KEY}


@pytest.fixture
def sidestream(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs the command to its end. Its key must not come out anywhere."""

    def run(*args: str, base_url: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        where = {} if base_url is None else {"OPENAI_BASE_URL": base_url}
        given = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
        done = subprocess.run(
            [*COMMAND, *args],
            env={**environment, **where, **options.pop("env", {})},
            cwd=tmp_path,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=60,
            check=False,
            **given,
            **options,
        )
        assert KEY not in (done.stdout or "") + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run

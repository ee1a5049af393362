"""The command as users have it: a process with its own environment."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.command import KEY, Run, runner
from cli.driving import Talk, Talks, on_terminal, piped
from support import warm
from support.mcp_servers.running import npm_servers

__all__ = ["environment", "npm_servers", "sidestream", "talks"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A key and a model, no log of prompts, and nothing of the machine that could change what is printed."""
    settings = tmp_path / ".config" / "sidestream" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"model": "openai-responses", "log": false}')
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    return {
        **kept,
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "OPENAI_API_KEY": KEY,
    }


@pytest.fixture
def sidestream(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs the command to its end. Its key must not come out anywhere."""
    return runner(warm.run, environment, tmp_path)


@pytest.fixture
def talks(environment: dict[str, str], tmp_path: Path) -> Generator[Talks]:
    """Starts the command to talk with it. Its key must come out nowhere: neither shown nor kept."""
    started: list[Talk] = []

    @contextmanager
    def talk(*args: str, base_url: str, terminal: bool = False, env: dict[str, str] | None = None) -> Generator[Talk]:
        given = {**environment, "OPENAI_BASE_URL": base_url, **(env or {})}
        with (on_terminal if terminal else piped)(*args, env=given, cwd=tmp_path) as opened:
            started.append(opened)
            yield opened

    yield talk
    for opened in started:
        assert KEY not in opened.shown
        assert "Traceback" not in opened.shown
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []

"""Starts MCP servers: real ones from npm, by name and version, and any program over HTTP."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from support.places import ROOT
from support.waiting import wait_until

HERE = Path(__file__).resolve().parent
FOLDER = ROOT / ".npm-servers"
PACKAGES = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
}
INSTALL_TIMEOUT_S = 300
START_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def npm_servers() -> Path:
    """The folder with the packages; installs what is missing, one worker at a time."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not on this machine, so its MCP servers cannot be tried")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [f"{name}@{version}" for name, version in PACKAGES.items() if installed(name) != version]
        if missing:
            install([f"{name}@{version}" for name, version in PACKAGES.items()])
    return FOLDER / "node_modules" / "@modelcontextprotocol"


def installed(name: str) -> str | None:
    with suppress(OSError, ValueError):
        return json.loads((FOLDER / "node_modules" / name / "package.json").read_text("utf-8"))["version"]
    return None


def install(packages: list[str]) -> None:
    options = ["--prefix", str(FOLDER), "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        ["npm", "install", *options, "--loglevel=error", *packages],
        cwd=FOLDER,
        capture_output=True,
        encoding="utf-8",
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install the MCP servers: {done.stderr.strip()[-300:]}")


@contextmanager
def serving(command: Callable[[int], list[str]], log: Path, port: int | None = None) -> Generator[str]:
    """The URL of a server on 127.0.0.1, on this port or a free one, as long as the block lasts."""
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(port),
            env={**os.environ, "PORT": str(port)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until_up(port, process, log)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(START_TIMEOUT_S)


def wait_until_up(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def written() -> str:
        return log.read_text("utf-8", "replace")[-2000:]

    def answers() -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}: {written()}"
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/mcp")
                connection.getresponse().read()
                return True
            finally:
                connection.close()
        return False

    wait_until(answers, within_s=START_TIMEOUT_S, pause_s=0.05, explain=written)

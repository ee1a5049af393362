"""The command itself: help, version, start-up, and what Ctrl-C does."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import COMMAND, Run, runner
from requirements import requirement
from sidestream import __version__, cli
from support.children import is_alive, started
from support.places import TESTS
from support.waiting import wait_until

DEMO = str(Path(cli.__file__).parent / "commands" / "demo" / "web_search.json")
ROGUE = TESTS / "support" / "mcp_servers" / "rogue.py"


@pytest.fixture
def sidestream(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs the command in a fresh interpreter, as users do."""
    return runner(subprocess.run, environment, tmp_path)


def test_help_shows_prompt_options_and_every_command(sidestream: Run):
    done = sidestream("--help")
    assert done.returncode == 0
    for word in ("--model", "--mcp", "--json", "SIDESTREAM_MODEL", "chat", "logs", "replay", "demo", "Examples:"):
        assert word in done.stdout


@pytest.mark.parametrize("command", ["prompt", "chat", "logs", "models", "keys", "local", "replay", "demo"])
def test_every_command_has_help(sidestream: Run, command: str):
    done = sidestream(command, "-h")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: sidestream {command}")


def test_version_option_prints_version(sidestream: Run):
    assert sidestream("--version").stdout == f"sidestream {__version__}\n"


def test_command_name_can_still_be_prompt(sidestream: Run):
    done = sidestream("prompt", "demo", base_url="http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr


def test_missing_click_is_one_line_with_extra_name():
    program = "import sys; sys.modules['click'] = None; from sidestream.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert 'pip install "sidestream[cli]"' in line


@pytest.mark.parametrize("args", [["--help"], ["chat", "--help"], ["keys", "path"], ["replay", DEMO, "--json"]])
def test_only_needed_modules_are_imported(args: list[str]):
    program = (
        "import sys; from sidestream.cli.main import run; code = run();"
        "heavy = {'aiohttp', 'pydantic', 'rich', 'prompt_toolkit', 'mcp', 'openai'} & sys.modules.keys();"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    assert done.stderr.endswith("0 []\n")


STUBBORN = """
import asyncio
from sidestream.cli.interrupts import run_async

async def stubborn():
    print("ready", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("no", flush=True)

run_async(stubborn())
"""


def test_second_ctrl_c_exits_at_once():
    with started(sys.executable, "-c", STUBBORN, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


WITH_A_CHILD = f"""
import asyncio, sys
from sidestream.cli.interrupts import run_async
from sidestream.mcp import MCPServer

async def stubborn():
    server = MCPServer("rogue", command=sys.executable, args=["-I", {str(ROGUE)!r}, "--ignore-end"])
    tools = {{tool.name: tool for tool in await server.list()}}
    print((await tools["pid"].function({{}}, ToolContext("1", "pid"))), flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("no", flush=True)

from sidestream.tools.context import ToolContext
run_async(stubborn())
"""


@requirement("F26")
def test_second_ctrl_c_ends_children_too():
    with started(sys.executable, "-c", WITH_A_CHILD, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(re.findall(rb'"pid": (\d+)', process.stdout.readline())[0])
        assert is_alive(pid)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    wait_until(lambda: not is_alive(pid))


def test_console_script_is_same_command():
    script = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import entry_points as e; print(e(name='sidestream'))"],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    assert "sidestream.cli:main" in script.stdout
    assert COMMAND[-1] == "sidestream.cli"

"""F26: Ctrl-C at any point of a run closes everything, and a second one exits within a second."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command import COMMAND, Run
from requirements import requirement
from sidestream.testing import FakeProvider, Reply, ResponsesScript, responses_text, sse
from support.children import ends, started
from support.places import TESTS
from support.waiting import wait_until

ROGUE = TESTS / "support" / "mcp_servers" / "rogue.py"
SECOND_S = 3.0
"""Less than the steps that end a resisting server take; the promise for the second Ctrl-C is one second of an idle machine."""
BETWEEN_S = 0.5


def calls(name: str) -> Reply:
    return ResponsesScript().function_call(name, {}, f"call_{name}").reply()


def held(after: int) -> Reply:
    return sse([*responses_text(["Hel", "lo."])[:after], asyncio.Event()])


POINTS: dict[str, tuple[list[str], Callable[[], list[Reply]]]] = {
    "the server starts": (["--start", "hang"], list),
    "a request waits for its response": ([], lambda: [held(0)]),
    "a response has begun": ([], lambda: [held(2)]),
    "text streams": ([], lambda: [held(6)]),
    "a tool runs": ([], lambda: [calls("spawn"), calls("hang")]),
    "a second request waits": ([], lambda: [calls("spawn"), held(0)]),
}
"""Where a run can be: the options of its MCP server, and what the provider answers."""


def wait_for(name: str, process: subprocess.Popen[bytes], fake: FakeProvider, log: Path, *, resists: bool) -> list[int]:
    """Waits until the command is at that point. Returns its descendants."""
    assert process.stdout is not None
    if name == "the server starts":
        # A server that has only just started does not resist yet.
        wait_until(lambda: any(not resists or ignores_end(server) for server in servers_below(process.pid)))
    elif name == "a tool runs":
        wait_until(lambda: log.exists() and b'"name":"hang"' in log.read_bytes())
    else:
        count = len(POINTS[name][1]())
        wait_until(lambda: len(fake.requests) == count)
    if name == "text streams":
        shown = b""
        while b"Hel" not in shown:
            more = os.read(process.stdout.fileno(), 4096)
            assert more, shown
            shown += more
    found = descendants(process.pid)
    assert len(found) >= 3  # the server and what watches it
    return found


def descendants(pid: int) -> list[int]:
    found = [pid]
    for known in found:
        for path in Path(f"/proc/{known}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found[1:]


def ignores_end(pid: int) -> bool:
    """Whether a process ignores SIGTERM."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1)


def servers_below(pid: int) -> list[int]:
    script = str(ROGUE).encode()
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in descendants(pid)}
    return [child for child, words in commands.items() if words[2:3] == [script]]


@pytest.fixture
def mcp(tmp_path: Path) -> Callable[..., str]:
    def write(*options: str) -> str:
        given = ["-I", str(ROGUE), "--log", str(tmp_path / "received.jsonl"), *options]
        (tmp_path / "mcp.json").write_text(
            json.dumps({"mcpServers": {"rogue": {"command": sys.executable, "args": given}}})
        )
        return "mcp.json"

    return write


@requirement("F26", "R78")
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("command", "name"), [*(("prompt", name) for name in POINTS), ("chat", "text streams"), ("chat", "a tool runs")]
)
def test_ctrl_c_at_any_point_leaves_no_process_and_no_request(
    sidestream: Run,
    environment: dict[str, str],
    mcp: Callable[..., str],
    tmp_path: Path,
    name: str,
    command: str,
    times: int,
):
    options, script = POINTS[name]
    with FakeProvider(script()).in_thread() as fake:
        resisting = [] if times == 1 else ["--ignore-end"]
        arguments = ["--approve", "run", "--mcp", mcp(*options, *resisting), "go"]
        # A prompt reads its input to the end, a chat waits for its next line.
        streams = {"stdin": subprocess.DEVNULL if command == "prompt" else subprocess.PIPE}
        streams |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        env = {**environment, "OPENAI_BASE_URL": fake.base_url}
        logged = ["prompt", "--log"] if command == "prompt" else ["chat"]
        with started(*COMMAND, *logged, *arguments, env=env, cwd=tmp_path, **streams) as process:
            below = wait_for(name, process, fake, tmp_path / "received.jsonl", resists=times == 2)
            process.send_signal(signal.SIGINT)
            if times == 2:
                with pytest.raises(subprocess.TimeoutExpired):  # The server resists; and signals do not queue.
                    process.wait(BETWEEN_S)
                process.send_signal(signal.SIGINT)
                assert process.wait(SECOND_S) == 130
            else:
                process.communicate(timeout=30)
                assert process.returncode == 130
            assert [pid for pid in below if not ends(pid, within_s=5)] == []
        asyncio.run(fake.wait_idle())
    if times == 1:
        assert "cancelled" in sidestream("logs", "show").stdout

"""What holds a server's processes together: nothing of a server outlives it, nor the program that started it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ToolServerError
from sidestream.mcp import MCPServer
from sidestream.mcp.process.process import child_environment
from support.children import ends, is_alive, started
from support.mcp_servers.peers import HERE, PATIENCE_S, call, rogue, told
from support.waiting import eventually

ESCAPED = {"detached": True, "bare": True, "orphaned": True}

OWNER = f"""
import asyncio, json, os, sys
from sidestream.mcp import MCPServer
from sidestream.tools.tool import ToolContext

async def main():
    server = MCPServer("rogue", command=sys.executable, args=["-I", {str(HERE / "rogue.py")!r}, "--ignore-end"])
    tools = {{tool.name: tool for tool in await server.list()}}
    for name, arguments in (("facts", {{}}), ("spawn", {ESCAPED!r})):
        outcome = await tools[name].run(arguments, ToolContext("c", name))
        facts = json.loads(outcome.result)
        print(*(facts[key] for key in ("pid", "parent") if key in facts), flush=True)
    if "fork" in sys.argv and os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # a worker that inherits every descriptor, until the test ends
        os._exit(0)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
"""Prints the pids of a server, of its supervisor and of a descendant that has escaped."""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[1])


@requirement("F26", "F43", "R78")
@pytest.mark.parametrize("mode", ["alone", "fork"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_program_leaves_no_server_and_no_descendant(number: signal.Signals, mode: str):
    pipe = subprocess.PIPE
    with started(sys.executable, "-c", OWNER, mode, stdin=pipe, stdout=pipe) as program:
        assert program.stdout is not None
        words = b" ".join(program.stdout.readline() for _ in range(3)).split()
        *pids, ready = words
        assert (len(pids), ready) == (3, b"ready")
        assert all(is_alive(int(pid)) for pid in pids)
        began = time.monotonic()
        program.send_signal(number)
        assert all(ends(int(pid), within_s=5) for pid in pids)
        assert time.monotonic() - began < 5


@requirement("F43")
@pytest.mark.parametrize("victim", ["guard", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_killing_either_watcher_ends_whole_server(number: signal.Signals, victim: str):
    async with rogue("--ignore-end") as server:
        facts = await told(server, "facts")
        grandchild = (await told(server, "spawn", ESCAPED))["pid"]
        process = server._connection()._stdio.process
        assert len({process.pid, facts["parent"], os.getpid()}) == 3
        os.kill(process.pid if victim == "guard" else facts["parent"], number)
        await eventually(lambda: not any(map(is_alive, (facts["pid"], facts["parent"], grandchild))))
        await asyncio.wait_for(process.exited.wait(), 30)


@requirement("F43")
async def test_own_process_adopts_no_orphans():
    async with rogue() as server:
        grandchild = (await told(server, "spawn", ESCAPED))["pid"]
        assert parent_of(grandchild) == (await told(server, "facts"))["parent"] != os.getpid()


async def ignored_by_a_child() -> str:
    """The signals that a Python which we start ourselves ignores, as the kernel writes them."""
    program = "print(open('/proc/self/status').read().partition('SigIgn:')[2].split()[0])"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    printed, _ = await asyncio.wait_for(child.communicate(), PATIENCE_S)
    return printed.decode().strip()


def signals(mask: str) -> int:
    """A mask of signals as the kernel writes it, without those that the C library keeps to itself.

    It sets the two before the first real-time signal as it likes: a process that it spawns ignores them.
    """
    return int(mask, 16) & ~(0b11 << 31)


@requirement("F43")
async def test_server_gets_arguments_environment_and_signals_as_child(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):  # Python would add a locale of its own.
        monkeypatch.delenv(name, raising=False)
    odd = os.fsdecode(b"\xff \n'\"")
    given = {"EMPTY": "", "LINES": "a=b\nc"}
    async with rogue("--word", odd, "--word", "", "--word=ü", env=given) as server:
        facts = await told(server, "facts")
    assert [bytes.fromhex(word) for word in facts["arguments"]][3:] == [
        b"--word",
        b"\xff \n'\"",
        b"--word",
        b"",
        "--word=ü".encode(),
    ]
    environment = dict(entry.split("=", 1) for entry in facts["environment"].split("\0") if entry)
    assert environment == child_environment((), given)
    assert facts["descriptors"][:3] == ["0", "1", "2"]
    assert len(facts["descriptors"]) == 4  # and the folder that is being listed
    assert signals(facts["ignored"]) == signals(await ignored_by_a_child())


@requirement("F43")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_server_ended_by_signal_is_reported_with_it(number: signal.Signals):
    async with rogue() as server:
        outcome = await call(server, "end-by-signal", {"signal": number})
        assert f"it exited with code {-number}" in outcome.result["message"]


@requirement("F43")
async def test_server_closing_its_output_is_noticed_at_once():
    async with rogue("--ignore-end") as server:
        outcome = await call(server, "close-output")
        assert "it closed its output" in outcome.result["message"]


@requirement("F43")
async def test_orphans_ending_during_server_run_leave_no_zombies():
    async with rogue() as server:
        parent = (await told(server, "facts"))["parent"]
        grandchild = (await told(server, "spawn", ESCAPED))["pid"]
        os.kill(grandchild, signal.SIGKILL)
        await eventually(lambda: not Path(f"/proc/{grandchild}").exists())
        assert is_alive(parent)
        assert await told(server, "echo", {"a": 1}) == {"a": 1}


@requirement("F26", "R78")
async def test_closing_leaves_no_process_and_no_descriptor():
    async def use() -> int:
        async with rogue() as server:
            await server.list()
            return server._connection()._stdio.process.pid

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    await use()  # the first one imports and opens what stays
    before = set(os.listdir("/proc/self/fd")), children()
    pid = await use()
    assert (set(os.listdir("/proc/self/fd")), children()) == before
    assert str(pid) not in os.listdir("/proc")


# Without a supervisor


@pytest.fixture(params=["another program", "does not start", "is missing"])
def unsupervised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A Python whose executable cannot run the supervisor."""
    python = tmp_path / ("program" if request.param == "another program" else "python")
    if request.param != "is missing":
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
    rogue_python = sys.executable
    monkeypatch.setattr(sys, "executable", str(python))
    return rogue_python


@requirement("F43")
async def test_process_group_is_tree_without_supervisor(unsupervised: str):
    server = MCPServer("rogue", command=unsupervised, args=["-I", str(HERE / "rogue.py"), "--ignore-end"])
    facts = await told(server, "facts")
    assert facts["parent"] == os.getpid()
    grandchild = (await told(server, "spawn"))["pid"]
    began = time.monotonic()
    await server.aclose()
    assert time.monotonic() - began < 5
    assert not any(map(is_alive, (facts["pid"], grandchild)))


async def test_unexecutable_program_is_named_without_supervisor(unsupervised: str, tmp_path: Path):
    program: Any = tmp_path / "text"
    program.write_text("text")
    with pytest.raises(ToolServerError, match="install"):
        await MCPServer("files", command=str(program)).list()

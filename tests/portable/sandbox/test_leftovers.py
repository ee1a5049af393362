"""What a call leaves behind: processes rest until the next call, and a cancelled start leaves nothing."""

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from portable.sandbox.test_containers import processes, run, started
from requirements import requirement
from sidestream import Agent, CodeInterpreter, ProgrammaticToolCalling, Shell
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import CodeFile, Container, ContainerSpec
from sidestream.portable.sandbox.processes import activity
from sidestream.portable.sandbox.worker import owned
from sidestream.testing import ScriptedModel, tool_call
from support.sandboxes import needs


def below(pid: int) -> Iterator[int]:
    """The processes below one, as a test may find them: by their parents."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return iter(found - {pid})


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


LATE_S = 0.03
"""CPU seconds that the system may add late: a tick of each processor, for a process that was running when it stopped."""


async def spent(container: Container) -> float:
    """CPU seconds that the container takes while another one takes a while."""
    root: int = container._inner.pid  # pyright: ignore
    before = activity(root)
    async with started() as other:
        await run(other, "import time\ntime.sleep(0.5)")
    after = activity(root)
    assert before is not None
    assert after is not None
    assert not after.is_running
    return after.cpu_s - before.cpu_s


SPINNERS = {
    "processes": "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: pass",
    "threads": "import threading\nfor _ in range(4): threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()",
    "session": "import subprocess\nsubprocess.Popen('setsid sh -c \"while :; do :; done\" &', shell=True)",
}


@requirement("R122", "F52")
@pytest.mark.parametrize("how", SPINNERS)
async def test_processes_are_paused_after_cell(how: str) -> None:
    async with started() as container:
        assert (await run(container, SPINNERS[how])).ending == "completed"
        assert await spent(container) < LATE_S
        assert (await run(container, "6 * 7")).logs == "42\n"
        assert await spent(container) < LATE_S


async def test_processes_are_paused_after_command_and_file() -> None:
    async with started() as container:
        await container.command("sh -c 'while :; do :; done' & echo on", lambda out, err: None)
        assert await spent(container) < LATE_S
        await container.put([CodeFile("a.txt", b"1")])
        assert await spent(container) < LATE_S


async def test_server_of_one_cell_answers_in_next() -> None:
    serve = """
import subprocess, sys
code = '''
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/s")
server.listen()
print("up", flush=True)
while True:
    peer, _ = server.accept()
    peer.sendall(b"hello")
    peer.close()
'''
server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
print(server.stdout.readline().decode().strip())
"""
    ask = "import socket\nclient = socket.socket(socket.AF_UNIX)\nclient.connect('/tmp/s')\nprint(client.recv(9).decode())"
    async with started() as container:
        assert (await run(container, serve)).logs == "up\n"
        assert await spent(container) < LATE_S
        for _ in range(2):
            assert (await run(container, ask)).logs == "hello\n"


@requirement("F52")
async def test_self_replacing_processes_are_paused_or_end_container() -> None:
    chain = "import os\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)"
    async with started() as container:
        outcome = await run(container, chain)
        assert outcome.ending == "completed"
        if container.is_alive:
            assert await spent(container) < LATE_S
        else:
            assert "could not be stopped" in outcome.notes[-1]


async def test_paused_processes_end_with_container() -> None:
    marker = f"sleep 97{os.getpid()}"
    async with started() as container:
        code = f"import subprocess\nsubprocess.Popen('{marker} & wait', shell=True, start_new_session=True)"
        await run(container, code)
        found = list(processes(marker))
        assert found
        assert {state(pid) for pid in found} == {"T"}
    assert list(processes(marker)) == []


HOLDERS = {
    "frames": "while True: os.write(4, b'x' * 65536)",
    "pipes": "time.sleep(600)",
}
"""What a process does that has left the group of its container, with the pipes of the kernel."""


@requirement("R122", "F52")
@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.filterwarnings("ignore::sidestream.portable.sandbox.bare.UnisolatedWarning")
async def test_kill_ends_while_process_outside_holds_pipes(how: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os, time\nready, theirs = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
        f"    open({str(note)!r}, 'w').write(str(os.getpid()))\n    os.write(theirs, b'1')\n    {HOLDERS[how]}\n"
        "os.read(ready, 1)"
    )
    async with started("none") as container:
        # Frames of the process can come before the end of the cell, which ends the container as well.
        await asyncio.wait_for(run(container, code), 30)
        try:
            await asyncio.wait_for(container.kill(), 30)
        finally:
            with suppress(ProcessLookupError):
                os.kill(int(note.read_text()), signal.SIGKILL)
    assert not container.is_alive


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Temporary folders that this process makes: others have folders of the same names in the same place."""
    made: list[str] = []
    make = tempfile.mkdtemp

    def noted(*arguments: Any, **options: Any) -> str:
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    return made


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # It has ended meanwhile.
        return b""


def leftovers(folders: list[str]) -> dict[str, Any]:
    """What containers of this process hold."""
    own = f"sidestream-{os.getpid()}-"
    return {
        "processes": [pid for pid in below(os.getpid()) if b"kernel" in command_of(pid)],
        "groups": glob(f"/sys/fs/cgroup/**/{own}*", recursive=True),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "folders": [folder for folder in folders if os.path.exists(folder)],
    }


@requirement("R122", "F52")
async def test_computation_ended_at_once_leaves_no_descriptors(folders: list[str]) -> None:
    needs("monty")
    await (await choice.start("monty", ContainerSpec(packages=()))).kill()
    before = leftovers(folders)
    for _ in range(20):
        await (await choice.start("monty", ContainerSpec(packages=()))).kill()
        assert leftovers(folders) == before


@requirement("R122", "F52")
@pytest.mark.parametrize("backend", ["bubblewrap", "monty", "none"])
@pytest.mark.filterwarnings("ignore::sidestream.portable.sandbox.bare.UnisolatedWarning")
async def test_cancelled_start_leaves_no_processes(backend: str, folders: list[str]) -> None:
    needs(backend)
    before = leftovers(folders)
    steps, is_started = 0, False
    while not is_started:
        starting = asyncio.ensure_future(choice.start(backend, ContainerSpec(packages=())))
        # Later each time, up to a start that is not cancelled.
        for _ in range(steps):
            await asyncio.wait({starting}, timeout=0.002)
        is_started = starting.done()
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await (await starting).kill()
        steps += 1 + steps // 4
        assert leftovers(folders) == before
    assert steps > 1


@requirement("R122", "F52")
async def test_cancelled_calls_leave_no_processes(folders: list[str]) -> None:
    needs("bubblewrap")
    before = leftovers(folders)
    code = "import os, time\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    tools = [kind(execution="here", sandbox="bubblewrap") for kind in (CodeInterpreter, Shell, ProgrammaticToolCalling)]
    calls = [
        tool_call("code_interpreter", code=code),
        tool_call("shell", commands=["sleep 600 & sleep 600"]),
        tool_call("programmatic_tool_calling", code=code),
    ]
    for number, call in enumerate(calls * 4):
        async with Agent(ScriptedModel([call, "ok"]), server_side_tools=tools) as agent:
            sending = asyncio.ensure_future(agent.send("x"))
            await asyncio.wait({sending}, timeout=0.05 * number)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        assert leftovers(folders) == before


class Slow:
    """A sandbox whose containers take as long to start as a test wants."""

    name = "slow"

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.is_alive = True
        self.id = "cntr_slow"

    async def start(self, spec: ContainerSpec) -> Container:
        return await owned(self._begin)

    async def _begin(self) -> Any:
        self.begun.set()
        await asyncio.to_thread(self.goes_on.wait, 60)
        return self

    async def kill(self) -> None:
        self.is_alive = False


@requirement("F52")
async def test_closed_agent_ends_container_of_cancelled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Slow()
    monkeypatch.setitem(choice._own, sandbox.name, sandbox)  # pyright: ignore
    tool = CodeInterpreter(execution="here", sandbox=sandbox.name)
    agent = Agent(ScriptedModel([tool_call("code_interpreter", code="1"), "ok"]), server_side_tools=[tool])
    sending = asyncio.ensure_future(agent.send("x"))
    assert await asyncio.to_thread(sandbox.begun.wait, 60)
    sending.cancel()
    # A cancelled call waits only a moment for its tool, which waits for the start.
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert sandbox.is_alive
    closing = asyncio.ensure_future(agent.aclose())
    sandbox.goes_on.set()
    await closing
    assert not sandbox.is_alive

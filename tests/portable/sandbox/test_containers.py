"""A container: state between cells, what code prints and makes, and code that does not behave."""

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.limits import DEFAULT_SANDBOX_LIMITS, MIB, SandboxLimits
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.containers import Containers
from sidestream.portable.sandbox.port import (
    CellOutcome,
    CodeFile,
    Container,
    ContainerSpec,
    SandboxError,
    ToolAnswer,
)
from support.sandboxes import needs

ISOLATING = ["bubblewrap", "runsc"]


@asynccontextmanager
async def started(
    backend: str = "bubblewrap", limits: SandboxLimits = DEFAULT_SANDBOX_LIMITS
) -> AsyncGenerator[Container]:
    needs(backend)
    container = await choice.start(backend, ContainerSpec(limits=limits))
    try:
        yield container
    finally:
        await container.kill()


async def run(container: Container, code: str) -> CellOutcome:
    return await container.run(code, lambda text: None)


def processes(of: str) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if of.encode() in Path("/proc", name, "cmdline").read_bytes():
                yield int(name)
        except OSError:
            continue


@requirement("R122")
@pytest.mark.parametrize("backend", [*ISOLATING, "monty"])
async def test_variables_persist_and_last_expression_is_printed(backend: str) -> None:
    async with started(backend) as container:
        assert (await run(container, "x = 2 ** 64\nprint('set')")).logs == "set\n"
        assert (await run(container, "x + 1")).logs == "18446744073709551617\n"
        failed = await run(container, "x / 0")
        assert failed.ending == "raised"
        assert "ZeroDivisionError" in failed.logs
        assert (await run(container, "x")).logs == "18446744073709551616\n"


async def test_traceback_shows_cell_without_kernel_frames() -> None:
    async with started() as container:
        logs = (await run(container, "def f():\n    return 1 / 0\nf()")).logs
        assert logs.splitlines()[:3] == ["Traceback (most recent call last):", '  File "<cell 1>", line 3, in <module>', "    f()"]  # fmt: skip
        assert "kernel" not in logs
        syntax = await run(container, "if :")
        assert (syntax.ending, "SyntaxError" in syntax.logs) == ("raised", True)


@requirement("R122")
@pytest.mark.parametrize("backend", ISOLATING)
async def test_output_is_streamed_while_code_runs(backend: str) -> None:
    async with started(backend) as container:
        seen: list[str] = []
        first = asyncio.Event()

        def on_output(text: str) -> None:
            seen.append(text)
            first.set()

        await container.put([CodeFile("go", b"")])
        code = (
            "import sys, time\nprint('one')\nwhile True:\n    time.sleep(0.01)\n    if await ask(): break\nprint('two')"
        )

        async def answer(name: str, arguments: object) -> ToolAnswer:
            await first.wait()
            return ToolAnswer(True)

        outcome = await container.run(code, on_output, tools=["ask"], call_tool=answer)
        assert seen[0] == "one\n"
        assert outcome.logs == "".join(seen) == "one\ntwo\n"


async def test_output_of_subprocesses_is_in_order() -> None:
    async with started() as container:
        outcome = await run(container, "import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d')")
        assert outcome.logs == "a\nb\nc\nd\n"


@requirement("R122")
@pytest.mark.parametrize("backend", ISOLATING)
async def test_written_files_and_figures_are_deliverables(backend: str) -> None:
    async with started(backend) as container:
        await container.put([CodeFile("in.csv", b"1,2\n")])
        outcome = await run(container, "data = open('in.csv').read()\nopen('out.csv', 'w').write(data * 2)\nNone")
        assert [(file.name, file.data) for file in outcome.files] == [("out.csv", b"1,2\n1,2\n")]
        assert (await run(container, "1")).files == ()
        plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
        drawn = await run(container, plot)
        assert [image[:4] for image in drawn.images] == [b"\x89PNG"]
        saved = await run(container, "plt.plot([1, 2])\nplt.savefig('plot.png')")
        assert ([file.name for file in saved.files], saved.images) == (["plot.png"], ())


@requirement("R122")
async def test_endless_code_is_killed_with_its_processes() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, cell_s=1.0)
    async with started(limits=limits) as container:
        marker = f"sleep 98{os.getpid()}"
        outcome = await run(
            container,
            f"import subprocess\nsubprocess.Popen('{marker}', shell=True, start_new_session=True)\nwhile True: pass",
        )
        assert outcome.ending == "timeout"
        assert not container.is_alive
        assert list(processes(marker)) == []


async def test_cell_clock_pauses_while_waiting_for_tool() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, cell_s=2.0)

    async def slow(name: str, arguments: object) -> ToolAnswer:
        async with started() as other:  # takes as long as a cell of another container
            await run(other, "import time\ntime.sleep(2.5)")
        return ToolAnswer("late")

    async with started(limits=limits) as container:
        outcome = await container.run("print(await ask())", lambda text: None, tools=["ask"], call_tool=slow)
        assert (outcome.ending, outcome.logs) == ("completed", "late\n")


async def test_cell_limit_holds_when_code_ignores_signals() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, cell_s=1.0)
    code = "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\nsignal.pause()"
    async with started(limits=limits) as container:
        assert (await run(container, code)).ending == "timeout"


@requirement("R122")
@pytest.mark.parametrize("backend", ISOLATING)
async def test_gigabyte_of_output_ends_container_and_keeps_beginning(backend: str) -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, output_bytes=8 * MIB, log_bytes=1000)
    async with started(backend, limits) as container:
        outcome = await run(container, "print('begin')\nfor _ in range(1 << 14): print('x' * (1 << 16))")
        assert outcome.ending == "output"
        assert outcome.logs.startswith("begin\nxxx")
        assert len(outcome.logs) < 1200


async def test_long_output_is_truncated_and_container_survives() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, log_bytes=1000)
    async with started(limits=limits) as container:
        outcome = await run(container, "print('ä' * 100_000)")
        assert (outcome.ending, container.is_alive) == ("completed", True)
        assert "bytes of output are not shown" in outcome.logs
        outcome = await run(container, "print('begin')\nprint('ä' * 100_000)\n1 / 0")
        assert outcome.logs.startswith("begin\nää")
        assert outcome.logs.endswith("ZeroDivisionError: division by zero\n")
        assert len(outcome.logs) < 1200
        assert "\ufffd" not in outcome.logs.partition("[cut")[2]


@pytest.mark.parametrize("code", ["import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nimport ctypes\nctypes.string_at(0)"])  # fmt: skip
async def test_code_exiting_its_process_ends_only_container(code: str) -> None:
    async with started() as container:
        assert (await run(container, code)).ending == "died"
        assert not container.is_alive
        with pytest.raises(SandboxError):
            await run(container, "1")


@requirement("R122")
async def test_odd_names_links_pipes_and_large_files_are_harmless() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, file_bytes=1 * MIB, files=8)
    code = """
import os, socket
os.makedirs("../data/sub/..hidden", exist_ok=True)
open("sub/../../data/plain.txt", "w").write("1")
os.mkfifo("pipe")
os.symlink("/etc/passwd", "link")
os.symlink("/", "root")
os.symlink("loop", "loop")
socket.socket(socket.AF_UNIX).bind("socket")
open("-rf", "w").write("2")
open("new\\nline", "w").write("3")
open("big.bin", "wb").write(bytes(2 << 20))
os.makedirs("deep/er")
open("deep/er/x.txt", "w").write("4")
"""
    async with started(limits=limits) as container:
        outcome = await run(container, code)
        assert outcome.ending == "completed", outcome.logs
        assert sorted((file.name, file.data) for file in outcome.files) == [("newline", b"3"), ("plain.txt", b"1"), ("rf", b"2"), ("x.txt", b"4")]  # fmt: skip
        assert [note.split(" ")[0] for note in outcome.notes] == ["big.bin"]
        many = await run(container, "for n in range(20): open(f'{n}.txt', 'w').write('x')")
        assert len(many.files) == 8
        assert many.notes


async def test_full_disk_is_error_inside_and_container_survives() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, disk_bytes=4 * MIB, file_bytes=1 * MIB)
    async with started(limits=limits) as container:
        outcome = await run(container, "open('.a', 'wb').write(bytes(3 << 20))\nopen('.b', 'wb').write(bytes(3 << 20))")
        assert (outcome.ending, "No space left" in outcome.logs) == ("raised", True)
        assert (await run(container, "1 + 1")).logs == "2\n"
        with pytest.raises(SandboxError):
            await container.put([CodeFile("c", bytes(8 * MIB))])


async def test_frames_forged_by_code_have_no_effect() -> None:
    forged = [
        "file 9 1\\n../../etcx",
        "file 99999999999\\n",
        "image 3\\nabc",
        "call 1 4 2\\n0evil{}",
        "nonsense\\n",
        "x" * 5000,
    ]
    for frame in forged:
        code = f"import os\nfor fd in range(3, 12):\n    try: os.write(fd, b'{frame}')\n    except OSError: pass"
        async with started() as container:
            outcome = await run(container, code)
            assert all("/" not in file.name and ".." not in file.name for file in outcome.files)
            assert outcome.images == ()


@requirement("R122")
async def test_fork_bomb_hits_limit_and_ends_with_container() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, cell_s=3.0, processes=16)
    async with started(limits=limits) as container:
        outcome = await run(container, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
        assert outcome.ending in ("timeout", "died")
        assert not container.is_alive


@requirement("R123")
@pytest.mark.parametrize("backend", ISOLATING)
async def test_shell_commands_stream_both_outputs_and_end_in_time(backend: str) -> None:
    async with started(backend) as container:
        seen: list[tuple[str, str]] = []
        outcome = await container.command(
            "echo out; echo err >&2; echo x > f.txt; exit 3", lambda out, err: seen.append((out, err))
        )
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("out\n", "err\n", 3)
        assert sorted(seen) == [("", "err\n"), ("out\n", "")]
        assert [file.name for file in outcome.files] == ["f.txt"]
        slow = await container.command("echo begin; sleep 60", lambda out, err: None, timeout_s=0.3)
        assert (slow.ending, slow.stdout, slow.exit_code) == ("timeout", "begin\n", None)
        assert container.is_alive
        background = await container.command("sleep 60 & echo done", lambda out, err: None)
        assert background.stdout == "done\n"


@requirement("R122")
async def test_container_memory_is_bounded_by_cgroup_when_available() -> None:
    from sidestream.portable.sandbox import bubblewrap

    group = bubblewrap.create(DEFAULT_SANDBOX_LIMITS)
    if group is None:
        pytest.skip("no cgroup may be created here")
    group.remove()
    limits = replace(DEFAULT_SANDBOX_LIMITS, memory_bytes=256 * MIB, cell_s=30)
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(100 << 20)
        block[::4096] = bytes(len(block[::4096]))
        time.sleep(60)
pids = [os.waitpid(-1, 0) for _ in range(3)]
print(len(pids), "were killed")
"""
    async with started(limits=limits) as container:
        outcome = await run(container, code)
        assert outcome.ending == "died" or "3 were killed" in outcome.logs, outcome


@requirement("R122")
async def test_cancelled_cell_ends_its_container() -> None:
    async with started() as container:
        begun = asyncio.Event()
        task = asyncio.create_task(container.run("print('on')\nwhile True: pass", lambda text: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await container.kill()
        assert not container.is_alive


async def test_unknown_package_or_sandbox_is_named_in_error() -> None:
    needs("bubblewrap")
    with pytest.raises(SandboxError, match="no-such-package"):
        await choice.start("bubblewrap", ContainerSpec(packages=["no-such-package"]))
    with pytest.raises(ConfigurationError, match="bubblewrap"):
        await choice.start("chroot", ContainerSpec())


@requirement("R122")
async def test_named_packages_are_added_to_usual_ones() -> None:
    needs("bubblewrap")
    container = await choice.start("bubblewrap", ContainerSpec(packages=["msgspec"]))
    outcome = await run(container, "import msgspec, numpy\nprint(numpy.__name__)\nimport click")
    await container.kill()
    assert outcome.logs.startswith("numpy\n")
    assert "The package 'click' is not installed in this sandbox" in outcome.logs
    container = await choice.start("bubblewrap", ContainerSpec(packages=[]))
    outcome = await run(container, "import numpy")
    await container.kill()
    assert "ModuleNotFoundError" in outcome.logs


async def test_container_lasts_for_run_and_expires_when_idle() -> None:
    needs("bubblewrap")
    containers = Containers("bubblewrap", ContainerSpec(packages=()), idle_s=0.2)
    async with containers.use(None, "run") as (first, is_replaced):
        assert not is_replaced
        await first.container.run("x = 1", lambda text: None)
    async with containers.use(None, "run") as (again, _):
        assert again is first
    # A cell in another container is the clock: no sleep of a fixed length.
    async with containers.use(None, "other") as (other, _):
        while first.is_usable:
            await run(other.container, "import time\ntime.sleep(0.05)")
    async with containers.use(None, "run") as (new, is_replaced):
        assert is_replaced
        assert new is not first
    await containers.aclose()
    assert not new.is_usable


async def test_twenty_containers_run_concurrently() -> None:
    needs("bubblewrap")
    spec = ContainerSpec(packages=())
    containers = await asyncio.gather(*(choice.start("bubblewrap", spec) for _ in range(20)))
    outcomes = await asyncio.gather(*(run(container, f"{n} * 2") for n, container in enumerate(containers)))
    await asyncio.gather(*(container.kill() for container in containers))
    assert [outcome.logs for outcome in outcomes] == [f"{n * 2}\n" for n in range(20)]


def test_killed_program_leaves_no_processes(tmp_path: Path) -> None:
    needs("bubblewrap")
    script = tmp_path / "program.py"
    marker = f"sleep 97{os.getpid()}"
    script.write_text(f"""
import asyncio, os, signal
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import ContainerSpec
async def main():
    container = await choice.start("bubblewrap", ContainerSpec(packages=()))
    await container.run("import subprocess; subprocess.Popen('{marker}', shell=True)", print)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
""")
    import sys

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert "ready" in done.stdout, done.stderr
    from support.children import ends

    assert all(ends(pid) for pid in processes(marker))

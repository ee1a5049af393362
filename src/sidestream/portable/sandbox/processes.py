"""A container's processes as seen from the host: whether they compute, and how they rest between two calls.

Everything is read and done from outside, so that code inside cannot fake it. An orphan inside is adopted by the
container's first process, so the container is the process tree below the started one.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain, repeat

from msgspec import Struct

_STOPPED = frozenset("TtZX")
"""States of a process that runs no code: stopped, or ended."""
_PAUSES_S = (0.0, 0.0, 0.001, 0.002)
"""Seconds between looks at processes that are being stopped, which most are at once. The last is repeated."""
_REST_S = 5.0
"""Seconds until all processes must have stopped. One that the kernel blocks, or that forks faster than it is stopped,
does not stop."""


class Activity(Struct, frozen=True):
    """The activity of processes so far."""

    cpu_s: float
    is_running: bool
    """Whether one of their threads is running now. The CPU time of a child that is never waited for is lost with it."""


class _Process(Struct, frozen=True):
    pid: int
    parent: int
    state: str
    cpu_ticks: int
    threads: tuple[int, ...]


def activity(root: int) -> Activity | None:
    """Return the activity of a process and all below it, or None where the system does not report it."""
    found = list(_tree(root))
    if not found:
        return None
    is_running = any(_stat(process.pid, thread)[0] == "R" for process in found for thread in process.threads)
    return Activity(sum(process.cpu_ticks for process in found) / os.sysconf("SC_CLK_TCK"), is_running)


async def stop(root: int, *, with_root: bool) -> bool:
    """Stop all processes below a process, and itself if `with_root`.

    Returns False if some are still running after a few seconds.
    """
    clock = asyncio.get_running_loop().time
    end, quiet = clock() + _REST_S, 0
    pauses = chain(_PAUSES_S, repeat(_PAUSES_S[-1]))
    # A process that is still running may have woken a stopped one, so all must be found stopped twice.
    while quiet < 2:
        running = [process for process in _inside(root, with_root) if process.state not in _STOPPED]
        quiet = 0 if running else quiet + 1
        for process in running:
            _send(process, signal.SIGSTOP)
        if running:
            if clock() > end:
                return False
            await asyncio.sleep(next(pauses))
    return True


def wake(root: int, *, with_root: bool) -> None:
    """Continue all processes that `stop` has stopped."""
    # Children first: the kernel hangs up on a stopped group whose parent has exited.
    for process in reversed(list(_inside(root, with_root))):
        _send(process, signal.SIGCONT)


def _inside(root: int, with_root: bool) -> Iterator[_Process]:
    return (process for process in _tree(root) if with_root or process.pid != root)


def _send(process: _Process, number: signal.Signals) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # The pid may belong to another process by now.
            found = _read(process.pid)
            if found is not None and found.parent == process.parent:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _tree(root: int) -> Iterator[_Process]:
    """Yield a process and all below it, parents first."""
    pending = [root]
    while pending:
        process = _read(pending.pop(0))
        if process is None:
            continue
        yield process
        pending += _children(process)


def _children(process: _Process) -> list[int]:
    if not _lists_children():
        everyone = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return [each.pid for each in everyone if each is not None and each.parent == process.pid]
    found: list[int] = []
    for thread in process.threads:
        with suppress(OSError), open(f"/proc/{process.pid}/task/{thread}/children", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


@cache
def _lists_children() -> bool:
    """Return whether the kernel was built to list the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _read(pid: int) -> _Process | None:
    try:
        state, fields = _stat(pid)
        threads = tuple(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return None
    # utime, stime, and both of the children that it waited for
    return _Process(pid, int(fields[1]), state, sum(map(int, fields[11:15])), threads) if fields else None


def _stat(pid: int, thread: int | None = None) -> tuple[str, list[str]]:
    """Return the state, and the fields of `stat` starting with it."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "X", []
    return (fields[0], fields) if fields else ("X", [])

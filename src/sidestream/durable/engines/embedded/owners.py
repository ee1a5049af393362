"""Names of workers. One that says in which process a worker lives shows others on the machine that it has died."""

import os
import secrets
from pathlib import Path

_PROC = Path("/proc")


def new_owner() -> str:
    """A name that no other worker has: `machine:process:start:random`."""
    pid = os.getpid()
    return f"{_machine() or '-'}:{pid}:{_started(pid) or '-'}:{secrets.token_hex(6)}"


def is_dead(owner: str) -> bool:
    """True if the worker's process was on this machine and is no more. False if nobody here can know."""
    machine, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if not pid.isdecimal() or not started.isdecimal() or machine != _machine():
        return False
    return _started(int(pid)) != started


def described(owner: str) -> str:
    """The process of a worker, in words."""
    machine, _, rest = owner.partition(":")
    where = "this machine" if machine == _machine() else "another machine"
    return f"process {rest.partition(':')[0]} on {where}"


def _machine() -> str | None:
    """This start of this machine, and the namespace in which its processes have their numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process began, in ticks since the machine's start; None if it has ended, reaped or not."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]

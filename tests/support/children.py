"""Child processes of tests: none outlives its test, and none depends on how the tests were launched."""

import os
import select
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.warm import Warm

KILLED_S = 10.0
"""A killed process may take this long to end."""


def catch_ignored_signals() -> None:
    """Lets children start with default handlers, whatever the launcher ignores (a background job ignores SIGINT).

    A child inherits an ignored signal, but not a caught one. The handler does nothing, so this process still ignores it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@contextmanager
def started(*args: str, **options: Any) -> Generator[subprocess.Popen[Any]]:
    """A process that a failing test does not leave behind; a Python program in a copy of a warm interpreter."""
    with Warm(args, **options) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(KILLED_S)


def ends(pid: int, within_s: float = KILLED_S) -> bool:
    """Whether the process ends in time, reaped or not; also for one that is no child of this process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A process that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        return False

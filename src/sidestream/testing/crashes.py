"""A crash loop, which kills a program at every point where it writes so that a test can inspect the result."""

import importlib
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

_FILE_EVENTS = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.truncate", "os.utime"})


class CrashLoopError(AssertionError):
    """The program failed on its own, timed out, or needs more than `max_runs` runs."""


class CrashedRun(Struct, frozen=True):
    """One run of the program."""

    folder: Path
    """Folder of the run, as the program left it."""
    point: int
    """Points the program passed before it was killed."""
    is_complete: bool
    """Whether the program finished, which is true only of the last run."""


class _Countdown:
    """Kills the process after a number of points."""

    def __init__(self, points: int, folder: Path) -> None:
        self._left = points
        self._folder = str(folder)

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Count operations on files in the folder."""
        if event in _FILE_EVENTS and self._folder in str(arguments[0]):
            self()

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Open a connection whose statements count."""
        connection = _connect(*arguments, **options)
        connection.set_trace_callback(self)
        return connection


_connect = sqlite3.connect
_countdown: _Countdown | None = None


def failpoint() -> None:
    """Mark a point at which a crash loop may kill the process. Outside a crash loop, it does nothing.

    Call it in a test's tools.
    """
    if _countdown is not None:
        _countdown()


def crash_loop(
    program: Callable[[Path], object], folder: Path, *, max_runs: int = 1000, timeout_s: float = 60.0
) -> Iterator[CrashedRun]:
    """Run the program repeatedly, each time in a new folder, and kill it with SIGKILL one point later.

    Points are operations on files in its folder, SQLite statements, and `failpoint()`. Yields each run for inspection;
    the last one is complete. Raises CrashLoopError if the program fails, takes too long, or is not complete after
    `max_runs`. The program runs in forks of this process, so there must be no other threads and no running event loop.
    """
    _load_modules_of(program, folder / "whole", timeout_s)
    for point in range(max_runs):
        place = folder / str(point)
        is_complete = _ended(_forked(program, place, timeout_s, _Countdown(point, place)), place)
        yield CrashedRun(place, point, is_complete)
        if is_complete:
            return
    raise CrashLoopError(f"the program passes more than {max_runs} points: shorten it or raise max_runs")


def _load_modules_of(program: Callable[[Path], object], place: Path, timeout_s: float) -> None:
    """Run the program once and import the modules it uses, so that forks do not load them again."""
    reading, writing = os.pipe()

    def reporting(folder: Path) -> None:
        program(folder)
        with open(writing, "w") as report:
            report.write("\n".join(sys.modules))

    child = _forked(reporting, place, timeout_s, None)
    os.close(writing)
    with open(reading) as report:
        names = report.read().split("\n")
    if not _ended(child, place):
        raise CrashLoopError(f"the run in {place} was killed by another process")
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def _ended(child: int, place: Path) -> bool:
    """Wait for the child and return whether it finished. Raises CrashLoopError if it failed on its own."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        how = f"was killed by signal {-code}" if code < 0 else "raised an exception, which is on standard error"
        raise CrashLoopError(f"the run in {place} {how}")
    return code == 0


def _forked(program: Callable[[Path], object], place: Path, timeout_s: float, countdown: _Countdown | None) -> int:
    """Fork a child that runs the program, and return its process id. The child never returns."""
    global _countdown
    place.mkdir(parents=True)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        if countdown is not None:
            _countdown = countdown
            sys.addaudithook(countdown.audit)
            sqlite3.connect = countdown.connect
        program(place)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

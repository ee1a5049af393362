"""A crash loop: a program is killed at every point where it writes something, and the test looks at what is left."""

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
    """The program failed by itself, or was killed more often than it may be."""


class CrashedRun(Struct, frozen=True):
    """One run of the program."""

    folder: Path
    """Where it worked, as it left it."""
    point: int
    """How many points it passed before it was killed."""
    is_complete: bool
    """True for the last run, which came to its end."""


class _Countdown:
    """Kills the process when it has passed a number of points."""

    def __init__(self, points: int, folder: Path) -> None:
        self._left = points
        self._folder = str(folder)

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Counts operations on files of the folder."""
        if event in _FILE_EVENTS and self._folder in str(arguments[0]):
            self()

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Opens a connection whose statements count."""
        connection = _connect(*arguments, **options)
        connection.set_trace_callback(self)
        return connection


_connect = sqlite3.connect
_countdown: _Countdown | None = None


def failpoint() -> None:
    """A point at which a crash loop kills the process; does nothing elsewhere. Put it into the tools of a test."""
    if _countdown is not None:
        _countdown()


def crash_loop(
    program: Callable[[Path], object], folder: Path, *, max_runs: int = 1000, timeout_s: float = 60.0
) -> Iterator[CrashedRun]:
    """Runs the program again and again, each time in a new folder, and kills it with SIGKILL one point later.

    Points are the operations on files of its folder, the statements of SQLite, and `failpoint()`. Yields each run for
    inspection, the last of them complete. Raises CrashLoopError if the program itself fails, takes too long, or is not
    complete after `max_runs`.
    The program runs in forks of this process: call it where there are no other threads and no running event loop.
    """
    _load_modules_of(program, folder / "whole", timeout_s)
    for point in range(max_runs):
        place = folder / str(point)
        is_complete = _ended(_forked(program, place, timeout_s, _Countdown(point, place)), place)
        yield CrashedRun(place, point, is_complete)
        if is_complete:
            return
    raise CrashLoopError(f"the program passes more than {max_runs} points: give it less to do, or raise max_runs")


def _load_modules_of(program: Callable[[Path], object], place: Path, timeout_s: float) -> None:
    """Runs the program once to its end and imports what it has imported, so that it is not loaded in every run."""
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
        raise CrashLoopError(f"the run in {place} was killed by somebody else")
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def _ended(child: int, place: Path) -> bool:
    """Whether the program came to its end; False if it was killed. Raises CrashLoopError for any other end."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        how = f"was ended by signal {-code}" if code < 0 else "raised an exception, which is on standard error"
        raise CrashLoopError(f"the run in {place} {how}")
    return code == 0


def _forked(program: Callable[[Path], object], place: Path, timeout_s: float, countdown: _Countdown | None) -> int:
    """The process id of a child that runs the program. The child never returns from here."""
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

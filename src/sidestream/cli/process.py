"""The command as a process: how it ends, on its own and when a person or a pipe ends it."""

import asyncio
import atexit
import logging
import os
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

EXIT_GRACE_S = 0.5
"""How long a second Ctrl-C waits for child processes to be ended."""


class UserInterruptError(Exception):
    """Ctrl-C has stopped a part of the work; the rest goes on."""


class _Watch:
    """Knows what Ctrl-C stops: the innermost part of the work that can be stopped by itself."""

    def __init__(self, work: "asyncio.Task[Any]") -> None:
        self.tasks = [work]
        self.stopped: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    def press(self, number: int, frame: FrameType | None) -> None:
        task = self.tasks[-1]
        if task in self.stopped:
            exit_now()
        self.stopped.add(task)
        with suppress(RuntimeError):  # The loop is closed: the work is over.
            self._loop.call_soon_threadsafe(task.cancel)


_watch: _Watch | None = None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work to its end. Ctrl-C cancels it, so that all is closed; a second Ctrl-C leaves at once.

    Raises KeyboardInterrupt where it was cancelled so.
    """
    # What a person must know is in the stream; the library's log is for programs.
    logging.getLogger("sidestream").addHandler(logging.NullHandler())
    watch: _Watch | None = None

    async def watched() -> T:
        global _watch
        nonlocal watch
        task = asyncio.current_task()
        assert task is not None
        watch = _watch = _Watch(task)
        if previous is not signal.SIG_IGN:  # As in a background job: Ctrl-C is for others then.
            signal.signal(signal.SIGINT, watch.press)
        return await work

    previous = signal.getsignal(signal.SIGINT)
    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if watch is not None and watch.stopped:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, previous)


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Runs a part of the work that Ctrl-C stops by itself. Raises UserInterruptError then."""
    watch = _watch
    assert watch is not None
    task = asyncio.create_task(work)
    watch.tasks.append(task)
    try:
        return await task
    except asyncio.CancelledError:
        if task in watch.stopped and task.cancelled():
            raise UserInterruptError from None
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        watch.tasks.remove(task)


def exit_now() -> NoReturn:
    """Ends the process, and the children that it has started."""
    from sidestream.cli.exit_codes import INTERRUPTED

    last = threading.Timer(EXIT_GRACE_S, os._exit, [INTERRUPTED])
    last.daemon = True
    last.start()
    # What was started registers its end for the end of the interpreter, which is not waited for here.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    os._exit(INTERRUPTED)

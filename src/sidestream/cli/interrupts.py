"""Running async code in the command's process, with Ctrl-C handling."""

import asyncio
import atexit
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

from sidestream.cli import exit_codes

T = TypeVar("T")

EXIT_GRACE_S = 0.4
"""Seconds that a second Ctrl-C waits for a clean end, and again for child processes: it exits within 1 s."""


class UserInterruptError(Exception):
    """Ctrl-C stopped one part of the work; the rest continues."""


class _InterruptHandler:
    """Cancels the innermost interruptible task on Ctrl-C; exits if that task was already cancelled."""

    def __init__(self, main_task: "asyncio.Task[Any]") -> None:
        self.tasks = [main_task]
        self.interrupted: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    def handle(self, number: int, frame: FrameType | None) -> None:
        task = self.tasks[-1]
        if task in self.interrupted:
            exit_now()
        if self.interrupted and task is self.tasks[0]:  # The first Ctrl-C stopped one part; this one stops the rest.
            _start_timer(exit_now)
        self.interrupted.add(task)
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(task.cancel)


_handler: _InterruptHandler | None = None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion.

    Ctrl-C cancels it so that it can clean up; a second Ctrl-C exits immediately. Raises KeyboardInterrupt if Ctrl-C
    cancelled it.
    """
    handler: _InterruptHandler | None = None

    async def main() -> T:
        global _handler
        nonlocal handler
        task = asyncio.current_task()
        assert task is not None
        handler = _handler = _InterruptHandler(task)
        if previous is not signal.SIG_IGN:  # An ignored SIGINT, as in a background job, stays ignored.
            signal.signal(signal.SIGINT, handler.handle)
        return await work

    previous = signal.getsignal(signal.SIGINT)
    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if handler is not None and handler.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, previous)


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run work that Ctrl-C cancels without ending the command. Raises UserInterruptError if it is cancelled."""
    handler = _handler
    assert handler is not None
    task = asyncio.create_task(work)
    handler.tasks.append(task)
    try:
        return await task
    except asyncio.CancelledError:
        if task in handler.interrupted and task.cancelled():
            raise UserInterruptError from None
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        handler.tasks.remove(task)


def exit_now() -> NoReturn:
    """Stop child processes and exit."""

    _start_timer(os._exit, exit_codes.INTERRUPTED)
    # Exit handlers stop child processes; `os._exit` would skip them.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    os._exit(exit_codes.INTERRUPTED)


def _start_timer(action: Callable[..., object], *args: object) -> None:
    timer = threading.Timer(EXIT_GRACE_S, action, args)
    timer.daemon = True
    timer.start()

"""The command as a process: how it ends, on its own and when a person or a pipe ends it."""

import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # As if SIGPIPE had ended it, which not every system has.


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work to its end. Ctrl-C cancels it, so that all is closed; a second Ctrl-C leaves at once.

    Raises KeyboardInterrupt where it was cancelled so.
    """
    import asyncio  # The help text needs none of it.

    presses = 0

    async def watched() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal presses
            presses += 1
            if presses > 1:
                os._exit(INTERRUPTED)
            with suppress(RuntimeError):  # The loop is closed: the work is over.
                loop.call_soon_threadsafe(task.cancel)

        if previous is not signal.SIG_IGN:  # As in a background job: Ctrl-C is for others then.
            signal.signal(signal.SIGINT, interrupt)
        return await work

    previous = signal.getsignal(signal.SIGINT)
    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if presses:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, previous)

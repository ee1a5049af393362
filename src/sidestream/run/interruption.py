"""Stops what nothing but a cancellation ends early, such as waiting for a response to begin."""

import asyncio
from types import TracebackType
from typing import Any


class Interruption:
    """The task that works on a run now, for another task that stops the run.

    `with interruption: …` surrounds the work. It raises StopAsyncIteration if it was interrupted.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._has_come = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        # Otherwise somebody cancels the task itself.
        if isinstance(error, asyncio.CancelledError) and self._has_come and task is not None and not task.uncancel():
            raise StopAsyncIteration from None

    def interrupt(self) -> None:
        """Ends the work, unless it is this task that does it."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._has_come = True
            self._task.cancel()

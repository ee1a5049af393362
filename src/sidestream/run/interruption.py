"""Stops what nothing but a cancellation ends early, such as waiting for a response to begin."""

import asyncio
from collections.abc import Awaitable
from typing import Any


class Interruption:
    """The task that works on a run now, for another task that stops the run."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._has_come = False

    async def during(self, work: Awaitable[None]) -> None:
        """Waits for the work. Raises StopAsyncIteration if it was interrupted."""
        task = self._task = asyncio.current_task()
        assert task is not None
        try:
            await work
        except asyncio.CancelledError:
            if not self._has_come or task.uncancel():
                raise  # Somebody cancels the task itself.
            raise StopAsyncIteration from None
        finally:
            self._task = None

    def interrupt(self) -> None:
        """Ends the work, unless it is this task that does it."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._has_come = True
            self._task.cancel()

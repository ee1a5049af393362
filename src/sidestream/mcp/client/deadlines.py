"""Time limits that stand still while a person signs in."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager


class Deadlines:
    """The time limits of one connection."""

    def __init__(self) -> None:
        self._limits_s: dict[asyncio.Timeout, float] = {}
        self._pauses = 0

    @asynccontextmanager
    async def within(self, limit_s: float) -> AsyncGenerator[asyncio.Timeout]:
        """Like `asyncio.timeout`, but it restarts after each pause."""
        async with asyncio.timeout(None if self._pauses else limit_s) as timer:
            self._limits_s[timer] = limit_s
            try:
                yield timer
            finally:
                self.stop(timer)

    def stop(self, timer: asyncio.Timeout) -> None:
        """Lifts a limit for good."""
        if self._limits_s.pop(timer, None) is not None:
            _reschedule(timer, None)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Suspends all limits."""
        self._pauses += 1
        for timer in self._limits_s:
            _reschedule(timer, None)
        try:
            yield
        finally:
            self._pauses -= 1
            now_s = asyncio.get_running_loop().time()
            for timer, limit_s in self._limits_s.items():
                _reschedule(timer, None if self._pauses else now_s + limit_s)


def _reschedule(timer: asyncio.Timeout, when_s: float | None) -> None:
    if not timer.expired():  # else its task is being cancelled
        timer.reschedule(when_s)

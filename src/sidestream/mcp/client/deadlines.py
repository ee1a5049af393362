"""Timeouts that pause while the user signs in."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager


class Deadlines:
    """The timeouts of one connection."""

    def __init__(self) -> None:
        self._limits_s: dict[asyncio.Timeout, float] = {}
        self._pauses = 0

    @asynccontextmanager
    async def within(self, limit_s: float) -> AsyncGenerator[asyncio.Timeout]:
        """Limit the block's time like `asyncio.timeout`, restarting the timeout after each pause."""
        async with asyncio.timeout(None if self._pauses else limit_s) as timer:
            self._limits_s[timer] = limit_s
            try:
                yield timer
            finally:
                self.stop(timer)

    def stop(self, timer: asyncio.Timeout) -> None:
        """Lift a timeout permanently."""
        if self._limits_s.pop(timer, None) is not None:
            _reschedule(timer, None)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Suspend all timeouts during the block."""
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
    if not timer.expired():  # an expired one is already cancelling its task
        timer.reschedule(when_s)

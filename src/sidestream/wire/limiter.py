"""An optional request limiter, shared by agents that must stay within a provider's limits together."""

import asyncio
import threading
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Final

from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall, HttpResponse, Transport, WrappedResponse
from sidestream.transport.waits import MIN_REPORTED_S, report_wait

MINUTE_S: Final = 60.0


class _Waiter:
    """A queued request, with the event that wakes it in its own event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, timeout_s: float | None) -> None:
        self._event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


class Limiter:
    """A limit on the requests of all agents that share it, per minute and in parallel.

    Requests wait in order of arrival. One limiter serves any number of agents, event loops and threads.

    ```python
    limiter = Limiter(requests_per_minute=300, concurrent=20)
    writer, reviewer = (Agent("openai-responses", system=role, limiter=limiter) for role in ("Write.", "Review."))
    ```
    """

    def __init__(self, *, requests_per_minute: int | None = None, concurrent: int | None = None) -> None:
        for name, value in (("requests_per_minute", requests_per_minute), ("concurrent", concurrent)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        self.requests_per_minute = requests_per_minute
        self.concurrent = concurrent
        self._lock = threading.RLock()  # reentrant: garbage collection may release a response at any point
        self._queue: deque[_Waiter] = deque()
        self._starts_s: deque[float] = deque(maxlen=requests_per_minute)
        self._running = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Number of running requests."""
        return self._running

    async def acquire(self) -> float:
        """Wait for a turn, and return the seconds waited. Each call that returns needs one `release`."""
        with self._lock:
            if not self._queue and self._start():
                return 0.0
            waiter = _Waiter()
            self._queue.append(waiter)
        asked_s = monotonic()
        reported: tuple[float | None] | None = None
        try:
            while True:
                with self._lock:
                    is_first = self._queue[0] is waiter
                    if is_first and self._start():
                        return monotonic() - asked_s
                    wait_s = self._pause_s() if is_first else None
                is_due = wait_s is not None or monotonic() >= asked_s + MIN_REPORTED_S
                if is_due and (reported is None or (reported[0] is None) != (wait_s is None)):
                    reported = (wait_s,)
                    report_wait("limiter", _waiting_message(wait_s), wait_s)
                await waiter.sleep(wait_s if is_due else MIN_REPORTED_S)
        finally:
            with self._lock:
                self._queue.remove(waiter)
                self._wake_first()

    def count(self) -> None:
        """Count a request that the server started by itself. It needs a `release` too."""
        with self._lock:
            self._running += 1
            self._starts_s.append(monotonic())

    def release(self) -> None:
        """End a request, so that the next one may begin."""
        with self._lock:
            self._running -= 1
            self._wake_first()

    def _start(self) -> bool:
        if self._is_full or self._pause_s():
            return False
        self._running += 1
        self._starts_s.append(monotonic())
        return True

    @property
    def _is_full(self) -> bool:
        return self.concurrent is not None and self._running >= self.concurrent

    def _pause_s(self) -> float | None:
        """Return the seconds until the rate allows the next request, or None if it already does."""
        if self.requests_per_minute is None or len(self._starts_s) < self.requests_per_minute:
            return None
        pause_s = self._starts_s[0] + MINUTE_S - monotonic()
        return pause_s if pause_s > 0 else None

    def _wake_first(self) -> None:
        if self._queue:
            self._queue[0].wake()


def _waiting_message(wait_s: float | None) -> str:
    if wait_s is None:
        return "Other requests come first. Waiting for a free slot of the limiter."
    return f"The limiter allows the next request in {wait_s:.3g} s."


class LimitedTransport:
    """A transport that sends calls through another one when its limiter allows it."""

    def __init__(self, inner: Transport, limiter: Limiter) -> None:
        self._inner = inner
        self._limiter = limiter

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Wait for a turn, then send the call. Its retries are not counted again."""
        waited_s = await self._limiter.acquire()
        try:
            response = await self._inner.open(call, limits)
        except BaseException:
            self._limiter.release()
            raise
        return _LimitedResponse(response, self._limiter, waited_s)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Download a file without waiting, since providers count only requests to models."""
        return await self._inner.download(call, limits)


class _LimitedResponse(WrappedResponse):
    """A response that counts as running until it is closed."""

    def __init__(self, inner: HttpResponse, limiter: Limiter, waited_s: float) -> None:
        super().__init__(inner)
        self._limiter: Limiter | None = limiter
        self._all = limiter
        self.opening = replace(self.opening, limiter_wait_s=waited_s)
        self.events = inner.events  # read without overhead

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            self._release()

    async def complete(self) -> None:
        try:
            await super().complete()
        finally:
            self._release()

    async def successor(self) -> HttpResponse | None:
        """Return the server's own response to messages. It is already running, so it counts without waiting."""
        successor = await super().successor()
        if successor is None:
            return None
        self._all.count()
        return _LimitedResponse(successor, self._all, 0.0)

    async def proceed(self, call: HttpCall) -> HttpResponse:
        """Wait for a turn, then send the request."""
        waited_s = await self._all.acquire()
        try:
            response = await super().proceed(call)
        except BaseException:
            self._all.release()
            raise
        return _LimitedResponse(response, self._all, waited_s)

    def __del__(self) -> None:
        self._release()

    def _release(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.release()

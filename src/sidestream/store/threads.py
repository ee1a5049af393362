"""A thread of one's own for work that blocks, fed by coroutines of any event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_TOGETHER = 64
"""Jobs that are handed over at once."""


async def to_the_end(future: asyncio.Future[T]) -> T:
    """The result of what was begun. A caller that is cancelled meanwhile hears of it once it is over."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise


class Job(Generic[T]):
    """Something to do, and the coroutine that waits for it."""

    __slots__ = ("_future", "_loop", "work")

    def __init__(self, work: T) -> None:
        self.work = work
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()

    def done(self, result: object = None) -> None:
        """Tells the result; from the thread."""
        self._tell(self._future.set_result, result)

    def failed(self, error: BaseException) -> None:
        """Tells an error; from the thread."""
        self._tell(self._future.set_exception, error)

    async def wait(self) -> Any:
        """The result, or the error."""
        return await to_the_end(self._future)

    def _tell(self, tell: Callable[[Any], object], value: object) -> None:
        with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
            self._loop.call_soon_threadsafe(tell, value)


class Worker(Generic[T]):
    """A daemon thread, started by its first job, that hands jobs to `serve` as they wait, oldest first.

    `serve` answers every job and raises nothing. It must not know the owner of the worker: an owner that is dropped
    stops its thread with `stop`. The program's end waits for no job: what was not answered was not promised.
    """

    def __init__(self, name: str, serve: Callable[[list[Job[T]]], None], close: Callable[[], None]) -> None:
        self._name = name
        self._serve = serve
        self._close = close
        self._queue: SimpleQueue[Job[T] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    async def do(self, work: T) -> Any:
        """Hands the work over and waits for its result."""
        job = Job(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(job)
        return await job.wait()

    def stop(self) -> None:
        """Lets the thread end after what waits already."""
        with self._lock:
            if self._thread is not None:
                self._queue.put(None)

    async def aclose(self) -> None:
        """Stops the thread and waits for its end."""
        self.stop()
        if (thread := self._thread) is not None:
            await asyncio.to_thread(thread.join)
            self._thread = None

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            jobs = [self._queue.get()]
            with suppress(Empty):
                while jobs[-1] is not None and len(jobs) < MAX_TOGETHER:
                    jobs.append(self._queue.get_nowait())
            is_stopping = jobs[-1] is None
            if waiting := [job for job in jobs if job is not None]:
                self._serve(waiting)
            del jobs, waiting  # An idle thread holds on to nobody.
        self._close()

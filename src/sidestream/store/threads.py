"""A thread for blocking work, fed by coroutines of any event loop."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")

MAX_BATCH = 256
"""Jobs that are served at once."""


async def completed(future: asyncio.Future[T]) -> T:
    """The result of a future that must not be interrupted: a cancellation is raised once the future is done."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise


class _Uninterrupted(asyncio.Future[Any]):
    """A future whose task, if it is cancelled, waits on; the cancellation is raised once the future is done."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


class QueuedCall(Generic[T]):
    """A unit of work, and the coroutine that awaits it."""

    __slots__ = ("_future", "loop", "work")

    def __init__(self, work: T) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self._future = _Uninterrupted(loop=self.loop)

    def run(self, call: Callable[[], object]) -> bool:
        """Calls the function and sets its result, or the error it raises; False for an error. From the thread."""
        try:
            result = call()
        except BaseException as error:  # The coroutine must not wait forever.
            self.set_error(error)
            return False
        self.set_result(result)
        return True

    def set_result(self, result: object = None) -> None:
        """Sets the result, from the thread."""
        self._call_in_loop(self._future.set_result, result)

    def set_error(self, error: BaseException) -> None:
        """Sets an error, from the thread."""
        self._call_in_loop(self._future.set_exception, error)

    async def wait(self) -> Any:
        """The result, or the error. A job is not interrupted."""
        return await self._future

    def _call_in_loop(self, function: Callable[[Any], object], value: object) -> None:
        with suppress(RuntimeError):  # The loop was closed, and the coroutine with it.
            self.loop.call_soon_threadsafe(function, value)

    @staticmethod
    def set_all(outcomes: "Iterable[tuple[QueuedCall[Any], object]]") -> None:
        """Sets the outcomes of jobs, from the thread: results, or errors. Each event loop is woken once for all.

        Let it be the last that is done for a job: the loop then need not wait for this thread to release the GIL.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
        for job, outcome in outcomes:
            by_loop.setdefault(job.loop, []).append((job._future, outcome))
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # The loop was closed, and the coroutines with it.
                loop.call_soon_threadsafe(_settle, settled)


def _settle(settled: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, outcome in settled:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class JobThread(ABC, Generic[T]):
    """A daemon thread, started by its first job, that serves jobs in batches, oldest first.

    It must not refer to its owner: an owner that is garbage-collected stops the thread with `stop`. The program does
    not wait for pending jobs when it exits: only a job with a result is done.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[QueuedCall[T]] | None] = SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[QueuedCall[T]]] = {}
        """Jobs that an event loop is about to pass on."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def serve(self, jobs: list[QueuedCall[T]]) -> None:
        """Does the jobs. Sets a result or an error for each, and raises nothing."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the thread holds, at its end."""

    def idle(self) -> float | None:
        """Called whenever there is no job; returns for how many seconds at most, None: until there is one."""
        return None

    async def do(self, work: T) -> Any:
        """Queues the work and waits for its result."""
        job = QueuedCall(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            if (gathered := self._gathered.get(job.loop)) is not None:
                gathered.append(job)
            elif self._queue.empty():
                self._queue.put([job])
            else:
                # The thread has yet to take the last one, so more may come in this turn of the loop, as at the moments
                # at which all logs are written. Passed on one by one, each would have the two wait for one another.
                self._gathered[job.loop] = [job]
                job.loop.call_soon(self._pass_on, job.loop)
        return await job.wait()

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if jobs := self._gathered.pop(loop, None):
                self._queue.put(jobs)

    def stop(self) -> None:
        """Ends the thread after the pending jobs."""
        with self._lock:
            if self._thread is not None:
                for jobs in self._gathered.values():
                    self._queue.put(jobs)
                self._gathered = {}
                self._queue.put(None)

    async def aclose(self) -> None:
        """Stops the thread and waits for its end."""
        self.stop()
        if (thread := self._thread) is not None:
            await asyncio.to_thread(thread.join)
            self._thread = None

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            # Nobody else takes jobs from the queue.
            is_last = False
            while not is_last and len(jobs) < MAX_BATCH and not self._queue.empty():
                more = self._queue.get()
                is_last = more is None
                jobs += more or []
            for start in range(0, len(jobs), MAX_BATCH):
                self.serve(jobs[start : start + MAX_BATCH])
            del jobs  # An idle thread keeps no job alive.
            more = None
            if is_last:
                break
        self.close()

    def _next(self) -> list[QueuedCall[T]] | None:
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=self.idle())

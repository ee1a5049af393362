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
"""Maximum jobs served at once."""


async def completed(future: asyncio.Future[T]) -> T:
    """Return the result of a future that must not be interrupted.

    A cancellation is raised once the future is done.
    """
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
    """A future that cannot be cancelled. A cancelled task that awaits it is interrupted once it is done."""

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
        """Call the function from the thread, and set its result or error. Returns False for an error."""
        try:
            result = call()
        except BaseException as error:  # The coroutine must not wait forever.
            self.set_error(error)
            return False
        self.set_result(result)
        return True

    def set_result(self, result: object = None) -> None:
        """Set the result, from the thread."""
        self._call_in_loop(self._future.set_result, result)

    def set_error(self, error: BaseException) -> None:
        """Set an error, from the thread."""
        self._call_in_loop(self._future.set_exception, error)

    async def wait(self) -> Any:
        """Wait for the result, or raise the error. A job is not interrupted."""
        return await self._future

    def _call_in_loop(self, function: Callable[[Any], object], value: object) -> None:
        with suppress(RuntimeError):  # The loop was closed, and the coroutine with it.
            self.loop.call_soon_threadsafe(function, value)

    @staticmethod
    def set_all(outcomes: "Iterable[tuple[QueuedCall[Any], object]]") -> None:
        """Set the results or errors of jobs, from the thread, waking each event loop once.

        Call it last for each job, so that the loop need not wait for this thread to release the GIL.
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

    It must not refer to its owner, so that a garbage-collected owner stops the thread with `stop`. The program does not
    wait for pending jobs when it exits; only a job with a result is known to be done.
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
        """Execute the jobs, setting a result or an error for each and raising nothing."""

    @abstractmethod
    def close(self) -> None:
        """Release the thread's resources when it ends."""

    def idle(self) -> float | None:
        """Do background work while there is no job, and return the maximum wait in seconds.

        None means to wait until there is a job.
        """
        return None

    async def do(self, work: T) -> Any:
        """Queue the work and wait for its result."""
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
                # The thread has yet to take the last job, so more may come in this turn of the loop, as when all logs
                # are flushed together. Passing jobs on one by one would make the thread and the loop wait for each
                # other each time.
                self._gathered[job.loop] = [job]
                job.loop.call_soon(self._pass_on, job.loop)
        return await job.wait()

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if jobs := self._gathered.pop(loop, None):
                self._queue.put(jobs)

    def stop(self) -> None:
        """Stop the thread after the pending jobs."""
        with self._lock:
            if self._thread is not None:
                for jobs in self._gathered.values():
                    self._queue.put(jobs)
                self._gathered = {}
                self._queue.put(None)

    async def aclose(self) -> None:
        """Stop the thread and wait for its end."""
        self.stop()
        if (thread := self._thread) is not None:
            await asyncio.to_thread(thread.join)
            self._thread = None

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            # Only this thread takes jobs from the queue.
            is_last = False
            while not is_last and len(jobs) < MAX_BATCH and not self._queue.empty():
                more = self._queue.get()
                is_last = more is None
                jobs += more or []
            for start in range(0, len(jobs), MAX_BATCH):
                self.serve(jobs[start : start + MAX_BATCH])
            del jobs  # Keep no job alive while idle.
            more = None
            if is_last:
                break
        self.close()

    def _next(self) -> list[QueuedCall[T]] | None:
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=self.idle())

"""Synchronous runs for scripts and threads, each with a separate event loop.

The loop runs only while the caller waits for the next part. Tools and the log make progress then, and not while the
caller does something else.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sidestream.errors import ConfigurationError, RunError, SteerError
from sidestream.parts import StreamPart
from sidestream.results.results import ChatResult
from sidestream.run.prompts import Prompt
from sidestream.run.run import Run
from sidestream.turn.state import RunState

T = TypeVar("T")
Start = Callable[[], Coroutine[Any, Any, Run[T]]]
"""A function that starts the run inside the loop that it will use."""


def started(run: Run[T]) -> Start[T]:
    """Return a start function for a run that is ready."""

    async def start() -> Run[T]:
        return run

    return start


def wait_for(work: Callable[[], Coroutine[Any, Any, T]], name: str, instead: str) -> T:
    """Run async work and return its result.

    Raises ConfigurationError, which suggests what to write instead, inside a running loop.
    """
    refuse_running_loop(name, instead)
    return asyncio.run(work())


def refuse_running_loop(name: str, instead: str) -> None:
    """Raise ConfigurationError if the caller already runs in an event loop."""
    if _has_running_loop():
        raise ConfigurationError(f"{name} was called inside a running event loop; write `{instead}`")


def _has_running_loop() -> bool:
    # A separate function, so that no error has "no running event loop" as its context.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class SyncRun(Generic[T]):
    """The parts of one run, as a synchronous iterator.

    ```python
    with agent.stream_sync("What is new in Python?") as run:
        for part in run:
            print(part.type)
    ```

    Leaving the `with` block early closes everything. A failed run raises its error after its last part, unless it was
    started with `errors="parts"`.
    """

    def __init__(self, start: Start[T]) -> None:
        self._start = start
        self._run: Run[T] | None = None
        self._loop: asyncio.Runner | None = None
        """Event loop, set while the run is in progress."""
        self._thread = 0
        """Id of the thread that iterates."""
        self._parts = self._iterate()

    @property
    def error(self) -> RunError | None:
        """Error of a failed run, else None."""
        return self._run.error if self._run is not None else None

    @property
    def output(self) -> T:
        """Output of a finished run. Raises NoOutputError if it has none."""
        return self._begun().output

    @property
    def state(self) -> RunState:
        """State of the run, as data from which it can be resumed."""
        return self._begun().state

    def steer(self, message: Prompt) -> str:
        """Send a message during the run as `Run.steer` does, between two parts or from another thread.

        From another thread, it returns once the iterating thread waits for its next part.
        """
        refuse_running_loop("steer", "await run.steer(...)")
        run, loop = self._begun(), self._loop
        if loop is None:
            raise _over()
        if threading.get_ident() == self._thread:
            return loop.run(run.steer(message))
        steering = run.steer(message)
        try:
            accepted = asyncio.run_coroutine_threadsafe(steering, loop.get_loop())
        except RuntimeError:  # The loop was closed just now.
            steering.close()
            raise _over() from None
        try:
            return accepted.result()
        except CancelledError:
            raise _over() from None

    def close(self) -> None:
        """Stop the run. Safe to call twice."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamPart:
        return next(self._parts)

    def _begun(self) -> Run[T]:
        if self._run is None:
            raise ConfigurationError("the run has not started; iterate over its parts first")
        return self._run

    def _iterate(self) -> Generator[StreamPart]:
        with asyncio.Runner() as loop:
            run = self._run = loop.run(self._start())
            self._loop, self._thread = loop, threading.get_ident()
            try:
                while parts := loop.run(run.batch()):
                    yield from parts
            finally:
                self._loop = None
                loop.run(run.aclose())


def _over() -> SteerError:
    return SteerError("the run has finished; send the message as a new prompt")


def sync_chunks(start: Start[Any]) -> Generator[ChatResult[str]]:
    """Yield the chunks of a run. A failed run raises after its last chunk."""
    with asyncio.Runner() as loop:
        run = loop.run(start())
        try:
            chunking = run.chunking()
            yield from chunking.opening()
            while batch := loop.run(run.batch()):
                parts = deque(batch)
                yield from chunking.feed_all(parts)
        finally:
            loop.run(run.aclose())

"""Threads for tools that are plain functions.

They are daemons: Python's exit waits for the threads of an executor, and a tool that hangs must not keep a program
alive. A thread waits a little for its next job, since starting one costs more than most tools.
"""

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import suppress

IDLE_S = 2.0
"""How long a thread waits for its next job."""
GRACE_S = 0.0001
"""How long the event loop waits for a function, if no other one runs. Most return at once, and to wake the event loop
costs more than they do."""


class _Pool:
    """The threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []
        self.running = 0
        """How many functions run."""

    def forget(self) -> None:
        """A forked process has none of its parent's threads."""
        self.idle.clear()
        self.running = 0


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.forget)


class _Worker:
    def __init__(self) -> None:
        from queue import SimpleQueue

        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="sidestream-tool", daemon=True).start()

    def _run(self) -> None:
        from queue import Empty

        while True:
            try:
                job = self.jobs.get(timeout=IDLE_S)
            except Empty:
                with _pool.lock:
                    if self in _pool.idle:
                        _pool.idle.remove(self)
                        return
                continue  # `in_thread` has just taken it from the list: its job follows.
            job()
            del job
            with _pool.lock:
                _pool.running -= 1
                _pool.idle.append(self)


class _Handover:
    """A value that a thread leaves for the event loop, as long as the event loop waits for it."""

    __slots__ = ("_is_awaited", "_left", "_values")

    def __init__(self, *, is_awaited: bool) -> None:
        self._is_awaited = is_awaited
        self._values: list[object] = []
        self._left = threading.Lock()
        """Held until a value is left."""
        self._left.acquire()

    def leave(self, value: object) -> bool:
        """From the thread: leaves the value; False if nobody waits for it any more."""
        with _pool.lock:
            if self._is_awaited:
                self._values.append(value)
        if self._is_awaited:
            self._left.release()
        return self._is_awaited

    def wait(self) -> list[object]:
        """From the event loop: the value, or nothing if it takes longer; nobody waits for it then."""
        if self._is_awaited and not self._left.acquire(timeout=GRACE_S):
            with _pool.lock:
                self._is_awaited = bool(self._values)
        return self._values


def in_thread(work: Callable[[], object], name: str) -> "asyncio.Future[object]":
    """The result of `work`, which must not raise. If the future is cancelled, the thread still completes the work."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    variables = contextvars.copy_context()
    with _pool.lock:
        worker = _pool.idle.pop() if _pool.idle else None
        handover = _Handover(is_awaited=_pool.running == 0 and worker is not None)
        _pool.running += 1

    def job() -> None:
        threading.current_thread().name = f"sidestream-tool-{name}"
        value = variables.run(work)
        if not handover.leave(value):
            with suppress(RuntimeError):  # The loop has closed: nothing waits for the result.
                loop.call_soon_threadsafe(settle, future, value)

    (worker or _Worker()).jobs.put(job)
    for value in handover.wait():
        # Not at once: what the function has passed to the event loop comes first.
        loop.call_soon(settle, future, value)
    return future


def settle(future: "asyncio.Future[object]", value: object) -> None:
    """Sets the result, unless there is one or nobody waits for it any more."""
    if not future.done():
        future.set_result(value)
    elif inspect.iscoroutine(value):
        value.close()

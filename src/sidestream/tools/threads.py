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

_lock = threading.Lock()
_idle: "list[_Worker]" = []
# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_idle.clear)


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
                with _lock:
                    if self in _idle:
                        _idle.remove(self)
                        return
                continue  # `in_thread` has just taken it from the list: its job follows.
            job()
            del job
            with _lock:
                _idle.append(self)


def in_thread(work: Callable[[], object], name: str) -> "asyncio.Future[object]":
    """The result of `work`, which must not raise. If the future is cancelled, the thread still completes the work."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    variables = contextvars.copy_context()

    def job() -> None:
        threading.current_thread().name = f"sidestream-tool-{name}"
        value = variables.run(work)
        with suppress(RuntimeError):  # The loop has closed: nothing waits for the result.
            loop.call_soon_threadsafe(settle, future, value)

    with _lock:
        worker = _idle.pop() if _idle else None
    (worker or _Worker()).jobs.put(job)
    return future


def settle(future: "asyncio.Future[object]", value: object) -> None:
    """Sets the result, unless there is one or nobody waits for it any more."""
    if not future.done():
        future.set_result(value)
    elif inspect.iscoroutine(value):
        value.close()

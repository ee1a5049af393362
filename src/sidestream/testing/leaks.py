"""Checks for leaked tasks, file descriptors and threads, and for illegal streams of parts."""

import asyncio
import gc
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

from sidestream.stream import grammar
from sidestream.stream.parts import StreamPart

_POLLED_ROUNDS = 50
_PAUSE_S = 0.01
_ROUNDS_PER_COLLECTION = 25
_KEEPERS = ("sidestream.providers.local.server", "sidestream.portable.documents.isolated")
"""Modules that keep a process alive for the next request."""


class LeakError(AssertionError):
    """A task, file descriptor or thread outlived its block. The message names it."""


@asynccontextmanager
async def no_leaks(rounds: int = 200) -> AsyncGenerator[None, None]:
    """Check that no task, file descriptor or thread outlives the block. Raises LeakError if one does.

    Cleanup that is still in progress gets at most `rounds` iterations of the event loop, the first ones without a
    pause. Objects that the garbage collector closes, such as an unused chat's store, are not leaks. Neither are the
    embedded model's server and the process that parses documents. Daemon threads and threads of the event loop's
    executor do not count.
    """
    before = _alive()
    yield
    for turn in range(rounds):
        if not _alive_since(before):
            return
        if turn >= _POLLED_ROUNDS and turn % _ROUNDS_PER_COLLECTION == 0:
            gc.collect()
        await asyncio.sleep(0 if turn < _POLLED_ROUNDS else _PAUSE_S)
    if left := _alive_since(before):
        raise LeakError("left behind: " + "; ".join(sorted(left.values())))


def _alive_since(before: dict[object, str]) -> dict[object, str]:
    return {thing: text for thing, text in _alive().items() if thing not in before}


def _alive() -> dict[object, str]:
    # Skip the current task: in a fixture, it is not the one that entered the block.
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    found: dict[object, str] = {task: f"task {task!r}" for task in tasks}
    found |= _descriptors()
    for thread in threading.enumerate():
        if not thread.daemon and not thread.name.startswith("asyncio_"):
            found[thread] = f"thread {thread.name}"
    return found


def _descriptors() -> dict[object, str]:
    """Return the targets of open descriptors, by number, device and inode, so that a reused number counts as new."""
    found: dict[object, str] = {}
    keepers = [sys.modules.get(name) for name in _KEEPERS]
    kept: set[int] = {
        descriptor for keeper in keepers if keeper is not None for descriptor in keeper.kept_descriptors()
    }
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):  # The folder's own descriptor is closed by now.
                    status = os.fstat(int(name))
                    if int(name) not in kept:
                        target = _target(folder, name, status)
                        found[int(name), status.st_dev, status.st_ino] = f"descriptor {name}, {target}"
            break
    return found


def _target(folder: str, name: str, status: os.stat_result) -> str:
    with suppress(OSError):  # Not every system has links there.
        return os.readlink(f"{folder}/{name}")
    return "a socket" if stat.S_ISSOCK(status.st_mode) else "a file or pipe"


def check_stream(parts: Iterable[StreamPart], *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
    """Check that the parts form one legal, complete stream. Raises GrammarError if they do not.

    ```python
    check_stream([part async for part in agent.stream("Hello")])
    ```

    For a resumed run, `first_step` is its first step and `known_calls` are the ids of the calls made before.
    """
    grammar.check(parts, first_step=first_step, known_calls=known_calls)

"""Checks for leaked tasks, file descriptors and threads, and for illegal streams of parts."""

import asyncio
import gc
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from sidestream.parts import StreamPart
from sidestream.stream import grammar

_POLLED_ROUNDS = 50
_PAUSE_S = 0.01
_ROUNDS_PER_COLLECTION = 25
_FOLDERS = ("/proc/self/fd", "/dev/fd")
_KEEPERS = ("sidestream.providers.local.server", "sidestream.portable.documents.isolated")
"""Modules that keep a process alive for the next request."""


class LeakError(AssertionError):
    """A task, file descriptor or thread outlived its block. The message names it."""


class _Descriptor(NamedTuple):
    """An open descriptor, with the device and inode so that a reused number counts as new."""

    number: int
    device: int
    inode: int


_Alive = asyncio.Task[Any] | threading.Thread | _Descriptor


@asynccontextmanager
async def no_leaks(rounds: int = 200) -> AsyncGenerator[None, None]:
    """Check that no task, file descriptor or thread outlives the block. Raises LeakError if one does.

    Cleanup that is still in progress gets at most `rounds` iterations of the event loop, the first ones without a
    pause. Objects that the garbage collector closes, such as an unused chat's store, are not leaks. Neither are the
    embedded model's server and the process that parses documents. Daemon threads and threads of the event loop's
    executor do not count.
    """
    before = alive()
    yield
    await settled(before, rounds)


async def settled(before: set[_Alive], rounds: int = 200) -> None:
    """Wait until no more than `before` is alive. Raises LeakError if more is left after the rounds."""
    for turn in range(rounds):
        if not alive() - before:
            return
        if turn >= _POLLED_ROUNDS and turn % _ROUNDS_PER_COLLECTION == 0:
            gc.collect()
        await asyncio.sleep(0 if turn < _POLLED_ROUNDS else _PAUSE_S)
    if left := alive() - before:
        raise LeakError("left behind: " + "; ".join(sorted(map(_described, left))))


def alive(loop: asyncio.AbstractEventLoop | None = None) -> set[_Alive]:
    """Return the unfinished tasks of the running event loop, or of another one, and all threads and descriptors."""
    # Skip the current task: in a fixture, it is not the one that entered the block.
    current = asyncio.current_task() if loop is None else None
    found: set[_Alive] = {task for task in asyncio.all_tasks(loop) if task is not current}
    found |= {t for t in threading.enumerate() if not t.daemon and not t.name.startswith("asyncio_")}
    return found | _descriptors()


def _descriptors() -> set[_Descriptor]:
    keepers = [sys.modules.get(name) for name in _KEEPERS]
    kept: set[int] = {
        descriptor for keeper in keepers if keeper is not None for descriptor in keeper.kept_descriptors()
    }
    found: set[_Descriptor] = set()
    for number in {*_open_numbers()} - kept:
        with suppress(OSError):  # The folder's own descriptor is closed by now.
            status = os.fstat(number)
            found.add(_Descriptor(number, status.st_dev, status.st_ino))
    return found


def _open_numbers() -> list[int]:
    for folder in _FOLDERS:
        with suppress(OSError):
            return [int(name) for name in os.listdir(folder)]
    return []


def _described(left: _Alive) -> str:
    match left:
        case _Descriptor():
            return f"descriptor {left.number}, {_target(left.number)}"
        case threading.Thread():
            return f"thread {left.name}"
        case _:
            return f"task {left!r}"


def _target(number: int) -> str:
    for folder in _FOLDERS:
        with suppress(OSError):  # Not every system has links there.
            return os.readlink(f"{folder}/{number}")
    with suppress(OSError):
        return "a socket" if stat.S_ISSOCK(os.fstat(number).st_mode) else "a file or pipe"
    return "closed meanwhile"


def check_stream(parts: Iterable[StreamPart], *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
    """Check that the parts form one legal, complete stream. Raises GrammarError if they do not.

    ```python
    check_stream([part async for part in agent.stream("Hello")])
    ```

    For a resumed run, `first_step` is its first step and `known_calls` are the ids of the calls made before.
    """
    grammar.check(parts, first_step=first_step, known_calls=known_calls)

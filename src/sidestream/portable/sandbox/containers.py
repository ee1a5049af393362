"""The containers of a toolset: which one a call gets, and when it ends.

A run has one container. A conversation keeps it if the config says so, or names it. One that nobody uses ends after
some time; so does the one that was idle longest, when there are too many.
"""

import asyncio
import atexit
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

from sidestream import deliverables
from sidestream.limits import MAX_CONTAINER_IDLE_S, MAX_CONTAINERS
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import CodeFile, Container, ContainerSpec, SandboxError
from sidestream.portable.sandbox.worker import WORKER

GONE = (
    "the container of the earlier calls is gone: it was idle for too long, or it was stopped. This is a new one, "
    "without its variables"
)


class Kept:
    """A container with what is known about it."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.users = 0
        self.calls = 0
        self.used_at = monotonic()
        self._given: set[str] = set()

    @property
    def is_usable(self) -> bool:
        return self.container.is_alive

    async def put(self, files: Sequence[CodeFile]) -> None:
        """Writes files that it does not have yet. Raises SandboxError."""
        missing = {_digest(file): file for file in files if _digest(file) not in self._given}
        await self.container.put(list(missing.values()))
        self._given |= missing.keys()

    def has(self, file: CodeFile) -> None:
        """Notes a file that was made in it, so that it is not put into it again when the history has it."""
        self._given.add(_digest(file))


def _digest(file: CodeFile) -> str:
    return deliverables.digest(file.name.encode() + b"\0" + file.data)


_MAX_RUNS = 1000
"""Runs whose container is remembered."""
_all: dict[str, Kept] = {}
"""Every container of this process, by id: one that a config names may belong to another toolset."""
_lock = threading.Lock()


class Containers:
    """Starts containers of one kind. They end with it."""

    def __init__(self, sandbox: str, spec: ContainerSpec, idle_s: float = MAX_CONTAINER_IDLE_S) -> None:
        self._sandbox = sandbox
        self._spec = spec
        self._idle_s = idle_s
        self._of_run: dict[str, str] = {}
        self._own: set[str] = set()
        self._starting: dict[str, asyncio.Future[Kept]] = {}
        weakref.finalize(self, _abandon, self._own)

    @asynccontextmanager
    async def use(self, run: str, wanted: str | None = None) -> AsyncGenerator[tuple[Kept, bool]]:
        """The container of a run, or the wanted one, and whether it replaces one that is gone. Raises SandboxError."""
        known = self._of_run.get(run) or wanted
        kept = _all.get(known) if known is not None else None
        is_replaced = known is not None and (kept is None or not kept.is_usable)
        if kept is None or is_replaced:
            kept = await self._start(run)
        self._of_run[run] = kept.container.id
        while len(self._of_run) > _MAX_RUNS:
            del self._of_run[next(iter(self._of_run))]
        kept.users += 1
        kept.calls += 1
        try:
            yield kept, is_replaced
        finally:
            kept.users -= 1
            kept.used_at = monotonic()
            if kept.is_usable:
                self._expire_later(kept, self._idle_s)
            else:
                await self._end(kept)

    async def aclose(self) -> None:
        """Ends all. Safe to call twice."""
        for identity in list(self._own):
            if (kept := _all.get(identity)) is not None:
                await self._end(kept)

    async def _start(self, run: str) -> Kept:
        """A new container; calls of one run that begin together share it."""
        if (starting := self._starting.get(run)) is not None:
            return await asyncio.shield(starting)
        future = self._starting[run] = asyncio.get_running_loop().create_future()
        try:
            await self._make_space()
            kept = Kept(await choice.start(self._sandbox, self._spec))
            _all[kept.container.id] = kept
            self._own.add(kept.container.id)
            future.set_result(kept)
            return kept
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else SandboxError("the start was cancelled"))
            future.exception()  # nobody else may wait for it
            raise
        finally:
            del self._starting[run]

    async def _make_space(self) -> None:
        with _lock:
            if len(_all) < MAX_CONTAINERS:
                return
            idle = [kept for kept in _all.values() if not kept.users]
            if not idle:
                raise SandboxError(f"all {MAX_CONTAINERS} containers of this process are busy; try again later")
            oldest = min(idle, key=lambda kept: kept.used_at)
        await self._end(oldest)

    async def _end(self, kept: Kept) -> None:
        identity = kept.container.id
        _all.pop(identity, None)
        self._own.discard(identity)
        await kept.container.kill()

    def _expire_later(self, kept: Kept, after_s: float) -> None:
        WORKER.call_later(after_s, _expire, kept, self._idle_s)


def _expire(kept: Kept, idle_s: float) -> None:
    """Called by the worker: ends a container that was not used since."""
    left = kept.used_at + idle_s - monotonic()
    if kept.users == 0 and left <= 0.001 and _all.pop(kept.container.id, None) is not None:
        _ending.add(task := asyncio.ensure_future(kept.container.kill()))
        task.add_done_callback(_ending.discard)


_ending: set["asyncio.Future[None]"] = set()


def _abandon(identities: set[str]) -> None:
    """The toolset was never closed and is gone."""
    for identity in list(identities):
        if (kept := _all.pop(identity, None)) is not None:
            WORKER.submit(kept.container.kill)


@atexit.register
def _end_all() -> None:
    """At the end of the program: waits a moment, so that no folder or group is left behind."""
    ending = [WORKER.submit(kept.container.kill) for kept in list(_all.values())]
    _all.clear()
    for future in ending:
        if future is not None:
            try:
                future.result(5)
            except Exception:  # the process ends, and with it every container
                return

"""Containers of this process: their holders, which one a call gets, and when it ends.

A container belongs to one kind of tool, one sandbox, one owner and one group of that owner's calls: those of a run, or
of a conversation. It is found by these facts alone. They come from the run, not from a tool or a model.

An unused container ends after some time; so does the longest idle one when there are too many.
"""

import asyncio
import atexit
import threading
import weakref
from collections.abc import AsyncGenerator, Hashable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from time import monotonic

from msgspec import Struct

from sidestream.files import media_types
from sidestream.limits import MAX_CONTAINER_IDLE_S, MAX_CONTAINERS
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import CodeFile, Container, ContainerSpec, SandboxError
from sidestream.portable.sandbox.worker import WORKER

GONE = "The container of the earlier calls is gone: it was idle for too long, or it was stopped. This is a new one"
_MAX_KNOWN = 1000
"""Maximum groups that a toolset remembers having given a container."""


class Holder(Struct, frozen=True):
    """Identity under which a container is kept. Calls with equal holders share one."""

    kind: str
    """Key of the tool."""
    sandbox: str
    spec: ContainerSpec
    owner: Hashable
    """Owner, who may name the container by its id."""
    group: Hashable
    """Group of the owner's calls that share it."""


class KeptContainer:
    """A container with its usage data."""

    def __init__(self, container: Container, holder: Holder, siblings: set[Holder]) -> None:
        self.container = container
        self.holder = holder
        self.siblings = siblings
        """Holders of all containers of its toolset."""
        self.users = 0
        self.calls = 0
        self.used_at = monotonic()
        self._given: set[str] = set()

    @property
    def is_usable(self) -> bool:
        return self.container.is_alive

    async def put(self, files: Sequence[CodeFile]) -> None:
        """Write files that the container does not have yet.

        Raises SandboxError if one does not fit.
        """
        missing = {_digest(file): file for file in files if _digest(file) not in self._given}
        await self.container.put(list(missing.values()))
        self._given |= missing.keys()

    def has(self, file: CodeFile) -> None:
        """Record a file that was made in the container, so that it is not written again from the history."""
        self._given.add(_digest(file))


def _digest(file: CodeFile) -> str:
    return media_types.digest(file.name.encode() + b"\0" + file.data)


_kept: dict[Holder, KeptContainer] = {}
"""Containers of all agents. A conversation keeps its own when it continues with another agent."""
_starting: "dict[Holder, Future[KeptContainer | None]]" = {}
_lock = threading.Lock()
"""Guards the containers, which expire in the sandbox thread while calls come from any thread."""


class Containers:
    """The containers of one toolset. Those it has started end with it."""

    def __init__(
        self, sandbox: str, spec: ContainerSpec, *, kind: str = "", idle_s: float = MAX_CONTAINER_IDLE_S
    ) -> None:
        self._kind = kind
        self._sandbox = sandbox
        self._spec = spec
        self._idle_s = idle_s
        self._known: dict[Holder, None] = {}
        self._own: set[Holder] = set()
        self._begun: set[Future[KeptContainer | None]] = set()
        """Pending starts."""
        weakref.finalize(self, _abandon, self._own)

    @asynccontextmanager
    async def use(
        self, owner: Hashable, group: Hashable = None, *, named: str | None = None, had_one: bool = False
    ) -> AsyncGenerator[tuple[KeptContainer, bool]]:
        """Yield the container of a group, and whether it replaces a lost one.

        Without a group, the container serves this call only. `named` is the id of a container of the same kind, sandbox
        and owner, which is used if the group has none. `had_one` says that the group had one before, perhaps in another
        process. Raises SandboxError if no container can be started.
        """
        holder = Holder(self._kind, self._sandbox, self._spec, owner, object() if group is None else group)
        kept = _take(holder, named)
        is_replaced = kept is None and (had_one or named is not None or holder in self._known)
        if kept is None:
            kept = await self._started(holder)
        if group is not None:
            self._known[holder] = None
            for old in list(self._known)[:-_MAX_KNOWN]:
                del self._known[old]
        try:
            yield kept, is_replaced
        finally:
            with _lock:
                kept.users -= 1
                kept.used_at = monotonic()
            if kept.is_usable:
                WORKER.call_later(self._idle_s, _expire, kept, self._idle_s)
            else:
                await _end(kept)

    async def aclose(self) -> None:
        """End all containers, including those of calls cancelled while they started. Safe to call twice."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._begun)), return_exceptions=True)
        for holder in list(self._own):
            if (kept := _kept.get(holder)) is not None:
                await _end(kept)

    async def _started(self, holder: Holder) -> KeptContainer:
        """Start a container and count a use. Calls of one group that begin together share it."""
        start: Future[KeptContainer | None] = Future()
        start.set_running_or_notify_cancel()  # waiting calls must not cancel it
        while (begun := _starting.setdefault(holder, start)) is not start:
            if (kept := await asyncio.wrap_future(begun)) is not None:
                return _used(kept)
        self._begun.add(start)
        try:
            if (gone := _kept.get(holder)) is not None:
                await _end(gone)
            await _make_space()
            kept = KeptContainer(await choice.start(self._sandbox, self._spec), holder, self._own)
            with _lock:
                _kept[holder] = _used(kept)
                self._own.add(holder)
            start.set_result(kept)
            return kept
        except SandboxError as error:
            start.set_exception(error)
            raise
        finally:
            del _starting[holder]
            self._begun.discard(start)
            if not start.done():
                start.set_result(None)  # cancelled: a waiting call starts another one


def _take(holder: Holder, named: str | None) -> KeptContainer | None:
    """Return a holder's container, else the named one if it may use it, and count a use.

    Returns None if the container is missing or has ended.
    """
    with _lock:
        found = _kept.get(holder)
        if found is None and named is not None:
            found = next((kept for kept in list(_kept.values()) if _may_name(holder, kept, named)), None)
        return None if found is None or not found.is_usable else _used(found)


def _used(kept: KeptContainer) -> KeptContainer:
    kept.users += 1
    kept.calls += 1
    return kept


def _may_name(holder: Holder, kept: KeptContainer, named: str) -> bool:
    facts, other = (holder.kind, holder.sandbox, holder.owner), kept.holder
    return kept.container.id == named and (other.kind, other.sandbox, other.owner) == facts


async def _make_space() -> None:
    with _lock:
        if len(_kept) + len(_starting) <= MAX_CONTAINERS:
            return
        idle = [kept for kept in list(_kept.values()) if not kept.users]
        if not idle:
            raise SandboxError(f"all {MAX_CONTAINERS} containers of this process are busy; try again later")
        oldest = min(idle, key=lambda kept: kept.used_at)
        _forget(oldest)
    await oldest.container.kill()


async def _end(kept: KeptContainer) -> None:
    with _lock:
        _forget(kept)
    await kept.container.kill()


def _forget(kept: KeptContainer) -> bool:
    """Remove the container from the registry, holding the lock. Return whether it was there."""
    if _kept.get(kept.holder) is not kept:
        return False
    del _kept[kept.holder]
    kept.siblings.discard(kept.holder)
    return True


def _expire(kept: KeptContainer, idle_s: float) -> None:
    """End a container that has not been used since. Called by the worker."""
    with _lock:
        is_idle = kept.users == 0 and kept.used_at + idle_s - monotonic() <= 0.001
        if not is_idle or not _forget(kept):
            return
    _ending.add(task := asyncio.ensure_future(kept.container.kill()))
    task.add_done_callback(_ending.discard)


_ending: set["asyncio.Future[None]"] = set()


def _abandon(holders: set[Holder]) -> None:
    """End the containers of a toolset that was garbage-collected without being closed."""
    for holder in list(holders):
        # Without the lock: the garbage collector may call this while its own thread holds it.
        if (kept := _kept.pop(holder, None)) is not None:
            WORKER.submit(kept.container.kill)


@atexit.register
def _end_all() -> None:
    """End all containers at the program's exit.

    Waits a moment, so that no folder or group is left behind.
    """
    ending = [WORKER.submit(kept.container.kill) for kept in list(_kept.values())]
    _kept.clear()
    for future in ending:
        if future is not None:
            try:
                future.result(5)
            except Exception:  # the process is ending, and every container with it
                return

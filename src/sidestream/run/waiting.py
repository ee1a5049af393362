"""Work of a run that may wait, such as its requests. Waits are reported while they last."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sidestream.jsontext import JsonObject, as_object
from sidestream.parts import Custom, StreamPart
from sidestream.transport.waits import REPORT, WAITING, RequestWait
from sidestream.turn.machine import Turn

Work = Callable[[], Coroutine[Any, Any, None]]
Put = Callable[[list[StreamPart]], None]


class Waits:
    """Carries out work that may wait, one piece at a time.

    A wait is emitted as a part, which the log gets at once. If `is_watched`, the work runs in a task, so that the
    reader of the run gets the part while the wait lasts.
    """

    def __init__(self, turn: Turn, *, is_logged: bool) -> None:
        self.is_watched = False
        """Whether someone reads the run part by part."""
        self.is_unread = False
        """Whether the parts are read only after the run has ended."""
        self._is_logged = is_logged
        self._turn = turn
        self._put: Put | None = None
        """Emits parts, while there is work. Not kept longer, since it refers to the run."""
        self._wait: RequestWait | None = None
        """The wait that was reported and is not over."""
        self._task: asyncio.Task[None] | None = None
        """Work that has begun and is not done."""
        self._bell: asyncio.Future[None] | None = None
        """Set when the task is done or has reported a wait."""

    @property
    def is_pending(self) -> bool:
        """Whether work has begun and is not done."""
        return self._task is not None

    def end(self) -> None:
        """Emit the end of the current wait, if there is one."""
        if self._wait is not None:
            part, self._wait = self._wait.part(is_over=True), None
            self._emit(part)

    def advance(self, work: Work, put: Put) -> Awaitable[None]:
        """Do this work, or go on with the work that has begun. Returns early if a wait was emitted.

        `put` emits parts of the turn.
        """
        if self._task is None and not self.is_watched:
            return self._inline(work, put) if self._is_logged else work()
        return self._in_task(work, put)

    async def _inline(self, work: Work, put: Put) -> None:
        self._put, token = put, REPORT.set(self._report)
        try:
            await work()
        finally:
            REPORT.reset(token)
            self._put = None

    async def _in_task(self, work: Work, put: Put) -> None:
        task = self._task
        if task is None:
            self._put, token = put, REPORT.set(self._report)
            task = self._task = asyncio.create_task(work())
            REPORT.reset(token)
            task.add_done_callback(self._done)
        if not task.done():
            self._bell = asyncio.get_running_loop().create_future()
            try:
                await self._bell
            except asyncio.CancelledError:
                await self.aclose()
                raise
        if task.done():
            self._task = self._put = None
            task.result()

    async def aclose(self) -> None:
        """Cancel the work that has begun."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])
            _ = task.cancelled() or task.exception()  # mark it as retrieved
        self._put = None

    def _report(self, wait: RequestWait) -> None:
        self._wait = wait
        self._emit(wait.part())
        self._ring()

    def _emit(self, part: StreamPart) -> None:
        turn = self._turn
        if self._put is not None:
            self._put(turn.sending((), [part], defers_output=turn.state.defers_output))

    def _done(self, task: asyncio.Task[None]) -> None:
        if task is self._task and not task.cancelled() and task.exception() is None:
            self._task = self._put = None  # The reader may be about to read the answer, and not come back for it.
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


class SubagentWaits:
    """The waits of subagents, as waits of the run that calls them.

    A run has one wait at a time, so the end of one reports another that still lasts.
    """

    def __init__(self) -> None:
        self._waits: dict[str, JsonObject] = {}
        """Data of the waits that are not over, by call id, latest last."""

    def reported(self, call_id: str, part: StreamPart) -> list[StreamPart]:
        """Return the parts that report a subagent's wait to the caller. Other parts report none."""
        if not isinstance(part, Custom) or part.kind != WAITING:
            return []
        wait = as_object(part.data)
        if wait.get("over") is True:
            return self.ended(call_id)
        self._waits.pop(call_id, None)
        self._waits[call_id] = wait
        return [part]

    def ended(self, call_id: str) -> list[StreamPart]:
        """Return the parts after a call, which may have been stopped in a wait."""
        wait = self._waits.pop(call_id, None)
        if wait is None:
            return []
        if self._waits:
            return [Custom(WAITING, next(reversed(self._waits.values())))]
        kept = {name: value for name, value in wait.items() if name not in ("until", "message")}
        return [Custom(WAITING, {**kept, "over": True})]

"""The thread that owns containers, and a wrapper that sends each call to that thread and back.

Containers must outlive the event loop of a call (`send_sync` has one per call), and the kernel ends a container with
the *thread* that started it. Therefore one thread with its own loop starts all of them, and lives as long as any of
them.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from sidestream.parts import Json
from sidestream.portable.sandbox import port
from sidestream.portable.sandbox.workspace import Stage

T = TypeVar("T")


class SandboxThread:
    """The thread and its loop. Call `hold` before the first use, `release` after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stage: Stage | None = None

    def hold(self) -> None:
        """Register a holder, starting the thread if necessary."""
        with self._lock:
            self._holders += 1
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="sidestream-sandbox")
                self._thread.daemon = True
                self._thread.start()

    def release(self) -> None:
        """Remove a holder. The thread ends with the last one."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, finishes: bool = False) -> T:
        """Run the work in the thread and return its result.

        If the caller is cancelled, so is the work, unless `finishes` is set. It returns or raises only when the work
        has ended, including its cleanup.
        """
        loop = self._loop
        if loop is None:
            raise RuntimeError("the sandbox thread is not running")
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(task := loop.create_task(work()))
            task.add_done_callback(lambda done: _settle(ended, done))

        loop.call_soon_threadsafe(begin)
        waiting = asyncio.wrap_future(ended)
        is_cancelled = False
        while not waiting.done():
            try:
                await asyncio.wait([waiting])
            except asyncio.CancelledError:
                if not is_cancelled and not finishes:
                    loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                is_cancelled = True
        if is_cancelled:
            waiting.exception()  # retrieved, since the caller will not see it
            raise asyncio.CancelledError
        return waiting.result()

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> "Future[None] | None":
        """Start work in the thread without waiting, if the thread is running."""
        loop = self._loop
        return asyncio.run_coroutine_threadsafe(work(), loop) if loop is not None else None

    def call_later(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call the function in the thread after some seconds, if the thread is still running then."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the thread is ending
                loop.call_soon_threadsafe(loop.call_later, seconds, function, *arguments)

    @property
    def stage(self) -> Stage:
        """The stage of this thread, for root.

        Only the thread may use it. Raises SandboxError if it cannot be created.
        """
        if self._stage is None:
            self._stage = Stage()
        return self._stage

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            # Cancel the remaining tasks, so that their waiters learn that they have ended.
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            stage, self._stage = self._stage, None
            if stage is not None:
                stage.close()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def forget(self) -> None:
        """Reset the state in a forked process, which does not have the thread."""
        self.__init__()


def _settle(ended: "Future[T]", task: "asyncio.Task[T]") -> None:
    if task.cancelled():
        ended.set_exception(port.SandboxError("the container has ended"))
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


WORKER = SandboxThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.forget)


class OwnedContainer:
    """A container that is usable in any event loop, one call at a time. Holds the thread until it is killed."""

    def __init__(self, inner: port.Container) -> None:
        self._inner = inner
        self._is_held = True
        self._gone: Future[None] = Future()
        self._turn = asyncio.Lock()
        """Lock of the owning thread. Calls take turns, whatever loop they come from."""

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def is_alive(self) -> bool:
        return self._is_held and self._inner.is_alive

    async def run(
        self, code: str, on_output: port.OnOutput, *, tools: Sequence[str] = (), call_tool: port.CallTool | None = None
    ) -> port.CellOutcome:
        loop = asyncio.get_running_loop()

        async def call_here(name: str, arguments: Json) -> port.ToolAnswer:
            assert call_tool is not None
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_call(call_tool, name, arguments), loop))

        def report(text: str) -> None:
            loop.call_soon_threadsafe(on_output, text)

        answer = call_here if call_tool is not None else None
        return await self._in_turn(lambda: self._inner.run(code, report, tools=tools, call_tool=answer))

    async def command(
        self, command: str, on_output: port.OnStreams, *, timeout_s: float | None = None
    ) -> port.CommandOutcome:
        loop = asyncio.get_running_loop()

        def report(stdout: str, stderr: str) -> None:
            loop.call_soon_threadsafe(on_output, stdout, stderr)

        return await self._in_turn(lambda: self._inner.command(command, report, timeout_s=timeout_s))

    async def put(self, files: Sequence[port.CodeFile]) -> None:
        await self._in_turn(lambda: self._inner.put(files))

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def call() -> T:
            async with self._turn:
                if not self.is_alive:
                    raise port.SandboxError("the container has ended")
                return await work()

        return await WORKER.run(call)

    async def kill(self) -> None:
        if not self._is_held:
            await asyncio.shield(asyncio.wrap_future(self._gone))
            return
        self._is_held = False
        try:
            await WORKER.run(self._inner.kill, finishes=True)
        finally:
            WORKER.release()
            self._gone.set_result(None)


async def _call(call_tool: port.CallTool, name: str, arguments: Json) -> port.ToolAnswer:
    return await call_tool(name, arguments)


async def owned(start: Callable[[], Coroutine[Any, Any, port.Container]]) -> port.Container:
    """Start a container in the thread that owns containers.

    A start is never interrupted. If the caller is cancelled, the container is killed once it has started.
    """
    made: list[port.Container] = []

    async def begin() -> None:
        made.append(await start())

    WORKER.hold()
    try:
        await WORKER.run(begin, finishes=True)
    except BaseException:
        try:
            for inner in made:
                await WORKER.run(inner.kill, finishes=True)
        finally:
            WORKER.release()
        raise
    return OwnedContainer(made[0])

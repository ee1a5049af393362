"""A container as its users see it: each call is handed to the thread that owns the container, and back."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sidestream.portable.sandbox.port import (
    CallTool,
    CellOutcome,
    CodeFile,
    CommandOutcome,
    Container,
    OnOutput,
    OnStreams,
    SandboxError,
    ToolAnswer,
)
from sidestream.portable.sandbox.worker import WORKER
from sidestream.stream.parts import Json

T = TypeVar("T")


class OwnedContainer:
    """Usable in any event loop, one after the other. Holds the thread until it is killed."""

    def __init__(self, inner: Container) -> None:
        self._inner = inner
        self._is_held = True
        self._gone: Future[None] = Future()
        self._turn = asyncio.Lock()
        """Of the owning thread: calls take turns, whatever loop they come from."""

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def is_alive(self) -> bool:
        return self._is_held and self._inner.is_alive

    async def run(
        self, code: str, on_output: OnOutput, *, tools: Sequence[str] = (), call_tool: CallTool | None = None
    ) -> CellOutcome:
        loop = asyncio.get_running_loop()

        async def call_here(name: str, arguments: Json) -> ToolAnswer:
            assert call_tool is not None
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_call(call_tool, name, arguments), loop))

        def report(text: str) -> None:
            loop.call_soon_threadsafe(on_output, text)

        answer = call_here if call_tool is not None else None
        return await self._in_turn(lambda: self._inner.run(code, report, tools=tools, call_tool=answer))

    async def command(self, command: str, on_output: OnStreams, *, timeout_s: float | None = None) -> CommandOutcome:
        loop = asyncio.get_running_loop()

        def report(stdout: str, stderr: str) -> None:
            loop.call_soon_threadsafe(on_output, stdout, stderr)

        return await self._in_turn(lambda: self._inner.command(command, report, timeout_s=timeout_s))

    async def put(self, files: Sequence[CodeFile]) -> None:
        await self._in_turn(lambda: self._inner.put(files))

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def call() -> T:
            async with self._turn:
                if not self.is_alive:
                    raise SandboxError("the container has ended")
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


async def _call(call_tool: CallTool, name: str, arguments: Json) -> ToolAnswer:
    return await call_tool(name, arguments)


async def owned(start: Callable[[], Coroutine[Any, Any, Container]]) -> Container:
    """Starts a container in the thread that owns containers.

    A start is never broken off: if the caller is cancelled, the container ends once it is there.
    """
    made: list[Container] = []

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

"""A run as its caller sees it: an iterator of parts, a generator of chunks, or a result."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sidestream.errors import RunError
from sidestream.run.driver import Driver
from sidestream.run.results import ChatResult, ChunkFold, Partial, ResultFold
from sidestream.run.settings import RunSettings
from sidestream.stream.parts import StepStart, StreamPart
from sidestream.tools.approvals import Decision
from sidestream.turn.ledger import resumable
from sidestream.turn.machine import Turn
from sidestream.turn.state import Over, RunState, Wait, copied

T = TypeVar("T")


class Run(Generic[T]):
    """The parts of one run, as an async iterator: `async with agent.stream("…") as run: async for part in run: …`.

    `await run` gives the result instead. Leaving the `async with` early closes everything.
    """

    def __init__(self, turn: Turn, settings: RunSettings, decisions: Iterable[Decision] | None = None) -> None:
        self.turn = turn
        self._settings = settings
        self._driver = Driver(turn, settings, decisions)
        self._ready = self._driver.ready

    @property
    def error(self) -> RunError | None:
        """Why the run failed, once it has."""
        return self._driver.error

    @property
    def output(self) -> Any:
        """The typed output, once there is one."""
        return self._driver.output

    @property
    def is_typed(self) -> bool:
        """True if the run has an output type."""
        return self._settings.output is not None

    @property
    def state(self) -> RunState:
        """Where the run stands, as data from which it can be resumed. Read it between two parts."""
        state = self.turn.state
        return RunState(state if isinstance(state.command, Over | Wait) else resumable(copied(state)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPart:
        ready, driver = self._ready, self._driver
        try:
            while not ready:
                # A run that streams does hardly anything else, so no layer stands around that.
                await (driver.read_stream() if driver.is_streaming else driver.advance())
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return ready.popleft()

    def __await__(self) -> Generator[Any, None, ChatResult[T]]:
        return self.result().__await__()

    def __del__(self) -> None:
        # A run that was dropped without being closed still owns a connection.
        driver = getattr(self, "_driver", None)
        if driver is not None and driver.response is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().create_task(driver.response.aclose())

    async def chunks(self) -> AsyncGenerator[ChatResult[str]]:
        """The run in chunks, each with what is new. A run that failed raises after its last chunk."""
        so_far: list[str] = []
        ready, output = self._ready, self._settings.output
        began = time.monotonic()
        chunking = ChunkFold(self._settings.opening, self.turn.messages_with, lambda: time.monotonic() - began)
        try:
            for chunk in chunking.opening():
                yield chunk
            while True:
                try:
                    part = ready.popleft() if ready else await self.__anext__()
                except StopAsyncIteration:
                    break
                if type(part) is StepStart:
                    so_far = []
                for chunk in chunking.feed(part):
                    if output is not None and chunk.output:
                        so_far.append(chunk.output)
                        yield chunk.with_partial(Partial(so_far, len(so_far), output))
                    else:
                        yield chunk
            if self.error is not None:
                raise self.error
        finally:
            await self.aclose()

    async def result(self) -> ChatResult[T]:
        """The whole run: exactly the fold of its chunks. An error has what had arrived in `error.result`."""
        folding = ResultFold(self._settings.result_metadata)
        try:
            async for chunk in self.chunks():
                folding.feed(chunk)
        except RunError as error:
            error.result = folding.result()
            raise
        state = self.state if isinstance(self.turn.command, Wait) else None
        result = folding.result().waiting(state)
        return result if self._settings.output is None else result.typed(self.output)

    async def cancel(self) -> None:
        """Stops the run, also at a provider that would continue it in the background."""
        await self._driver.cancel()

    async def aclose(self) -> None:
        """Stops the run: closes the connection, cancels tools. Safe to call twice."""
        await self._driver.aclose()

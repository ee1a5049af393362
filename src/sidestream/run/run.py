"""A run as its caller sees it, which is an iterator of parts, a generator of chunks, or a result."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from msgspec import UNSET

from sidestream.errors import NoOutputError, RunError, ToolRaisedError
from sidestream.messages.steering import is_steer
from sidestream.parts import StepStart, StreamPart
from sidestream.results.results import (
    NO_OUTPUT,
    ChatResult,
    Partial,
    ResultFold,
    with_output,
    with_partial,
    with_state,
)
from sidestream.run.prompts import Prompt, user_message
from sidestream.run.settings import RunSettings
from sidestream.tools.approvals import Decision
from sidestream.tools.grants import without_grant
from sidestream.turn.state import AwaitDecision, Over, RunState, copied

if TYPE_CHECKING:
    from sidestream.providers.protocol import Encoded
    from sidestream.run.driver import Driver
    from sidestream.transport.calls import Transport
    from sidestream.turn.machine import Turn

T = TypeVar("T")
_CONTROL = StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError


class Chunking:
    """A fold of a run's parts to its chunks, which hold the object so far if the run is typed."""

    def __init__(self, turn: "Turn", settings: RunSettings) -> None:
        # Not at the top: a program that reads parts has no chunks.
        from sidestream.results.chunks import ChunkFold

        began = time.monotonic()
        self._fold = ChunkFold(
            settings.opening, turn.outbox.messages_with, lambda: time.monotonic() - began, turn.state
        )
        self._output = settings.output
        self._so_far: list[str] = []
        self.opening = self._fold.opening
        self.feed_all = self._fold.feed_all if self._output is None else self._typed

    def _typed(self, ready: deque[StreamPart]) -> list[ChatResult[str]]:
        return [self._with_partial(chunk) for chunk in self._fold.feed_all(ready)]

    def _with_partial(self, chunk: ChatResult[str]) -> ChatResult[str]:
        assert self._output is not None
        if chunk.parts and type(chunk.parts[0]) is StepStart:
            self._so_far = []
        if not chunk.text and chunk.correction is None:
            return chunk
        if chunk.correction is not None:
            self._so_far = []
        self._so_far.append(chunk.text if chunk.correction is None else chunk.correction)
        return with_partial(chunk, Partial(self._so_far, len(self._so_far), self._output))


class Run(Generic[T]):
    """The parts of one run, as an async iterator.

    ```python
    async with agent.stream("What is new in Python?") as run:
        async for part in run:
            if isinstance(part, TextDelta):
                print(part.delta, end="", flush=True)
    print(run.output)
    ```

    `await run` returns the result instead. Leaving the `async with` block early closes everything. A failed run raises
    its error after its last part, unless it was started with `errors="parts"`.
    """

    def __init__(self, turn: "Turn", settings: RunSettings, decisions: Iterable[Decision] | None = None) -> None:
        # Not at the top: a program that imports an agent may not run it yet.
        from sidestream.run.driver import Driver

        self.turn = turn
        self._settings = settings
        self._driver = Driver(turn, settings, decisions)
        self._ready = self._driver.ready
        self._raises = settings.errors == "raise"

    @property
    def error(self) -> RunError | None:
        """Error of a failed run, else None."""
        return self._driver.error

    @property
    def output(self) -> T:
        """Output of a finished run, which is an object of the output type, or the text of the answer.

        Raises NoOutputError if a typed run has none.
        """
        if not self.has_output:
            raise NoOutputError(self._driver.reason)
        return self._driver.output if self.is_typed else cast(T, self._text())

    @property
    def has_output(self) -> bool:
        """Whether there is an output."""
        return self._driver.output is not UNSET if self.is_typed else self._driver.reason is not None

    @property
    def is_typed(self) -> bool:
        """Whether the run has an output type."""
        return self._settings.output is not None

    @property
    def is_streaming(self) -> bool:
        """Whether the run waits for the next events of an answer."""
        return self._driver.is_streaming and not self._ready

    def pause(self) -> None:
        """Leave the next events of the answer in the system's buffers until `resume`, if the connection supports it."""
        if (pause := getattr(self._driver.response, "pause", None)) is not None:
            pause()

    def resume(self) -> None:
        """Continue reading after `pause`."""
        if (resume := getattr(self._driver.response, "resume", None)) is not None:
            resume()

    @property
    def state(self) -> RunState:
        """State of the run, as data from which it can be resumed. Read it between two parts."""
        from sidestream.turn.ledger import resumable

        state = self.turn.state
        return RunState(state if isinstance(state.command, Over | AwaitDecision) else resumable(copied(state)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[StreamPart]:
        self._driver.waits.is_watched = True
        return self._parts()

    async def _parts(self) -> AsyncGenerator[StreamPart]:
        """Yield the parts. A generator resumes faster than a coroutine begins."""
        ready = self._ready
        while ready or await self._arrive():
            yield ready.popleft()

    async def __anext__(self) -> StreamPart:
        if self._ready or await self._arrive():
            return self._ready.popleft()
        raise StopAsyncIteration

    async def _arrive(self) -> bool:
        """Wait for the next parts. Returns False at the end, and raises the error of a failed run once."""
        ready, driver = self._ready, self._driver
        try:
            while not ready:
                # The fast path for a streaming run.
                await (driver.read_stream() if driver.is_streaming else driver.advance())
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except StopAsyncIteration:
            if not self._raises or driver.error is None:
                return False
        if not ready:
            # Outside the handler, which would replace the context of a tool's own exception.
            self._raises = False
            raise self._failure()
        return True

    def _failure(self) -> BaseException:
        """Return the exception that a failed run raises, which is the tool's own if a tool ended the run."""
        error = self._driver.error
        assert error is not None
        own = error.exception if isinstance(error, ToolRaisedError) else None
        # These would end an iteration, or look like a cancelled task.
        return error if own is None or isinstance(own, _CONTROL) else own

    def __await__(self) -> Generator[Any, None, ChatResult[T]]:
        return self.result().__await__()

    def __del__(self) -> None:
        # A run that was dropped without being closed still owns a connection.
        driver: Driver | None = getattr(self, "_driver", None)
        if driver is not None:
            driver.dropped()
        if driver is not None and driver.owns_connection:
            with suppress(RuntimeError):
                asyncio.get_running_loop().create_task(driver.release())

    async def batch(self) -> list[StreamPart]:
        """Wait for the next parts and return all that have arrived, or none at the end."""
        if not self._ready:
            await self._arrive()
        parts = [*self._ready]
        self._ready.clear()
        return parts

    def chunking(self) -> "Chunking":
        """Create a fold of this run's parts to its chunks."""
        return Chunking(self.turn, self._settings)

    async def chunks(self, *, is_watched: bool = True) -> AsyncGenerator[ChatResult[str]]:
        """Yield the run in chunks, each with what is new. A failed run raises after its last chunk.

        Unless `is_watched`, a wait is not reported while it lasts.
        """
        ready, chunking = self._ready, self.chunking()
        self._driver.waits.is_watched = is_watched
        try:
            for chunk in chunking.opening():
                yield chunk
            while ready or await self._arrive():
                for chunk in chunking.feed_all(ready):
                    yield chunk
            if self.error is not None:
                raise self._failure()
        finally:
            await self.aclose()

    async def result(self) -> ChatResult[T]:
        """Wait for the whole run and return its result, which is exactly the fold of its chunks.

        An error has the partial result in `error.result`.
        """
        folding, chunking = ResultFold(self._settings.result_metadata), self.chunking()
        self._driver.waits.is_unread, self._driver.waits.is_watched = True, False
        try:
            folding.feed_all(chunking.opening())
            while self._ready or await self._arrive():
                folding.feed_all(chunking.feed_all(self._ready))
            if self.error is not None:
                raise self._failure()
        except RunError as error:
            error.result = folding.result()
            raise
        finally:
            await self.aclose()
        state = self.state if isinstance(self.turn.command, AwaitDecision) else None
        result = with_state(folding.result(), state)
        return (
            result if not self.is_typed else with_output(result, self._driver.output if self.has_output else NO_OUTPUT)
        )

    def _text(self) -> str:
        texts: list[str] = []
        for message in reversed(self.turn.state.messages):
            if message.role == "user" and not is_steer(message):
                break
            if message.role == "model" and message.text:
                texts.append(message.text)
        return "\n".join(reversed(texts))

    async def steer(self, message: Prompt) -> str:
        """Send a message while the run is in progress. The next request takes it, after tool results.

        Over a WebSocket, the message is offered to the current response first. If the current step would be the last,
        one more is made for the message. Returns the id of its `steer` parts, once the log, if there is one, has the
        message. Raises SteerError once the run has finished or waits for an approval.
        """
        return await self._driver.steer(user_message(message))

    async def withdraw(self, grant: str) -> bool:
        """Revoke a remembered approval by its id, so that the next call to its tool needs an approval.

        Returns False if the run has finished or waits; use `Chat.withdraw` then.
        """
        state, recorder = self.turn.state, self._settings.hooks.recorder
        if self.turn.is_over:
            return False
        state.grants = without_grant(state.grants, grant)
        if recorder is not None:
            recorder.granted(state.grants)
            notice = await recorder.commit()
            self._ready.extend([] if notice is None else [notice])
        return True

    async def cancel(self) -> None:
        """Stop the run, including a response that the provider would continue in the background.

        Iteration over the run ends.
        """
        self._raises = False
        await self._driver.cancel()

    async def begin(self) -> None:
        """Record the start of the run, including its decisions, and leave it before its first request.

        Needs a log, from which the turn can be resumed, even in another process.
        """
        with suppress(StopAsyncIteration):
            await self._driver.advance()
        await self.leave()

    async def first_request(self, transport: "Transport") -> "tuple[str, Encoded]":
        """Encode the first request without sending it, and return it with the model as `provider:name`.

        `transport` sends what the request may need before, such as uploads. The run cannot be used afterwards.
        """
        from sidestream.run.preparation import first_request

        settings = self._settings
        settings.transport, settings.context = transport, None
        encoded = await first_request(self.turn, settings)
        return f"{settings.model.provider}:{settings.model.name}", encoded

    async def leave(self) -> None:
        """Stop the run in this process but keep its log open, so that `chat.resume` can continue the turn anywhere."""
        self._raises = False
        await self._driver.aclose(is_cancelled=False)

    async def aclose(self) -> None:
        """Stop the run by closing the connection and cancelling tools.

        Safe to call twice. Iteration over the run ends.
        """
        self._raises = False
        await self._driver.aclose()

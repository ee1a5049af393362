"""A run: carries out the commands of a turn and hands on its parts."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sidestream.calls import Exchange, Transport
from sidestream.errors import RunError, error_from_part
from sidestream.limits import Limits
from sidestream.models import ChatModel, Decoder, Encoded, FileRef, ModelRequest
from sidestream.parts import Error, Json, StreamPart, ToolCall, ToolEvent
from sidestream.tools import Tool, ToolContext
from sidestream.turn import CallTools, Fetch, Over, Send, Turn

RequestMaker = Callable[[Turn], ModelRequest]


class Run:
    """The parts of one run, as an async iterator. Use it with `async with`, so that leaving early closes everything."""

    def __init__(
        self,
        turn: Turn,
        *,
        model: ChatModel,
        transport: Transport,
        request: RequestMaker,
        tools: dict[str, Tool],
        limits: Limits,
    ) -> None:
        self.turn = turn
        self.error: RunError | None = None
        """Why the run failed, once it has."""
        self._model = model
        self._transport = transport
        self._request = request
        self._tools = tools
        self._limits = limits
        self._ready: deque[StreamPart] = deque()
        self._exchange: Exchange | None = None
        self._encoded: Encoded | None = None
        self._decoder: Decoder | None = None
        self._working: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPart:
        ready = self._ready
        while not ready:
            await self._advance()
        return ready.popleft()

    async def aclose(self) -> None:
        """Stops the run: closes the connection, cancels tools. Safe to call twice."""
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.wait([working])
        await self._close_exchange()

    async def _advance(self) -> None:
        """Does the next thing that makes parts."""
        try:
            if self._exchange is not None:
                await self._read()
                return
            match self.turn.command:
                case Send():
                    await self._send()
                case Fetch(refs=refs):
                    await self._fetch(refs)
                case CallTools(calls=calls):
                    await self._call_tools(calls)
                case Over():
                    raise StopAsyncIteration
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _send(self) -> None:
        """Makes the request, then opens it: what is to be said before the answer is said before the wait."""
        if self._encoded is None:
            self._encoded = self._model.encode(self._request(self.turn))
            self._ready.extend(self.turn.sending(self._encoded.warnings, self._encoded.notices))
            return
        encoded, self._encoded = self._encoded, None
        try:
            self._exchange = await self._transport.open(encoded.call, self._limits)
        except RunError as error:
            self._ready.extend(self.turn.refused(self._model.recover(error), error.part()))
            self.error = error if isinstance(self.turn.command, Over) else None
            return
        self._decoder = encoded.decoder()
        self._ready.extend(self.turn.opened())

    async def _read(self) -> None:
        """The next events of the answer, or all of it where it came whole."""
        exchange, decoder = self._exchange, self._decoder
        assert exchange is not None
        assert decoder is not None
        parts: list[StreamPart] = []
        ended = True
        try:
            if exchange.is_stream:
                events = await exchange.events()
                for event in events:
                    parts += decoder.feed(event)
                ended = not events
            else:
                parts = decoder.whole(await exchange.body())
            if ended:
                parts += decoder.close()
        except RunError as error:
            self.error = error
            parts += decoder.close(error.part())
            ended = True
        self._ready.extend(self.turn.received(parts, decoder.downloads))
        if self.turn.state.error is not None and self.error is None:
            self.error = error_from_part(self.turn.state.error)
        if not self.turn.is_in_step:
            await self._close_exchange()

    async def _close_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

    async def _fetch(self, refs: tuple[FileRef, ...]) -> None:
        """Downloads in parallel, bounded; files are told in the order of their citations."""
        gate = asyncio.Semaphore(self._limits.max_parallel_downloads)

        async def fetch(ref: FileRef) -> bytes | Error:
            async with gate:
                try:
                    return await self._transport.download(self._model.download(ref), self._limits)
                except RunError as error:
                    return error.part()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(ref)) for ref in refs]
        for ref, task in zip(refs, tasks, strict=True):
            outcome = task.result()
            told = (
                self.turn.not_fetched(ref, outcome) if isinstance(outcome, Error) else self.turn.fetched(ref, outcome)
            )
            self._ready.extend(told)
        self._ready.extend(self.turn.all_fetched())

    async def _call_tools(self, calls: tuple[ToolCall, ...]) -> None:
        """Runs the calls of a round in one task that this run owns; returns when there is something to tell."""
        if self._working is None:
            wake = self._wake
            wake.clear()
            self._working = asyncio.create_task(self._work(calls, wake))
            self._working.add_done_callback(lambda _: wake.set())
        await self._wake.wait()
        self._wake.clear()
        if self._working.done():
            working, self._working = self._working, None
            working.result()

    async def _work(self, calls: tuple[ToolCall, ...], wake: asyncio.Event) -> None:
        gate = asyncio.Semaphore(self._limits.max_parallel_tools)

        def tell(parts: list[StreamPart]) -> None:
            self._ready.extend(parts)
            wake.set()

        async def work(call: ToolCall) -> None:
            def progress(value: Json) -> None:
                tell([ToolEvent(call.tool, "progress", value, call_id=call.id)])

            context = ToolContext(call_id=call.id, name=call.name, progress=progress)
            # A tool whose input is plain text takes it as its argument `input`.
            arguments = {"input": call.input} if isinstance(call.input, str) else call.input
            async with gate:
                outcome = await self._tools[call.name].run(arguments, context, self._limits)
            tell(self.turn.tool_done(call.id, outcome.result, outcome.is_error))

        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(work(call))

"""A run: carries out the commands of a turn and hands on its parts."""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.approvals import Decision, Question, Verdict
from sidestream.calls import Exchange
from sidestream.errors import OutputInvalidError, RunError, error_from_part
from sidestream.models import Decoder, Encoded, FileRef, NamesFiles, ResumesStreams
from sidestream.output import OutputError
from sidestream.parts import (
    Custom,
    Error,
    File,
    Json,
    StepStart,
    StreamPart,
    ToolCall,
    ToolEvent,
    encode_part,
    part_type,
)
from sidestream.results import ChatResult, ChunkFold, Partial, ResultFold
from sidestream.run_state import RunSettings, RunState
from sidestream.tools import ToolContext
from sidestream.turn import Turn
from sidestream.turn_state import CallTools, Check, Fetch, Judge, Over, Send, Wait

T = TypeVar("T")


class Run(Generic[T]):
    """The parts of one run, as an async iterator: `async with agent.stream("…") as run: async for part in run: …`.

    `await run` gives the result instead. Leaving the `async with` early closes everything.
    """

    def __init__(self, turn: Turn, settings: RunSettings, decisions: Iterable[Decision] | None = None) -> None:
        self.turn = turn
        self.error: RunError | None = None
        """Why the run failed, once it has."""
        self.output: Any = None
        """The typed output, once there is one."""
        self._settings = settings
        self._chunking = ChunkFold(settings.opening, settings.message_metadata, turn.copy_fold())
        self._ready: deque[StreamPart] = deque()
        self._exchange: Exchange | None = None
        self._encoded: Encoded | None = None
        self._decoder: Decoder | None = None
        self._sent: Encoded | None = None
        self._resumptions = 0
        self._working: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._deadline_s: float | None = None
        if decisions is not None:
            self._ready.extend(turn.resumed(decisions))

    @property
    def state(self) -> RunState:
        """Where the run stands. Between two parts it can be written down and resumed."""
        return RunState(self.turn.state)

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

    def __await__(self) -> Generator[Any, None, ChatResult[T]]:
        return self.result().__await__()

    def __del__(self) -> None:
        # A run that was dropped without being closed still owns a connection.
        exchange = self.__dict__.get("_exchange")
        if exchange is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().create_task(exchange.aclose())

    async def chunks(self) -> AsyncGenerator[ChatResult[str]]:
        """The run in chunks, each with what is new. A run that failed raises after its last chunk."""
        so_far: list[str] = []
        output = self._settings.output
        try:
            for chunk in self._chunking.opening():
                yield chunk
            async for part in self:
                if isinstance(part, StepStart):
                    so_far = []
                for chunk in self._chunking.feed(part):
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
        """The whole run: exactly the fold of its chunks. An error carries what had come in `error.result`."""
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

    async def aclose(self) -> None:
        """Stops the run: closes the connection, cancels tools. Safe to call twice."""
        working, self._working = self._working, None
        if working is not None and not working.done():
            working.cancel()
            await asyncio.wait([working])
        await self._close_exchange()

    async def _advance(self) -> None:
        """Does the next thing that makes parts, within the run's time."""
        limit_s = self._settings.limits.max_run_s
        try:
            if limit_s is None:
                await self._step()
                return
            now_s = asyncio.get_running_loop().time()
            if self._deadline_s is None:
                self._deadline_s = now_s + limit_s
            async with asyncio.timeout_at(self._deadline_s):
                await self._step()
        except TimeoutError:
            await self._out_of_time(limit_s or 0.0)
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _step(self) -> None:
        if self._exchange is not None:
            await self._read()
            return
        match self.turn.command:
            case Send():
                await self._send()
            case Fetch(refs=refs):
                await self._fetch(refs)
            case Judge(questions=questions):
                await self._judge(questions)
            case CallTools(calls=calls):
                await self._call_tools(calls)
            case Check(text=text):
                self._check(text)
            case Over() | Wait():
                raise StopAsyncIteration

    async def _out_of_time(self, limit_s: float) -> None:
        decoder = self._decoder if self._exchange is not None else None
        await self.aclose()
        if decoder is None:
            self._ready.extend(self.turn.stopped("max_run_s", limit_s))
            return
        self.turn.state.limit = ("max_run_s", limit_s)
        error = Error("limit", f"the run took longer than {limit_s:g} s", code="max_run_s")
        self._ready.extend(self.turn.received(decoder.close(error)))

    async def _send(self) -> None:
        """Makes the request, then opens it: what is to be said before the answer is said before the wait."""
        if self._encoded is None:
            self._encoded = encoded = self._settings.model.encode(self._settings.request(self.turn))
            told = self.turn.sending(encoded.warnings, encoded.notices, defers_output=encoded.defers_output)
            self._ready.extend(told)
            return
        encoded, self._encoded = self._encoded, None
        try:
            self._exchange = await self._settings.transport.open(encoded.call, self._settings.limits)
        except RunError as error:
            self._ready.extend(self.turn.refused(self._settings.model.recover(error), error.part()))
            self.error = error if isinstance(self.turn.command, Over) else None
            return
        self._sent = encoded
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
                if ended and await self._taken_up():
                    return
            else:
                parts = decoder.whole(await exchange.body())
            if ended:
                parts += decoder.close()
        except RunError as error:
            if error.kind in ("truncated", "timeout") and await self._taken_up():
                return
            self.error = error
            parts += decoder.close(error.part())
        self._ready.extend(self.turn.received(parts, decoder.downloads))
        if self.turn.state.error is not None and self.error is None:
            self.error = error_from_part(self.turn.state.error)
        if not self.turn.is_in_step:
            await self._close_exchange()

    async def _taken_up(self) -> bool:
        """Opens the rest of a stream that broke, where the provider goes on with it. True: the step goes on."""
        settings, decoder = self._settings, self._decoder
        if not isinstance(settings.model, ResumesStreams) or self._sent is None or decoder is None:
            return False
        call = settings.model.resume_call(self._sent, decoder)
        if call is None or self._resumptions >= settings.limits.max_resumptions:
            return False
        self._resumptions += 1
        await self._close_exchange()
        try:
            self._exchange = await settings.transport.open(call, settings.limits)
        except RunError:
            return False
        self._ready.extend(self.turn.received([Custom("sidestream.stream-resumed", {"time": self._resumptions})]))
        return True

    async def cancel(self) -> None:
        """Stops the run, also at a provider that would go on with it in the background."""
        settings, sent, decoder = self._settings, self._sent, self._decoder
        model, call = settings.model, None
        is_under_way = self._exchange is not None
        if isinstance(model, ResumesStreams) and is_under_way and sent is not None and decoder is not None:
            call = model.cancel_call(sent, decoder)
        await self.aclose()
        if call is not None:
            answer = await settings.transport.open(call, settings.limits)
            await answer.aclose()

    async def _close_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

    async def _fetch(self, refs: tuple[FileRef, ...]) -> None:
        """Downloads in parallel, bounded; files are told in the order of their citations."""
        settings = self._settings
        gate = asyncio.Semaphore(settings.limits.max_parallel_downloads)

        async def fetch(ref: FileRef) -> tuple[FileRef, bytes | Error]:
            async with gate:
                try:
                    data = await settings.transport.download(settings.model.download(ref), settings.limits)
                    return await self._named(ref), data
                except RunError as error:
                    return ref, error.part()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(ref)) for ref in refs]
        for task in tasks:
            ref, got = task.result()
            told = self.turn.not_fetched(ref, got) if isinstance(got, Error) else self.turn.fetched(ref, got)
            self._ready.extend(told)
        self._ready.extend(self.turn.all_fetched())

    async def _named(self, ref: FileRef) -> FileRef:
        """The file with its name, where the provider has to be asked for it; a file needs no name to be delivered."""
        model = self._settings.model
        if ref.name is not None or not isinstance(model, NamesFiles):
            return ref
        with suppress(RunError):
            body = await self._settings.transport.download(model.describe(ref), self._settings.limits)
            return replace(ref, name=model.read_name(body))
        return ref

    async def _judge(self, questions: tuple[Question, ...]) -> None:
        judge = self._settings.judge
        verdicts: dict[str, Verdict] = {
            question.call_id: await judge(question) if judge else "run" for question in questions
        }
        self._ready.extend(self.turn.judged(verdicts, lambda: f"approval_{uuid.uuid4().hex}"))

    def _check(self, text: str) -> None:
        output = self._settings.output
        assert output is not None
        problem: str | None = None
        try:
            self.output = output.parse(text)
        except OutputError as error:
            problem = error.problem
        self._ready.extend(self.turn.checked(problem))
        if problem is not None and isinstance(self.turn.command, Over):
            self.error = OutputInvalidError(f"the answer does not fit the output type: {problem}", code="output")

    async def _call_tools(self, calls: tuple[ToolCall, ...]) -> None:
        """Runs the calls of a round in one task that this run owns; returns when there is something to tell."""
        if self._working is None:
            wake = self._wake
            wake.clear()
            self._working = asyncio.create_task(self._work(calls))
            self._working.add_done_callback(lambda _: wake.set())
        await self._wake.wait()
        self._wake.clear()
        if self._working.done():
            working, self._working = self._working, None
            working.result()

    async def _work(self, calls: tuple[ToolCall, ...]) -> None:
        gate = asyncio.Semaphore(self._settings.limits.max_parallel_tools)
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(self._run_tool(call, gate))

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore) -> None:
        def progress(value: Json) -> None:
            self._tell([ToolEvent(call.tool, "progress", value, call_id=call.id)])

        context = ToolContext(
            call_id=call.id,
            name=call.name,
            progress=progress,
            forward=lambda part: self._forward(call, part),
            suspended=self.turn.state.suspended.get(call.id),
        )
        # A tool whose input is plain text takes it as its argument `input`.
        arguments = {"input": call.input} if isinstance(call.input, str) else call.input
        async with gate:
            outcome = await self._settings.tools[call.name].run(arguments, context, self._settings.limits)
        if outcome.suspended is not None:
            self._tell(self.turn.tool_suspended(call.id, outcome.suspended))
        else:
            self._tell(self.turn.tool_done(call.id, outcome.result, outcome.is_error))

    def _forward(self, call: ToolCall, part: StreamPart) -> None:
        """Tells a part of an agent that runs as a tool: as an event under its name, files also as files."""
        if isinstance(part, File):
            self._tell([replace(part, id=f"{call.id}:{part.id}", tool=call.tool, call_id=call.id)])
            return
        self._tell([ToolEvent(call.tool, part_type(part), jsontext.loads(encode_part(part)), call_id=call.id)])
        self.turn.overheard(part)

    def _tell(self, parts: list[StreamPart]) -> None:
        self._ready.extend(parts)
        self._wake.set()

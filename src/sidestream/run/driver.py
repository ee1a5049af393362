"""A run: carries out the commands of a turn and hands on its parts."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sidestream.errors import OutputInvalidError, RunError
from sidestream.output import OutputError
from sidestream.providers.calls import HttpResponse
from sidestream.providers.protocol import Decoder, Encoded
from sidestream.run.background import BackgroundAnswer
from sidestream.run.downloads import fetch_files
from sidestream.run.results import ChatResult, ChunkFold, Partial, ResultFold
from sidestream.run.settings import RunSettings
from sidestream.run.tool_round import ToolRound
from sidestream.stream.errors import error_from_part, part_of_error
from sidestream.stream.parts import Error, Finish, StepStart, StreamPart, StreamStart
from sidestream.tools.approvals import Decision, Question, Verdict
from sidestream.turn.ledger import resumable
from sidestream.turn.machine import Turn
from sidestream.turn.state import CallTools, Check, Fetch, Judge, Over, RunState, Send, Wait, copied

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
        self._ready: deque[StreamPart] = deque()
        self._exchange: HttpResponse | None = None
        self._is_streaming = False
        """True: nothing but the next events of the exchange is waited for."""
        self._encoded: Encoded | None = None
        self._decoder: Decoder | None = None
        self._sent: Encoded | None = None
        self._deadline_s: float | None = None
        self._tools: ToolRound | None = None
        self._background = BackgroundAnswer(turn, settings)
        self._asked = {approval.approval_id for approval in turn.state.waiting}
        """Pending approvals that the log has."""
        self._is_begun = False
        self._is_ended = False
        self._decisions = None if decisions is None else tuple(decisions)
        self._warnings = settings.warnings
        if self._decisions is not None:
            turn.check_decisions(self._decisions)

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
        ready = self._ready
        try:
            while not ready:
                # A run that streams does hardly anything else, so nothing stands around that.
                await (self._read_stream() if self._is_streaming else self._advance())
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return ready.popleft()

    def __await__(self) -> Generator[Any, None, ChatResult[T]]:
        return self.result().__await__()

    def __del__(self) -> None:
        # A run that was dropped without being closed still owns a connection.
        exchange = getattr(self, "_exchange", None)
        if exchange is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().create_task(exchange.aclose())

    async def chunks(self) -> AsyncGenerator[ChatResult[str]]:
        """The run in chunks, each with what is new. A run that failed raises after its last chunk."""
        so_far: list[str] = []
        ready, output = self._ready, self._settings.output
        chunking = ChunkFold(self._settings.opening, self.turn.messages_with)
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
        await self._stop()
        recorder = self._settings.recorder
        if recorder is not None and self._is_begun and not self._is_ended:
            self._is_ended = True
            recorder.cancelled()
            await recorder.commit()

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
            await self._end()

    async def _step(self) -> None:
        if self._exchange is not None or self._background.is_waiting:
            await self._read()
        elif not self._is_begun:
            await self._begin()
        else:
            await self._command()
        await self._end_if_over()

    async def _end_if_over(self) -> None:
        if not self._is_ended and isinstance(self.turn.command, Over | Wait):
            await self._end()

    async def _command(self) -> None:
        match self.turn.command:
            case Send():
                await self._send()
            case Fetch(refs=refs):
                for ref, got in await fetch_files(refs, self._settings):
                    is_lost = isinstance(got, Error)
                    self._put(self.turn.not_fetched(ref, got) if is_lost else self.turn.fetched(ref, got))
                self._put(self.turn.all_fetched())
            case Judge(questions=questions):
                await self._judge(questions)
            case CallTools(calls=calls):
                self._tools = self._tools or ToolRound(self.turn, self._settings, self._put)
                await self._tools.advance(calls)
            case Check(text=text):
                self._check(text)
            case Over() | Wait():
                raise StopAsyncIteration

    async def _begin(self) -> None:
        """Lists the tools, and records how the run begins. Decisions and their effects are recorded together."""
        self._is_begun = True
        toolbox, failure = self._settings.toolbox, None
        if self._decisions is None:
            self._record_beginning()
        try:
            self._warnings += tuple(await toolbox.refresh())
            self.turn.set_tools(toolbox.tools)
        except RunError as error:
            failure = error
        if self._decisions is not None:
            self._record_beginning()
            if failure is None:
                self._put(self.turn.resumed(self._decisions))
        if failure is not None:
            self._fail(failure)
            return
        self._put_asked(self.turn.reconsidered(_new_approval_id))
        if self._ready:
            await self._commit()

    def _record_beginning(self) -> None:
        settings = self._settings
        if settings.recorder is not None:
            settings.recorder.begin(
                self.turn.state.run_id,
                model=f"{settings.model.provider}:{settings.model.name}",
                opening=settings.opening,
                message_metadata=settings.message_metadata,
                decisions=self._decisions or (),
            )

    async def _end(self) -> None:
        """The run is over, or waits: its last parts are safe before they are yielded."""
        self._is_ended = True
        settings = self._settings
        if settings.recorder is not None:
            await self._commit()
        if settings.hooks.ended is not None and self.error is None:
            settings.hooks.ended(self.turn)

    def _fail(self, error: RunError) -> None:
        self.error = error
        self._put(self.turn.failed(part_of_error(error)))

    async def _commit(self) -> None:
        """Waits until what was told is safe; says so, once, where it cannot be."""
        recorder = self._settings.recorder
        notice = await recorder.commit() if recorder is not None else None
        if notice is not None:
            self._ready.insert(1 if self._ready and isinstance(self._ready[0], StreamStart) else 0, notice)

    def _put_asked(self, parts: list[StreamPart]) -> None:
        """Puts parts after which calls may wait for a person; the log has these approvals before the parts."""
        recorder = self._settings.recorder
        if recorder is not None:
            for approval in self.turn.state.waiting:
                if approval.approval_id not in self._asked:
                    recorder.asked(approval)
        self._asked = {approval.approval_id for approval in self.turn.state.waiting}
        self._put(parts)

    def _put(self, parts: list[StreamPart]) -> None:
        self._ready.extend(parts)
        if self._settings.recorder is not None and not self._is_ended:
            self._settings.recorder.feed(parts)

    async def _stop(self) -> None:
        self._background.close()
        if self._tools is not None:
            await self._tools.aclose()
        await self._close_exchange()

    async def _out_of_time(self, limit_s: float) -> None:
        decoder = self._decoder if self.turn.is_receiving else None
        await self._stop()
        if decoder is None:
            self._put(self.turn.stopped("max_run_s", limit_s))
            return
        self.turn.state.limit = ("max_run_s", limit_s)
        error = Error("limit", f"the run took longer than {limit_s:g} s", code="max_run_s")
        self._put(self.turn.received(decoder.close(error)))

    async def _send(self) -> None:
        """Makes the request, then opens it: what is to be said before the answer is said before the wait."""
        if self._encoded is None:
            if self.turn.state.step >= 0:
                await self._refresh()
            encoded = self._settings.model.encode(self._settings.request(self.turn))
            warnings, notices = (*self._warnings, *encoded.warnings), (*encoded.notices, *self._background.foreign())
            self._encoded = self._background.marked(encoded)
            self._put(self.turn.sending(warnings, notices, defers_output=encoded.defers_output))
            self._record_preparation()
            return
        encoded, self._encoded = self._encoded, None
        await self._commit()
        try:
            call = self._background.opening(encoded)
            exchange = await self._settings.transport.open(call, self._settings.limits)
        except RunError as error:
            if lost := self._background.lost(error):
                self._put(self.turn.received(lost))
                return
            self._put(self.turn.refused(self._settings.model.recover(error), part_of_error(error)))
            self._record_preparation()
            self.error = error if isinstance(self.turn.command, Over) else None
            return
        self._sent = encoded
        self._decoder = encoded.decoder()
        self._use(exchange)
        self._put(self.turn.opened() + self.turn.received(self._background.opened(exchange)))

    def _record_preparation(self) -> None:
        """Records how the request differs from the usual one, where it does."""
        recorder, state = self._settings.recorder, self.turn.state
        if recorder is not None and (state.without or state.defers_output):
            recorder.prepared(state.without, defers_output=state.defers_output)

    async def _refresh(self) -> None:
        """Takes up what changed in the toolsets. A server that is gone answers its calls with that; the run goes on."""
        with suppress(RunError):
            await self._settings.toolbox.refresh()
            self.turn.set_tools(self._settings.toolbox.tools)

    async def _read(self) -> None:
        """The next events of the answer, or all of it where it came whole and is done."""
        sent, decoder, background = self._sent, self._decoder, self._background
        assert sent is not None
        assert decoder is not None
        try:
            exchange = self._exchange = self._exchange or await background.ask(sent)
            if exchange.is_stream:
                await self._read_stream()
                return
            body = await exchange.body()
            await self._close_exchange()
            told = background.looked_at(body, is_streamed=sent.call.stream)
            parts = decoder.whole(body) + decoder.close() if told is None else told
        except RunError as error:
            if await self._goes_on_after(error):
                return
            parts = decoder.close(part_of_error(error))
        self._put(self.turn.received(parts, decoder.downloads))
        if not self.turn.is_receiving:
            await self._step_over()

    async def _read_stream(self) -> None:
        """The next events of a stream."""
        exchange, decoder = self._exchange, self._decoder
        assert exchange is not None
        assert decoder is not None
        parts: list[StreamPart] = []
        try:
            events = await exchange.events()
            for event in events:
                parts += decoder.feed(event)
            if self._background.is_awaited:
                parts = self._background.noted(parts)
            if not events:
                if await self._taken_up():
                    return
                parts += decoder.close()
        except RunError as error:
            if await self._goes_on_after(error):
                return
            parts += decoder.close(part_of_error(error))
        if not parts or type(parts[-1]) is not Finish:
            self._put(self.turn.received(parts))
            return
        self._put(self.turn.received(parts, decoder.downloads))
        await self._step_over()

    async def _step_over(self) -> None:
        """The answer of a step has come to its end."""
        failure = self.turn.state.error
        if failure is not None and self.error is None:
            self.error = error_from_part(failure)
        self._background.step_over()
        await self._close_exchange(is_complete=self.error is None and self.turn.state.limit is None)
        await self._end_if_over()

    async def _goes_on_after(self, error: RunError) -> bool:
        """True: the step goes on although reading its answer failed."""
        if self._background.forgives(error):
            await self._close_exchange()
            return True
        if error.kind in ("truncated", "timeout") and await self._taken_up():
            return True
        self.error = error if self.turn.state.limit is None else None
        return False

    async def _taken_up(self) -> bool:
        """Goes on with a stream that broke, where the provider goes on with it. True: the step goes on."""
        broken, rest = self._exchange, await self._background.rest(self._sent, self._decoder)
        if rest is None or broken is None:
            return False
        self._use(rest)
        await broken.aclose()
        self._put(self.turn.received(self._background.resumed()))
        return True

    async def cancel(self) -> None:
        """Stops the run, also at a provider that would go on with it in the background."""
        call = self._background.cancel_call(self._sent)
        if call is not None:
            self._put(self.turn.received(self._background.cancelled()))
        await self.aclose()
        if call is not None:
            answer = await self._settings.transport.open(call, self._settings.limits)
            self.turn.state.background = None
            await answer.aclose()

    def _use(self, exchange: HttpResponse) -> None:
        self._exchange = exchange
        self._is_streaming = exchange.is_stream and self._settings.limits.max_run_s is None

    async def _close_exchange(self, *, is_complete: bool = False) -> None:
        exchange, self._exchange, self._is_streaming = self._exchange, None, False
        if exchange is not None:
            await (exchange.complete() if is_complete else exchange.aclose())

    async def _judge(self, questions: tuple[Question, ...]) -> None:
        judged = self._settings.judged
        verdicts: dict[str, Verdict] = {question.call_id: await judged(question) for question in questions}
        self._put_asked(self.turn.judged(verdicts, _new_approval_id))

    def _check(self, text: str) -> None:
        output = self._settings.output
        assert output is not None
        problem: str | None = None
        try:
            self.output = output.parse(text)
        except OutputError as error:
            problem = error.problem
        self._put(self.turn.checked(problem))
        if problem is not None and isinstance(self.turn.command, Over):
            self.error = OutputInvalidError(f"the answer does not fit the output type: {problem}", code="output")


def _new_approval_id() -> str:
    return f"approval_{os.urandom(16).hex()}"

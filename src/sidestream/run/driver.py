"""The driver of a run, which carries out the commands of its turn and collects the parts."""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from sidestream.errors import Blocked, OutputInvalidError, RunError, StoreError, ToolRaisedError
from sidestream.messages.fold import Batch
from sidestream.messages.message import ChatMessage
from sidestream.messages.steering import steer_of
from sidestream.parts import Error, Finish, FinishReason, Raw, StreamPart, StreamStart
from sidestream.providers.protocol import DecodeAll, Decoder, Encoded
from sidestream.run.preparation import (
    Interruption,
    Preparation,
    are_empty,
    check_steerable,
    decoder_for,
    opening_notices,
    parsed,
    steering_of,
    timed_out,
)
from sidestream.run.run_log import log_ended, log_left, log_refused, log_sent, logged
from sidestream.run.run_record import RunRecord
from sidestream.run.settings import RunSettings
from sidestream.run.staging import HeldEnd, Staging
from sidestream.run.waiting import Waits
from sidestream.stream.errors import error_from_part, part_of_error
from sidestream.tools.approvals import ApprovalError, Decision, Question, Ruling, new_approval_id
from sidestream.transport.calls import HttpResponse
from sidestream.turn.ledger import CONTEXT
from sidestream.turn.machine import Turn
from sidestream.turn.state import AwaitDecision, CallTools, Check, Fetch, Judge, Over, Send

if TYPE_CHECKING:
    from sidestream.run.background import BackgroundAnswer
    from sidestream.run.native_steering import NativeSteering
    from sidestream.run.tool_round import ToolRound

_UNOBSERVED = nullcontext()
_ENDINGS = frozenset({Over, AwaitDecision})


class Driver:
    """Runs one turn. Its parts are appended to `ready`, and `advance` produces more."""

    def __init__(self, turn: Turn, settings: RunSettings, decisions: Iterable[Decision] | None = None) -> None:
        self.ready: deque[StreamPart] = deque()
        self.error: RunError | None = None
        """Error of a failed run, else None."""
        self.output: Any = UNSET
        """Typed output, once there is one."""
        self.reason: FinishReason | None = None
        """Finish reason, once the run has ended or waits."""
        self.response: HttpResponse | None = None
        """The current response."""
        self.is_streaming = False
        """Whether the run only awaits the next events of a stream, without a limit on the run's time."""
        self._turn = turn
        self._settings = settings
        self._listener = settings.hooks.listener
        self._is_guarded = self._listener is not None or settings.limits.max_run_s is not None
        self._record = RunRecord(turn, settings)
        self._interceptor = settings.hooks.interceptor
        self._is_recorded = settings.hooks.recorder is not None
        self._is_noted = settings.context is not None or settings.citations is not None
        self._began_s = 0.0
        self._encoded: Encoded | None = None
        """Request to send next."""
        self._sent: Encoded | None = None
        self._decoder: Decoder | None = None
        self._decode_all: DecodeAll
        self._deadline_s: float | None = None
        self._tools: ToolRound | None = None
        self._background: BackgroundAnswer | None = None
        """Background response or resumed stream; None for most runs, which need neither."""
        self._native: NativeSteering | None = None
        """Steering of the current or last response, if it takes messages."""
        self._held = None if settings.citations is None else HeldEnd(settings.citations)
        self._is_plain = False  # whether only the turn takes the parts of the current response, before its end
        self._is_begun = self._is_ended = self._is_closed = False
        self._interruption = Interruption()
        self._decisions = None if decisions is None else tuple(decisions)
        self._preparation = Preparation(turn, settings)
        self._staging = Staging()
        self.waits = Waits(turn, is_logged=self._is_recorded)
        if self._decisions is not None:
            turn.check_decisions(self._decisions)

    def advance(self) -> Awaitable[None]:
        """Do the next thing that produces parts, within the run's time limit. Raises StopAsyncIteration at the end."""
        return self._observed(self._advance_in_time) if self._is_guarded else self._advance()

    async def _observed(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some of the run's work in the listener's context, if there is one."""
        if (listener := self._listener) is None:
            return await work()
        with listener.active():
            try:
                await work()
            except StopAsyncIteration:
                raise
            except BaseException as error:
                listener.ended(error=error)
                raise

    async def _advance_in_time(self) -> None:
        limit_s = self._settings.limits.max_run_s
        try:
            if limit_s is None:
                return await self._advance()
            if self._deadline_s is None:
                self._deadline_s = asyncio.get_running_loop().time() + limit_s
            async with asyncio.timeout_at(self._deadline_s):
                await self._advance()
        except TimeoutError:
            await self._out_of_time(limit_s or 0.0)
            await self._end()

    async def aclose(self, *, is_cancelled: bool = True) -> None:
        """Stop the run by closing the connection and cancelling tools. Safe to call twice.

        `is_cancelled` records the cancellation in the log.
        """
        is_left = self._is_begun and not self._is_ended and not self._is_closed
        await self._stop(is_left=not is_cancelled)
        if is_left:
            log_left(self._turn.state)
            if self._listener is not None:
                self._listener.ended()
        if self._is_begun:
            is_ended, self._is_ended = self._is_ended, True
            await self._record.close(is_ended=is_ended, is_cancelled=is_cancelled)

    async def cancel(self) -> None:
        """Stop the run, including a response that the provider would continue in the background."""
        background = self._background_answer()
        if (call := background.cancel_call(self._sent)) is not None:
            self._put(self._turn.received(background.cancelled()))
        await self.aclose()
        if call is not None:
            await background.cancel(call)

    async def steer(self, message: ChatMessage) -> str:
        """Accept a user message during the run, and return its id once the log has it.

        The message is offered to the current response if its transport can pass it on, else the next request takes it.
        """
        turn = self._turn
        is_over = self._is_ended or self._is_closed or turn.is_over
        check_steerable(turn, self.ready, self.reason, is_over=is_over)
        steer = steer_of(message, f"steer_{os.urandom(8).hex()}")
        parts = turn.steered(steer)
        if parts:
            self._put(parts)
            if self._tools is not None:
                self._tools.wake()
            await self._commit()
        if self._native is not None and self.response is not None:
            await self._native.offer()
        return steer.id

    @property
    def owns_connection(self) -> bool:
        """Whether a connection is left to close."""
        is_native = self._native is not None and not self._is_ended and not self._is_closed
        return self.response is not None or is_native or self.waits.is_pending

    async def release(self) -> None:
        """Close the connections of a dropped run."""
        for entry in (self.waits, self.response, self._native):
            if entry is not None:
                await entry.aclose()

    def dropped(self) -> None:
        """Tell the listener that the run was garbage-collected, perhaps before its end."""
        if self._listener is not None:
            self._listener.ended()

    async def _advance(self) -> None:
        if self.response is not None or (self._background is not None and self._background.is_waiting):
            await self._read()
        elif self._is_closed:
            raise StopAsyncIteration
        else:
            await (self._work() if self._interceptor is None else self._intercepted(self._work))
        await self._end_if_over()

    async def _work(self) -> None:
        state, is_first = self._turn.state, not self._is_begun
        if is_first or type(state.command) is not CallTools:
            with self._interruption:
                await (self._begin() if is_first else self._command())
                if not self.ready and self._encoded is not None and not self._is_closed:
                    await self._command()  # Nothing was emitted with the request, so send it at once.
            if is_first or self.ready or self._is_closed or type(state.command) is not CallTools:
                return
        try:
            await self._command()
        except ToolRaisedError as error:
            self.error = error

    async def _intercepted(self, work: Callable[[], Awaitable[None]] | None = None) -> None:
        """Do some work, then show what it emitted to the program's hooks. Ends the run if one of them blocks it."""
        assert self._interceptor is not None
        try:
            if work is not None:
                await work()
            await self._interceptor.show_emitted(partial(self._settings.run_context, self._turn))
        except Blocked as blocked:
            if self._turn.is_over:
                return
            if self._turn.is_receiving and self._decoder is not None:
                parts = self._interceptor.ended(self._decoder, blocked)
                await self._close_response()
                self._put(self._turn.received(parts))
                await self._end_answer()
            else:
                self._put(self._turn.blocked(blocked.by, blocked.reason))

    def _command(self) -> Awaitable[None]:
        match self._turn.state.command:
            case Send():
                work = self._prepare if (is_new := self._encoded is None) else self._open
                return work() if is_new and not self._preparation.may_wait else self.waits.advance(work, self._put)
            case CallTools() as command:
                if self._tools is None:
                    from sidestream.run.tool_round import ToolRound

                    self._tools = ToolRound(self._turn, self._settings, self._put, self._staging)
                return self._tools.advance(command.calls, self._interruption if self.waits.is_unread else None)
            case Judge() as command:
                return self._judge(command.questions)
            case Fetch(refs=refs):
                from sidestream.run.transfers import fetch_all

                return fetch_all(refs, self._turn, self._settings, self._put)
            case Check(text=text):
                return self._check(text)
            case Over() | AwaitDecision():
                raise StopAsyncIteration

    # Beginning and end

    async def _begin(self) -> None:
        """List the tools, and record the start of the run. Decisions and their effects are recorded together."""
        self._is_begun = True
        self._began_s = monotonic()
        if self._listener is not None:
            self._listener.started(self._turn, self._settings)
        toolbox, failure = self._settings.toolbox, None
        if self._decisions is None:
            self._record_beginning()
        try:
            self._preparation.warnings += tuple(await toolbox.refresh())
            self._turn.set_tools(toolbox.tools)
        except RunError as error:
            failure = error
        if failure is not None:
            if self._decisions is not None:
                self._decisions = None  # They had no effect: the calls still wait.
                self._record_beginning()
            self.error = failure
            self._put(self._turn.failed(part_of_error(failure)))
            return
        if self._decisions is not None:
            self._record_beginning(self._decisions, spends=True)
            self._put(self._turn.resumed(self._decisions, self._preparation.warnings))
        self._put_asked(self._turn.reconsidered(new_approval_id, self._preparation.warnings))
        if self.ready:
            await self._commit()

    def _record_beginning(self, decisions: Sequence[Decision] = (), *, spends: bool = False) -> None:
        try:
            self._record.begin(decisions, spends=spends)
        except (ApprovalError, StoreError):
            self._is_ended = True  # It never started: what is recorded now would count for the turn before.
            raise

    async def _end_if_over(self) -> None:
        if type(self._turn.state.command) in _ENDINGS and not self._is_ended:
            await self._end()

    async def _end(self) -> None:
        """End the run, or leave it waiting, with its last parts safe in the log before they are yielded."""
        self._is_ended = True
        if self._native is not None:
            await self._native.aclose()
        self.reason = next((part.reason for part in reversed(self.ready) if isinstance(part, Finish)), None)
        await self._commit()
        if self._settings.hooks.ended is not None and self.error is None:
            self._settings.hooks.ended(self._turn)
        log_ended(self._turn.state, self.reason, self.error, monotonic() - self._began_s)
        if self._listener is not None:
            self._listener.ended(self.reason, self.error)

    async def _stop(self, *, is_left: bool = False) -> None:
        self._is_closed = True
        self._interruption.interrupt()
        await self.waits.aclose()
        if self._background is not None:
            self._background.close()
        if self._tools is not None:
            await self._tools.aclose(is_left=is_left)
        if self._native is not None:
            await self._native.aclose()
        await self._close_response()

    async def _out_of_time(self, limit_s: float) -> None:
        decoder = self._decoder if self._turn.is_receiving else None
        await self._stop()
        self._put(timed_out(self._turn, decoder, self._held, limit_s))

    def _put(self, parts: list[StreamPart]) -> None:
        self.ready.extend(parts)
        if self._listener is not None:
            self._listener.feed(parts)
        if self._interceptor is not None:
            self._interceptor.emitted(parts)
        if self._is_noted:
            self._record.note(parts)
        if self._is_recorded and not self._is_ended:
            self._record.feed(parts)

    def _put_asked(self, parts: list[StreamPart]) -> None:
        """Emit parts after which calls may wait for approval."""
        self._record.note_approvals()
        self._put(parts)

    async def _commit(self) -> None:
        """Wait until all parts are safe in the log, or emit a notice, once, if they cannot be stored."""
        notice = await self._record.commit()
        if notice is not None:
            self.ready.insert(1 if self.ready and isinstance(self.ready[0], StreamStart) else 0, notice)

    # Requests

    async def _prepare(self) -> None:
        """Encode the request, and emit what is known before its answer."""
        native = self._native
        if native is not None:
            await native.settle()
            if self._is_closed:
                raise StopAsyncIteration
        if native is not None and native.successor is not None:
            self._encoded, parts = self._preparation.successor(native)
        else:
            try:
                self._encoded, parts = await self._preparation.request(native, self._background_answer)
            except RunError as error:  # A file for the request could not be uploaded.
                part = part_of_error(error)
                if self._turn.may_fall_back(part):
                    await self._fall_back(part)
                    return
                self.error = error
                parts = self._turn.failed(part)
        self.waits.end()
        self._put(parts)
        self._preparation.record()

    async def _open(self) -> None:
        """Send the request and wait until the answer begins to arrive."""
        encoded = self._encoded
        assert encoded is not None
        turn, settings, background, listener = self._turn, self._settings, self._background, self._listener
        native = self._native
        self._record.sending(encoded, native)
        await self._commit()
        try:
            call = encoded.call if background is None else background.opening(encoded)
            try:
                with _UNOBSERVED if listener is None else listener.sending(call):
                    carrier = settings.transport if native is None or not native.is_next else native
                    response = await carrier.open(call, settings.limits)
            finally:
                self._encoded = None
                self.waits.end()
        except RunError as error:
            log_refused(f"step {turn.state.step + 1}", error)
            if listener is not None:
                listener.refused(error)
            if background is not None and (lost := background.lost(error)):
                self._put(turn.received(lost))
                return
            recovery, part = self._preparation.recovery(error, encoded), part_of_error(error)
            if recovery is None and turn.may_fall_back(part):
                await self._fall_back(part)
                return
            self._put(turn.refused(recovery, part))
            self._preparation.record()
            self.error = error if isinstance(turn.command, Over) else None
            return
        if response is None:
            return
        log_sent(settings.model, f"step {turn.state.step + 1}", response)
        if listener is not None:
            listener.opened(response)
        self._preparation.begin()
        self._sent = encoded
        self._decoder, self._decode_all = decoder_for(encoded, turn)
        is_steerable = getattr(response, "is_steerable", False)
        self._native = steering_of(native, turn, settings, response, self._decoder) if is_steerable else None
        self._use(response)
        self._staging.begin_step(turn.state.messages, settings.toolbox)
        self._put(turn.opened())
        for notice in opening_notices(response):
            self._put(turn.received([notice]))
        if background is not None:
            self._put(turn.received(background.opened(response)))

    async def _fall_back(self, error: Error) -> None:
        """Continue with the next model. Its first request reports the switch."""
        self._background = None
        if self._native is not None:
            await self._native.aclose()
            self._native = None
        try:
            await self._preparation.fall_back(error)
        except RunError as failure:
            self.error = failure
            self._put(self._turn.failed(part_of_error(failure)))

    # Answers

    async def read_stream(self) -> None:
        """Read the next events of a stream."""
        response, decoder, background, native = self.response, self._decoder, self._background, self._native
        assert response is not None and decoder is not None  # noqa: PT018
        batch = Batch()
        try:
            events = await response.events()
            if native is not None:
                batch.parts += native.notices()
            self._decode_all(events, batch)
            if not events:
                if await self._resume_stream():
                    return
                batch.parts += decoder.close()
        except RunError as error:
            if await self._survives(error):
                return
            batch.parts += decoder.close(part_of_error(error))
        parts = batch.parts
        if self._is_plain and parts and type(parts[-1]) is not Finish and type(parts[-1]) is not Raw:
            self._put(self._turn.received(batch))
            return
        parts = parts if background is None or not background.is_awaited else background.noted(parts)
        if not parts or (type(parts[-1]) is Raw and are_empty(parts)):
            response.ignored()
        parts = self._staging.expanded(parts, toolbox.tools) if (toolbox := self._settings.toolbox).is_staged else parts
        parts = parts if self._interceptor is None else await self._answered(parts, decoder)
        is_held = self._held is not None and self._holds(parts)
        batch = Batch(parts) if is_held or parts is not batch.parts else batch
        if is_held or not parts or type(parts[-1]) is not Finish:
            self._put(self._turn.received(batch))
            if native is not None and self._turn.state.steers:
                await native.offer()
            return
        self._put(self._turn.received(batch, decoder.downloads))
        await (self._end_answer() if self._listener is None else self._observed(self._end_answer))
        if self._interceptor is not None:
            await self._intercepted()

    async def _read(self) -> None:
        """Read the next events of the answer, or all of a non-streaming one."""
        sent, decoder = self._sent, self._decoder
        assert sent is not None and decoder is not None  # noqa: PT018
        if self._held is not None and self._held.part is not None:
            await self._check_citations(self._held, decoder)
            return
        try:
            if self.response is None:
                self.response = await self._background_answer().poll(sent)
            if self.response.is_stream:
                await self.read_stream()
                return
            body = await self.response.body()
            await self._close_response()
            pending = self._background_answer().still_pending(body, is_streamed=sent.call.stream)
            parts = decoder.whole(body) + decoder.close() if pending is None else pending
        except RunError as error:
            if await self._survives(error):
                return
            parts = decoder.close(part_of_error(error))
        parts = self._staging.expanded(parts, toolbox.tools) if (toolbox := self._settings.toolbox).is_staged else parts
        parts = parts if self._interceptor is None else await self._answered(parts, decoder)
        if self._held is not None and self._holds(parts):
            self._put(self._turn.received(parts))
            await self._check_citations(self._held, decoder)
            return
        self._put(self._turn.received(parts, decoder.downloads))
        if not self._turn.is_receiving:
            await self._end_answer()
        if self._interceptor is not None:
            await self._intercepted()

    async def _answered(self, parts: list[StreamPart], decoder: Decoder) -> list[StreamPart]:
        """Show parts of the answer to the program's hooks. If one blocks the run, the connection is closed."""
        assert self._interceptor is not None
        allowed = await self._interceptor.answered(parts, decoder, partial(self._settings.run_context, self._turn))
        if allowed is not parts:
            await self._close_response()
        return allowed

    def _holds(self, parts: list[StreamPart]) -> bool:
        is_held = self._held is not None and self._held.takes_end(parts, self._turn)
        self.is_streaming = self.is_streaming and not is_held
        return is_held

    async def _check_citations(self, held: HeldEnd, decoder: Decoder) -> None:
        """Emit the sources of the answer with their evidence, then its end."""
        with self._interruption:
            parts = await held.checked()
        self._put(self._turn.received(parts, decoder.downloads))
        self._record.checked(held.citations)
        if not self._turn.is_receiving:
            await self._end_answer()

    async def _end_answer(self) -> None:
        """Finish the answer of a step, which is complete or has failed."""
        if CONTEXT in self._turn.state.without:
            self._preparation.record()
        failure = self._turn.state.error
        if failure is not None and self.error is None:
            self.error = error_from_part(failure)
        if self._turn.abandoned is not None:
            self.error = None
            await self._close_response()
            await self._fall_back(self._turn.abandoned)
        if self._background is not None:
            self._background.end_step()
        await self._close_response(is_complete=self.error is None and self._turn.state.limit is None)
        await self._end_if_over()

    async def _survives(self, error: RunError) -> bool:
        """Return whether the step continues although reading its answer failed."""
        if self._background is not None and self._background.forgives(error):
            await self._close_response()
            return True
        if error.kind in ("truncated", "timeout") and await self._resume_stream():
            return True
        self.error = error if self._turn.state.limit is None else None
        return False

    async def _resume_stream(self) -> bool:
        """Continue a broken stream if the provider offers that, and return whether the step continues."""
        broken, background = self.response, self._background_answer()
        rest = await background.rest(self._sent, self._decoder)
        if broken is None or (rest is None and not background.is_waiting):
            return False
        if rest is None:
            await self._close_response()
        else:
            self._use(rest)
            await broken.aclose()
        self._put(self._turn.received(background.resumed()))
        return True

    def _background_answer(self) -> "BackgroundAnswer":
        if self._background is None:
            from sidestream.run.background import BackgroundAnswer

            self._background = BackgroundAnswer(self._turn, self._settings, is_closed=self._is_closed)
        return self._background

    def _use(self, response: HttpResponse) -> None:
        self.response = self._record.kept(logged(response)) if self._is_recorded else logged(response)
        is_observed = self._interceptor is not None or self._held is not None or self._settings.toolbox.is_staged
        self._is_plain = self._native is None and self._background is None and not is_observed
        # Log lines are written in the listener's context; nothing else in a stream needs it.
        is_plain = self._listener is None or self.response is response
        self.is_streaming = response.is_stream and is_plain and self._settings.limits.max_run_s is None

    async def _close_response(self, *, is_complete: bool = False) -> None:
        response, self.response, self.is_streaming = self.response, None, False
        if response is not None:
            await (response.complete() if is_complete else response.aclose())

    # Calls and output

    async def _judge(self, questions: tuple[Question, ...]) -> None:
        verdicts: dict[str, Ruling] = {entry.call_id: await self._settings.verdict_on(entry) for entry in questions}
        self._put_asked(self._turn.judged(verdicts, new_approval_id))

    async def _check(self, text: str) -> None:
        assert self._settings.output is not None
        self.output, problem = parsed(self._settings.output, text)
        self._put(self._turn.checked(problem))
        if problem is not None or not isinstance(self._turn.command, Over):
            self.output = UNSET  # The answer to a pending message counts instead.
        if problem is not None and isinstance(self._turn.command, Over):
            self.error = OutputInvalidError(f"the answer does not fit the output type: {problem}", code="output")

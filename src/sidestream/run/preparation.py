"""The requests of a run, with the encoding of its history, cancellation, and the switch to another model."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import RunError, SteerError
from sidestream.jsontext import loads, without_none
from sidestream.limits import MAX_PENDING_STEERS
from sidestream.logs import get_logger
from sidestream.messages.shortening import shortened_by
from sidestream.messages.tokens import text_tokens
from sidestream.output import OutputError, OutputType
from sidestream.parts import Custom, Error, Finish, FinishReason, Raw, StreamPart
from sidestream.providers.protocol import (
    UPLOADS,
    DecodeAll,
    Decoder,
    Encoded,
    ModelRequest,
    Recovery,
    TakesUpCalls,
    decoding_all,
)
from sidestream.run.run_log import log_session
from sidestream.run.settings import RunSettings
from sidestream.run.staging import HeldEnd
from sidestream.text.redaction import redact
from sidestream.tools.server_side import CodeInterpreter, Shell
from sidestream.transport.calls import HttpResponse, Opening
from sidestream.turn.ledger import CONTEXT, MODEL_FALLBACK, open_calls
from sidestream.turn.machine import Turn
from sidestream.turn.state import AwaitDecision, Send

if TYPE_CHECKING:
    from sidestream.run.background import BackgroundAnswer
    from sidestream.run.native_steering import NativeSteering

log = get_logger(__name__)

_HAVE_FILES: Final = (CodeInterpreter, Shell)
"""Hosted tools whose containers get files."""

Prepared = tuple[Encoded, list[StreamPart]]
"""A request, and the parts to emit before its answer."""


class Preparation:
    """Builds the requests of one run."""

    def __init__(self, turn: Turn, settings: RunSettings) -> None:
        self.warnings = settings.warnings
        """Warnings besides those of encoding."""
        self.fallback: Custom | None = None
        """Notice about the switch to another model, until the request for it is made."""
        self._turn = turn
        self._settings = settings
        self._replays: dict[str, Any] = {}
        """Stored provider data that requests of this run needed, by digest."""
        self._uploads: dict[str, dict[str, str]] = {}
        """Ids of the files that were uploaded for requests of this run, by model and key."""
        self._notices: tuple[StreamPart, ...] = ()
        """Notices about the current request, which may be made more than once."""

    @property
    def may_wait(self) -> bool:
        """Whether building a request may take requests of its own: for a summary, or to upload files."""
        settings = self._settings
        has_files = bool(settings.hosted) and any(isinstance(tool, _HAVE_FILES) for tool in settings.hosted)
        return has_files or settings.context is not None

    def begin(self) -> None:
        """Start a new request, whose notices are all reported."""
        self._notices = ()

    async def request(self, native: "NativeSteering | None", background: "Callable[[], BackgroundAnswer]") -> Prepared:
        """Build the next request."""
        turn, settings = self._turn, self._settings
        if turn.state.step >= 0 and settings.toolbox.sets:
            # The calls of an unreachable server fail with that error; the run continues.
            with suppress(RunError):
                self.warnings += tuple(await settings.toolbox.refresh())
                turn.set_tools(settings.toolbox.tools)
        system = await settings.system_text(turn)
        steers = turn.due_steers
        request = settings.request(turn, system, self._replays, steers)
        if self._uploads:
            request = replace(request, uploads=self._uploads.get(settings.name, {}))
        shortening = None if settings.context is None else await self._shortening(request)
        if shortening is not None:
            request = replace(request, messages=tuple(shortened_by(request.messages, shortening.data)))
        if (interceptor := settings.hooks.interceptor) is not None:
            request = await interceptor.before_request(request, lambda: settings.run_context(turn))
        encoded = settings.model.encode(request)
        if encoded.needs or encoded.uploads:
            encoded, request = await self._completed(encoded, request)
        if native is not None and native.is_pending:
            encoded = await native.proceeding(encoded, request, steers)
        notices = encoded.notices and tuple(notice for notice in encoded.notices if notice not in self._notices)
        self._notices += notices
        notices = notices if native is None else (*native.notices(), *notices)
        notices = notices if shortening is None else (shortening, *notices)
        if encoded.in_background or turn.state.background is not None:
            notices = (*notices, *background().foreign())
            encoded = background().marked(encoded)
        log_session(encoded)
        if settings.hooks.listener is not None:
            settings.hooks.listener.prepared(request)
        unknown = () if settings.context is None else settings.context.warnings
        warnings = (*self.warnings, *unknown, *encoded.warnings)
        if self.fallback is not None:
            notices = (self.fallback, *notices)
            self.fallback = None
        return encoded, turn.sending(warnings, notices, steers=steers, defers_output=encoded.defers_output)

    def successor(self, native: "NativeSteering") -> Prepared:
        """Build the decoder for a step that the server has begun by itself."""
        turn = self._turn
        steers = native.taken(turn.due_steers)
        request = self._settings.request(turn, None, self._replays, steers)
        encoded = native.encoded(request)
        if self._settings.hooks.listener is not None:
            self._settings.hooks.listener.prepared(request)
        return encoded, turn.sending((), native.notices(), steers=steers)

    async def fall_back(self, error: Error) -> None:
        """Switch to the next model, whose first request reports the switch. Raises RunError if its tools fail."""
        settings, before = self._settings, self._settings.name
        setup, *others = settings.fallbacks
        settings.use(setup)
        settings.fallbacks = tuple(others)
        log.info("%s failed (%s): the run continues with %s", before, error.kind, settings.name)
        self.begin()
        self.fallback = fallback_notice(before, settings.name, error)
        handed_over = setup.handed_over.difference(setup.toolbox.own)
        self._turn.fell_back(handed_over=handed_over, price=setup.price, has_fallback=bool(others))
        self.warnings = (*setup.warnings, *await settings.toolbox.refresh())
        self._turn.set_tools(settings.toolbox.tools)

    def recovery(self, error: RunError, encoded: Encoded) -> Recovery | None:
        """Return what the next try leaves out because the provider refused the request, or None."""
        recovery = self._settings.model.recover(error)
        if recovery is not None and recovery.drop == UPLOADS and not encoded.names_uploads:
            return None  # The missing file is the user's own.
        return recovery

    def record(self) -> None:
        """Record how the request differs from the usual one, if it does."""
        state = self._turn.state
        if (state.without or state.defers_output) and (recorder := self._settings.hooks.recorder) is not None:
            recorder.prepared(state.without, defers_output=state.defers_output)

    async def _shortening(self, request: ModelRequest) -> Custom | None:
        """Return the part that shortens a history that is too long for the model, or None."""
        keeper, state, opening = self._settings.context, self._turn.state, self._settings.opening
        if keeper is None or state.background is not None:
            return None
        tools = sum(text_tokens(jsontext.dumps(tool.parameters).decode()) for tool in request.tools)
        return await keeper.shortening(
            state.messages,
            step=state.step + 1,
            turn=next((place for place, given in enumerate(state.messages) if opening and given is opening[0]), None),
            overhead=text_tokens(request.system or "") + tools,
            is_forced=CONTEXT in state.without,
        )

    async def _completed(self, encoded: Encoded, request: ModelRequest) -> tuple[Encoded, ModelRequest]:
        """Encode the request again, after reading what it needs from the log, and uploading its files.

        Returns it with the request as it was encoded.
        """
        settings = self._settings
        if encoded.needs:
            read = settings.hooks.read_blobs
            found: Mapping[str, bytes] = {} if read is None else await read(encoded.needs)
            self._replays |= {digest: loads(found[digest]) if digest in found else None for digest in encoded.needs}
            request = replace(request, replays=self._replays)
            encoded = settings.model.encode(request)
        if encoded.uploads:
            from sidestream.run.transfers import upload_files

            ids, notice = await upload_files(encoded.uploads, settings)
            known = self._uploads.setdefault(settings.name, {})
            known |= ids
            request = replace(request, uploads=known)
            encoded = settings.model.encode(request)
            encoded = replace(encoded, notices=(*encoded.notices, notice))
        return encoded, request


async def first_request(turn: Turn, settings: RunSettings) -> Encoded:
    """Encode the first request of a run without sending it. Raises RunError if the run does not begin with one."""
    from sidestream.run.background import BackgroundAnswer

    await settings.toolbox.refresh()
    turn.set_tools(settings.toolbox.tools)
    if not isinstance(turn.command, Send):
        raise RunError("the run does not continue with a request")
    encoded, _ = await Preparation(turn, settings).request(None, lambda: BackgroundAnswer(turn, settings))
    return encoded


def decoder_for(encoded: Encoded, turn: Turn) -> tuple[Decoder, DecodeAll]:
    """Create the decoder of the answer, which knows the calls that earlier answers of the turn left open."""
    decoder = encoded.decoder()
    if turn.state.hosted and isinstance(decoder, TakesUpCalls):
        decoder.take_up(open_calls(turn.state))
    return decoder, decoding_all(decoder)


def steering_of(
    before: "NativeSteering | None", turn: Turn, settings: RunSettings, response: HttpResponse, decoder: Decoder
) -> "NativeSteering | None":
    """Return the steering of a response that takes messages, which none does over HTTP."""
    from sidestream.run.native_steering import NativeSteering

    return NativeSteering.follow(before, turn, settings, response, decoder)


def timed_out(turn: Turn, decoder: Decoder | None, held: HeldEnd | None, limit_s: float) -> list[StreamPart]:
    """End a run that took too long, inside an answer that has a decoder, and whose end may be held back."""
    if decoder is None:
        return turn.stopped("max_run_s", limit_s)
    turn.state.limit = ("max_run_s", limit_s)
    error = Error("limit", f"the run took longer than {limit_s:g} s", code="max_run_s")
    return turn.received((held and held.taken()) or decoder.close(error))


def parsed(output: OutputType[Any], text: str) -> tuple[Any, str | None]:
    """Return the typed output in the text, or UNSET and the problem with it."""
    try:
        return output.parse(text), None
    except OutputError as error:
        return UNSET, error.problem


def check_steerable(turn: Turn, ready: Iterable[StreamPart], reason: FinishReason | None, *, is_over: bool) -> None:
    """Raise SteerError if a run cannot take a message. `ready` are its parts that were not read yet."""
    if is_over and isinstance(turn.command, AwaitDecision):
        raise SteerError("the run is waiting for an approval; resume it, and steer the resumed run", "approval")
    if is_over:
        reason = reason or next((part.reason for part in ready if isinstance(part, Finish)), None)
        how = "the run was closed" if reason is None else f"the run has finished ({reason})"
        raise SteerError(f"{how}; send the message as a new prompt", reason)
    if len(turn.state.steers) >= MAX_PENDING_STEERS:
        raise SteerError(f"{MAX_PENDING_STEERS} messages are already pending; wait until the next request takes them")


class Interruption:
    """A way for one task to interrupt the task that works on a run.

    `with interruption: …` surrounds the work, and raises StopAsyncIteration if it was interrupted.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._has_come = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        # Otherwise the task itself was cancelled.
        if self._has_come and isinstance(error, asyncio.CancelledError) and task is not None and not task.uncancel():
            raise StopAsyncIteration from None

    def interrupt(self) -> None:
        """Interrupt the work, unless the current task does it."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._has_come = True
            self._task.cancel()


def fallback_notice(failed: str, model: str, error: Error) -> Custom:
    """Build the notice that names the failed model, the error, and the model called instead."""
    message = redact(error.message)
    why = {"kind": error.kind, "message": message, "code": error.code, "status": error.status}
    return Custom(
        MODEL_FALLBACK,
        {
            "message": f"{failed} failed before it answered; the run continues with {model}. {message}",
            "failed": failed,
            "model": model,
            "error": without_none(why),
        },
    )


REQUEST_DELAYED: Final = "sidestream.request-delayed"
"""Kind of the custom part that reports that a request was retried, or waited for a limiter."""
TRANSPORT_FALLBACK: Final = "sidestream.transport-fallback"
"""Kind of the custom part that reports that requests go over HTTP because the server refused a WebSocket."""
_AT_ONCE: Final = Opening()


def opening_notices(response: HttpResponse) -> list[Custom]:
    """Return what to report about how a request was sent, which for most is nothing."""
    opening: Opening = getattr(response, "opening", _AT_ONCE)
    if opening is _AT_ONCE:
        return []
    notices = [Custom(TRANSPORT_FALLBACK, {"message": opening.fallback})] if opening.fallback else []
    if opening.attempts > 1 or opening.limiter_wait_s:
        data = {"message": opening.message, **to_builtins(opening), "causes": [*opening.causes]}
        del data["fallback"]
        notices.append(Custom(REQUEST_DELAYED, data))
    return notices


def are_empty(parts: list[StreamPart]) -> bool:
    """Return whether the events of these parts were all empty, such as `{}`, `null` or text without JSON."""
    return all(type(part) is Raw and (not part.event or type(part.event) is str) for part in parts)

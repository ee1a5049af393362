"""Answers that outlive a connection: those in the background, which are polled, and streams that are resumed."""

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from sidestream.errors import LimitError, RunError, StreamTruncatedError
from sidestream.limits import Limits
from sidestream.providers.protocol import Decoder, Encoded, ResumesStreams, WorksInBackground
from sidestream.run.settings import RunSettings
from sidestream.stream.parts import Custom, ResponseMetadata, StreamPart
from sidestream.transport.calls import HttpCall, HttpResponse
from sidestream.turn.machine import Turn
from sidestream.turn.state import BACKGROUND, CANCELLED, LOST, POLLED, RESUMED, STARTED, Background

STREAM_RESUMED: Final = "sidestream.stream-resumed"
"""The kind of the custom part that reports that a stream broke and continues."""

GROWTH: Final = 1.5
"""The factor by which the wait between two polls grows."""
_GONE: Final = frozenset({404, 410})
_NOT_STREAMED: Final = frozenset({400, 405, 409, 422, 501})
"""Statuses of a provider that has an answer, but does not stream it. OpenAI's can be streamed for five minutes."""


def grown(wait_s: float, limits: Limits) -> float:
    """The wait after this one."""
    return min(wait_s * GROWTH, limits.max_poll_interval_s)


class BackgroundAnswer:
    """The answer of the current step while its provider works on it without us. The turn's state has its id."""

    def __init__(self, turn: Turn, settings: RunSettings, *, is_closed: bool = False) -> None:
        self.is_waiting = False
        """True if the answer came, but was not complete yet; `poll` for it."""
        self.is_awaited = False
        """True if the answer is one in the background whose id has not come yet; `noted` finds it."""
        self.is_closed = is_closed
        """True once the run was left."""
        self._state = turn.state
        self._turn = turn
        self._settings = settings
        self._status: str | None = None
        self._wait_s = 0.0
        self._deadline_s = 0.0
        self._misses = 0
        self._resumptions = 0
        self._left: asyncio.Event | None = None

    # Before the answer

    def foreign(self) -> list[StreamPart]:
        """Forgets an answer of another provider, and reports that."""
        held, model = self._state.background, self._settings.model
        if held is None or (isinstance(model, WorksInBackground) and held.provider == model.provider):
            return []
        return self._forgotten(f"The answer {held.id} is pending at {held.provider}; a new one is requested here.")

    def lost(self, error: RunError) -> list[StreamPart]:
        """Forgets an answer, or the stream of one, that the provider no longer has, and reports that."""
        held = self._state.background
        if held is not None and held.is_streamed and error.status in _NOT_STREAMED:
            return [self._not_streamed(held)]
        if held is None or error.status not in _GONE:
            return []
        return self._forgotten(f"The provider no longer has the answer {held.id}; a new one is requested.")

    def marked(self, encoded: Encoded) -> Encoded:
        """The request, marked as one in the background if its answer is pending there."""
        return encoded if self._state.background is None else replace(encoded, in_background=True)

    def opening(self, encoded: Encoded) -> HttpCall:
        """The request itself, or the request for an answer that is pending."""
        held, model = self._state.background, self._settings.model
        self.is_awaited = encoded.in_background and held is None
        if held is None or not isinstance(model, WorksInBackground):
            return encoded.call
        return model.fetch_call(encoded, held.id, stream=held.is_streamed and encoded.call.stream)

    # While it arrives

    def opened(self, response: HttpResponse) -> list[StreamPart]:
        """Reports at the beginning of a step that its answer was requested before."""
        held = self._state.background
        if held is None:
            return []
        if not response.is_stream:
            self._begin_waiting()
        return [self._notice(held, RESUMED)]

    def noted(self, parts: list[StreamPart]) -> list[StreamPart]:
        """The parts of a stream; once the answer's id is among them, it is kept, and reported."""
        for place, part in enumerate(parts, 1):
            if isinstance(part, ResponseMetadata) and part.id is not None:
                self._state.background = held = Background(self._settings.model.provider, part.id, True)
                self.is_awaited = False
                return [*parts[:place], self._notice(held, STARTED), *parts[place:]]
        return parts

    def still_pending(self, body: bytes, *, is_streamed: bool) -> list[StreamPart] | None:
        """What to report of a whole answer that is not complete yet; None if it is complete."""
        model = self._settings.model
        found = model.under_way(body) if isinstance(model, WorksInBackground) else None
        self._misses = 0
        if found is None:
            self.is_waiting, self._status = False, None
            return None
        self._begin_waiting()
        held = self._state.background or Background(model.provider, found.id, is_streamed)
        self._state.background = held
        if found.status == self._status:
            return []
        self._status = found.status
        return [self._notice(held, found.status)]

    async def poll(self, encoded: Encoded) -> HttpResponse:
        """Waits, then requests the answer again. Raises RunError, also if the run is left meanwhile."""
        held, model, limits = self._state.background, self._settings.model, self._settings.limits
        assert held is not None
        assert isinstance(model, WorksInBackground)
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            self._state.limit = ("max_background_s", limits.max_background_s)
            raise LimitError(f"the answer {held.id} took longer than {limits.max_background_s:g} s in the background")
        self._left = asyncio.Event()
        if not self.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._wait_s, left_s)):
                    await self._left.wait()
        self._wait_s = grown(self._wait_s, limits)
        return await self._open(model.fetch_call(encoded, held.id, stream=False))

    async def rest(self, encoded: Encoded | None, decoder: Decoder | None) -> HttpResponse | None:
        """The rest of a stream that broke, if the provider offers it; else None. Then it may have to be polled."""
        settings = self._settings
        if not isinstance(settings.model, ResumesStreams) or encoded is None or decoder is None:
            return None
        call = settings.model.resume_call(encoded, decoder)
        if call is None or self._resumptions >= settings.limits.max_resumptions:
            return None
        self._resumptions += 1
        try:
            return await self._open(call)
        except RunError as error:
            if self._state.background is not None and error.status in _NOT_STREAMED:
                self._begin_waiting()
            return None

    def resumed(self) -> list[StreamPart]:
        """Reports that a stream continues after a break, or that the answer is polled instead."""
        held = self._state.background
        if self.is_waiting and held is not None:
            return [self._not_streamed(held)]
        return [Custom(STREAM_RESUMED, {"time": self._resumptions})]

    def _not_streamed(self, held: Background) -> StreamPart:
        self._state.background = held = replace(held, is_streamed=False)
        message = f"The provider no longer streams the answer {held.id}, so it is polled."
        return self._notice(held, POLLED, message=message)

    def forgives(self, error: RunError) -> bool:
        """True if a poll failed, but others may succeed: a network may be gone for a while."""
        if not self.is_waiting or not error.retryable or self._misses >= self._settings.limits.max_resumptions:
            return False
        self._misses += 1
        return True

    # At its end

    def end_step(self) -> None:
        """The answer is over for this run."""
        self.is_waiting, self._status = False, None

    def cancel_call(self, sent: Encoded | None) -> HttpCall | None:
        """The request that stops the answer at the provider; None if none is pending there."""
        held, settings = self._state.background, self._settings
        model = settings.model
        if held is None or not isinstance(model, WorksInBackground) or held.provider != model.provider:
            return None
        return model.cancel_call(sent or model.encode(settings.request(self._turn, None, {})), held.id)

    def cancelled(self) -> list[StreamPart]:
        """Reports that the answer is about to be cancelled."""
        held = self._state.background
        return [] if held is None or not self._state.is_in_step else [self._notice(held, CANCELLED)]

    def close(self) -> None:
        """The run is left: a wait ends at once. The provider continues."""
        self.is_waiting, self.is_closed = False, True
        if self._left is not None:
            self._left.set()

    def _begin_waiting(self) -> None:
        if not self.is_waiting:
            limits = self._settings.limits
            self.is_waiting = True
            self._wait_s = limits.poll_interval_s
            self._deadline_s = asyncio.get_running_loop().time() + limits.max_background_s

    async def _open(self, call: HttpCall) -> HttpResponse:
        """Opens a call about the answer, unless the run is left before or meanwhile."""
        if not self.is_closed:
            response = await self._settings.transport.open(call, self._settings.limits)
            if not self.is_closed:
                return response
            await response.aclose()
        raise StreamTruncatedError("the run was closed before its answer was complete", code="closed")

    def _forgotten(self, message: str) -> list[StreamPart]:
        held, self._state.background = self._state.background, None
        assert held is not None
        return [self._notice(held, LOST, message=message)]

    def _notice(self, held: Background, status: str, **more: str) -> StreamPart:
        return Custom(BACKGROUND, {**to_builtins(held), "status": status, **more})

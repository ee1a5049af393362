"""Answers that outlive a connection, which are background responses and resumed streams."""

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from sidestream.errors import LimitError, RunError, StreamTruncatedError
from sidestream.limits import Limits
from sidestream.parts import Custom, ResponseMetadata, StreamPart
from sidestream.providers.protocol import Decoder, Encoded, ResumesStreams, WorksInBackground
from sidestream.run.settings import RunSettings
from sidestream.transport.calls import HttpCall, HttpResponse
from sidestream.turn.machine import Turn
from sidestream.turn.state import BACKGROUND, CANCELLED, LOST, POLLED, RESUMED, STARTED, Background

STREAM_RESUMED: Final = "sidestream.stream-resumed"
"""Kind of the custom part that reports that a broken stream continues."""

GROWTH: Final = 1.5
"""Factor by which the wait between two polls grows."""
_GONE: Final = frozenset({404, 410})
_NOT_STREAMED: Final = frozenset({400, 405, 409, 422, 501})
"""Statuses of a provider that has an answer, but does not stream it. OpenAI streams one for at most five minutes."""


def grown(wait_s: float, limits: Limits) -> float:
    """Return the wait before the next poll."""
    return min(wait_s * GROWTH, limits.max_poll_interval_s)


class BackgroundAnswer:
    """The current step's background response. The turn's state has its id."""

    def __init__(self, turn: Turn, settings: RunSettings, *, is_closed: bool = False) -> None:
        self.is_waiting = False
        """Whether an incomplete answer arrived, which must be polled with `poll`."""
        self.is_awaited = False
        """Whether a background response was requested whose id has not arrived yet; `noted` finds it."""
        self.is_closed = is_closed
        """Whether the run was stopped."""
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
        """Forget an answer of another provider, and report that."""
        held, model = self._state.background, self._settings.model
        if held is None or (isinstance(model, WorksInBackground) and held.provider == model.provider):
            return []
        return self._forgotten(f"The answer {held.id} is pending at {held.provider}; a new one is requested here.")

    def lost(self, error: RunError) -> list[StreamPart]:
        """Forget an answer that the provider no longer has, or the stream of one, and report that."""
        held = self._state.background
        if held is not None and held.is_streamed and error.status in _NOT_STREAMED:
            return [self._not_streamed(held)]
        if held is None or error.status not in _GONE:
            return []
        return self._forgotten(f"The provider no longer has the answer {held.id}; a new one is requested.")

    def marked(self, encoded: Encoded) -> Encoded:
        """Mark the request as a background one if its answer is pending."""
        return encoded if self._state.background is None else replace(encoded, in_background=True)

    def opening(self, encoded: Encoded) -> HttpCall:
        """Return the request itself, or the request for a pending answer."""
        held, model = self._state.background, self._settings.model
        self.is_awaited = encoded.in_background and held is None
        if held is None or not isinstance(model, WorksInBackground):
            return encoded.call
        return model.fetch_call(encoded, held.id, stream=held.is_streamed and encoded.call.stream)

    # While it arrives

    def opened(self, response: HttpResponse) -> list[StreamPart]:
        """Report, at the start of a step, that its answer was requested before."""
        held = self._state.background
        if held is None:
            return []
        if not response.is_stream:
            self._begin_waiting()
        return [self._notice(held, RESUMED)]

    def noted(self, parts: list[StreamPart]) -> list[StreamPart]:
        """Keep and report the id of a background response once it is among the parts of the stream."""
        for place, part in enumerate(parts, 1):
            if isinstance(part, ResponseMetadata) and part.id is not None:
                self._state.background = held = Background(self._settings.model.provider, part.id, True)
                self.is_awaited = False
                return [*parts[:place], self._notice(held, STARTED), *parts[place:]]
        return parts

    def still_pending(self, body: bytes, *, is_streamed: bool) -> list[StreamPart] | None:
        """Return the parts that report an incomplete non-streaming response, or None if it is complete."""
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
        """Wait, then request the answer again. Raises RunError if that fails or the run is stopped meanwhile."""
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
        """Open the rest of a broken stream, or return None if the provider does not offer it.

        Then the answer may have to be polled.
        """
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
        """Report that a broken stream continues, or that the answer is polled instead."""
        held = self._state.background
        if self.is_waiting and held is not None:
            return [self._not_streamed(held)]
        return [Custom(STREAM_RESUMED, {"time": self._resumptions})]

    def _not_streamed(self, held: Background) -> StreamPart:
        self._state.background = held = replace(held, is_streamed=False)
        message = f"The provider no longer streams the answer {held.id}, so it is polled."
        return self._notice(held, POLLED, message=message)

    def forgives(self, error: RunError) -> bool:
        """Return whether a poll failed but later ones may succeed, as during a network outage."""
        if not self.is_waiting or not error.retryable or self._misses >= self._settings.limits.max_resumptions:
            return False
        self._misses += 1
        return True

    # At its end

    def end_step(self) -> None:
        """Stop waiting for the answer, which is complete or has failed."""
        self.is_waiting, self._status = False, None

    async def cancel(self, call: HttpCall) -> None:
        """Cancel the response at the provider."""
        response = await self._settings.transport.open(call, self._settings.limits)
        self._turn.state.background = None
        await response.aclose()

    def cancel_call(self, sent: Encoded | None) -> HttpCall | None:
        """Return the request that cancels the answer at the provider, or None if none is pending there."""
        held, settings = self._state.background, self._settings
        model = settings.model
        if held is None or not isinstance(model, WorksInBackground) or held.provider != model.provider:
            return None
        return model.cancel_call(sent or model.encode(settings.request(self._turn, None, {})), held.id)

    def cancelled(self) -> list[StreamPart]:
        """Report that the answer is about to be cancelled."""
        held = self._state.background
        return [] if held is None or not self._state.is_in_step else [self._notice(held, CANCELLED)]

    def close(self) -> None:
        """Stop the run's wait at once. The provider continues."""
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
        """Open a call about the answer. Raises StreamTruncatedError if the run is stopped before or meanwhile."""
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

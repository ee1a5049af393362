"""The answer of a step that its provider works on without a connection: known by its id, asked for until it is done."""

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from sidestream.errors import LimitError, RunError, StreamTruncatedError
from sidestream.limits import Limits
from sidestream.providers.calls import HttpCall, HttpResponse
from sidestream.providers.protocol import Decoder, Encoded, ResumesStreams, WorksInBackground
from sidestream.run.settings import RunSettings
from sidestream.stream.parts import Custom, ResponseMetadata, StreamPart
from sidestream.turn.background import BACKGROUND, CANCELLED, LOST, STARTED, TAKEN_UP, Background
from sidestream.turn.machine import Turn

STREAM_RESUMED: Final = "sidestream.stream-resumed"
"""The kind of the custom part that tells that a stream broke and goes on."""
GROWTH: Final = 1.5
"""By how much the wait grows from one question to the next."""
_GONE: Final = frozenset({404, 410})


def grown(wait_s: float, limits: Limits) -> float:
    """The wait after this one."""
    return min(wait_s * GROWTH, limits.max_poll_interval_s)


class BackgroundAnswer:
    """What a run knows of the answer that is under way in the background. The turn's state holds its id."""

    def __init__(self, turn: Turn, settings: RunSettings) -> None:
        self.is_waiting = False
        """True: the answer came, but was not done yet; `ask` for it again."""
        self.is_awaited = False
        """True: the answer is one in the background, and its id has not come yet; `noted` finds it."""
        self._state = turn.state
        self._turn = turn
        self._settings = settings
        self._status: str | None = None
        self._wait_s = 0.0
        self._deadline_s = 0.0
        self._misses = 0
        self._resumptions = 0
        self.is_closed = False
        """True: the run was left."""
        self._left: asyncio.Event | None = None

    def foreign(self) -> list[StreamPart]:
        """Forgets an answer of another provider, and tells so."""
        held, model = self._state.background, self._settings.model
        if held is None or (isinstance(model, WorksInBackground) and held.provider == model.provider):
            return []
        return self._forgotten(f"The answer {held.id} is under way at {held.provider}; it is asked for anew here.")

    def lost(self, error: RunError) -> list[StreamPart]:
        """Forgets an answer that the provider does not have any more, and tells so."""
        held = self._state.background
        if held is None or error.status not in _GONE:
            return []
        return self._forgotten(f"The provider no longer has the answer {held.id}, so it is asked for again.")

    def marked(self, encoded: Encoded) -> Encoded:
        """The request, which is one in the background where its answer is known to be."""
        return encoded if self._state.background is None else replace(encoded, in_background=True)

    def opening(self, encoded: Encoded) -> HttpCall:
        """The request itself; for an answer that is known from before, how to get that."""
        held, model = self._state.background, self._settings.model
        self.is_awaited = encoded.in_background and held is None
        if held is None or not isinstance(model, WorksInBackground):
            return encoded.call
        return model.fetch_call(encoded, held.id, stream=held.is_streamed and encoded.call.stream)

    def opened(self, exchange: HttpResponse) -> list[StreamPart]:
        """What to tell when the step begins: whether its answer was asked for before."""
        held = self._state.background
        if held is None:
            return []
        if not exchange.is_stream:
            self._begin_waiting()
        return [self._notice(held, TAKEN_UP)]

    def noted(self, parts: list[StreamPart]) -> list[StreamPart]:
        """The parts of a stream; once the answer's id is among them, it is kept, and told."""
        for place, part in enumerate(parts, 1):
            if isinstance(part, ResponseMetadata) and part.id is not None:
                self._state.background = held = Background(self._settings.model.provider, part.id, True)
                self.is_awaited = False
                return [*parts[:place], self._notice(held, STARTED), *parts[place:]]
        return parts

    def looked_at(self, body: bytes, *, is_streamed: bool) -> list[StreamPart] | None:
        """What to tell of a whole answer that is not done yet; None where it is done."""
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

    def _begin_waiting(self) -> None:
        if not self.is_waiting:
            limits = self._settings.limits
            self.is_waiting = True
            self._wait_s = limits.poll_interval_s
            self._deadline_s = asyncio.get_running_loop().time() + limits.max_background_s

    async def ask(self, encoded: Encoded) -> HttpResponse:
        """Waits, then asks for the answer again. Raises RunError, also when the run is left meanwhile."""
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
        return await self.open(model.fetch_call(encoded, held.id, stream=False))

    async def open(self, call: HttpCall) -> HttpResponse:
        """Opens a call about the answer, unless the run is left before or meanwhile."""
        if not self.is_closed:
            exchange = await self._settings.transport.open(call, self._settings.limits)
            if not self.is_closed:
                return exchange
            await exchange.aclose()
        raise StreamTruncatedError("the run was closed before its answer was complete", code="closed")

    async def rest(self, encoded: Encoded | None, decoder: Decoder | None) -> HttpResponse | None:
        """The rest of a stream that broke, where the provider goes on with it; None where it cannot be had."""
        settings = self._settings
        if not isinstance(settings.model, ResumesStreams) or encoded is None or decoder is None:
            return None
        call = settings.model.resume_call(encoded, decoder)
        if call is None or self._resumptions >= settings.limits.max_resumptions:
            return None
        self._resumptions += 1
        with suppress(RunError):
            return await self.open(call)
        return None

    def resumed(self) -> list[StreamPart]:
        """What to tell when a stream goes on after a break."""
        return [Custom(STREAM_RESUMED, {"time": self._resumptions})]

    def forgives(self, error: RunError) -> bool:
        """True: asking failed, but may go on. A network may be gone for a while; the provider works meanwhile."""
        if not self.is_waiting or not error.retryable or self._misses >= self._settings.limits.max_resumptions:
            return False
        self._misses += 1
        return True

    def step_over(self) -> None:
        """The answer is over for this run. Where only a limit ended it, the provider goes on, so it stays known."""
        self.is_waiting, self._status = False, None
        if self._state.limit is None:
            self._state.background = None

    def cancel_call(self, sent: Encoded | None) -> HttpCall | None:
        """How to stop the answer at the provider; None where none is known to be under way there."""
        held, settings = self._state.background, self._settings
        model = settings.model
        if held is None or not isinstance(model, WorksInBackground) or held.provider != model.provider:
            return None
        return model.cancel_call(sent or model.encode(settings.request(self._turn)), held.id)

    def cancelled(self) -> list[StreamPart]:
        """What to tell when the answer is about to be cancelled."""
        held = self._state.background
        return [] if held is None or not self._state.is_in_step else [self._notice(held, CANCELLED)]

    def close(self) -> None:
        """The run is left: whoever waits stops waiting. The provider goes on."""
        self.is_waiting, self.is_closed = False, True
        if self._left is not None:
            self._left.set()

    def _forgotten(self, message: str) -> list[StreamPart]:
        held, self._state.background = self._state.background, None
        assert held is not None
        return [self._notice(held, LOST, message=message)]

    def _notice(self, held: Background, status: str, **more: str) -> StreamPart:
        return Custom(BACKGROUND, {**to_builtins(held), "status": status, **more})

"""Messages to the current response, where the provider and the transport can pass them on."""

from collections.abc import Iterable
from typing import Final, cast

from msgspec.structs import replace

from sidestream.errors import RunError
from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.messages.steering import STEER, steered_message
from sidestream.parts import Custom, Steer, StreamPart
from sidestream.providers.protocol import Decoder, Encoded, ModelRequest, SteersResponses
from sidestream.run.settings import RunSettings
from sidestream.transport.calls import HttpCall, HttpResponse, SentSteer, SteerableResponse
from sidestream.turn.machine import Turn

STEER_FALLBACK: Final = "sidestream.steer-fallback"
"""Kind of the custom part that reports that the next request takes a message that the response refused."""

log = get_logger(__name__)


class NativeSteering:
    """Offers pending messages to the current response, and tracks what the server does with them.

    The server answers them with a successor of the response, adds them to the next request, or refuses them. Those that
    it refuses or ignores stay pending for the next request, as usual.
    """

    def __init__(self, turn: Turn, settings: RunSettings, response: SteerableResponse, decoder: Decoder) -> None:
        self.successor: HttpResponse | None = None
        """Response that the server has begun by itself, until it is read."""
        self.is_pending = False
        """Whether the server adds messages to the next request, which continues the response."""
        self._turn = turn
        self._settings = settings
        self._response = response
        self._decoder = decoder
        self._sent: dict[str, SentSteer] = {}
        """Last state of each message at the server, by its id."""
        self._offered: set[str] = set()
        """Ids of the messages that were offered to the current response."""
        self._reported: set[str] = set()
        self._is_settled = False

    @classmethod
    def follow(
        cls,
        before: "NativeSteering | None",
        turn: Turn,
        settings: RunSettings,
        response: HttpResponse,
        decoder: Decoder,
    ) -> "NativeSteering | None":
        """Create the steering of a new response, or return None if it takes no messages."""
        if not getattr(response, "is_steerable", False) or not isinstance(settings.model, SteersResponses):
            return None
        new = cls(turn, settings, cast("SteerableResponse", response), decoder)
        if before is not None:
            # A message to the previous response may still be unanswered; do not offer it twice.
            pending = {steer.id for steer in turn.state.steers}
            new._sent = {steer_id: sent for steer_id, sent in before._sent.items() if steer_id in pending}
            new._reported = before._reported
        return new

    # While the response is read

    async def offer(self) -> None:
        """Send the pending messages that the response does not have yet, once its id is known."""
        model = self._settings.model
        assert isinstance(model, SteersResponses)
        for steer in self._turn.due_steers:
            last = self._sent.get(steer.id)
            if steer.id in self._offered or (last is not None and last.status != "failed"):
                continue
            event = model.steer_event(self._decoder, steered_message(steer), self._settings.options)
            if event is None:
                return
            self._offered.add(steer.id)
            self._reported.discard(steer.id)
            self._sent[steer.id] = await self._response.steer(*event)

    def notices(self) -> list[StreamPart]:
        """Report the messages that were refused since the last call."""
        if not self._sent:
            return []
        failed = {
            steer_id: sent
            for steer_id, sent in self._sent.items()
            if sent.status == "failed" and steer_id not in self._reported
        }
        self._reported |= failed.keys()
        return [_fallback(steer_id, sent) for steer_id, sent in failed.items()]

    # After it

    async def settle(self) -> None:
        """Wait until it is known what the server does with the messages that it has."""
        if self._is_settled or all(sent.status == "failed" for sent in self._sent.values()):
            return
        self._is_settled = True
        self.successor = await self._response.successor()
        self.is_pending = self.successor is None and any(sent.status == "pending" for sent in self._sent.values())

    def taken(self, steers: Iterable[Steer]) -> tuple[Steer, ...]:
        """Return those pending messages that the next step answers. A successor answers only those it has received."""
        return tuple(steer for steer in steers if self.successor is None or self._status(steer) == "applied")

    def encoded(self, request: ModelRequest) -> Encoded:
        """Return the decoder for the successor, with a call that is not sent."""
        encoded = self._settings.model.encode(request)
        return Encoded(call=encoded.call, decoder=encoded.decoder)

    async def proceeding(self, encoded: Encoded, request: ModelRequest, steers: Iterable[Steer]) -> Encoded:
        """Return the request without the messages that the server adds itself.

        It is unchanged if it does not continue the response.
        """
        held = {steer.id for steer in steers if self._status(steer) == "pending"}
        messages = tuple(entry for entry in request.messages if entry.metadata.get(STEER) not in held)
        model = self._settings.model
        bare = model.encode(replace(request, messages=messages))
        if isinstance(model, SteersResponses) and model.continues(bare.call, self._decoder):
            return replace(bare, decoder=encoded.decoder)
        # Close the connection, since the server may still hold the messages for a continuation.
        self.is_pending = False
        await self.aclose()
        for steer_id in held:
            self._sent[steer_id].fail("not-continued", "The request does not continue the response.")
        return encoded

    @property
    def is_next(self) -> bool:
        """Whether the server has begun the next answer by itself, or continues the response with the next request."""
        return self.successor is not None or self.is_pending

    async def open(self, call: HttpCall, _limits: Limits) -> HttpResponse | None:
        """Return the response of the next step, or None if it was lost and the request must be repeated."""
        successor, self.successor = self.successor, None
        if successor is not None:
            return successor
        self.is_pending = False
        try:
            return await self._response.proceed(call)
        except RunError as error:
            log.info("the request after a steered response failed (%s); repeating it", type(error).__name__)
            return None

    async def aclose(self) -> None:
        """Give up what the server may still answer by itself."""
        successor, self.successor = self.successor, None
        if successor is not None:
            await successor.aclose()
        await self._response.aclose()

    def _status(self, steer: Steer) -> str | None:
        sent = self._sent.get(steer.id)
        return None if sent is None else sent.status


def _fallback(steer_id: str, sent: SentSteer) -> Custom:
    why = f" {sent.message}" if sent.message else ""
    message = f"The response in progress did not take the message; the next request does.{why}"
    return Custom(STEER_FALLBACK, {"message": message, "id": steer_id, "code": sent.code})

"""The `replay` provider, which plays a recording offline through the code for live traffic.

`Agent("replay:path/to/recording.json")` answers each request with the recording's next model exchange.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sidestream.errors import ConfigurationError, RunError
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages.message import ChatMessage
from sidestream.providers import protocol
from sidestream.providers.registry import providers
from sidestream.providers.shared.settings_mapping import PORTABLE, given_settings
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.run.run import Run
from sidestream.run.settings import RunSettings
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.calls import HttpCall, OpensHttp, Transport
from sidestream.turn.machine import Turn

NAME = "replay"


def decoder_of(exchange: Exchange) -> tuple[str, protocol.Decoder] | None:
    """Return the exchange's provider and a decoder for its response, or None if it is not a model call."""
    request = exchange.request
    for provider in providers().values():
        decoder = provider.recorded_decoder(request.method, request.path, request.body)
        if decoder is not None:
            return provider.name, decoder
    return None


class _RecordedDecoder:
    """A provider's decoder, limited to downloads that were recorded."""

    def __init__(self, inner: protocol.Decoder, recorded: frozenset[str]) -> None:
        self.feed = inner.feed
        self.whole = inner.whole
        self.close = inner.close
        if isinstance(inner, protocol.TakesUpCalls):
            self.take_up = inner.take_up
        self._inner = inner
        self._recorded = recorded

    @property
    def downloads(self) -> tuple[protocol.FileRef, ...]:
        return tuple(ref for ref in self._inner.downloads if any(ref.id in path for path in self._recorded))


class ReplayModel:
    """A model that replays a recording's model exchanges, one per request."""

    provider = NAME
    portable_settings = PORTABLE

    def __init__(self, name: str, recording: Recording, exchanges: list[Exchange] | None = None) -> None:
        self.name = name
        self._exchanges = model_exchanges(recording) if exchanges is None else exchanges
        self._files = frozenset(e.request.path for e in recording.exchanges if e.request.path.endswith("/content"))
        self._next = 0

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Return the next recorded model call, whatever the request. Raises ConfigurationError if none is left."""
        if self._next >= len(self._exchanges):
            raise ConfigurationError(
                f"the recording {self.name} has no model exchange left after {self._next}; use one with more exchanges"
            )
        at = self._next
        exchange = self._exchanges[at]

        def decoder() -> protocol.Decoder:
            self._next = at + 1  # Not earlier: a request may be encoded only to check it.
            found = decoder_of(exchange)
            assert found is not None
            return _RecordedDecoder(found[1], self._files)

        call = HttpCall(method=exchange.request.method, url=f"http://{NAME}{exchange.request.path}", stream=True)
        ignored = ", ".join(given_settings(request.settings))
        note = f"a recording answers whatever is requested, so {ignored} had no effect"
        return protocol.Encoded(call=call, decoder=decoder, warnings=(note,) if ignored else ())

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return None, because a recording cannot be retried."""
        return None

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Return the call that downloads the file, as it would have been recorded."""
        path = (
            f"/containers/{ref.container_id}/files/{ref.id}/content" if ref.container_id else f"/files/{ref.id}/content"
        )
        return HttpCall(method="GET", url=f"http://{NAME}/v1{path}")


class ReplayProvider:
    """The provider of models from recordings, registered as `replay`."""

    name = NAME
    display_name = "Recordings"
    aliases: tuple[str, ...] = ()
    default_models: Mapping[str, str] = {}
    server_side_tools: frozenset[type[ServerSideTool]] = frozenset()

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Create the model of a recording, whose path is `name`."""
        if not name:
            raise ConfigurationError("the replay provider needs a recording; use replay:PATH")
        return ReplayModel(name, Recording.load(name))

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Create a transport that replays the recording from its start."""
        return ReplayTransport(Recording.load(model))

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return None, because no recorded call is this provider's."""
        return None


def model_exchanges(recording: Recording) -> list[Exchange]:
    """Return a recording's exchanges that are model calls."""
    return [exchange for exchange in recording.exchanges if decoder_of(exchange) is not None]


PROVIDER: protocol.Provider = ReplayProvider()


def replay(recording: Recording, transport: Transport, limits: Limits = DEFAULT_LIMITS) -> Iterator[Run[str]]:
    """Yield one run per model exchange, in order. Client tools are not executed."""
    for exchange in model_exchanges(recording):
        settings = RunSettings(
            model=ReplayModel("recording", recording, [exchange]),
            transport=transport,
            limits=limits,
            errors="parts",
        )
        yield Run(Turn([ChatMessage.user("")], answers_calls=False, limits=limits), settings)

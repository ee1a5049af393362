"""The models of an agent for chat, embeddings and media, with their transport, windows, prices and overrides."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.checks import checked_model
from sidestream.agent.settings import AgentSettings, CallSettings, CommonSettings, provider_settings
from sidestream.errors import ConfigurationError, MissingKeyError, RunError, UnsupportedError
from sidestream.logs import get_logger
from sidestream.providers import protocol
from sidestream.providers.registry import ModelString, find_provider

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from sidestream.limits import Limits
    from sidestream.prices.price import Price
    from sidestream.prices.pricing import Pricing
    from sidestream.providers.embedding import EmbeddingsResult
    from sidestream.providers.protocol import BillsUsage
    from sidestream.transport.calls import SocketCodec, Transport


log = get_logger(__name__)


class Models:
    """The models that a model string or model object selects. The HTTP transport is created on first use.

    Without an API key the chat model is created on first use, too, so that programs without one can be imported.
    """

    def __init__(self, model: str | protocol.ChatModel, settings: AgentSettings) -> None:
        chosen = settings.get("transport")
        transport = None if isinstance(chosen, str) else chosen
        if isinstance(model, str):
            parsed = ModelString.parse(model)
            provider = find_provider(parsed.provider)
            name = parsed.models.get("chat") or provider.default_models.get("chat", "")
            self._label = provider.name, name
            self._create: Callable[[], protocol.ChatModel] = lambda: provider.chat_model(
                name, provider_settings(settings)
            )
            if chosen in (None, "http"):
                transport = provider.transport(name, http_transport)
            self.embedder = lambda: _embeddings_model(parsed, provider, settings)
            self.media = parsed.models.get("media")
            """Name of the model for media, if it differs."""
            self.named: Callable[[str], protocol.ChatModel] = lambda name: provider.chat_model(
                name, provider_settings(settings)
            )
        else:
            checked = checked_model(model)
            self._label = checked.provider, checked.name
            self._create = lambda: checked
            self.embedder = lambda: model
            self.media = None
            self.named = lambda name: model
            if chosen in (None, "http") and isinstance(model, protocol.BringsTransport):
                transport = model.transport()
        self._chat: protocol.ChatModel | None = None
        self._codec: SocketCodec | None = None
        self._codec_of = partial(_codec_of, settings=settings) if chosen == "websocket" else None
        self._transport = transport
        self._session = settings.get("session")
        self._limiter = settings.get("limiter")
        with suppress(MissingKeyError):
            self.chat  # noqa: B018 - other mistakes are reported now

    @property
    def chat(self) -> protocol.ChatModel:
        """The chat model. Raises MissingKeyError if there is still no API key."""
        if self._chat is None:
            created = self._create()
            self._codec = None if self._codec_of is None else self._codec_of(created)
            self._chat = created
            log.info("created model %s:%s", created.provider, created.name)
        return self._chat

    @property
    def provider(self) -> str:
        """Name of the provider."""
        return self._label[0] if self._chat is None else self._chat.provider

    @property
    def label(self) -> str:
        """Provider and name of the chat model."""
        return ":".join(self._label) if self._chat is None else f"{self._chat.provider}:{self._chat.name}"

    @property
    def transport(self) -> Transport:
        """Transport for requests."""
        if self._transport is None:
            self._transport = http_transport(self._session) if self._codec is None else _websocket(self._codec)
        if self._limiter is not None:
            from sidestream.wire.limiter import LimitedTransport

            self._transport, self._limiter = LimitedTransport(self._transport, self._limiter), None
        return self._transport


def _embeddings_model(chosen: ModelString, provider: protocol.Provider, settings: AgentSettings) -> protocol.ChatModel:
    # Few agents embed texts.
    from sidestream.agent.embeddings import embeddings_model

    return embeddings_model(chosen, provider, provider_settings(settings))


def _codec_of(model: protocol.ChatModel, settings: AgentSettings) -> SocketCodec:
    if not isinstance(model, protocol.SpeaksWebSocket):
        raise ConfigurationError(f"{model.provider} has no WebSocket mode; leave out transport='websocket'")
    if settings.get("session") is not None:
        raise ConfigurationError("session is for HTTP: leave it out with transport='websocket'")
    return model.socket_codec


_OF_ONE_PROVIDER = ("api_key", "base_url", "headers", "auth")
"""Settings that must not reach another provider."""
_MAX_PAGES = 100


def chosen_models(model: str | protocol.ChatModel | None, settings: AgentSettings) -> tuple[Models, ...]:
    """Return the models of an agent in the order in which they are tried."""
    listed: Any = settings.get("models")
    if listed is None:
        return (Models(model, settings),)  # pyright: ignore[reportArgumentType] - None is refused there
    if model is not None:
        raise ConfigurationError("give model or models=[…], not both; the first of the list is tried first")
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise ConfigurationError("models must be a list of models in the order to try them, e.g. ['openai', 'google']")
    names: Sequence[str | protocol.ChatModel] = listed  # pyright: ignore[reportUnknownVariableType]
    given = [name for name in _OF_ONE_PROVIDER if settings.get(name)]
    candidates = tuple(Models(entry, settings) for entry in names)
    if given:
        _check_one_provider(candidates, given[0])
    return candidates


def check_options(candidates: Sequence[Models], options: Any) -> None:
    """Raise ConfigurationError if options would reach models of another provider."""
    if options is not None and len(candidates) > 1:
        _check_one_provider(candidates, "options")


def _check_one_provider(candidates: Sequence[Models], setting: str) -> None:
    providers = sorted({candidate.provider for candidate in candidates})
    if len(providers) > 1:
        raise ConfigurationError(
            f"{setting} belongs to one provider, but the models are of {', '.join(providers)}; leave it out (keys come "
            "from the environment), or use models of one provider"
        )


async def list_models(model: protocol.ChatModel, transport: Transport, limits: Limits) -> list[protocol.ModelInfo]:
    """Return the models that a model's provider lists. Raises UnsupportedError if it does not list them."""
    if not isinstance(model, protocol.ListsModels):
        raise UnsupportedError(f"{model.provider} does not list its models")
    found: list[protocol.ModelInfo] = []
    after: str | None = None
    for _ in range(_MAX_PAGES):
        page, after = model.read_models(await transport.download(model.list_models(after), limits))
        found += page
        if after is None:
            break
    return found


def http_transport(session: ClientSession | None = None, *, uses_proxies: bool = True) -> Transport:
    # aiohttp is imported at the first request.
    from sidestream.wire.http import HttpTransport

    return HttpTransport(session, uses_proxies=uses_proxies)


def _websocket(codec: SocketCodec) -> Transport:
    from sidestream.wire.socket.transport import WebSocketTransport

    return WebSocketTransport(codec)


class ContextWindows:
    """The context windows of an agent's models. A provider's list of models is requested once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._listed: dict[str, int | None] = {}

    async def of(self, models: Models, model: protocol.ChatModel) -> int | None:
        """Return the window in tokens, or None if neither the model nor its provider states it."""
        if isinstance(model, protocol.KnowsWindow) and model.context_window is not None:
            return model.context_window
        if model.name not in self._listed and isinstance(model, protocol.ListsModels):
            with suppress(RunError):
                found = await list_models(model, models.transport, self._limits)
                self._listed |= {info.name: info.max_input_tokens for info in found}
        return self._listed.setdefault(model.name, None)


class Override(Struct, frozen=True):
    """The models and settings that replace an agent's own."""

    models: Models | None = None
    settings: CommonSettings = {}

    def applied(self, call: CallSettings) -> CallSettings:
        """Merge the override's settings into those of a call. The override's win."""
        return {**call, **self.settings}


_NONE = Override()
_active: ContextVar[Mapping[int, Override]] = ContextVar("sidestream_overrides", default=MappingProxyType({}))
"""Overrides by the id of the agent, which the overriding block keeps alive."""


def override_of(agent: object) -> Override:
    """Return the override of an agent in this context."""
    return _active.get().get(id(agent), _NONE)


@contextmanager
def overridden(agent: object, models: Models | None, settings: CommonSettings) -> Generator[None]:
    """Override an agent in this context, on top of existing overrides."""
    before = _active.get()
    outer = override_of(agent)
    inner = Override(models or outer.models, {**outer.settings, **settings})
    _active.set({**before, id(agent): inner})
    try:
        yield
    finally:
        # Without a token, since a test runner may leave a fixture's block in another context than it entered it.
        left = {key: value for key, value in _active.get().items() if key != id(agent)}
        _active.set({**left, id(agent): before[id(agent)]} if id(agent) in before else left)


def pricing_for(model: protocol.ChatModel, prices: Mapping[str, Price]) -> Pricing:
    """Create the pricing of this model's responses. The user's prices take precedence."""
    from sidestream.prices.pricing import Pricing

    # Not by `isinstance`, which takes longer with a protocol than the rest of a run's setup.
    if not hasattr(model, "bill") or not hasattr(model, "price_list"):
        return Pricing(model.provider, model.name, prices=prices)
    billed = cast("BillsUsage", model)
    return Pricing(model.provider, model.name, price_list=billed.price_list, bill=billed.bill, prices=prices)


def priced_embeddings(
    result: EmbeddingsResult, model: protocol.ChatModel, prices: Mapping[str, Price]
) -> EmbeddingsResult:
    """Add the cost to embeddings."""
    from sidestream.parts import Finish

    return replace(result, usage=pricing_for(model, prices).priced(Finish("stop", result.usage)))

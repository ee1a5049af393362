"""The models of an agent: chat, embeddings and media, and the transport that carries their requests."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sidestream.agent.checks import checked_model
from sidestream.agent.embeddings import embeddings_model
from sidestream.agent.settings import AgentSettings, provider_settings
from sidestream.providers.calls import Transport
from sidestream.providers.protocol import BringsTransport, ChatModel
from sidestream.providers.registry import ModelString, find_provider

if TYPE_CHECKING:
    from aiohttp import ClientSession


class Models:
    """What a model string, or a model, stands for. The HTTP transport is made when it is first needed."""

    def __init__(self, model: str | ChatModel, settings: AgentSettings) -> None:
        transport = settings.get("transport")
        if isinstance(model, str):
            parsed = ModelString.parse(model)
            provider = find_provider(parsed.provider)
            name = parsed.models.get("chat") or provider.default_models.get("chat", "")
            self.chat: ChatModel = provider.chat_model(name, provider_settings(settings))
            transport = transport or provider.transport(name, _http_transport)
            self.embedder = lambda: embeddings_model(parsed, provider, provider_settings(settings))
            self.media = parsed.models.get("media")
            """The name of the model for media, if it is another."""
            self.named: Callable[[str], ChatModel] = lambda name: provider.chat_model(name, provider_settings(settings))
        else:
            self.chat = checked_model(model)
            self.embedder = lambda: model
            self.media = None
            self.named = lambda name: model
            if transport is None and isinstance(model, BringsTransport):
                transport = model.transport()
        self._transport = transport
        self._session = settings.get("session")
        self._limiter = settings.get("limiter")

    @property
    def transport(self) -> Transport:
        """Carries the requests."""
        if self._transport is None:
            self._transport = _http_transport(self._session)
        if self._limiter is not None:
            from sidestream.wire.limiter import LimitedTransport

            self._transport, self._limiter = LimitedTransport(self._transport, self._limiter), None
        return self._transport


def _http_transport(session: "ClientSession | None" = None, *, uses_proxies: bool = True) -> Transport:
    # aiohttp is imported at the first request.
    from sidestream.wire.http import HttpTransport

    return HttpTransport(session, uses_proxies=uses_proxies)

"""The models that a server offers and their abilities, found by encoding trial requests, which needs no key."""

import asyncio
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.agent.agent import Agent
from sidestream.errors import SidestreamError
from sidestream.jsontext import JsonObject, as_list
from sidestream.messages.message import ChatMessage
from sidestream.portable.where import HERE, is_there, missing_here, place_of
from sidestream.prices.pricing import price_table
from sidestream.providers.model_settings import ModelSettings, ThinkingLevel
from sidestream.providers.protocol import BillsUsage, ChatModel, KnowsWindow, ModelRequest, Settings
from sidestream.providers.registry import ModelString, ProviderInfo, find_provider, installed_providers
from sidestream.server.http.requests import json_response, server_of
from sidestream.server.request_policy import allowance_of
from sidestream.server.settings import ServerSettings, offers_index
from sidestream.text.redaction import redact
from sidestream.tools.server_side import TOOLS, FileSearch, ServerSideTool

_LEVELS: tuple[ThinkingLevel, ...] = ("off", "low", "medium", "high")
_NO_KEY = "no-key-is-needed-to-encode"


class OfferedPrice(Struct, frozen=True):
    """Prices in US dollars per million tokens."""

    input: float | None
    output: float | None


class Abilities(Struct, frozen=True):
    """The abilities of a model."""

    thinking: tuple[ThinkingLevel, ...] = ()
    tools: dict[str, str] = {}
    """Server-side tools, with `hosted`, `here`, `by` another model, or the reason why the tool is unavailable."""
    price: OfferedPrice | None = None
    context: int | None = None
    """Context window in tokens."""


class OfferedModel(Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent or a model that requests may name."""

    name: str
    provider: str
    provider_label: str
    label: str
    available: bool
    variable: str | None
    """Environment variable of the required key. None means it needs no key."""
    is_agent: bool
    default: bool
    abilities: Abilities
    allows: JsonObject
    """What requests may add: `tools`, `functions`, `instructions` and `settings`."""


def offered_models(settings: ServerSettings) -> list[OfferedModel]:
    """Return the agents, then the given models and each installed provider's default if requests may name models."""
    installed = {provider.name: provider for provider in installed_providers()}
    found = [_of_agent(name, agent, installed, settings) for name, agent in settings.agents.items()]
    if settings.allows_models:
        offers = {f"{provider.name}:{_chat(provider)}": provider for provider in installed.values() if _chat(provider)}
        offers |= _given(settings, installed)
        found += [_of_provider(name, provider, settings) for name, provider in offers.items()]
    if offers_index(settings):
        found = [replace(model, abilities=_with_index(model.abilities)) for model in found]
    found = [replace(model, abilities=_allowed(model.abilities, model.allows)) for model in found]
    return sorted(found, key=lambda model: (not model.default, not model.is_agent, not model.available, model.name))


def _with_index(abilities: Abilities) -> Abilities:
    return replace(abilities, tools={**abilities.tools, FileSearch.key: HERE} if abilities.tools else {})


def _allowed(abilities: Abilities, allows: JsonObject) -> Abilities:
    """Return the abilities that requests may use."""
    tools = {key: place for key, place in abilities.tools.items() if key in as_list(allows["tools"])}
    thinking = abilities.thinking if "thinking" in as_list(allows["settings"]) else ()
    return replace(abilities, tools=tools, thinking=thinking)


def _of_agent(
    name: str, agent: Agent[Any], installed: dict[str, ProviderInfo], settings: ServerSettings
) -> OfferedModel:
    model = agent.model
    provider = installed.get(model.provider)
    return OfferedModel(
        name=name,
        provider=model.provider,
        provider_label=provider.short_name if provider else model.provider,
        label=name,
        available=True,
        variable=None,
        is_agent=True,
        default=name == settings.default,
        abilities=_probed(model),
        allows=allowance_of(settings, name).shown(agent),
    )


def _given(settings: ServerSettings, installed: dict[str, ProviderInfo]) -> dict[str, ProviderInfo]:
    """Return the providers of the given models, by full model string. Unknown providers are skipped."""
    names = {alias: info for info in installed.values() for alias in (info.name, *info.aliases)}
    parsed = [ModelString.parse(text) for text in settings.models]
    found = [(names[entry.provider], entry.models.get("chat")) for entry in parsed if entry.provider in names]
    return {f"{info.name}:{model}": info for info, model in found if model}


def _of_provider(name: str, provider: ProviderInfo, settings: ServerSettings) -> OfferedModel:
    model = name.partition(":")[2]
    aliases = (provider.name, *provider.aliases)
    names = {name, *(f"{alias}:{model}" for alias in aliases), *(aliases if model == _chat(provider) else ())}
    return OfferedModel(
        name=name,
        provider=provider.name,
        provider_label=provider.short_name,
        label=model,
        available=(provider.has_key or not provider.key_variables) and not provider.missing_variables,
        variable=next(iter((*provider.missing_variables, *provider.key_variables)), None),
        is_agent=False,
        default=settings.default in names,
        abilities=_abilities(provider.name, model),
        allows=allowance_of(settings, name).shown(None),
    )


def _chat(provider: ProviderInfo) -> str:
    return provider.default_models.get("chat", "")


def _abilities(provider: str, model: str) -> Abilities:
    try:
        return _probed(find_provider(provider).chat_model(model, Settings(api_key=_NO_KEY)))
    except SidestreamError:
        return Abilities()


def _probed(model: ChatModel) -> Abilities:
    levels: list[ThinkingLevel] = [
        level for level in _LEVELS if _refusal(model, settings=ModelSettings(thinking=level)) is None
    ]
    tools = {key: kind for key, kind in TOOLS.items() if not kind.needs and _runs_by_itself(kind())}
    return Abilities(
        thinking=tuple(levels) if len(levels) > 1 else (),
        tools={key: _place(model, kind) for key, kind in tools.items()},
        price=_price(model),
        context=model.context_window if isinstance(model, KnowsWindow) else None,
    )


def _runs_by_itself(tool: ServerSideTool) -> bool:
    """Return whether the tool needs no function of the server's program to answer its calls."""
    return tool.client_call is None or tool.answers_here


def _place(model: ChatModel, kind: type[ServerSideTool]) -> str:
    """Return where the tool runs for the model, or the reason why it does not."""
    refusal = _refusal(model, server_side_tools=(kind(),))
    place = place_of(kind, () if refusal else (kind,))
    if place == HERE and (missing := missing_here(kind)) is not None:
        return missing
    return place if is_there(place) else refusal or place


def _refusal(
    model: ChatModel, settings: ModelSettings | None = None, server_side_tools: tuple[ServerSideTool, ...] = ()
) -> str | None:
    """Return the reason why the model cannot do it, or None if it can."""
    request = ModelRequest(
        messages=(ChatMessage.user("?"),),
        settings=settings or ModelSettings(),
        server_side_tools=server_side_tools,
    )
    try:
        model.encode(request)
    except SidestreamError as error:
        return redact(str(error))
    return None


def _price(model: ChatModel) -> OfferedPrice | None:
    price_list = model.price_list if isinstance(model, BillsUsage) else None
    price = price_table().find(price_list, model.name) if price_list else None
    return OfferedPrice(price.rate("input"), price.rate("output")) if price else None


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{id:path}", retrieve, methods=["GET"]),
    ]


async def list_models(request: Request) -> Response:
    """List the default, the agents, and the models whose keys are set."""
    server = server_of(request)
    offered = await asyncio.to_thread(offered_models, server.settings)
    listed = {model.name: model.provider for model in offered if model.available}
    default = server.settings.default
    if not any(model.default for model in offered):  # The default is a separate model string.
        listed = {default: server.agent(default).model.provider, **listed}
    ids = [*listed] or [None]
    page = {"first_id": ids[0], "last_id": ids[-1], "has_more": False}
    return json_response({"object": "list", "data": [_model(*entry) for entry in listed.items()], **page})


async def retrieve(request: Request) -> Response:
    """Return an agent or a model that a request may name. Raises RequestError(404) if there is none."""
    name = request.path_params["id"]
    agent = server_of(request).agent(name)
    return json_response(_model(name, agent.model.provider))


def _model(name: str, provider: str) -> JsonObject:
    known = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": provider, **known}

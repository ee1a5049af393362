"""`/v1/models`, which lists the agents and models that a request may name for the SDKs of OpenAI and Anthropic."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.jsontext import JsonObject
from sidestream.server.http.offered_models import offered_models
from sidestream.server.http.requests import json_response, server_of


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

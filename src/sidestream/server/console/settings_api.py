"""REST API for the web UI with the server's features, its models and the keys it found. No response contains a key."""

import asyncio
import os
import time
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream import __version__
from sidestream.agent.agent import Agent
from sidestream.errors import SidestreamError
from sidestream.providers.registry import ProviderInfo, installed_providers
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.offered_models import offered_models
from sidestream.server.http.requests import check_admin, check_panel, is_guest, json_response, may_administer, server_of
from sidestream.server.security import sign_in
from sidestream.server.server import Server
from sidestream.text.redaction import redact

_MIN_SHOWN = 16
"""Minimum length of a key whose last characters are shown."""
_TEST_TIMEOUT_S = 20.0


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/about", about),
        Route("/api/sign-in", sign_in, methods=["POST"]),
        Route("/api/models", models),
        Route("/api/keys", keys),
        Route("/api/keys/{provider}/test", test_key, methods=["POST"]),
    ]


async def about(request: Request) -> Response:
    """Return the server information that the web UI needs at start."""
    settings = server_of(request).settings
    page, guest = settings.page, is_guest(request)
    return json_response(
        {
            "version": __version__,
            "agents": list(settings.agents),
            "default": settings.default,
            "allowsModels": settings.allows_models,
            "examples": list(page.examples),
            "hasMcp": settings.mcp_file is not None,
            "isEmbedded": settings.is_embedded,
            "greeting": page.greeting,
            "panels": [panel for panel in page.shown_panels if not (guest and panel == "keys")],
            "signOutUrl": page.sign_out_url,
            "user": request.state.user,
            "isOwner": settings.has_guests and may_administer(request),
            "isGuest": guest,
        }
    )


async def models(request: Request) -> Response:
    """Return the agents and models that requests may name, their abilities, and their providers' names."""
    # The first call imports every provider.
    offered = await asyncio.to_thread(offered_models, server_of(request).settings)
    guest = is_guest(request)
    # Guests cannot set a key, and need not know which ones the server has.
    fields = [
        msgspec.to_builtins(replace(model, variable=None) if guest else model)
        for model in offered
        if model.available or not guest
    ]
    providers = {
        provider.name: {
            "label": provider.short_name,
            "variable": None if guest else next(iter(provider.key_variables), None),
        }
        for provider in installed_providers()
    }
    return json_response({"models": [{**model, **model.pop("abilities")} for model in fields], "providers": providers})


async def keys(request: Request) -> Response:
    """Return which keys are set. Only the server's owner sees the end of a key and may test it.

    Guests see none of it.
    """
    check_panel(request, "keys")
    is_admin = may_administer(request)
    installed = await asyncio.to_thread(installed_providers)
    found = [_key(provider, is_admin) for provider in installed if provider.key_variables]
    return json_response({"keys": found, "editable": is_admin})


async def test_key(request: Request) -> Response:
    """Test whether a provider accepts the key, by listing its models, which is free."""
    check_admin(request, "test its keys")
    name = request.path_params["provider"]
    provider = next((found for found in installed_providers() if found.name == name), None)
    if provider is None or not provider.key_variables:
        raise not_found("provider with a key", name)
    if not provider.has_key:
        raise RequestError(409, f"{' or '.join(provider.key_variables)} is not set", type="conflict", code="no_key")
    start = time.monotonic()
    try:
        async with asyncio.timeout(_TEST_TIMEOUT_S), Agent(_model_of(provider)) as agent:
            listed = await agent.list_models()
    except TimeoutError:
        return json_response({"ok": False, "error": f"no answer within {_TEST_TIMEOUT_S:g} s"})
    except SidestreamError as error:
        return json_response({"ok": False, "error": redact(str(error))})
    return json_response({"ok": True, "models": len(listed), "ms": round((time.monotonic() - start) * 1000)})


def _key(provider: ProviderInfo, is_admin: bool) -> dict[str, Any]:
    values = {name: os.environ.get(name, "").strip() for name in provider.key_variables}
    variable, value = next(((name, value) for name, value in values.items() if value), (provider.key_variables[0], ""))
    return {
        "provider": provider.name,
        "label": provider.display_name,
        "variable": variable,
        "found": bool(value),
        "ends": value[-4:] if len(value) >= _MIN_SHOWN and is_admin else None,
    }


def _model_of(provider: ProviderInfo) -> str:
    """Return a model string of the provider. Any model will do to list them."""
    return provider.name if provider.default_models.get("chat") else f"{provider.name}:any"

"""The list of conversations."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.durable.log.open_runs import job_of
from sidestream.jsontext import JsonObject
from sidestream.server.errors import RequestError
from sidestream.server.http.requests import json_response, owner_of, server_of
from sidestream.server.server import Server
from sidestream.store.ids import STATELESS, UNSTORED, ConversationId
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import open_run

MAX_LISTED = 100
MAX_SEARCH = 1000
"""Maximum characters, because databases refuse much longer patterns."""


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/conversations", list_conversations, methods=["GET"]),
    ]


async def list_conversations(request: Request) -> Response:
    """List the tenant's conversations, last changed first. `before` is the `next` of the previous page.

    A chat with branches is listed at its newest branch, and may appear again on a later page. Calls of stateless APIs
    are listed only with `all=true`.
    """
    server, owner = server_of(request), owner_of(request)
    limit = max(1, min(_number(request, "limit", 50), MAX_LISTED))
    before: float | None = _number(request, "before", 0) or None
    search = request.query_params.get("search", "").strip()
    if len(search) > MAX_SEARCH:
        raise RequestError(400, f"search must have at most {MAX_SEARCH} characters", param="search")
    is_all = request.query_params.get("all", "false").lower() == "true"
    hidden = () if is_all else [f"{owner}/{start}" for start in (STATELESS, UNSTORED)]
    found: dict[str, JsonObject] = {}
    has_more = True
    while has_more and len(found) < limit:
        page = await server.store.conversations(limit, before, prefix=f"{owner}/", search=search, without=hidden)
        has_more = len(page) >= limit
        for info in page:
            # Keep conversations with the same time on one page, because the next page starts before that time.
            if len(found) >= limit and info.updated != before:
                has_more = True
                break
            before = info.updated
            chat = ConversationId.parse(info.id).chat
            if chat not in found:
                found[chat] = await _listed(server, chat, info)
    return json_response({"conversations": list(found.values()), "next": before if has_more else None})


async def _listed(server: Server, chat: str, info: ConversationInfo) -> JsonObject:
    status: str = await server.store.conversation(info.id).status(info)
    if status == "unfinished" and job_of(open_run(await server.store.read(info.id))) is not None:
        status = "running"
    return {
        "id": chat,
        "title": info.title,
        "model": info.model,
        "created": info.created,
        "updated": info.updated,
        "status": status,
    }


def _number(request: Request, name: str, default: int) -> Any:
    """Parse a numeric query parameter, an integer unless it is a time. Raises RequestError if it is invalid."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text) if name == "before" else int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 1e15:
        raise RequestError(400, f"{name} must be a non-negative number", param=name)
    return number

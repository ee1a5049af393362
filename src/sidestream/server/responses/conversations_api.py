"""`/v1/conversations` of OpenAI's API. A conversation is one log, to which responses are added."""

import os
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.jsontext import JsonObject, as_object
from sidestream.messages.message import ChatMessage
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import checked, json_response, owner_of, read_json, server_of
from sidestream.server.responses.input_items import read_input
from sidestream.server.responses.log import METADATA, notes_in
from sidestream.server.responses.request import Metadata
from sidestream.server.responses.service import find_conversation
from sidestream.server.responses.stored_items import conversation_items, listed
from sidestream.server.runs.service import append
from sidestream.server.server import Server
from sidestream.store.ids import ConversationId
from sidestream.store.log.writer import imported
from sidestream.store.records import Body, Noted

MAX_ADDED = 20


class CreateBody(Struct):
    """The body of a request that creates a conversation."""

    items: Annotated[list[JsonObject], Meta(max_length=MAX_ADDED)] | None = None
    metadata: Metadata | None = None


class UpdateBody(Struct):
    """The body of a request that changes a conversation."""

    metadata: Metadata


class ItemsBody(Struct):
    """The body of a request that adds items."""

    items: Annotated[list[JsonObject], Meta(min_length=1, max_length=MAX_ADDED)]


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/v1/conversations", create, methods=["POST"]),
        Route("/v1/conversations/{id}", retrieve, methods=["GET"]),
        Route("/v1/conversations/{id}", update, methods=["POST"]),
        Route("/v1/conversations/{id}", delete, methods=["DELETE"]),
        Route("/v1/conversations/{id}/items", add_items, methods=["POST"]),
        Route("/v1/conversations/{id}/items", list_items, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item}", get_item, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item}", delete_item, methods=["DELETE"]),
    ]


async def create(request: Request) -> Response:
    """Create a conversation with items and metadata."""
    body = checked(await read_json(request), CreateBody)
    server, id = server_of(request), f"conv_{os.urandom(16).hex()}"
    records: list[Body] = [Noted({METADATA: body.metadata or {}}), *imported(_messages(body.items or []))]
    await append(server.store, f"{owner_of(request)}/{id}", records)
    return json_response(await _described(server, f"{owner_of(request)}/{id}"))


async def retrieve(request: Request) -> Response:
    """Return a conversation."""
    return json_response(await _described(server_of(request), await _stored(request)))


async def update(request: Request) -> Response:
    """Replace a conversation's metadata."""
    server, stored = server_of(request), await _stored(request)
    body = checked(await read_json(request), UpdateBody)
    await _append(server, stored, [Noted({METADATA: body.metadata})])
    return json_response(await _described(server, stored))


async def delete(request: Request) -> Response:
    """Delete a conversation with its responses, stopping a run in progress."""
    stored = await _stored(request)
    await server_of(request).runs.delete(stored)
    return json_response({"id": _name(stored), "object": "conversation.deleted", "deleted": True})


async def add_items(request: Request) -> Response:
    """Add items to a conversation. Outputs of pending calls must be sent with a response request instead."""
    server, stored = server_of(request), await _stored(request)
    body = checked(await read_json(request), ItemsBody)
    before = len(await conversation_items(server, stored))
    await _append(server, stored, [*imported(_messages(body.items))])
    added = (await conversation_items(server, stored))[before:]
    return json_response(listed(added, {"limit": "100"}, "asc"))


async def list_items(request: Request) -> Response:
    """List the items, newest first unless the query sets another order."""
    items = await conversation_items(server_of(request), await _stored(request))
    return json_response(listed(items, request.query_params))


async def get_item(request: Request) -> Response:
    """Return one item."""
    items = await conversation_items(server_of(request), await _stored(request))
    return json_response(_found(items, request.path_params["item"]))


async def delete_item(request: Request) -> Response:
    """Refuse to delete an item, because a model's input stays in the log."""
    stored = await _stored(request)
    _found(await conversation_items(server_of(request), stored), request.path_params["item"])
    message = "items cannot be deleted individually; delete the conversation or start another"
    raise RequestError(400, message, param="item_id", code="unsupported")


async def _stored(request: Request) -> str:
    return await find_conversation(server_of(request), owner_of(request), request.path_params["id"])


async def _append(server: Server, stored: str, records: list[Body]) -> None:
    if await server.runs.is_busy(stored):
        message = "a response in this conversation is in progress"
        raise RequestError(409, message, type="conflict", code="conversation_locked")
    await append(server.store, stored, records)


async def _described(server: Server, stored: str) -> JsonObject:
    rows = await server.store.read(stored)
    metadata: JsonObject = {}
    for note in notes_in(rows):
        metadata = as_object(note.get(METADATA)) if METADATA in note else metadata
    return {"id": _name(stored), "object": "conversation", "created_at": int(rows[0].time), "metadata": metadata}


def _messages(items: list[JsonObject]) -> list[ChatMessage]:
    if not items:
        return []
    try:
        sent = read_input(items)
    except RequestError as error:
        param = (error.param or "").replace("input", "items", 1)
        raise RequestError(error.status, error.message, param=param, code=error.code) from None
    if sent.answers:
        raise RequestError(
            400, "the item must answer a call among these items", param=sent.answers[0].at.replace("input", "items")
        )
    return sent.messages


def _found(items: list[JsonObject], id: str) -> JsonObject:
    for item in items:
        if item["id"] == id:
            return item
    raise not_found("item", id[:100])


def _name(stored: str) -> str:
    return ConversationId.parse(stored).chat

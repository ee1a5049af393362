"""OpenAI's Responses API and the Open Responses specification, for every provider."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from sidestream.jsontext import JsonObject
from sidestream.server.errors import RequestError, run_error
from sidestream.server.http import requests
from sidestream.server.http.event_stream import event_stream, frame, wait_comment
from sidestream.server.responses.input_items import read_input
from sidestream.server.responses.log import DELETED, ResponseFold, ResponseInfo, responses_in
from sidestream.server.responses.request import PreparedRequest, ResponsesRequest, dialect_of, error_type, prepared
from sidestream.server.responses.service import base_of, find_response, followed, forget, read_response, start
from sidestream.server.responses.stored_items import conversation_items, known_items, listed
from sidestream.server.runs.service import append
from sidestream.server.server import Server
from sidestream.server.settings import Dialect
from sidestream.store.records import Noted

DONE = b"data: [DONE]\n\n"


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    from sidestream.server.responses.compact_api import compact, count_tokens
    from sidestream.server.responses.socket import responses_socket

    answering = requests.with_errors(_error)
    return [
        Route("/v1/responses", answering(create), methods=["POST"]),
        WebSocketRoute("/v1/responses", responses_socket),
        Route("/v1/responses/compact", answering(compact), methods=["POST"]),
        Route("/v1/responses/input_tokens", answering(count_tokens), methods=["POST"]),
        Route("/v1/responses/{id}", answering(retrieve), methods=["GET"]),
        Route("/v1/responses/{id}", answering(delete), methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", answering(cancel), methods=["POST"]),
        Route("/v1/responses/{id}/input_items", answering(input_items), methods=["GET"]),
    ]


def _error(request: Request, refused: RequestError) -> JsonObject:
    """Return an error body with a type that the dialect defines."""
    body = refused.body()
    if refused.param != "dialect":
        body["error"]["type"] = error_type(refused, dialect_of(request))
    return body


async def create(request: Request) -> Response:
    """Start a response that is streamed, returned in one piece, or made in the background."""
    dialect = dialect_of(request)
    given = await requests.read_json(request)
    server, owner = requests.server_of(request), requests.owner_of(request)
    body = requests.checked(given, ResponsesRequest)
    wanted = prepared(given, body, server.settings, dialect)
    at = requests.sent_at(request)
    if at is not None and (not body.background or body.stream):
        message = f"{requests.AT_HEADER} requires background=true and no stream"
        raise RequestError(400, message, param="background")
    info = await begin(server, owner, wanted, at)
    headers = {requests.RUN_HEADER: info.run}
    if body.stream:
        return event_stream(_frames(server, info, dialect), headers)
    if body.background:
        return requests.json_response(await read_response(server, info, dialect), headers=headers)
    return requests.json_response(await whole(server, info, dialect), headers=headers)


async def begin(server: Server, owner: str, request: PreparedRequest, at: float | None = None) -> ResponseInfo:
    """Start the run of a request, or schedule it for `at`."""
    base = await base_of(server, owner, request)
    known = await known_items(server, owner, request.body.input, base.conversation)
    return await start(server, owner, request, base, read_input(request.body.input, known), at=at)


async def whole(server: Server, info: ResponseInfo, dialect: Dialect) -> JsonObject:
    """Return the finished response. Raises RequestError if it failed without any output."""
    fold = ResponseFold(info, dialect)
    try:
        async with aclosing(followed(server, info, dialect, fold)) as batches:
            async for _ in batches:
                pass
    finally:
        if not info.is_stored:
            await asyncio.shield(forget(server, info))
    assert fold.encoder is not None
    response, error = fold.encoder.response, fold.encoder.error
    if error is not None and not response["output"]:
        refused = run_error(error)
        refused.headers |= {requests.RUN_HEADER: info.run}
        if refused.code == "unsupported":
            refused.param = refused.param or ("tools" if info.job.tools else None)
        raise refused
    return response


async def retrieve(request: Request) -> Response:
    """Return a response in its current state, or with `stream` its events after `starting_after`."""
    dialect, query = dialect_of(request), request.query_params
    server = requests.server_of(request)
    info = await find_response(server, requests.owner_of(request), request.path_params["id"])
    headers = {requests.RUN_HEADER: info.run}
    after = requests.query_number(query, "starting_after")
    if query.get("stream", "false").lower() != "true":
        if after is not None:
            raise RequestError(400, "starting_after requires stream=true", param="starting_after")
        return requests.json_response(await read_response(server, info, dialect), headers=headers)
    server.runs.readers.admit(requests.owner_of(request))
    return event_stream(_frames(server, info, dialect, -1 if after is None else after), headers)


async def delete(request: Request) -> Response:
    """Delete a response, and with the last one also its conversation. Other responses can still be read."""
    server = requests.server_of(request)
    info = await find_response(server, requests.owner_of(request), request.path_params["id"])
    if info.end is None:
        await server.runs.stop(info.conversation)
    elif await server.runs.is_busy(info.conversation):
        raise RequestError(409, "a later response in the conversation is in progress", type="conflict", code="busy")
    is_kept = "/conv_" in info.conversation
    found = responses_in(info.conversation, await server.store.read(info.conversation))
    if len(found) == 1 and not is_kept:
        await server.runs.delete(info.conversation)
    else:
        await append(server.store, info.conversation, [Noted({DELETED: [info.id]})])
    return requests.json_response({"id": info.id, "object": "response", "deleted": True})


async def cancel(request: Request) -> Response:
    """Stop a response. A finished one is returned unchanged."""
    server = requests.server_of(request)
    info = await find_response(server, requests.owner_of(request), request.path_params["id"])
    if info.end is None:
        await server.runs.stop(info.conversation)
    return requests.json_response(await read_response(server, info, dialect_of(request)))


async def input_items(request: Request) -> Response:
    """List the input of a response, which includes the items before its request."""
    server = requests.server_of(request)
    info = await find_response(server, requests.owner_of(request), request.path_params["id"])
    items = await conversation_items(server, info.conversation, until=info.start)
    return requests.json_response(listed(items, request.query_params))


async def _frames(server: Server, info: ResponseInfo, dialect: Dialect, after: int = -1) -> AsyncGenerator[bytes]:
    fold, told = ResponseFold(info, dialect), 0
    try:
        async with aclosing(followed(server, info, dialect, fold)) as batches:
            async for batch in batches:
                data = [frame(event, event["type"]) for event in batch if event["sequence_number"] > after]
                data += map(wait_comment, fold.waits[told:])
                told = len(fold.waits)
                if data:
                    yield b"".join(data)
        yield DONE
    finally:
        if not info.is_stored:
            await asyncio.shield(forget(server, info))

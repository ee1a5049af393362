"""Anthropic's Messages API, for clients that speak it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.jsontext import JsonObject
from sidestream.messages.tokens import message_tokens
from sidestream.protocols.anthropic_messages import MessagesEncoder, error_type, message_of
from sidestream.server.compatible.messages_input import MessagesRequest, TokensRequest, without_blocks_of_others
from sidestream.server.compatible.shared import all_events, events_of, started
from sidestream.server.errors import RequestError, run_error
from sidestream.server.http.event_stream import event_stream, frame
from sidestream.server.http.requests import checked, json_response, read_json, server_of, with_errors
from sidestream.server.runs.live import RunInfo


def routes() -> list[BaseRoute]:
    """What this API answers to."""
    answering = with_errors(_error)
    return [
        Route("/v1/messages", answering(create), methods=["POST"]),
        Route("/v1/messages/count_tokens", answering(count_tokens), methods=["POST"]),
    ]


async def create(request: Request) -> Response:
    """Answers a conversation, streamed or whole."""
    body = checked(without_blocks_of_others(await read_json(request)), MessagesRequest)
    server = server_of(request)
    job = body.job(server.settings.default)
    info = await started(request, server.agent(job.agent), body.history(), job)
    encoder = MessagesEncoder(
        id=f"msg_{info.id.removeprefix('run_')}",
        model=job.agent,
        functions=[str(function["name"]) for function in job.functions],
    )
    if body.stream:
        return event_stream(_frames(request, info, encoder))
    return json_response(message_of(await all_events(request, info, encoder, run_error)))


async def count_tokens(request: Request) -> Response:
    """An estimate of the tokens of a request."""
    body = checked(without_blocks_of_others(await read_json(request)), TokensRequest)
    return json_response({"input_tokens": message_tokens(body.history())})


async def _frames(request: Request, info: RunInfo, encoder: MessagesEncoder) -> AsyncGenerator[bytes]:
    async with aclosing(events_of(request, info, encoder)) as batches:
        async for events in batches:
            yield b"".join(frame(event, event["type"]) for event in events)


def _error(_: Request, refused: RequestError) -> JsonObject:
    """An error as this API writes it: the message begins with the place of what is wrong."""
    message = f"{refused.param}: {refused.message}" if refused.param else refused.message
    return {"type": "error", "error": {"type": error_type(refused.status), "message": message}}

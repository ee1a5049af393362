"""OpenAI's Chat Completions API, for clients that speak nothing newer."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.protocols.chat_completions import ChatCompletionsEncoder, completion
from sidestream.server.compatible.completions_input import CompletionRequest
from sidestream.server.compatible.shared import all_events, events_of, started
from sidestream.server.errors import run_error
from sidestream.server.http.event_stream import event_stream, frame
from sidestream.server.http.requests import checked, json_response, read_json, server_of
from sidestream.server.runs.live import RunInfo

DONE = b"data: [DONE]\n\n"


def routes() -> list[BaseRoute]:
    """What this API answers to."""
    return [Route("/v1/chat/completions", create, methods=["POST"])]


async def create(request: Request) -> Response:
    """Answers a conversation, streamed or whole."""
    body = checked(await read_json(request), CompletionRequest)
    server = server_of(request)
    job, history = body.job(server.settings.default), body.history()
    info = await started(request, server.agent(job.agent), history, job)
    encoder = ChatCompletionsEncoder(
        id=f"chatcmpl-{info.id.removeprefix('run_')}",
        model=job.agent,
        created=int(time.time()),
        functions=[str(function["name"]) for function in job.functions],
        include_usage=not body.stream or (body.stream_options is not None and body.stream_options.include_usage),
    )
    if body.stream:
        return event_stream(_frames(request, info, encoder))
    return json_response(completion(await all_events(request, info, encoder, run_error)))


async def _frames(request: Request, info: RunInfo, encoder: ChatCompletionsEncoder) -> AsyncGenerator[bytes]:
    async with aclosing(events_of(request, info, encoder)) as batches:
        async for chunks in batches:
            yield b"".join(map(frame, chunks))
    if encoder.error is not None:
        yield frame(run_error(encoder.error).body())
    yield DONE

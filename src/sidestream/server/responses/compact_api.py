"""Compaction and token counting of requests."""

from starlette.requests import Request
from starlette.responses import Response

from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage
from sidestream.messages.tokens import message_tokens
from sidestream.parts import Error, Finish, TextDelta, TextEnd, Usage
from sidestream.protocols.responses.items import made_id
from sidestream.protocols.responses.object import usage_object
from sidestream.server.errors import RequestError, run_error
from sidestream.server.http.event_stream import parts_of
from sidestream.server.http.requests import checked, json_response, owner_of, read_json, server_of
from sidestream.server.responses.input_items import compacted_item, read_input
from sidestream.server.responses.request import PreparedRequest, ResponsesRequest, prepared
from sidestream.server.responses.service import base_of, new_conversation
from sidestream.server.responses.stored_items import known_items, message_items
from sidestream.server.server import Server

_INSTRUCTION = (
    "Summarise the conversation so far for yourself: you will continue it from the summary alone. Keep every fact, "
    "decision, name, number, file, open question and wish of the user that may still matter. Write the summary only."
)


async def compact(request: Request) -> Response:
    """Shorten the input of a conversation to the user messages and one item for the rest."""
    wanted = await _request(request)
    if wanted.body.model is None:
        raise RequestError(400, "model is required", param="model", code="missing_required_parameter")
    server, owner = server_of(request), owner_of(request)
    history = await _history(server, owner, wanted)
    text, usage, run, created = await _summary(server, owner, wanted, history)
    users = [message for message in history if message.role == "user"]
    output: list[JsonObject] = [
        item for number, message in enumerate(users) for item in message_items(message, run, number)
    ]
    output.append({**compacted_item(f"Summary of the conversation so far:\n\n{text}", made_id("compaction", run))})
    body = {"id": f"resp_{run.removeprefix('run_')}", "object": "response.compaction", "created_at": int(created)}
    return json_response({**body, "output": output, "usage": usage_object(usage)})


async def count_tokens(request: Request) -> Response:
    """Estimate how many tokens a request would send."""
    wanted = await _request(request)
    history = await _history(server_of(request), owner_of(request), wanted)
    system = [ChatMessage.system(wanted.body.instructions)] if wanted.body.instructions else []
    count = message_tokens([*system, *history])
    return json_response({"object": "response.input_tokens", "input_tokens": count})


async def _request(request: Request) -> PreparedRequest:
    given = await read_json(request)
    body = checked(given, ResponsesRequest)
    return prepared(given, body, server_of(request).settings, "openai")


async def _history(server: Server, owner: str, wanted: PreparedRequest) -> list[ChatMessage]:
    base = await base_of(server, owner, wanted)
    given = wanted.body.input
    known = await known_items(server, owner, given, base.conversation)
    sent = read_input(given, known).messages if given else []
    history = [*base.messages, *sent]
    if not history:
        raise RequestError(400, "input is required", param="input", code="missing_required_parameter")
    return history


async def _summary(
    server: Server, owner: str, wanted: PreparedRequest, history: list[ChatMessage]
) -> tuple[str, Usage, str, float]:
    """Have the model summarise the history, in a run that is not kept."""
    agent = server.agent(wanted.agent)
    job = Job(
        agent=wanted.agent,
        api="compact",
        system=wanted.body.instructions,
        allowed=(),
        is_stored=False,
        is_resumable=False,
    )
    conversation = new_conversation(owner, is_stored=False)
    info = await server.runs.start(agent, conversation, _INSTRUCTION, job, beginning=history)
    texts: dict[str, str] = {}
    usage, error = Usage(), None
    try:
        for part in [part async for parts in parts_of(server.runs, info) for part in parts]:
            match part:
                case TextDelta(id=id, delta=text):
                    texts[id] = texts.get(id, "") + text
                case TextEnd(id=id, text=str(text)):
                    texts[id] = text
                case Error() if part.kind != "tool":
                    error = part
                case Finish():
                    usage = part.usage
                case _:
                    pass
    finally:
        rows = await server.store.read(conversation)
        await server.runs.stop(conversation)
        await server.store.delete(conversation)
    if error is not None:
        raise run_error(error)
    return "\n\n".join(texts.values()), usage, info.id, rows[0].time

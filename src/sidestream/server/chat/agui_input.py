"""AG-UI requests. The server keeps the history, so only the user's last messages of a request count."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.jsontext import JsonObject, as_object, is_array
from sidestream.protocols.agui import AGUIEncoder
from sidestream.protocols.ai_sdk.content import UrlOf
from sidestream.server.chat.input import ChatBody, PostedFunction
from sidestream.server.chat.stream import sse_frames
from sidestream.server.chat.turns import begin_turn
from sidestream.server.errors import RequestError
from sidestream.server.http.event_stream import event_stream
from sidestream.server.http.requests import RUN_HEADER, checked, owner_of, read_json, server_of
from sidestream.server.runs.decisions import Answer
from sidestream.server.server import Server


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of the default agent and of agents by name."""
    return [
        Route("/api/agui", post_run, methods=["POST"]),
        Route("/api/agui/{agent}", post_run, methods=["POST"]),
    ]


async def post_run(request: Request) -> Response:
    """Start a run with the user's new messages, or resume one with answers, and stream its events.

    Repeating a request streams the same run from its start, so a client that lost its connection sends it again.
    """
    server = server_of(request)
    posted = checked(await read_json(request), RunAgentInput)
    body = body_of(posted, request.path_params.get("agent"))
    turn = await begin_turn(server, owner_of(request), body, answers_in(posted), needs_digest=False)

    def encoder_of(id: str, run: str, url_of: UrlOf) -> AGUIEncoder:
        approval_s = server.settings.approval_s
        return AGUIEncoder(posted.thread_id, posted.run_id, id or None, url_of=url_of, approval_s=approval_s)

    return event_stream(sse_frames(turn.encoded(server, encoder_of), end=b""), {RUN_HEADER: turn.run})


MEDIA = frozenset({"image", "audio", "video", "document"})
"""Types of message parts that are files."""


class PostedTool(Struct, frozen=True, kw_only=True):
    """A client function."""

    name: str
    description: str = ""
    parameters: JsonObject | None = None


class PostedContext(Struct, frozen=True, kw_only=True):
    """Context for the model."""

    description: str
    value: str


class ResumeEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to one interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a request. Unknown fields and the client's `state` are ignored."""

    thread_id: str
    run_id: str
    messages: list[JsonObject]
    tools: list[PostedTool] | None = None
    context: list[PostedContext] | None = None
    forwarded_props: Any = None
    resume: list[ResumeEntry] | None = None


class AGUIBody(ChatBody, frozen=True, kw_only=True, rename="camel"):
    """An AG-UI request, converted to the body of a chat request."""

    api: ClassVar[str] = "agui"
    functions_at: ClassVar[tuple[str, str]] = ("tools", "parameters")


class ForwardedProps(Struct, frozen=True, kw_only=True):
    """Options that a client may set in addition to the protocol's fields."""

    model: str | None = None
    thinking: Literal["off", "on", "low", "medium", "high"] | bool | int | None = None
    tools: list[str] | None = None


def answers_in(posted: RunAgentInput) -> list[Answer]:
    """Return the answers to interrupts and the results of client functions.

    Raises RequestError if a tool message does not name its call.
    """
    answers = [_answer(entry, f"resume[{index}]") for index, entry in enumerate(posted.resume or ())]
    for index, message in _trailing(posted.messages, "tool"):
        match message:
            case {"toolCallId": str(call)}:
                error = message.get("error")
                output = error if isinstance(error, str) and error else _text(message, f"messages[{index}]")
                answers.append(Answer(call_id=call, output=output, is_error=bool(error)))
            case _:
                raise RequestError(400, "a tool message must have a toolCallId", param=f"messages[{index}].toolCallId")
    return answers


def body_of(posted: RunAgentInput, agent: str | None) -> AGUIBody:
    """Convert an AG-UI request to a chat request. Raises RequestError if it is invalid."""
    props = checked(as_object(posted.forwarded_props), ForwardedProps)
    parts: list[JsonObject] = []
    id: str | None = None
    for index, message in _trailing(posted.messages, "user"):
        parts += _parts(message, f"messages[{index}]")
        found = message.get("id")
        id = found if isinstance(found, str) else None
    if parts and posted.context:
        lines = [f"{entry.description}: {entry.value}" for entry in posted.context]
        parts.insert(0, {"type": "text", "text": "\n".join(lines)})
    message: JsonObject = {"role": "user", "parts": parts} | ({"id": id} if id is not None else {})
    functions = [
        {"name": f.name, "description": f.description, "schema": f.parameters or {}} for f in posted.tools or ()
    ]
    return AGUIBody(
        id=posted.thread_id,
        messages=[message] if parts else [],
        model=agent or props.model,
        thinking=props.thinking,
        tools=props.tools,
        functions=checked(functions, list[PostedFunction]),
    )


def _trailing(messages: Sequence[JsonObject], role: str) -> list[tuple[int, JsonObject]]:
    """Return the last messages of the history that have this role, with their indexes."""
    start = len(messages)
    while start and messages[start - 1].get("role") == role:
        start -= 1
    return list(enumerate(messages))[start:]


def _answer(entry: ResumeEntry, at: str) -> Answer:
    """Convert an interrupt's answer, of which a cancelled one denies the call and a resolved one holds the decision."""
    if entry.status == "cancelled":
        return Answer(approval_id=entry.interrupt_id, approved=False)
    match entry.payload:
        case {"approved": bool(approved)}:
            payload = as_object(entry.payload)
            reason, digest, values = payload.get("reason"), payload.get("digest"), payload.get("answers")
            return Answer(
                approval_id=entry.interrupt_id,
                approved=approved,
                digest=digest if isinstance(digest, str) else None,
                reason=reason if isinstance(reason, str) else None,
                values=as_object(values) if values is not None else None,
            )
        case _:
            raise RequestError(400, 'payload must be {"approved": true} or {"approved": false}', param=f"{at}.payload")


def _parts(message: JsonObject, at: str) -> list[JsonObject]:
    """Convert a user message to the parts of a chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not is_array(content):
        raise RequestError(400, "content must be a string or a list of parts", param=f"{at}.content")
    return [_part(as_object(part), f"{at}.content[{index}]") for index, part in enumerate(content)]


def _part(part: JsonObject, at: str) -> JsonObject:
    match part, as_object(part.get("source")):
        case {"type": "text", "text": str(text)}, _:
            return {"type": "text", "text": text}
        case {"type": str(kind)}, {"type": "data", "value": str(data), "mimeType": str(mime_type)} if kind in MEDIA:
            return {"type": "file", "mediaType": mime_type, "url": f"data:{mime_type};base64,{data}"}
        case {"type": str(kind)}, {"type": "url", "value": str(url), **source} if kind in MEDIA:
            mime_type = source.get("mimeType")
            return {"type": "file", "url": url} | ({"mediaType": mime_type} if isinstance(mime_type, str) else {})
        case _:
            raise RequestError(400, "a part must be text, or a file with data or a URL", param=at)


def _text(message: JsonObject, at: str) -> str:
    """Return the text of a tool message."""
    return "\n".join(part["text"] for part in _parts(message, at) if part["type"] == "text")

"""The Chat Completions API: its requests and their conversion to runs."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject, object_in, without_none
from sidestream.messages.message import ChatMessage, MessagePart, TextPart, ToolCallPart, ToolResultPart
from sidestream.protocols.chat_completions import ChatCompletionsEncoder, completion
from sidestream.server.compatible.shared import (
    all_events,
    asking,
    file_url,
    frames_of,
    name_of,
    settings_of,
    started,
    text_in,
)
from sidestream.server.errors import RequestError, run_error
from sidestream.server.http.event_stream import event_stream, frame
from sidestream.server.http.request_files import document_in, file_at, file_in, is_empty
from sidestream.server.http.request_functions import ANY_OBJECT, checked_output, functions_of, unknown_tool
from sidestream.server.http.requests import RUN_HEADER, checked, json_response, read_json, server_of
from sidestream.server.runs.service import RunInfo
from sidestream.tools.approvals import APPROVAL_TOOL
from sidestream.tools.server_side import WebSearch

DONE = b"data: [DONE]\n\n"


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    return [Route("/v1/chat/completions", create, methods=["POST"])]


async def create(request: Request) -> Response:
    """Answer a conversation, streamed or in one response."""
    body = checked(await read_json(request), CompletionRequest)
    server = server_of(request)
    job, history = body.job(server.settings.default), body.history()
    info = await started(request, server.agent(job.agent), history, job)
    job = info.job or job
    encoder = ChatCompletionsEncoder(
        id=f"chatcmpl-{info.id.removeprefix('run_')}",
        model=job.agent,
        created=int(time.time()),
        functions=[str(function["name"]) for function in job.functions],
        ask=asking(request, info, can_answer=bool(body.tools)),
        url_of=partial(file_url, request),
        include_usage=not body.stream or (body.stream_options is not None and body.stream_options.include_usage),
    )
    headers = {RUN_HEADER: info.id}
    if body.stream:
        return event_stream(_frames(request, info, encoder), headers)
    return json_response(completion(await all_events(request, info, encoder, run_error)), headers=headers)


async def _frames(request: Request, info: RunInfo, encoder: ChatCompletionsEncoder) -> AsyncGenerator[bytes]:
    async with aclosing(frames_of(request, info, encoder, frame)) as frames:
        async for data in frames:
            yield data
    if encoder.error is not None:
        yield frame(run_error(encoder.error).body())
    yield DONE


THINKING = {"none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
"""`thinking` settings by `reasoning_effort`."""
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class _Url(Struct):
    url: str


class _Audio(Struct):
    data: str
    format: str


class _File(Struct):
    file_data: str | None = None
    filename: str | None = None


class _Text(Struct, tag="text"):
    text: str


class _Image(Struct, tag="image_url"):
    image_url: _Url


class _InputAudio(Struct, tag="input_audio"):
    input_audio: _Audio


class _InputFile(Struct, tag="file"):
    file: _File


class _Refusal(Struct, tag="refusal"):
    refusal: str


_Content = str | list[_Text | _Image | _InputAudio | _InputFile | _Refusal]


class _CalledFunction(Struct):
    name: str
    arguments: str


class _Call(Struct):
    id: str
    function: _CalledFunction


class _System(Struct, tag="system", tag_field="role"):
    content: _Content


class _Developer(Struct, tag="developer", tag_field="role"):
    content: _Content


class _User(Struct, tag="user", tag_field="role"):
    content: _Content


class _Assistant(Struct, tag="assistant", tag_field="role"):
    content: _Content | None = None
    tool_calls: list[_Call] | None = None


class _Tool(Struct, tag="tool", tag_field="role"):
    content: _Content
    tool_call_id: str


class _Function(Struct):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _FunctionTool(Struct, tag="function"):
    function: _Function


class _Named(Struct):
    name: str


class _FunctionChoice(Struct, tag="function"):
    function: _Named


class _Allowed(Struct):
    tools: Annotated[list[_FunctionChoice], Meta(min_length=1)]
    mode: Literal["auto", "required"] = "auto"


class _AllowedChoice(Struct, tag="allowed_tools"):
    allowed_tools: _Allowed


class _StreamOptions(Struct):
    include_usage: bool = False


class _Schema(Struct):
    schema: JsonObject
    name: str = "output"
    strict: bool | None = None


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Place(Struct):
    city: str | None = None
    region: str | None = None
    country: str | None = None
    timezone: str | None = None


class _Location(Struct):
    approximate: _Place


class _SearchOptions(Struct):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: _Location | None = None

    def tool(self) -> JsonObject:
        """Return the web search that the options ask for."""
        place = self.user_location.approximate if self.user_location is not None else None
        location = without_none(to_builtins(place)) if place is not None else {}
        fields: JsonObject = {"context_size": self.search_context_size, "location": location or None}
        return {"name": WebSearch.key, **without_none(fields)}


class CompletionRequest(Struct):
    """The body of a request."""

    messages: Annotated[list[_System | _Developer | _User | _Assistant | _Tool], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[_FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _FunctionChoice | _AllowedChoice | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    response_format: _Format | None = None
    web_search_options: _SearchOptions | None = None
    n: Literal[1] | None = None
    store: bool | None = None

    def job(self, default: str) -> Job:
        """Return the job of the run."""
        settings: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "stop": self.stop,
            "seed": self.seed,
            "thinking": self._thinking(),
            "tool_choice": self._must_call(),
        }
        return Job(
            agent=self.model or default,
            api="completions",
            settings=settings_of(settings),
            tools=None if self.web_search_options is None else (self.web_search_options.tool(),),
            adds_tools=True,
            functions=self._functions(),
            allowed=self._allowed(),
            output=self._output(),
            is_stored=self.store is not False,
        )

    def history(self) -> list[ChatMessage]:
        """Convert the messages to ours, joining consecutive tool results into one message."""
        history: list[ChatMessage] = []
        names: dict[str, str] = {}
        for index, message in enumerate(self.messages):
            where = f"messages[{index}]"
            match message:
                case _System() | _Developer():
                    history.append(ChatMessage.system(_text(message.content, where)))
                case _User():
                    parts = _parts(message.content, where)
                    if is_empty(parts):
                        raise RequestError(400, "the message is empty", param=f"{where}.content")
                    history.append(ChatMessage("user", tuple(parts)))
                case _Assistant():
                    calls = [_call(call) for call in message.tool_calls or ()]
                    names |= {call.id: call.name for call in calls}
                    history.append(ChatMessage("model", (*_parts(message.content or [], where), *calls)))
                case _Tool():
                    name = name_of(message.tool_call_id, names, f"{where}.tool_call_id")
                    result = ToolResultPart(message.tool_call_id, name, _text(message.content, where))
                    if history and history[-1].role == "tool":
                        history[-1] = ChatMessage("tool", (*history[-1].parts, result))
                    else:
                        history.append(ChatMessage("tool", (result,)))
        return history

    def _functions(self) -> tuple[JsonObject, ...]:
        declared = enumerate(tool.function for tool in self.tools or ())
        return functions_of(
            [
                (f"tools[{index}].function", f.name, f.description, f.parameters, f.strict)
                for index, f in declared
                if f.name != APPROVAL_TOOL
            ]
        )

    def _must_call(self) -> str | None:
        """Return the tool that the model must call first, or "required" for any."""
        match self.tool_choice:
            case "required":
                return "required" if self.tools else None
            case _FunctionChoice(function=function):
                return self._known(function.name, "tool_choice.function.name")
            case _AllowedChoice(allowed_tools=_Allowed(mode="required")):
                return "required"
            case _:
                return None

    def _allowed(self) -> tuple[str, ...] | None:
        match self.tool_choice:
            case "none":
                return ()
            case _AllowedChoice(allowed_tools=allowed):
                at = "tool_choice.allowed_tools.tools"
                return tuple(
                    self._known(entry.function.name, f"{at}[{index}].function.name")
                    for index, entry in enumerate(allowed.tools)
                )
            case _:
                return None

    def _known(self, name: str, at: str) -> str:
        if all(tool.function.name != name for tool in self.tools or ()):
            raise unknown_tool(name, at)
        return name

    def _output(self) -> JsonObject | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return ANY_OBJECT
        if form.json_schema is None:
            raise RequestError(400, "json_schema is required", param="response_format.json_schema")
        return checked_output(form.json_schema.schema, "response_format.json_schema.schema")

    def _thinking(self) -> str | None:
        if self.reasoning_effort is None:
            return None
        if self.reasoning_effort not in THINKING:
            raise RequestError(400, f"reasoning_effort must be one of {', '.join(THINKING)}", param="reasoning_effort")
        return THINKING[self.reasoning_effort]


def _parts(content: _Content, where: str) -> list[MessagePart]:
    if isinstance(content, str):
        return [TextPart(content)]
    parts: list[MessagePart] = []
    for index, entry in enumerate(content):
        at = f"{where}.content[{index}]"
        match entry:
            case _Text(text=text) | _Refusal(refusal=text):
                parts.append(TextPart(text))
            case _Image(image_url=image):
                parts.append(file_at(image.url, f"{at}.image_url.url", mime_type="image/png"))
            case _InputAudio(input_audio=audio):
                parts.append(file_in(audio.data, f"{at}.input_audio.data", mime_type=f"audio/{audio.format}"))
            case _InputFile(file=file):
                if file.file_data is None:
                    raise RequestError(400, "file_data is required", param=f"{at}.file.file_data")
                parts.append(document_in(file.file_data, f"{at}.file.file_data", name=file.filename))
    return parts


def _text(content: _Content, where: str) -> str:
    parts = _parts(content, where)
    if not all(isinstance(part, TextPart) for part in parts):
        raise RequestError(400, "only text is allowed here", param=f"{where}.content")
    return text_in(parts)


def _call(call: _Call) -> ToolCallPart:
    name, text = call.function.name, call.function.arguments
    arguments = object_in(text or "{}")
    return ToolCallPart(call.id, name, arguments, text if arguments is None else None)

"""Anthropic's Messages API: its requests and their conversion to runs."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.durable.log.jobs import Job
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, as_object, is_array, is_object, without_none
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.tokens import message_tokens
from sidestream.protocols.anthropic_messages import MessagesEncoder, error_type, message_of, thinking_of
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
from sidestream.server.http.request_files import file_at, file_in, is_empty
from sidestream.server.http.request_functions import Declared, checked_output, functions_of, unknown_tool
from sidestream.server.http.requests import RUN_HEADER, checked, json_response, read_json, server_of, with_errors
from sidestream.server.runs.service import RunInfo
from sidestream.tools.approvals import APPROVAL_TOOL
from sidestream.tools.server_side import TOOLS


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    answering = with_errors(_error)
    return [
        Route("/v1/messages", answering(create), methods=["POST"]),
        Route("/v1/messages/count_tokens", answering(count_tokens), methods=["POST"]),
    ]


async def create(request: Request) -> Response:
    """Answer a conversation, streamed or in one response."""
    body = checked(without_blocks_of_others(await read_json(request)), MessagesRequest)
    server = server_of(request)
    job = body.job(server.settings.default)
    info = await started(request, server.agent(job.agent), body.history(), job)
    job = info.job or job
    encoder = MessagesEncoder(
        id=f"msg_{info.id.removeprefix('run_')}",
        model=job.agent,
        functions=[str(function["name"]) for function in job.functions],
        ask=asking(request, info, can_answer=any(tool.type == "custom" for tool in body.tools)),
        # Clients parse every text block of an answer with a schema as JSON.
        url_of=None if job.output is not None else partial(file_url, request),
    )
    headers = {RUN_HEADER: info.id}
    if body.stream:
        return event_stream(_frames(request, info, encoder), headers)
    return json_response(message_of(await all_events(request, info, encoder, run_error)), headers=headers)


async def count_tokens(request: Request) -> Response:
    """Estimate the number of tokens of a request."""
    body = checked(without_blocks_of_others(await read_json(request)), TokensRequest)
    return json_response({"input_tokens": message_tokens(body.history())})


def _frames(request: Request, info: RunInfo, encoder: MessagesEncoder) -> AsyncGenerator[bytes]:
    return frames_of(request, info, encoder, lambda event: frame(event, event["type"]))


def _error(_: Request, refused: RequestError) -> JsonObject:
    """Return an error in this API's format, whose message starts with the parameter."""
    message = f"{refused.param}: {refused.message}" if refused.param else refused.message
    return {"type": "error", "error": {"type": error_type(refused.status), "message": message}}


HOSTED = {"web_search_": "web_search", "web_fetch_": "web_fetch", "code_execution_": "code_interpreter"}
"""Our tool names by the prefix of the API's tool types."""


_OF_OTHERS = frozenset(
    {
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "container_upload", "compaction"),
        *("fallback", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
        *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"),
        "advisor_tool_result",
    }
)
"""Types of blocks from Anthropic's own tools. Clients send them back, but only the text that followed counts."""


class _Base64Source(Struct, tag="base64"):
    data: str
    media_type: str


class _UrlSource(Struct, tag="url"):
    url: str


class _TextSource(Struct, tag="text"):
    data: str


class _Text(Struct, tag="text"):
    text: str
    files: list[JsonObject] | None = None
    """Files of an earlier answer. The model has not written this block."""


class _Image(Struct, tag="image"):
    source: _Base64Source | _UrlSource


class _Document(Struct, tag="document"):
    source: _Base64Source | _UrlSource | _TextSource
    title: str | None = None


class _ToolUse(Struct, tag="tool_use"):
    id: str
    name: str
    input: JsonObject


class _ToolResult(Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text | _Image | _Document] = ""
    is_error: bool = False


class _Thinking(Struct, tag="thinking"):
    thinking: str
    signature: str | None = None


class _RedactedThinking(Struct, tag="redacted_thinking"):
    data: str


_Block = _Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking | _RedactedThinking


class _Message(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(Struct):
    type: str = "custom"
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")] = ""
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    max_uses: int | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: JsonObject | None = None
    max_content_tokens: int | None = None
    citations: JsonObject | None = None


class _Choice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _Schema(Struct, tag="json_schema"):
    schema: JsonObject


class _OutputConfig(Struct):
    format: _Schema | None = None


class _ThinkingSetting(Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None


class TokensRequest(Struct):
    """The body of a token count request."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    model: str | None = None
    system: str | list[_Text] | None = None
    tools: list[_Tool] = field(default_factory=list[_Tool])

    def history(self) -> list[ChatMessage]:
        """Convert the messages to ours."""
        history: list[ChatMessage] = []
        names: dict[str, str] = {}
        if self.system:
            text = self.system if isinstance(self.system, str) else "\n\n".join(block.text for block in self.system)
            history.append(ChatMessage.system(text))
        for index, message in enumerate(self.messages):
            history += _messages(message, f"messages[{index}].content", names)
        return history


class MessagesRequest(TokensRequest):
    """The body of a request."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool = False
    tool_choice: _Choice | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop_sequences: list[str] | None = None
    thinking: _ThinkingSetting | None = None
    output_config: _OutputConfig | None = None

    def job(self, default: str) -> Job:
        """Return the job of the run."""
        settings: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "thinking": self._thinking(),
            "tool_choice": self._must_call(),
        }
        hosted = [_hosted(tool, f"tools[{index}]") for index, tool in enumerate(self.tools) if tool.type != "custom"]
        form = self.output_config.format if self.output_config is not None else None
        return Job(
            agent=self.model or default,
            api="messages",
            settings=settings_of(settings),
            tools=tuple(hosted) or None,
            adds_tools=True,
            has_reasoning=True,  # The API is stateless, so the client sends it back.
            functions=self._functions(),
            allowed=() if self.tool_choice is not None and self.tool_choice.type == "none" else None,
            output=checked_output(form.schema, "output_config.format.schema") if form is not None else None,
        )

    def _functions(self) -> tuple[JsonObject, ...]:
        given = [(f"tools[{index}]", tool) for index, tool in enumerate(self.tools) if tool.type == "custom"]
        own = [(at, tool) for at, tool in given if tool.name != APPROVAL_TOOL]
        declared: list[Declared] = [(at, t.name, t.description, t.input_schema, t.strict) for at, t in own]
        return functions_of(declared, schema_name="input_schema")

    def _must_call(self) -> str | None:
        """Return the tool that the model must call first, or "required" for any."""
        match self.tool_choice:
            case _Choice(type="any"):
                return "required" if any(tool.type == "custom" for tool in self.tools) else None
            case _Choice(type="tool", name=name):
                if name is None or all(tool.name != name for tool in self.tools if tool.type == "custom"):
                    raise unknown_tool(name, "tool_choice.name")
                return name
            case _:
                return None

    def _thinking(self) -> str | int | None:
        match self.thinking:
            case None:
                return None
            case _ThinkingSetting(type="disabled"):
                return "off"
            case _ThinkingSetting(type="adaptive"):
                return "on"
            case _ThinkingSetting(budget_tokens=budget):
                return budget or "on"


def without_blocks_of_others(given: JsonObject) -> JsonObject:
    """Empty the blocks that only Anthropic can read, keeping their positions."""
    empty: JsonObject = {"type": "redacted_thinking", "data": ""}
    messages = given.get("messages")
    if not is_array(messages):
        return given
    return {**given, "messages": [_emptied(message, empty) if is_object(message) else message for message in messages]}


def _emptied(message: JsonObject, empty: JsonObject) -> JsonObject:
    content = message.get("content")
    if message.get("role") != "assistant" or not is_array(content):
        return message
    kinds = [as_object(block).get("type") for block in content]
    kept = [empty if kind in _OF_OTHERS else block for block, kind in zip(content, kinds, strict=True)]
    return {**message, "content": kept}


def _hosted(tool: _Tool, at: str) -> JsonObject:
    """Return a server-side tool with the restrictions from the request. Raises RequestError if it is not supported."""
    for start, name in HOSTED.items():
        if tool.type.startswith(start):
            fields = _restrictions(tool, name)
            try:
                convert(fields, TOOLS[name])
            except (ConfigurationError, ValidationError, UnicodeEncodeError) as error:
                raise RequestError(400, str(error), param=at) from None
            return {"name": name, **fields}
    raise RequestError(400, f"unsupported tool type {tool.type!r}", param=f"{at}.type")


def _restrictions(tool: _Tool, name: str) -> JsonObject:
    if name == "code_interpreter":
        return {}
    fields: JsonObject = {
        "allowed_domains": tool.allowed_domains,
        "blocked_domains": tool.blocked_domains,
        "max_uses": tool.max_uses,
    }
    if name == "web_search":
        place = tool.user_location or {}
        known = ("city", "region", "country", "timezone")
        fields["location"] = {name: place[name] for name in known if place.get(name) is not None} or None
    else:
        fields["max_content_tokens"] = tool.max_content_tokens
        fields["citations"] = (tool.citations or {}).get("enabled")
    return without_none(fields)


def _messages(message: _Message, where: str, names: dict[str, str]) -> list[ChatMessage]:
    """Convert a message to ours, moving tool results out of the user's content into a separate message."""
    if isinstance(message.content, str):
        parts: list[MessagePart] = [TextPart(message.content)]
    else:
        parts = [
            part for index, block in enumerate(message.content) for part in _parts(block, f"{where}[{index}]", names)
        ]
    match message.role:
        case "system":
            return [ChatMessage.system(text_in(parts))]
        case "assistant":
            return [ChatMessage("model", tuple(parts))] if parts else []
        case "user":
            results = tuple(part for part in parts if isinstance(part, ToolResultPart))
            rest = tuple(part for part in parts if not isinstance(part, ToolResultPart))
            tools = [ChatMessage("tool", results)] if results else []
            if is_empty(rest) and not tools:
                raise RequestError(400, "the message is empty", param=where)
            return [*tools, ChatMessage("user", rest)] if rest else tools


def _parts(block: _Block, where: str, names: dict[str, str]) -> list[MessagePart]:
    match block:
        case _Text(text=text, files=files):
            return [TextPart(text)] if not files else []
        case _Image() | _Document():
            return [_file(block, where)]
        case _ToolUse(id=id, name=name, input=given):
            names[id] = name
            return [ToolCallPart(id, name, given)]
        case _ToolResult():
            return [_result(block, where, names)]
        case _Thinking(thinking=text, signature=signature):
            return [thinking_of(text, signature)]
        case _RedactedThinking(data=data):
            return [ThinkingPart("", encrypted_content=data)] if data else []


def _file(block: _Image | _Document, where: str) -> DataPart | LinkPart | TextPart:
    title = block.title if isinstance(block, _Document) else None
    match block.source:
        case _Base64Source(data=data, media_type=kind):
            return file_in(data, f"{where}.source.data", mime_type=kind, name=title)
        case _UrlSource(url=url):
            kind = "image/png" if isinstance(block, _Image) else "application/pdf"
            return file_at(url, f"{where}.source.url", mime_type=kind, name=title)
        case _TextSource(data=data):
            return DataPart(data.encode("utf-8", "replace"), "text/plain", title)


def _result(block: _ToolResult, where: str, names: dict[str, str]) -> ToolResultPart:
    name = name_of(block.tool_use_id, names, f"{where}.tool_use_id", what="tool_use")
    result: Any = block.content
    if not isinstance(result, str):
        parts = [part for index, entry in enumerate(result) for part in _parts(entry, f"{where}[{index}]", names)]
        result = text_in(parts) if all(isinstance(part, TextPart) for part in parts) else to_builtins(parts)
    return ToolResultPart(block.tool_use_id, name, result, block.is_error)

"""Responses API requests: their fields, their conversion to jobs, and the fields that responses echo."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import HTTPConnection

from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject, is_object, without_none
from sidestream.protocols.responses.object import ECHOED
from sidestream.server.errors import RequestError
from sidestream.server.http.request_functions import ANY_OBJECT, checked_output
from sidestream.server.http.requests import server_of
from sidestream.server.responses.request_tools import RequestTools, allowed_tools, tools_of
from sidestream.server.settings import Dialect, ServerSettings

THINKING = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""`thinking` settings by `reasoning.effort`."""
REASONING = "reasoning.encrypted_content"
"""Value of `include` for reasoning that the client can send back."""
Short = Annotated[str, Meta(max_length=64)]
Metadata = Annotated[dict[Short, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class _Reasoning(Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class _PlainText(Struct, tag="text"):
    pass


class _JsonObjectFormat(Struct, tag="json_object"):
    pass


class _JsonSchema(Struct, tag="json_schema"):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class _Text(Struct):
    format: _PlainText | _JsonObjectFormat | _JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _ConversationId(Struct):
    id: str


class _StreamOptions(Struct):
    include_obfuscation: bool | None = None


class ResponsesRequest(Struct, kw_only=True):
    """The body of a request. Unknown fields are ignored, because the API grows."""

    input: str | list[JsonObject] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | _ConversationId | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: Literal["none", "auto", "required"] | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    prompt_cache_key: Short | None = None
    user: str | None = None
    prompt: JsonObject | None = None

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, _ConversationId) else given

    @property
    def is_stored(self) -> bool:
        return self.store is not False


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """A validated request, with its tools and their secrets."""

    body: ResponsesRequest
    given: JsonObject
    """Request fields as sent."""
    agent: str
    tools: RequestTools

    def job(self, **details: Any) -> Job:
        """Return the job of the run."""
        body = self.body
        settings: JsonObject = {
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_tokens": body.max_output_tokens,
            "tool_choice": self.tools.choice,
            "thinking": THINKING[body.reasoning.effort] if body.reasoning and body.reasoning.effort else None,
        }
        return Job(
            agent=self.agent,
            api="responses",
            system=body.instructions,
            settings={**without_none(settings), "unsupported": "warn"},
            tools=self.tools.hosted or None,
            adds_tools=True,
            functions=self.tools.functions,
            allowed=self.tools.allowed,
            output=_output(body.text.format if body.text is not None else None),
            is_stored=body.is_stored,
            has_reasoning=REASONING in (body.include or ()),
            limits={} if body.max_tool_calls is None else {"max_tool_calls": body.max_tool_calls},
            details={"response": {**self._details(), **details}},
            is_resumable=not self.tools.has_secrets,
        )

    def _details(self) -> JsonObject:
        return {
            "model": self.agent,
            "request": {**echo_of(self.given), "tools": list(self.tools.shown), "store": self.body.is_stored},
            "functions": [str(function["name"]) for function in self.tools.functions],
            "custom": list(self.tools.custom),
            **({"namespaces": self.tools.namespaces} if self.tools.namespaces else {}),
            "include": self.body.include or [],
        }


def prepared(given: JsonObject, body: ResponsesRequest, settings: ServerSettings, dialect: Dialect) -> PreparedRequest:
    """Return the request with its tools. Raises RequestError, naming the parameter, if it is invalid."""
    if body.previous_response_id is not None and body.conversation is not None:
        raise RequestError(400, "use previous_response_id or conversation, not both", param="previous_response_id")
    if body.prompt is not None:
        raise RequestError(400, "stored prompts are not supported", param="prompt", code="unsupported_parameter")
    if body.background and not body.is_stored:
        raise RequestError(400, "background responses must be stored; leave out store=false", param="background")
    if dialect == "open-responses":
        _check_strict(body)
    tools = tools_of(body.tools or [], settings)
    return PreparedRequest(
        body=body,
        given=given,
        agent=body.model or settings.default,
        tools=allowed_tools(tools, body.tool_choice),
    )


def _output(form: _PlainText | _JsonObjectFormat | _JsonSchema | None) -> JsonObject | None:
    match form:
        case _JsonSchema(schema=schema):
            return checked_output(schema, "text.format.schema")
        case _JsonObjectFormat():
            return ANY_OBJECT
        case _:
            return None


def _check_strict(body: ResponsesRequest) -> None:
    """Raise RequestError if a field breaks the rules of the Open Responses specification."""
    if body.max_output_tokens is not None and body.max_output_tokens < 16:
        raise RequestError(400, "max_output_tokens must be 16 or more", param="max_output_tokens")
    if body.reasoning is not None and body.reasoning.effort in ("minimal", "max"):
        raise RequestError(400, f"unsupported reasoning effort {body.reasoning.effort!r}", param="reasoning.effort")
    if body.text is not None and isinstance(body.text.format, _JsonObjectFormat):
        raise RequestError(400, "json_object is not supported; use json_schema", param="text.format")
    if body.service_tier not in (None, "auto", "default", "flex", "priority"):
        raise RequestError(400, f"unsupported service tier {body.service_tier!r}", param="service_tier")
    if body.safety_identifier is not None and len(body.safety_identifier) > 64:
        raise RequestError(400, "safety_identifier must have at most 64 characters", param="safety_identifier")
    for index, value in enumerate(body.include or ()):
        if value not in (REASONING, "message.output_text.logprobs"):
            raise RequestError(400, f"unsupported include value {value!r:.80}", param=f"include[{index}]")


def echo_of(given: JsonObject) -> JsonObject:
    """Return the fields of a request that its response echoes, without secrets."""
    kept = {name: given[name] for name in ECHOED if given.get(name) is not None and name not in ("tools", "include")}
    conversation = given.get("conversation")
    if conversation is not None:
        kept["conversation"] = {"id": conversation} if isinstance(conversation, str) else conversation
    if is_object(text := given.get("text")):
        kept["text"] = {"format": {"type": "text"}, **text}
    if is_object(reasoning := given.get("reasoning")):
        kept["reasoning"] = {"effort": None, "summary": None, **reasoning}
    return kept


_SPECIFIED = frozenset({"server_error", "invalid_request_error", "not_found", "model_error", "too_many_requests"})
"""Error types that the specification defines."""


_TYPES = {429: "too_many_requests", 502: "model_error", 504: "model_error"}
"""Error types of the specification by status, for errors with another type."""


VERSION_HEADER = "OpenResponses-Version"
"""Header that selects the dialect of the specification."""


def dialect_of(connection: HTTPConnection) -> Dialect:
    """Return the client's dialect, from its header, the query or the server's settings.

    Raises RequestError if the query names an unknown dialect.
    """
    if VERSION_HEADER in connection.headers:
        return "open-responses"
    match connection.query_params.get("dialect"):
        case None:
            return server_of(connection).settings.dialect
        case "openai":
            return "openai"
        case "open-responses":
            return "open-responses"
        case other:
            raise RequestError(400, f"dialect must be openai or open-responses, not {other!r:.60}", param="dialect")


def error_type(refused: RequestError, dialect: Dialect) -> str:
    """Return the type of an error under the name that the dialect uses."""
    if dialect == "openai" or refused.type in _SPECIFIED:
        return refused.type
    default = "server_error" if refused.status >= 500 else "invalid_request_error"
    return _TYPES.get(refused.status, default)

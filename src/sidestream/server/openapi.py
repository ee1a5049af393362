"""The OpenAPI description of the server's endpoints, from the routes and the shapes of their requests and responses."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream import __version__
from sidestream.durable.worker.service import ALIVE, READY
from sidestream.jsontext import Json, JsonObject
from sidestream.protocols.ai_sdk.data_parts import DataParts
from sidestream.server.chat.agui_input import RunAgentInput
from sidestream.server.chat.input import ChatBody, EvidenceBody
from sidestream.server.compatible.completions_input import CompletionRequest
from sidestream.server.compatible.messages_input import MessagesRequest, TokensRequest
from sidestream.server.console.conversations_api import ChangedConversation, ConversationChange, ConversationList
from sidestream.server.console.runs_api import ForkBody
from sidestream.server.http.offered_models import OfferedPrice
from sidestream.server.http.requests import json_response
from sidestream.server.responses.conversations_api import CreateBody, ItemsBody, UpdateBody
from sidestream.server.responses.request import ResponsesRequest
from sidestream.server.security import is_guarded

PATH = "/openapi.json"

# Shapes of responses. Newer versions may add fields.


class ErrorDetails(TypedDict):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorDetails


class MessagesErrorBody(TypedDict):
    """An error in the format of Anthropic's API."""

    type: Literal["error"]
    error: JsonObject


class ProbeObject(TypedDict):
    """The state of the server."""

    status: Literal["ok", "starting", "draining", "error"]


class ResponseObject(TypedDict):
    """A response of the Responses API."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[JsonObject]
    error: JsonObject | None
    usage: JsonObject | None


class CompactionObject(TypedDict):
    """A shortened conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[JsonObject]
    usage: JsonObject


class InputTokens(TypedDict):
    input_tokens: int


class Deleted(TypedDict):
    id: str
    object: str
    deleted: bool


class ItemList(TypedDict):
    object: Literal["list"]
    data: list[JsonObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationObject(TypedDict):
    """A conversation of the Responses API."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ContainerFile(TypedDict):
    """A file of a response."""

    id: str
    object: Literal["container.file"]
    container_id: str
    created_at: int
    bytes: int
    path: str
    source: str


class ModelObject(TypedDict):
    """An agent or a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CompletionObject(TypedDict):
    """A completion of the Chat Completions API."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None


class MessageObject(TypedDict):
    """A message of Anthropic's Messages API."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: str | None
    stop_sequence: str | None
    usage: JsonObject


class ScheduledObject(TypedDict):
    """A message that is sent later."""

    id: str
    leaf: int
    seq: int
    at: float


class GrantObject(TypedDict):
    """A remembered approval."""

    id: str
    tool: str
    server: str | None
    remote: bool


class GrantList(TypedDict):
    grants: list[GrantObject]


class LeafObject(TypedDict):
    """A branch of a chat."""

    leaf: int
    parent: int | None
    forkedAt: int | None
    updated: float


class ChatObject(TypedDict):
    """A chat with the messages of one branch, as AI SDK messages."""

    id: str
    title: str
    model: str | None
    seq: int
    leaf: int
    leaves: list[LeafObject]
    messages: list[JsonObject]
    run: JsonObject | None
    grants: list[GrantObject]


class Stopped(TypedDict):
    stopped: bool


class CheckedCitationsObject(TypedDict):
    checked: int


class SteerBody(TypedDict):
    """A message to the run in progress."""

    text: str


class Steered(TypedDict):
    id: str


class About(TypedDict):
    version: str
    agents: list[str]
    default: str
    examples: list[str]
    greeting: str
    panels: list[str]
    signOutUrl: str | None
    user: str | None
    isOwner: bool
    isGuest: bool


class AllowedObject(TypedDict):
    """What requests may add to an agent or a model."""

    tools: list[str]
    functions: bool | list[str]
    instructions: bool
    checks: bool
    settings: list[str]


class OfferedModelObject(TypedDict):
    """An agent or a model that requests may name, with its abilities."""

    name: str
    provider: str
    providerLabel: str
    label: str
    available: bool
    variable: str | None
    isAgent: bool
    default: bool
    thinking: list[str]
    tools: dict[str, str]
    price: OfferedPrice | None
    context: int | None
    allows: AllowedObject


class OfferedModelList(TypedDict):
    """Agents and models, and the names of providers."""

    models: list[OfferedModelObject]
    providers: dict[str, JsonObject]


class KeyObject(TypedDict):
    """Whether a provider's key is set."""

    provider: str
    label: str
    variable: str
    found: bool
    ends: str | None


class KeyList(TypedDict):
    keys: list[KeyObject]
    editable: bool


class KeyTest(TypedDict):
    ok: bool
    error: NotRequired[str]
    models: NotRequired[int]
    ms: NotRequired[int]


class McpServerObject(TypedDict):
    """An MCP server of the shared file."""

    label: str
    kind: Literal["command", "url", "provider"]
    enabled: bool
    entry: JsonObject
    problem: str | None
    changes: list[Json]
    signIn: JsonObject


class McpServerList(TypedDict):
    file: str | None
    editable: bool
    servers: list[McpServerObject]
    problem: str | None


class McpAccept(TypedDict):
    """A changed tool definition to accept."""

    tool: str
    pin: str


class IndexedFolders(TypedDict):
    """The folders of the file index."""

    allowed: list[str]
    unavailable: Literal["shared", "off"] | None
    folders: list[JsonObject]
    passages: int
    vectors: int
    editable: NotRequired[bool]
    problem: NotRequired[str | None]


class FolderPath(TypedDict):
    path: str


class EngineObject(TypedDict):
    queued: int
    running: int
    waiting: int
    oldest_queued_s: float
    oldest_lease_s: float
    takeovers: int
    here: int


class RunObject(TypedDict):
    """A run in progress."""

    id: str
    chat: str
    api: str
    model: str
    cost: float | None
    readers: int
    since: float
    at: float | None
    driver: str | None
    forkedFrom: NotRequired[JsonObject | None]
    """Its chat and record, if it was forked from another run."""


class RunList(TypedDict):
    runs: list[RunObject]


class ForkedRun(TypedDict):
    """A fork. `run` is null if there is nothing to continue."""

    chat: str
    run: str | None


class Resumed(TypedDict):
    id: str
    resumed: bool


class RecordObject(TypedDict):
    """A record of the log, with `parts` of the stream or a `fact`."""

    seq: int
    time: float
    kind: str
    parts: NotRequired[list[JsonObject]]
    fact: NotRequired[JsonObject]
    blobs: NotRequired[list[str]]
    damaged: NotRequired[bool]


class RecordList(TypedDict):
    run: JsonObject
    records: list[RecordObject]
    done: bool


# The endpoints

EVENTS, BYTES, TEXT = "text/event-stream", "application/octet-stream", "text/plain"
Type = Any


class Shapes(Struct, frozen=True):
    """An endpoint: its JSON response, other media types of its response, its request and its query parameters."""

    response: Type = None
    media: Sequence[str] = ()
    request: Type = None
    query: Sequence[str] = ()
    status: int = 200
    others: Sequence[tuple[int, Type]] = ()
    """Further statuses with their JSON response. None means an empty one."""
    error: Type = ErrorBody


_PAGE = ("limit", "order", "after")
OPERATIONS: dict[str, Shapes] = {
    "POST /v1/responses": Shapes(ResponseObject, [EVENTS], ResponsesRequest, ["dialect"]),
    "POST /v1/responses/compact": Shapes(CompactionObject, request=ResponsesRequest),
    "POST /v1/responses/input_tokens": Shapes(InputTokens, request=ResponsesRequest),
    "GET /v1/responses/{id}": Shapes(ResponseObject, [EVENTS], query=["stream", "starting_after", "dialect"]),
    "DELETE /v1/responses/{id}": Shapes(Deleted),
    "POST /v1/responses/{id}/cancel": Shapes(ResponseObject, query=["dialect"]),
    "GET /v1/responses/{id}/input_items": Shapes(ItemList, query=_PAGE),
    "POST /v1/conversations": Shapes(ConversationObject, request=CreateBody),
    "GET /v1/conversations/{id}": Shapes(ConversationObject),
    "POST /v1/conversations/{id}": Shapes(ConversationObject, request=UpdateBody),
    "DELETE /v1/conversations/{id}": Shapes(Deleted),
    "POST /v1/conversations/{id}/items": Shapes(ItemList, request=ItemsBody),
    "GET /v1/conversations/{id}/items": Shapes(ItemList, query=_PAGE),
    "GET /v1/conversations/{id}/items/{item}": Shapes(JsonObject),
    "DELETE /v1/conversations/{id}/items/{item}": Shapes(ErrorBody, status=400),
    "GET /v1/containers/{id}/files": Shapes(ItemList, query=_PAGE),
    "GET /v1/containers/{id}/files/{file}": Shapes(ContainerFile),
    "GET /v1/containers/{id}/files/{file}/content": Shapes(media=[BYTES]),
    "GET /v1/models": Shapes(ModelList),
    "GET /v1/models/{id}": Shapes(ModelObject),
    "POST /v1/chat/completions": Shapes(CompletionObject, [EVENTS], CompletionRequest),
    "POST /v1/messages": Shapes(MessageObject, [EVENTS], MessagesRequest, error=MessagesErrorBody),
    "POST /v1/messages/count_tokens": Shapes(InputTokens, request=TokensRequest, error=MessagesErrorBody),
    "POST /api/chat": Shapes(media=[EVENTS], request=ChatBody, others=[(202, ScheduledObject)]),
    "GET /api/chat/{id}": Shapes(ChatObject, query=["leaf"]),
    "DELETE /api/chat/{id}": Shapes(status=204),
    "GET /api/chat/{id}/stream": Shapes(media=[EVENTS], query=["after", "leaf", "features"], others=[(204, None)]),
    "POST /api/chat/{id}/stop": Shapes(Stopped, query=["leaf"]),
    "POST /api/chat/{id}/steer": Shapes(Steered, request=SteerBody, query=["leaf"]),
    "POST /api/chat/{id}/evidence": Shapes(CheckedCitationsObject, request=EvidenceBody, query=["leaf"]),
    "GET /api/chat/{id}/grants": Shapes(GrantList, query=["leaf"]),
    "DELETE /api/chat/{id}/grants/{grant}": Shapes(status=204),
    "POST /api/agui": Shapes(media=[EVENTS], request=RunAgentInput),
    "POST /api/agui/{agent}": Shapes(media=[EVENTS], request=RunAgentInput),
    "GET /api/conversations": Shapes(ConversationList, query=["limit", "before", "search", "all"]),
    "PATCH /api/conversations/{id}": Shapes(ChangedConversation, request=ConversationChange),
    "GET /api/about": Shapes(About),
    "POST /api/sign-in": Shapes(status=204),
    "GET /api/models": Shapes(OfferedModelList),
    "GET /api/keys": Shapes(KeyList),
    "POST /api/keys/{provider}/test": Shapes(KeyTest),
    "GET /api/mcp": Shapes(McpServerList),
    "PUT /api/mcp/{label}": Shapes(McpServerObject, request=JsonObject),
    "DELETE /api/mcp/{label}": Shapes(JsonObject),
    "POST /api/mcp/{label}/test": Shapes(JsonObject),
    "POST /api/mcp/{label}/accept": Shapes(McpServerObject, request=McpAccept),
    "POST /api/mcp/{label}/login": Shapes(JsonObject),
    "POST /api/mcp/{label}/logout": Shapes(JsonObject),
    "GET /mcp/callback": Shapes(media=[TEXT], query=["state", "code", "error"]),
    "GET /api/indexes": Shapes(IndexedFolders),
    "POST /api/indexes": Shapes(FolderPath, request=FolderPath, status=202),
    "DELETE /api/indexes": Shapes(JsonObject, query=["path"]),
    "GET /api/indexes/search": Shapes(JsonObject, query=["q"]),
    "GET /api/engine": Shapes(EngineObject),
    "GET /api/runs": Shapes(RunList),
    "POST /api/runs/{run}/stop": Shapes(Stopped),
    "POST /api/runs/{run}/resume": Shapes(Resumed, status=202),
    "POST /api/runs/{run}/fork": Shapes(ForkedRun, request=ForkBody, status=201),
    "GET /api/runs/{run}/records": Shapes(RecordList, query=["after", "wait"]),
    "GET /api/runs/{run}/export": Shapes(media=["application/x-ndjson", "text/markdown"], query=["format"]),
    "GET /api/blobs/{digest}": Shapes(media=[BYTES], query=["name", "owner", "expires", "signature"]),
    f"GET {PATH}": Shapes(JsonObject),
    f"GET {ALIVE}": Shapes(ProbeObject),
    f"GET {READY}": Shapes(ProbeObject, others=[(503, ProbeObject)]),
}
"""Endpoints by method and path."""
_PROBES = {
    f"GET {ALIVE}": "Return whether the process responds.",
    f"GET {READY}": "Return whether the store and the engine respond.",
}
_CONVERTER, _WITHOUT = re.compile(r"\{(\w+):\w+\}"), r"{\1}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_NOT_WORD = re.compile(r"\W+")
_REF = "#/components/schemas/{name}"


def routes() -> list[BaseRoute]:
    """Return the route of the description."""
    return [Route(PATH, describe, methods=["GET"])]


async def describe(request: Request) -> Response:
    """Return this description of all endpoints, as OpenAPI 3.1."""
    found = endpoints(request.app.routes)
    document = _document(tuple(found.items()))
    root = request.scope.get("root_path", "").rstrip("/")
    return json_response({**document, "servers": [{"url": root or "/"}]})


def endpoints(found: Iterable[BaseRoute]) -> dict[str, str]:
    """Return the summaries of all HTTP endpoints but the web UI's own pages, by method and path."""
    listed = {
        f"{method} {_CONVERTER.sub(_WITHOUT, route.path)}": (route.endpoint.__doc__ or "").partition("\n")[0]
        for route in found
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
        if route.endpoint.__doc__
    }
    return listed | _PROBES


@cache
def _document(found: tuple[tuple[str, str], ...]) -> JsonObject:
    types = {shape for operation in OPERATIONS.values() for shape in _shapes(operation)} | {DataParts}
    listed = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(listed, ref_template=_REF)
    schema_of = dict(zip(listed, schemas, strict=True))
    for field in (field for shape in components.values() for field in shape.get("properties", {}).values()):
        field.pop("default", None)  # Some do not match their own pattern.
    paths: JsonObject = {}
    for endpoint, summary in found:
        method, _, path = endpoint.partition(" ")
        described = _described(endpoint, OPERATIONS.get(endpoint, Shapes(JsonObject)), schema_of)
        paths.setdefault(path, {})[method.lower()] = {"summary": summary, **described}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sidestream", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _shapes(operation: Shapes) -> list[Type]:
    return [operation.response, operation.request, operation.error, *(shape for _, shape in operation.others)]


def _described(endpoint: str, operation: Shapes, schema_of: dict[Type, JsonObject]) -> JsonObject:
    path = endpoint.partition(" ")[2]

    def json_content(shape: Type) -> JsonObject:
        return {"application/json": {"schema": {"type": "object"} if shape is JsonObject else schema_of[shape]}}

    def response(shape: Type, media: Sequence[str] = ()) -> JsonObject:
        content = json_content(shape) if shape is not None else {}
        content |= {kind: {"schema": {"type": "string"}} for kind in media}
        return {"description": (shape.__doc__ or "") if shape else "", **({"content": content} if content else {})}

    described: JsonObject = {
        "operationId": _NOT_WORD.sub("_", endpoint.lower()).strip("_"),
        "tags": [path.split("/")[2] if is_guarded(path) else "server"],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _PARAMETER.findall(path)
            ),
            *({"name": name, "in": "query", "schema": {"type": "string"}} for name in operation.query),
        ],
        "responses": {
            str(operation.status): response(operation.response, operation.media),
            **{str(status): response(shape) for status, shape in operation.others},
            "default": response(operation.error),
        },
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": json_content(operation.request)}
    if is_guarded(path):
        described["security"] = [{"token": []}]
    return described

"""The provider `local`: Chat Completions with a model on this machine, its transport, and bounded schemas."""

import asyncio
import copy
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError, ContextOverflowError, ProviderError, UnsupportedError
from sidestream.jsontext import JsonObject, objects
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage, DataPart, MessagePart, ToolResultPart
from sidestream.output.json_schema import nodes
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.embedding import EmbeddingCall
from sidestream.providers.local.files import CHAT, EMBEDDINGS, PACKAGES, ModelPackage, folder_of
from sidestream.providers.local.gguf import read_gguf
from sidestream.providers.local.server import ANSWER_TOKENS, running_server
from sidestream.providers.local.sources import (
    EMBEDDED_CONTEXT_TOKENS,
    AddedModel,
    ModelSource,
    added_models,
    is_of_this_machine,
    source_of,
)
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.openai.chat.encode.request import options_of
from sidestream.providers.openai.chat.options import Dialect, OpenAIChatOptions, settings_of
from sidestream.providers.openai.chat.provider import CompletionsModel, CompletionsProvider
from sidestream.providers.protocol import ChatModel, Decoder, Encoded, ModelInfo, ModelRequest, Provider, Settings
from sidestream.providers.shared.endpoints import Endpoint
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.calls import HttpCall, HttpResponse, OpensHttp, Transport

_TOO_LONG = re.compile(r"\((\d+) tokens\) exceeds the available context size \((\d+) tokens\)")
_INPUT_TOKENS = {"chat": EMBEDDED_CONTEXT_TOKENS, "embeddings": 256}


class LocalTransport:
    """A transport that answers API calls with the local models."""

    def __init__(self, http: OpensHttp, model: str) -> None:
        self._http = http
        self._model = model
        self._source: ModelSource | None = None

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Compute embeddings in a thread, or forward the call to the server, which is started if necessary.

        Raises ContextOverflowError if the conversation is longer than the context.
        """
        path = urlsplit(call.url).path
        if path.endswith(_RETRIEVAL):
            return _Response(_retrieval(call.body or b"{}"))
        if path.endswith("/embeddings"):
            return _Response(await asyncio.to_thread(_embeddings, call.body or b"{}"))
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        address = await running_server(self._source)
        headers = call.headers | {"Authorization": f"Bearer {address.key}"}
        try:
            return await self._http(uses_proxies=False).open(
                replace(call, url=address.url + urlsplit(call.url).path, headers=headers), limits
            )
        except ProviderError as error:
            found = _TOO_LONG.search(error.message)
            if found is None:
                raise
        raise ContextOverflowError(
            f"the conversation has {found[1]} tokens, but the local model accepts at most {found[2]}; "
            "send a shorter prompt, history or tool result, or fewer tools",
            code="context_length_exceeded",
            status=400,
        )

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Return the list of models, the only supported download."""
        embedded = [_info(package) for package in PACKAGES.values()]
        return jsontext.dumps([*embedded, *map(_added_info, added_models())])


class _Response:
    """A response with a known body."""

    status = 200
    headers: Mapping[str, str] = {}
    is_stream = False

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def events(self) -> list[bytes]:
        raise RuntimeError("this response is not a stream; call body()")

    def ignored(self) -> None:
        """Do nothing, since there is no idle timeout."""

    async def body(self) -> bytes:
        return self._content

    async def aclose(self) -> None:
        """Do nothing, since there is no connection."""

    complete = aclose


def _embeddings(body: bytes) -> bytes:
    from sidestream.providers.local.minilm import loaded

    texts = jsontext.loads(body)["input"]
    made = loaded(folder_of(EMBEDDINGS)).embed(texts)
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(made.vectors)]
    return jsontext.dumps({"data": data, "usage": {"prompt_tokens": made.tokens, "total_tokens": made.tokens}})


_RETRIEVAL = "/first-search"
"""Path of a request that is answered with a search for the user's message, without the model."""


def _retrieval(body: bytes) -> bytes:
    """Return a response in which the model calls the search."""
    search = jsontext.as_object(jsontext.loads(body))
    arguments = jsontext.dumps({"queries": search["queries"]}).decode()
    call = {
        "id": f"call_{os.urandom(12).hex()}",
        "type": "function",
        "function": {"name": search["tool"], "arguments": arguments},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return jsontext.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})


def _info(package: ModelPackage) -> ModelInfo:
    return ModelInfo(
        name=package.model,
        kinds=(package.kind,),
        description=package.description,
        max_input_tokens=_INPUT_TOKENS[package.kind],
        max_output_tokens=ANSWER_TOKENS if package is CHAT else None,
        capabilities={"package": package.pinned},
    )


def _added_info(model: AddedModel) -> ModelInfo:
    try:
        info = read_gguf(model.path)
    except ConfigurationError as error:
        return ModelInfo(name=model.name, kinds=("chat",), description=str(error))
    return ModelInfo(
        name=model.name,
        kinds=("chat",),
        description=info.name or info.architecture,
        max_input_tokens=info.context_tokens,
        capabilities={"source": model.path},
    )


MAX_TEXT = 200
MAX_ITEMS = 20
_BOUNDS = {"string": ("maxLength", MAX_TEXT), "array": ("maxItems", MAX_ITEMS)}
_FIXED = frozenset({"enum", "const", "pattern", "format"})
"""Schema keywords that already bound a string."""


def bounded(schema: Any) -> Any:
    """Copy a schema, with a maximum length for each string and list that has none."""
    made = copy.deepcopy(schema)
    for node in nodes(made):
        kind = node.get("type")
        if isinstance(kind, str) and kind in _BOUNDS and not _FIXED & node.keys():
            node.setdefault(*_BOUNDS[kind])
    return made


NAME = "local"
DIMENSIONS = 384

_DIALECT = Dialect(thinking="none", cache="cache_prompt")
_WIRE = CompletionsProvider(
    name=NAME, display_name="The embedded model", base_url="http://127.0.0.1/v1", dialect=_DIALECT
)


class LocalModel(CompletionsModel):
    """An embedded model, or one of the user's own. The transport knows its URL."""

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(_WIRE, name, Endpoint(base_url=_WIRE.base_url, settings=settings))

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    def encode(self, request: ModelRequest) -> Encoded:
        """Encode a request, simplified for small models. Raises UnsupportedError for files."""
        if self.name == EMBEDDINGS.model:
            raise UnsupportedError(f"the embedded model {self.name} does not support chat; {CHAT.model} does")
        request = replace(request, messages=tuple(map(_with_named_files, request.messages)))
        options, left_out = options_of(request, self.name, _WIRE.display_name, _DIALECT)
        adapted = _adapted(request, options) if self._is_small else self._as_served(request, options)
        encoded = super().encode(adapted)
        _refuse_files(encoded.call.body or b"{}")
        if (search := self._first_search(adapted)) is not None:
            # The transport answers with the call that the model should make.
            url = encoded.call.url.removesuffix("/chat/completions") + _RETRIEVAL
            encoded = replace(encoded, call=replace(encoded.call, url=url, body=jsontext.dumps(search)))
        return replace(
            encoded,
            warnings=(*encoded.warnings, *left_out),
            defers_output=request.output_schema is not None and adapted.output_schema is None,
        )

    @property
    def retrieves_first(self) -> bool:
        """Whether the user's files can be searched before the model is asked."""
        return True

    def _first_search(self, request: ModelRequest) -> JsonObject | None:
        """Return the search that precedes the first request of a turn, or None.

        A small model seldom calls a search by itself, or calls it without a query.
        """
        question = request.messages[-1] if request.messages else None
        if len(request.tools) != 1 or question is None or question.role != "user" or not question.text.strip():
            return None
        (tool,) = request.tools
        is_first = tool.retrieve == "first" or (tool.retrieve == "auto" and self._is_small)
        return {"tool": tool.name, "queries": [question.text.strip()]} if is_first else None

    @functools.cached_property
    def _source(self) -> ModelSource:
        return source_of(self.name)

    @property
    def _is_small(self) -> bool:
        """Whether the server uses our own template, which has a switch to force a tool call."""
        return self.name == CHAT.model or self._source.is_embedded or self._source.uses_own_template

    def _as_served(self, request: ModelRequest, options: OpenAIChatOptions) -> ModelRequest:
        """Adapt a request to a model that uses its own template.

        Raises UnsupportedError if the request has tools and the template does not support them.
        """
        if request.tools and not self._source.has_tools:
            raise UnsupportedError(
                f"the chat template of {self._source.path} does not support tools; use a model trained for tool calls"
            )
        choice, tools = options.tool_choice, request.tools
        if isinstance(choice, dict):
            tools = tuple(tool for tool in tools if tool.name == _chosen_tool(choice))
            choice = "required" if tools else None
        if "tools" in request.without or choice == "none":
            tools, choice = (), None
        schema = None if tools else request.output_schema
        return replace(
            request,
            messages=_before_answer(request) if "tools" in request.without else request.messages,
            tools=tuple(replace(tool, strict=False) for tool in tools),
            output_schema=schema and replace(schema, strict=False),
            settings=ModelSettings(),  # already merged into the options
            options=replace(options, tool_choice=choice),
        )

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """Parse all models, which are on one page."""
        return msgspec.json.decode(body, type=list[ModelInfo]), None

    def embedding_calls(self, texts: Sequence[str], options: Any) -> Sequence[EmbeddingCall]:
        """Return one call per batch. Raises UnsupportedError for a chat model, or if `dimensions` differs."""
        if self.name != EMBEDDINGS.model:
            raise UnsupportedError(
                f"the embedded model {self.name} does not support embeddings; {EMBEDDINGS.model} does"
            )
        calls = super().embedding_calls(texts, options)
        if options is not None and options.dimensions not in (None, DIMENSIONS):
            raise UnsupportedError(f"the vectors of {self.name} have {DIMENSIONS} dimensions, not {options.dimensions}")
        return calls


def _adapted(request: ModelRequest, options: OpenAIChatOptions) -> ModelRequest:
    """Adapt a request to a small model, without the features that the server ignores.

    These are a tool choice, and an output schema together with tools.
    """
    choice = options.tool_choice
    tools = request.tools
    if isinstance(choice, dict):
        tools = tuple(tool for tool in tools if tool.name == _chosen_tool(choice))
    is_typing = "tools" in request.without
    if is_typing or choice == "none":
        tools = ()
    must_call = bool(tools) and choice not in (None, "auto")
    extra = {"chat_template_kwargs": {"must_call": True}} if must_call else {}
    schema = None if tools else request.output_schema
    instructions = (request.system, _format_instruction(schema.schema) if schema else None)
    return replace(
        request,
        system="\n\n".join(text for text in instructions if text) or None,
        messages=tuple(map(_with_passages, _before_answer(request) if is_typing else request.messages)),
        # The server always enforces schemas and has no strict mode.
        tools=tuple(replace(tool, parameters=bounded(tool.parameters), strict=False) for tool in tools),
        output_schema=schema and replace(schema, schema=bounded(schema.schema), strict=False),
        settings=ModelSettings(),  # already merged into the options
        options=replace(options, tool_choice=None, extra_body=extra | options.extra_body),
    )


def _with_passages(message: ChatMessage) -> ChatMessage:
    """Return a message with its search results as numbered text, which a small model reads better than JSON."""
    return replace(message, parts=tuple(map(_as_passages, message.parts)))


def _as_passages(part: MessagePart) -> MessagePart:
    if not isinstance(part, ToolResultPart) or part.passages is None:
        return part
    entries = [entry for name in ("results", "sources") for entry in objects(jsontext.as_object(part.result).get(name))]
    lines = [f"[{entry['cite']}] {entry.get('text') or entry.get('snippet')}" for entry in entries if "cite" in entry]
    # The best passage comes last: a small model repeats what is nearest to its answer.
    return replace(part, result="\n\n".join(reversed(lines))) if lines else part


def _format_instruction(schema: JsonObject) -> str:
    """Name the fields of a schema for the model. The server enforces the schema itself."""
    fields = ", ".join(jsontext.as_object(schema.get("properties")))
    return f"Answer with a JSON object with the fields {fields}." if fields else "Answer with JSON."


def _chosen_tool(choice: dict[str, Any]) -> Any:
    return jsontext.as_object(choice.get("function")).get("name")


def _before_answer(request: ModelRequest) -> tuple[Any, ...]:
    """Return the history before the answer that is now requested in typed form."""
    messages = list(request.messages)
    while len(messages) > 1 and messages[-1].role == "model":
        messages.pop()
    return tuple(messages)


def _with_named_files(message: ChatMessage) -> ChatMessage:
    """Return an answer with its files only named, since the models read text."""
    if message.role != "model" or not any(isinstance(part, DataPart) for part in message.parts):
        return message
    parts = (replace(part, to="container") if isinstance(part, DataPart) else part for part in message.parts)
    return replace(message, parts=tuple(parts))


def _refuse_files(body: bytes) -> None:
    for message in objects(jsontext.as_object(jsontext.loads(body)).get("messages")):
        for content in objects(message.get("content")):
            if content.get("type") != "text":
                raise UnsupportedError(
                    f"the embedded model accepts only text, but the conversation contains {content.get('type')} content"
                )


class LocalProvider:
    """The provider of local models."""

    name = NAME
    display_name = _WIRE.display_name
    aliases: tuple[str, ...] = ()
    default_models: Mapping[str, str] = {package.kind: package.model for package in PACKAGES.values()}
    server_side_tools: frozenset[type[ServerSideTool]] = frozenset()
    caps = Capabilities(
        streaming=True,
        client_tools=True,
        typed_output="native",
        typed_output_with_tools="deferred",
        embeddings=True,
        list_models=True,
        settings=frozenset(settings_of(_DIALECT)) - {"thinking"},  # The models do not think.
    )

    def chat_model(self, name: str, settings: Settings) -> ChatModel:
        """Return a model, without a key. Raises ConfigurationError if the model is unknown or a base URL is set."""
        if name not in PACKAGES:
            source_of(name)
        if settings.base_url:
            raise ConfigurationError(
                "the embedded model does not support base_url; use openai:MODEL for your own server"
            )
        return LocalModel(name, Settings(headers=settings.headers))

    def is_of_this_machine(self, model: str) -> bool:
        """Return whether a name is reserved for the operator of this machine."""
        return is_of_this_machine(model)

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return the transport to the local server, which computes embeddings in this process."""
        return LocalTransport(http, model or CHAT.model)

    def recorded_decoder(self, method: str, path: str, body: Any) -> Decoder | None:
        """Return None, since the provider with the same API replays the recordings."""
        return None


PROVIDER: Provider = LocalProvider()

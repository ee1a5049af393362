"""Encodes the body of `POST /responses` and of `response.steer`. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_object, objects, without_none
from sidestream.messages.message import ApprovalPart, ChatMessage, DataPart, ToolResultPart, file_note
from sidestream.messages.references import Replays
from sidestream.messages.sessions import find_anchor
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.account import as_json, moderation_body, plain_options, request_headers
from sidestream.providers.openai.responses.encode.answers import answer_key, is_answerable
from sidestream.providers.openai.responses.encode.input import InputTarget, encode_input
from sidestream.providers.openai.responses.encode.server_side import SERVER_SIDE_TOOLS
from sidestream.providers.openai.responses.options import (
    REPLAY_KEY,
    SESSION_KEY,
    SETTINGS,
    ContextManagement,
    OpenAIFunctionOptions,
    OpenAIResponsesOptions,
    ResponsesContext,
    tools_of,
)
from sidestream.providers.protocol import ModelRequest, ToolSpec
from sidestream.providers.shared import encoding
from sidestream.providers.shared.container_files import ContainerFiles
from sidestream.providers.shared.continuation import SessionStart, find_session, mismatch, replay_notices, start_after
from sidestream.providers.shared.hosting import require_hosted, without_repeats
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.server_side import CodeInterpreter, CustomTool, RemoteMCP, ServerSideTool, Shell

_REPEATABLE = (RemoteMCP, CustomTool)


class ResponsesTools(Struct, frozen=True):
    """The encoded tools, the `include` values that they need, and warnings."""

    tools: list[JsonObject]
    include: list[str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    server_side: list[ServerSideTool],
    last_container: str | None,
) -> ResponsesTools:
    """Encode the client and server-side tools of a request."""
    strict = {spec.name for spec in request.tools if spec.strict and allows_strict(spec.parameters)}
    tools = [_function(spec, spec.name in strict, options.function_options.get(spec.name)) for spec in request.tools]
    warnings = [encoding.loose_warning(spec) for spec in request.tools if spec.strict and spec.name not in strict]
    gone = "container" in request.without
    tools += [
        SERVER_SIDE_TOOLS[type(tool)].encode(tool, None if gone else container_of(tool, last_container))
        for tool in server_side
    ]
    encoding.check_function_options(options.function_options, request.tools)
    include = [value for tool in server_side for value in SERVER_SIDE_TOOLS[type(tool)].include]
    return ResponsesTools(_in_namespaces(tools, options), include, warnings)


def server_side_tools_of(request: ModelRequest, options: OpenAIResponsesOptions) -> list[ServerSideTool]:
    """Return the server-side tools of the request and the options, without duplicates.

    Raises NotHostedError for a tool that the provider does not host.
    """
    chosen = (*request.server_side_tools, *tools_of(options))
    require_hosted(chosen, SERVER_SIDE_TOOLS, "OpenAI Responses")
    return without_repeats(chosen, _REPEATABLE)


def container_of(tool: ServerSideTool, last: str | None) -> str | None:
    """Return the container that a tool names or reuses. `last` is the newest of the conversation."""
    if not isinstance(tool, CodeInterpreter | Shell):
        return None
    reused = last if isinstance(tool, CodeInterpreter) and tool.reuse_container else None
    return tool.container_id or reused


def _function(spec: ToolSpec, is_strict: bool, extra: OpenAIFunctionOptions | None) -> JsonObject:
    body: JsonObject = {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": is_strict,
        **({"defer_loading": True} if spec.defer_loading else {}),
    }
    names = {
        "defer_loading": "defer_loading",
        "asynchronous": "async",
        "allowed_callers": "allowed_callers",
        "output_schema": "output_schema",
    }
    return body if extra is None else body | encoding.given(extra, names)


def _in_namespaces(tools: list[JsonObject], options: OpenAIResponsesOptions) -> list[JsonObject]:
    """Move tools into their namespaces. Raises ConfigurationError if a namespace lists an unknown tool."""
    if not options.namespaces:
        return tools
    named = {tool["name"]: tool for tool in tools if tool["type"] in ("function", "custom")}
    moved = {name for space in options.namespaces for name in space.tools}
    if moved - named.keys():
        missing = ", ".join(sorted(moved - named.keys()))
        raise ConfigurationError(f"namespaces list unknown client tools: {missing}")
    spaces: list[JsonObject] = [
        {
            "type": "namespace",
            "name": space.name,
            "description": space.description,
            "tools": [named[name] for name in space.tools],
        }
        for space in options.namespaces
    ]
    return [tool for tool in tools if tool.get("name") not in moved] + spaces


def continue_from(
    request: ModelRequest, options: OpenAIResponsesOptions, model: str, base_url: str, *, names_container: bool
) -> SessionStart:
    """Determine where to continue the conversation. A session in the options takes precedence over the history.

    `names_container` says whether a tool names its container. If none does, a missing container was the session's own.
    """
    messages = request.messages
    previous = options.previous_response_id
    if previous is not None:
        return start_after(find_session(messages, SESSION_KEY, "response_id", previous), previous)
    if options.conversation is not None:
        return start_after(find_session(messages, SESSION_KEY, "conversation", options.conversation), None)
    if options.store is False:
        return SessionStart()
    if "session" in request.without:
        return SessionStart(reason="refused")
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or not isinstance(anchor.session.get("response_id"), str):
        return SessionStart()
    reason = mismatch(anchor, messages, model, base_url)
    if reason is None and not _answerable(anchor.session, messages[anchor.index + 1 :]):
        reason = "call-unanswered"
    if reason is None and "container" in request.without and not names_container:
        reason = "container-gone"
    return start_after(anchor, anchor.session["response_id"]) if reason is None else SessionStart(reason=reason)


def _answerable(session: JsonObject, later: Sequence[ChatMessage]) -> bool:
    """Return whether all pending calls on the server have an answer, or one can be made up."""
    answers = (part for message in later for part in message.parts if isinstance(part, ToolResultPart | ApprovalPart))
    results = {part.id: part for part in answers}
    return all(
        item.get("type") == "mcp_approval_request" or is_answerable(item, results.get(answer_key(item)))
        for item in objects(session.get("pending_items"))
    )


def last_container(messages: Sequence[ChatMessage], keys: tuple[str, ...], base_url: str) -> str | None:
    """Return the newest container that the conversation used on this server, or None."""
    for message in reversed(messages):
        for session in (message.metadata.get(key) for key in keys):
            if is_object(session) and session.get("base_url") in (None, base_url):
                found = session.get("container_id") or _container_in(session)
                if isinstance(found, str):
                    return found
    return None


def _container_in(session: JsonObject) -> Any:
    return next(
        (item["container_id"] for item in reversed(objects(session.get("items"))) if item.get("container_id")), None
    )


DISPLAY_NAME = "OpenAI Responses"
_DEFAULT = OpenAIResponsesOptions()


def encode_request(request: ModelRequest, model: str, base_url: str) -> encoding.EncodedRequest[ResponsesContext]:
    """Encode a request. Raises ConfigurationError for features that the API does not support."""
    options = encoding.checked_options(request.options, _DEFAULT, DISPLAY_NAME)
    options, left_out = with_settings(options, request.settings, SETTINGS, DISPLAY_NAME, model)
    keys = (REPLAY_KEY,) if options.store is False else (SESSION_KEY, REPLAY_KEY)
    server_side = server_side_tools_of(request, options)
    container = last_container(request.messages, keys, base_url) if _reuses_container(server_side) else None
    named = any(container_of(tool, container) is not None for tool in server_side)
    start = continue_from(request, options, model, base_url, names_container=named)
    replays = Replays(request.replays)
    target = InputTarget(
        model=model,
        base_url=base_url,
        session_keys=keys,
        replays=replays,
        image_detail=options.image_detail,
        has_containers="container" not in request.without,
    )
    items, warnings = encode_input(request.messages[start.index :], start.pending, target)
    files = ContainerFiles(request, keys, base_url) if any(map(_has_container, server_side)) else None
    if files is not None:
        is_first = start.previous_id is None and start.index == 0
        server_side = [_with_files(tool, container, files, items, is_first=is_first) for tool in server_side]
    tools = encode_tools(request, options, server_side, container)
    warnings += [*tools.warnings, *left_out]

    plain = {} if options is _DEFAULT else plain_options(options, PLAIN_OPTIONS)
    body: JsonObject = {"model": model, "instructions": request.system or None, "input": items or None}
    body |= {"previous_response_id": start.previous_id, "conversation": options.conversation}
    body |= {"tools": tools.tools or None, "include": _include(options, tools.include) or None}
    body |= {"text": _text(request, options, warnings) or None, **plain, "stream": request.stream}
    if request.compaction is not None and not options.context_management:
        body["context_management"] = _with_type((ContextManagement(compact_threshold=request.compaction.at_tokens),))
    if request.stream:
        body["stream_options"] = {"include_obfuscation": options.include_obfuscation}
    body = encoding.merged(without_none(body), options.extra_body)
    if not body.keys() & {"input", "previous_response_id", "conversation", "prompt"}:
        raise encoding.nothing_to_send()
    return encoding.EncodedRequest(
        body=body,
        headers=request_headers(options.organization, options.project, options.extra_headers),
        context=_context(request, options, server_side, model, base_url, files),
        first=start.index,
        warnings=tuple(warnings),
        notices=replay_notices(start.reason, replays),
        needs=tuple(replays.needed),
        uploads=() if files is None else tuple(files.missing),
        names_uploads=files is not None and files.is_named,
        in_background=body.get("background") is True,
    )


_MAX_FILES = 50
"""Maximum files of a new container, as the API has it."""


def _has_container(tool: ServerSideTool) -> TypeGuard[CodeInterpreter | Shell]:
    return isinstance(tool, CodeInterpreter) or (isinstance(tool, Shell) and not tool.local)


def _with_files(
    tool: ServerSideTool, last: str | None, files: ContainerFiles, items: list[JsonObject], *, is_first: bool
) -> ServerSideTool:
    """Return the tool with the files for its container. Append to the items what the model must know about them."""
    if not _has_container(tool):
        return tool
    given = [part for part in getattr(tool, "files", ()) if isinstance(part, DataPart)]
    if given and is_first:
        items.insert(0, {"role": "developer", "content": "\n".join(map(file_note, given))})
    if (text := files.restored(given)) is not None:
        items.append({"role": "developer", "content": text})
    elif (container := container_of(tool, last)) is not None:
        files.place(container, given)
        return tool
    found = files.ids(given)
    return replace(tool, container_id=None, file_ids=(*tool.file_ids, *found)[-_MAX_FILES:]) if found else tool


def _reuses_container(server_side: list[ServerSideTool]) -> bool:
    return any(isinstance(tool, CodeInterpreter) and tool.reuse_container for tool in server_side)


def _context(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    server_side: list[ServerSideTool],
    model: str,
    base_url: str,
    files: ContainerFiles | None,
) -> ResponsesContext:
    shell = next((tool for tool in server_side if isinstance(tool, Shell)), None)
    return ResponsesContext(
        store=options.store is not False,
        model=model,
        base_url=base_url,
        messages=request.messages,
        hosted_shell=None if shell is None else not shell.local,
        files_note={} if files is None else files.note(),
    )


def _include(options: OpenAIResponsesOptions, of_tools: list[str]) -> list[str]:
    wanted = list(of_tools)
    if options.store is False:
        wanted.append("reasoning.encrypted_content")
    if options.top_logprobs is not None:
        wanted.append("message.output_text.logprobs")
    return list(dict.fromkeys((*wanted, *options.include)))


def _text(request: ModelRequest, options: OpenAIResponsesOptions, warnings: list[str]) -> JsonObject:
    text: JsonObject = {}
    schema = request.output_schema
    if schema is not None:
        if options.json_object:
            raise ConfigurationError("json_object and an output type are mutually exclusive; remove json_object")
        strict = schema.strict and allows_strict(schema.schema)
        if strict != schema.strict:
            warnings.append(f"the schema {schema.name} does not allow strict mode, so the answer may not follow it")
        description = {"description": schema.description} if schema.description else {}
        form = {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": strict}
        text["format"] = form | description
    elif options.json_object:
        text["format"] = {"type": "json_object"}
    return text | encoding.given(options, {"verbosity": "verbosity"})


def _with_type(entries: tuple[Any, ...]) -> list[JsonObject]:
    return [{"type": entry.type, **encoding.given(entry)} for entry in entries]


PLAIN_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "max_output_tokens": as_json,
    "max_tool_calls": as_json,
    "parallel_tool_calls": as_json,
    "tool_choice": as_json,
    "reasoning": as_json,
    "temperature": as_json,
    "top_p": as_json,
    "top_logprobs": as_json,
    "truncation": as_json,
    "store": as_json,
    "background": as_json,
    "service_tier": as_json,
    "metadata": as_json,
    "prompt": as_json,
    "prompt_cache_key": as_json,
    "prompt_cache_options": as_json,
    "prompt_cache_retention": as_json,
    "safety_identifier": as_json,
    "user": as_json,
    "context_management": _with_type,
    "moderation": moderation_body,
    "image": as_json,
    "access_programs": as_json,
}
"""Encodings of the options that are sent under their own names."""


def steer_event(response_id: str, message: ChatMessage, options: Any) -> bytes:
    """Encode a `response.steer` event. It needs no stream id, since it names the response."""
    detail = encoding.checked_options(options, OpenAIResponsesOptions(), DISPLAY_NAME).image_detail
    target = InputTarget(model="", base_url="", session_keys=(), replays=Replays({}), image_detail=detail)
    items = [{"type": "message", **item} for item in encode_input((message,), (), target)[0]]
    return jsontext.dumps({"type": "response.steer", "previous_response_id": response_id, "input": items})

"""Encodes the body of `POST /responses` and of `response.steer`. Pure."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeGuard

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.jsontext import JsonObject, objects, without_none
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    ToolResultPart,
    file_note,
    only_texts,
)
from sidestream.messages.references import Replays
from sidestream.messages.sessions import FORKED, find_anchor
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.account import as_json, moderation_body, plain_options, request_headers
from sidestream.providers.openai.responses.encode.answers import answer_key, is_answerable
from sidestream.providers.openai.responses.encode.input import LONG, InputTarget, encode_input, plain_items
from sidestream.providers.openai.responses.encode.server_side import (
    SERVER_SIDE_TOOLS,
    container_of,
    encode_tools,
    server_side_tools_of,
)
from sidestream.providers.openai.responses.options import (
    ENCRYPTED,
    PROVIDER_NAME,
    REPLAY_KEY,
    SESSION_KEY,
    SETTINGS,
    ContextManagement,
    OpenAIResponsesOptions,
    ResponsesContext,
    ResponsesDialect,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared import encoding
from sidestream.providers.shared.attachments import ContainerFiles
from sidestream.providers.shared.continuation import (
    LastContainer,
    SessionStart,
    find_session,
    last_container,
    mismatch,
    replay_notices,
    start_after,
)
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.configs import levels_of
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool, Shell


def continue_from(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    model: str,
    base_url: str,
    *,
    names_container: bool,
    instructions: str | None = None,
    has_sessions: bool = True,
) -> SessionStart:
    """Determine where to continue the conversation. A session in the options takes precedence over the history.

    `names_container` says whether a tool names its container. If none does, a missing container was the session's own.
    `instructions` is the digest of the instructions if the server keeps those of the session. Raises ConfigurationError
    if the options name a session that has, or may have, others. `has_sessions` is False if no message has metadata.
    """
    messages = request.messages
    previous = options.previous_response_id
    if previous is not None:
        chosen = find_session(messages, SESSION_KEY, "response_id", previous)
        if instructions and (chosen is None or chosen.session.get(INSTRUCTIONS) != instructions):
            raise ConfigurationError(
                "the server keeps the instructions of an earlier answer and accepts no others: leave out "
                "previous_response_id, or the system prompt"
            )
        return start_after(chosen, previous)
    if options.conversation is not None:
        return start_after(find_session(messages, SESSION_KEY, "conversation", options.conversation), None)
    if options.store is False:
        return SessionStart()
    if "session" in request.without:
        return SessionStart(reason="refused")
    anchor = find_anchor(messages, SESSION_KEY) if has_sessions else None
    if anchor is None or not isinstance(anchor.session.get("response_id"), str):
        return SessionStart()
    reason = mismatch(anchor, messages, model, base_url)
    if reason is None and instructions is not None and anchor.session.get(INSTRUCTIONS) != instructions:
        reason = "setup-changed"
    if reason is None and not _answerable(anchor.session, messages[anchor.index + 1 :]):
        reason = "call-unanswered"
    if reason is None and "container" in request.without and not names_container:
        reason = "container-gone"
    if reason is None and anchor.session.get(FORKED) and not names_container:
        is_left = last_container(messages, (SESSION_KEY, REPLAY_KEY), base_url).is_left
        reason = "forked" if is_left or anchor.session.get("conversation") else None
    return start_after(anchor, anchor.session["response_id"]) if reason is None else SessionStart(reason=reason)


def _answerable(session: JsonObject, later: Sequence[ChatMessage]) -> bool:
    """Return whether all pending calls on the server have an answer, or one can be made up."""
    results = {part.id: part for message in later for part in message.parts if isinstance(part, _ANSWERS)}
    for item in objects(session.get("pending_items")):
        if item.get("type") != "mcp_approval_request" and not is_answerable(item, results.get(answer_key(item))):
            return False
    return True


_ANSWERS = (ToolResultPart, ApprovalPart)


def _is_left(messages: Sequence[ChatMessage], conversation: str) -> bool:
    """Return whether a conversation at the provider belongs to the one that this one was forked from."""
    found = find_session(messages, SESSION_KEY, "conversation", conversation)
    return found is not None and bool(found.session.get(FORKED))


INSTRUCTIONS = "instructions"
"""Key in a session for the digest of its instructions."""
_DEFAULT = OpenAIResponsesOptions()
_NO_CONTAINER = LastContainer()
OPENAI = ResponsesDialect(
    name=PROVIDER_NAME, display_name="OpenAI Responses", tools=SERVER_SIDE_TOOLS, settings=SETTINGS
)
"""OpenAI's own API."""


def _options_for(
    request: ModelRequest, model: str, dialect: ResponsesDialect
) -> tuple[OpenAIResponsesOptions, list[str]]:
    """Return the options with the portable settings, and warnings. Raises UnsupportedError for unsupported ones."""
    options = encoding.checked_options(request.options, _DEFAULT, dialect.display_name)
    if dialect.lacks and (lacking := sorted(dialect.lacks & levels_of(options).keys())):
        raise UnsupportedError(f"{dialect.display_name} does not support the option {lacking[0]}; remove it")
    options, left_out = with_settings(options, request.settings, dialect.settings, dialect.display_name, model)
    return options if dialect.stores or options.store is not None else replace(options, store=False), left_out


def encode_request(
    request: ModelRequest, model: str, base_url: str, dialect: ResponsesDialect = OPENAI
) -> encoding.EncodedRequest[ResponsesContext]:
    """Encode a request. Raises ConfigurationError for features that the API does not support."""
    options, left_out = _options_for(request, model, dialect)
    if options.conversation is not None and _is_left(request.messages, options.conversation):
        options = replace(options, conversation=None)
    keys = (REPLAY_KEY,) if options.store is False else (SESSION_KEY, REPLAY_KEY)
    is_default = options is _DEFAULT
    server_side = server_side_tools_of(request, options, dialect) if request.server_side_tools or not is_default else []
    last = last_container(request.messages, keys, base_url) if _reuses_container(server_side) else _NO_CONTAINER
    container = last.id
    named = bool(server_side) and any(container_of(tool, container) is not None for tool in server_side)
    instructions = _digest(request.system) if dialect.keeps_instructions else None
    plain = plain_items(request.messages) if len(request.messages) >= LONG else None
    start = continue_from(
        request,
        options,
        model,
        base_url,
        names_container=named,
        instructions=instructions,
        has_sessions=plain is None,
    )
    replays = Replays(request.replays)
    target = InputTarget(
        model=model,
        base_url=base_url,
        provider=dialect.name,
        session_keys=keys,
        replays=replays,
        image_detail=options.image_detail,
        resends_raw=dialect.resends_raw,
        has_containers="container" not in request.without,
    )
    if plain is None:
        sent = request.messages[start.index :]
        texts, others = only_texts(sent)
        items, warnings = encode_input(sent, texts, others, start.pending, target)
    else:
        items, others, warnings = plain, list[ChatMessage](), list[str]()
    has_containers = bool(server_side) and dialect.has_containers and any(map(_has_container, server_side))
    is_left = has_containers and last_container(request.messages, keys, base_url).is_left
    files = ContainerFiles(request, keys, base_url, is_left=is_left) if has_containers else None
    if files is not None:
        is_first = start.previous_id is None and start.index == 0
        server_side = [_with_files(tool, container, files, items, is_first=is_first) for tool in server_side]
    tools = encode_tools(request, options, server_side, container, dialect)
    warnings += [*tools.warnings, *left_out]

    system = None if dialect.keeps_instructions and start.previous_id is not None else request.system
    body: JsonObject = {"model": model}
    if system:
        body["instructions"] = system
    if items:
        body["input"] = items
    if start.previous_id is not None:
        body["previous_response_id"] = start.previous_id
    if tools.tools:
        body["tools"] = tools.tools
    if include := _include(options, tools.include, dialect.lacks):
        body["include"] = include
    if text := _text(request, options, warnings):
        body["text"] = text
    if not is_default:
        body |= without_none({"conversation": options.conversation, **plain_options(options, PLAIN_OPTIONS)})
    body["stream"] = request.stream
    if request.compaction is not None and not options.context_management:
        body["context_management"] = _with_type((ContextManagement(compact_threshold=request.compaction.at_tokens),))
    if request.stream and "stream_options" not in dialect.lacks:
        body["stream_options"] = {"include_obfuscation": options.include_obfuscation}
    body = encoding.merged(body, options.extra_body) if options.extra_body else body
    if "input" not in body and not body.keys() & {"previous_response_id", "conversation", "prompt"}:
        raise encoding.nothing_to_send()
    return encoding.EncodedRequest(
        body=body,
        headers={} if is_default else request_headers(options.organization, options.project, options.extra_headers),
        context=_context(request, options, server_side, model, base_url, dialect, _note(files, instructions)),
        first=start.index,
        others=others,
        warnings=tuple(warnings),
        notices=replay_notices(start.reason, replays) or last.notices,
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
    return bool(server_side) and any(isinstance(tool, CodeInterpreter) and tool.reuse_container for tool in server_side)


def _context(
    request: ModelRequest,
    options: OpenAIResponsesOptions,
    server_side: list[ServerSideTool],
    model: str,
    base_url: str,
    dialect: ResponsesDialect,
    note: JsonObject,
) -> ResponsesContext:
    shell = next((tool for tool in server_side if isinstance(tool, Shell)), None) if server_side else None
    return ResponsesContext(
        store=options.store is not False,
        has_encrypted=ENCRYPTED in options.include,
        model=model,
        base_url=base_url,
        messages=request.messages,
        hosted_shell=None if shell is None else not shell.local,
        session_note=note,
        provider=dialect.name,
        resends_raw=dialect.resends_raw,
        runs_custom_calls=dialect.runs_custom_calls,
    )


def _digest(instructions: str | None) -> str:
    """Return the digest of a system prompt, which is empty if there is none."""
    return blake2b(instructions.encode("utf-8", "replace"), digest_size=8).hexdigest() if instructions else ""


def _note(files: ContainerFiles | None, instructions: str | None) -> JsonObject:
    """Return what the session of the answer keeps besides the response."""
    note: JsonObject = {} if files is None else {**files.note()}
    return note if instructions is None else {**note, INSTRUCTIONS: instructions}


def _include(options: OpenAIResponsesOptions, of_tools: list[str], lacks: frozenset[str]) -> list[str]:
    if options is _DEFAULT and not of_tools:
        return []
    wanted = list(of_tools)
    if options.store is False and ENCRYPTED not in lacks:
        wanted.append(ENCRYPTED)
    if options.top_logprobs is not None:
        wanted.append("message.output_text.logprobs")
    return list(dict.fromkeys((*wanted, *options.include)))


def _text(request: ModelRequest, options: OpenAIResponsesOptions, warnings: list[str]) -> JsonObject:
    text: JsonObject = {}
    schema = request.output_schema
    if schema is None and options is _DEFAULT:
        return text
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
    detail = encoding.checked_options(options, OpenAIResponsesOptions(), OPENAI.display_name).image_detail
    target = InputTarget(model="", base_url="", session_keys=(), replays=Replays({}), image_detail=detail)
    items = [{"type": "message", **item} for item in encode_input((message,), [None], (message,), (), target)[0]]
    return jsontext.dumps({"type": "response.steer", "previous_response_id": response_id, "input": items})

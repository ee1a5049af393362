"""A request on OpenAI's wire: the body of `POST /responses`. Pure: messages, tools and options in, JSON out."""

from collections.abc import Callable
from typing import Any

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.messages.replays import Replays
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.account import as_json, moderation_body, plain_options, request_headers
from sidestream.providers.openai.responses.context import REPLAY_KEY, SESSION_KEY, ResponsesContext
from sidestream.providers.openai.responses.encode.input import InputTarget, encode_input
from sidestream.providers.openai.responses.encode.session import continue_from, last_container
from sidestream.providers.openai.responses.encode.tools import container_of, encode_tools, server_side_tools_of
from sidestream.providers.openai.responses.options import ContextManagement, OpenAIResponsesOptions
from sidestream.providers.openai.responses.settings import SETTINGS
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.continuation import replay_notices
from sidestream.providers.shared.encoding import (
    EncodedRequest,
    checked_options,
    given,
    merged,
    nothing_to_send,
    without_none,
)
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool, Shell

DISPLAY_NAME = "OpenAI Responses"
_DEFAULT = OpenAIResponsesOptions()


def encode_request(request: ModelRequest, model: str, base_url: str) -> EncodedRequest[ResponsesContext]:
    """Raises ConfigurationError for a request that the API cannot serve."""
    options = checked_options(request.options, _DEFAULT, DISPLAY_NAME)
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
    body = merged(without_none(body), options.extra_body)
    if not body.keys() & {"input", "previous_response_id", "conversation", "prompt"}:
        raise nothing_to_send()
    return EncodedRequest(
        body=body,
        headers=request_headers(options.organization, options.project, options.extra_headers),
        context=_context(request, options, server_side, model, base_url),
        first=start.index,
        warnings=tuple(warnings),
        notices=replay_notices(start.reason, replays),
        needs=tuple(replays.needed),
        in_background=body.get("background") is True,
    )


def _reuses_container(server_side: list[ServerSideTool]) -> bool:
    return any(isinstance(tool, CodeInterpreter) and tool.reuse_container for tool in server_side)


def _context(
    request: ModelRequest, options: OpenAIResponsesOptions, server_side: list[ServerSideTool], model: str, base_url: str
) -> ResponsesContext:
    shell = next((tool for tool in server_side if isinstance(tool, Shell)), None)
    return ResponsesContext(
        store=options.store is not False,
        model=model,
        base_url=base_url,
        messages=request.messages,
        hosted_shell=None if shell is None else not shell.local,
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
    return text | given(options, {"verbosity": "verbosity"})


def _with_type(entries: tuple[Any, ...]) -> list[JsonObject]:
    return [{"type": entry.type, **given(entry)} for entry in entries]


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
"""Options that are sent under their own names → how they are encoded."""

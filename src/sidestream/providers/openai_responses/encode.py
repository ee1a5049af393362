"""A request on OpenAI's wire: the body of `POST /responses`. Pure: messages, tools and options in, JSON out."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sidestream.configs import Config
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.json_schema import allows_strict
from sidestream.jsontext import JsonObject, is_object
from sidestream.providers.encoding import given
from sidestream.providers.openai import Moderation
from sidestream.providers.openai_responses.context import REPLAY_KEY, SESSION_KEY, DecodeContext
from sidestream.providers.openai_responses.encode_input import Target, encode_input
from sidestream.providers.openai_responses.encode_session import continue_from, last_container
from sidestream.providers.openai_responses.encode_tools import container_of, encode_tools, hosted_tools
from sidestream.providers.openai_responses.options import OpenAIResponsesOptions
from sidestream.providers.protocol import ModelRequest
from sidestream.stream.parts import StreamPart
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool, Shell


class EncodedRequest(Struct, frozen=True, kw_only=True):
    """The body, and what the stream and the decoder must know of how it was made."""

    body: JsonObject
    context: DecodeContext
    warnings: tuple[str, ...] = ()
    notices: tuple[StreamPart, ...] = ()


def encode_request(request: ModelRequest, model: str, base_url: str) -> EncodedRequest:
    """Raises ConfigurationError for what cannot be asked for."""
    options = options_of(request)
    keys = (REPLAY_KEY,) if options.store is False else (SESSION_KEY, REPLAY_KEY)
    hosted = hosted_tools(request, options)
    container = last_container(request.messages, keys, base_url) if _reuses_container(hosted) else None
    named = any(container_of(tool, container) is not None for tool in hosted)
    start = continue_from(request, options, model, base_url, names_container=named)
    target = Target(
        model=model,
        base_url=base_url,
        session_keys=keys,
        image_detail=options.image_detail,
        has_containers="container" not in request.without,
    )
    items, warnings = encode_input(request.messages[start.index :], start.pending, target)
    tools = encode_tools(request, options, hosted, container)
    warnings += tools.warnings

    body: JsonObject = {"model": model, "instructions": request.system or None, "input": items or None}
    body |= {"previous_response_id": start.previous_response_id, "conversation": options.conversation}
    body |= {"tools": tools.tools or None, "include": _include(options, tools.include) or None}
    body |= {"text": _text(request, options, warnings) or None, **_plain_options(options), "stream": request.stream}
    if request.stream:
        body["stream_options"] = {"include_obfuscation": options.include_obfuscation}
    body = _merged({name: value for name, value in body.items() if value is not None}, options.extra_body)
    if not body.keys() & {"input", "previous_response_id", "conversation", "prompt"}:
        raise ConfigurationError(
            "there is nothing to send: the history has no message with text, files or tool results"
        )
    return EncodedRequest(
        body=body,
        context=_context(request, options, hosted, model, base_url),
        warnings=tuple(warnings),
        notices=start.notices,
    )


_DEFAULT = OpenAIResponsesOptions()


def options_of(request: ModelRequest) -> OpenAIResponsesOptions:
    """The request's options. Raises UnsupportedError for those of another provider."""
    if request.options is None:
        return _DEFAULT
    if isinstance(request.options, OpenAIResponsesOptions):
        return request.options
    raise UnsupportedError(
        f"OpenAI Responses takes OpenAIResponsesOptions, not {type(request.options).__name__}; "
        f"its fields: {', '.join(OpenAIResponsesOptions.__struct_fields__)}"
    )


def _reuses_container(hosted: list[ServerSideTool]) -> bool:
    return any(isinstance(tool, CodeInterpreter) and tool.reuse_container for tool in hosted)


def _context(
    request: ModelRequest, options: OpenAIResponsesOptions, hosted: list[ServerSideTool], model: str, base_url: str
) -> DecodeContext:
    shell = next((tool for tool in hosted if isinstance(tool, Shell)), None)
    return DecodeContext(
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
            raise ConfigurationError("json_object and an output type exclude each other; drop json_object")
        strict = schema.strict and allows_strict(schema.schema)
        if strict != schema.strict:
            warnings.append(f"the schema {schema.name} does not allow strict mode, so the answer may not follow it")
        description = {"description": schema.description} if schema.description else {}
        form = {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": strict}
        text["format"] = form | description
    elif options.json_object:
        text["format"] = {"type": "json_object"}
    return text | given(options, {"verbosity": "verbosity"})


def _moderation(moderation: Moderation) -> JsonObject:
    policy = {side: {"mode": mode} for side, mode in given(moderation, {"input": "input", "output": "output"}).items()}
    return {"model": moderation.model, **({"policy": policy} if policy else {})}


def _with_type(entries: tuple[Any, ...]) -> list[JsonObject]:
    return [{"type": entry.type, **given(entry)} for entry in entries]


def _as_it_is(value: Any) -> Any:
    return (given(value) or None) if isinstance(value, Config) else value


PLAIN_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "max_output_tokens": _as_it_is,
    "max_tool_calls": _as_it_is,
    "parallel_tool_calls": _as_it_is,
    "tool_choice": _as_it_is,
    "reasoning": _as_it_is,
    "temperature": _as_it_is,
    "top_p": _as_it_is,
    "top_logprobs": _as_it_is,
    "truncation": _as_it_is,
    "store": _as_it_is,
    "background": _as_it_is,
    "service_tier": _as_it_is,
    "metadata": _as_it_is,
    "prompt": _as_it_is,
    "prompt_cache_key": _as_it_is,
    "prompt_cache_options": _as_it_is,
    "prompt_cache_retention": _as_it_is,
    "safety_identifier": _as_it_is,
    "user": _as_it_is,
    "context_management": _with_type,
    "moderation": _moderation,
    "image": _as_it_is,
    "access_programs": _as_it_is,
}
"""Options that go into the body under their own names → in which form."""


def _plain_options(options: OpenAIResponsesOptions) -> JsonObject:
    if options is _DEFAULT:
        return {}
    return {
        name: encode(value)
        for name, encode in PLAIN_OPTIONS.items()
        if (value := getattr(options, name)) not in (None, ())
    }


def _merged(body: JsonObject, extra: JsonObject) -> JsonObject:
    """The extra parameters win; objects are merged field by field."""
    if not extra:
        return body
    merged = dict(body)
    for name, value in extra.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if is_object(old) and is_object(value) else value
    return merged

"""A request on the wire: the body of `POST /chat/completions`. Pure: messages, tools and options in, JSON out."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.configs import Config
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.json_schema import allows_strict
from sidestream.jsontext import JsonObject, is_object
from sidestream.providers.encoding import given
from sidestream.providers.openai import Moderation
from sidestream.providers.openai_chat.context import WIRE, DecodeContext, Dialect
from sidestream.providers.openai_chat.encode_messages import Target, encode_messages
from sidestream.providers.openai_chat.encode_tools import HOSTED, encode_tools
from sidestream.providers.openai_chat.options import AudioOutput, OpenAIChatOptions
from sidestream.providers.protocol import ModelRequest, OutputSchema
from sidestream.tools.server_side import ServerSideTool


class Server(Struct, frozen=True, kw_only=True):
    """Whom the request is for."""

    name: str = WIRE
    display_name: str = "OpenAI Chat Completions"
    dialect: Dialect = Dialect()
    server_side_tools: frozenset[type[ServerSideTool]] = HOSTED


class EncodedRequest(Struct, frozen=True, kw_only=True):
    """The body, and what the stream and the decoder must know of how it was made."""

    body: JsonObject
    context: DecodeContext
    warnings: tuple[str, ...] = ()


OPENAI = Server()


def encode_request(request: ModelRequest, model: str, server: Server = OPENAI) -> EncodedRequest:
    """Raises ConfigurationError for what cannot be asked for."""
    options = options_of(request)
    lacks = server.dialect.lacks | request.without
    tools = encode_tools(
        request, model, server.display_name, server.server_side_tools, has_strict="strict" not in lacks
    )
    target = Target(
        instructions_role=options.instructions_role,
        image_detail=options.image_detail,
        id_length=server.dialect.id_length,
        custom_tools=tools.custom,
    )
    messages, warnings = encode_messages(request.messages, target)
    if not messages:
        raise ConfigurationError(
            "there is nothing to send: the history has no message with text, files or tool results"
        )
    warnings = [*tools.warnings, *warnings]
    format_of, instruction = _response_format(request.output_schema, options, lacks, warnings)
    system = "\n\n".join(text for text in (request.system, instruction) if text and text.strip())
    if system:
        messages = [{"role": options.instructions_role, "content": system}, *messages]

    body: JsonObject = {"model": model, "messages": messages, "tools": tools.tools or None}
    body |= {"web_search_options": tools.web_search, "response_format": format_of}
    body |= {**_plain_options(options, lacks), "stream": request.stream}
    if request.stream and "stream_options" not in lacks:
        body["stream_options"] = _stream_options(options) or None
    body = {name: value for name, value in body.items() if value is not None}
    return EncodedRequest(
        body=_merged(body, options.extra_body),
        context=DecodeContext(
            provider=server.name,
            audio_format=options.audio.format if options.audio else None,
            messages=request.messages,
        ),
        warnings=tuple(warnings),
    )


_DEFAULT = OpenAIChatOptions()


def options_of(request: ModelRequest) -> OpenAIChatOptions:
    """The request's options. Raises UnsupportedError for those of another provider."""
    if request.options is None:
        return _DEFAULT
    if isinstance(request.options, OpenAIChatOptions):
        return request.options
    raise UnsupportedError(
        f"Chat Completions take OpenAIChatOptions, not {type(request.options).__name__}; "
        f"its fields: {', '.join(OpenAIChatOptions.__struct_fields__)}"
    )


def _response_format(
    schema: OutputSchema | None, options: OpenAIChatOptions, lacks: frozenset[str], warnings: list[str]
) -> tuple[JsonObject | None, str | None]:
    """The form of the answer as a parameter, else as an instruction to a server that has no such parameter."""
    if schema is None:
        return ({"type": "json_object"}, None) if options.json_object else (None, None)
    if options.json_object:
        raise ConfigurationError("json_object and an output type exclude each other; drop json_object")
    if "response_format" in lacks:
        text = jsontext.dumps(schema.schema).decode()
        return None, f"Answer with JSON that fits this JSON schema, and with nothing else:\n{text}"
    strict = schema.strict and "strict" not in lacks and allows_strict(schema.schema)
    if schema.strict and not allows_strict(schema.schema):
        warnings.append(f"the schema {schema.name} does not allow strict mode, so the answer may not follow it")
    form: JsonObject = {"name": schema.name, "schema": schema.schema}
    form |= {"description": schema.description} if schema.description else {}
    form |= {"strict": True} if strict else {}
    return {"type": "json_schema", "json_schema": form}, None


def _stream_options(options: OpenAIChatOptions) -> JsonObject:
    usage = {"include_usage": True} if options.include_usage else {}
    return usage | given(options, {"include_obfuscation": "include_obfuscation"})


def _as_it_is(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return (given(value) or None) if isinstance(value, Config) else value


def _audio(audio: AudioOutput) -> JsonObject:
    return {"voice": audio.voice, "format": audio.format}


def _prediction(text: str) -> JsonObject:
    return {"type": "content", "content": text}


def _moderation(moderation: Moderation) -> JsonObject:
    policy = {side: {"mode": mode} for side, mode in given(moderation, {"input": "input", "output": "output"}).items()}
    return {"model": moderation.model, **({"policy": policy} if policy else {})}


PLAIN_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "max_completion_tokens": _as_it_is,
    "temperature": _as_it_is,
    "top_p": _as_it_is,
    "frequency_penalty": _as_it_is,
    "presence_penalty": _as_it_is,
    "logit_bias": _as_it_is,
    "stop": _as_it_is,
    "seed": _as_it_is,
    "logprobs": _as_it_is,
    "top_logprobs": _as_it_is,
    "reasoning_effort": _as_it_is,
    "verbosity": _as_it_is,
    "parallel_tool_calls": _as_it_is,
    "tool_choice": _as_it_is,
    "modalities": _as_it_is,
    "audio": _audio,
    "prediction": _prediction,
    "service_tier": _as_it_is,
    "store": _as_it_is,
    "metadata": _as_it_is,
    "prompt_cache_key": _as_it_is,
    "prompt_cache_options": _as_it_is,
    "prompt_cache_retention": _as_it_is,
    "safety_identifier": _as_it_is,
    "user": _as_it_is,
    "moderation": _moderation,
}
"""Options that go into the body under their own names → in which form."""


def _plain_options(options: OpenAIChatOptions, lacks: frozenset[str]) -> JsonObject:
    body = {
        name: encode(value)
        for name, encode in PLAIN_OPTIONS.items()
        if (value := getattr(options, name)) not in (None, ())
    }
    if options.top_logprobs is not None:
        body.setdefault("logprobs", True)
    if options.audio is not None:
        body.setdefault("modalities", ["text", "audio"])
    if "parallel_tool_calls" in lacks:
        body.pop("parallel_tool_calls", None)
    # A model that refused the old name has the new one, whatever is usual at its server.
    if "max_completion_tokens" in lacks and "max_tokens" not in lacks and "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    return body


def _merged(body: JsonObject, extra: JsonObject) -> JsonObject:
    """The extra parameters win; objects are merged field by field."""
    merged = dict(body)
    for name, value in extra.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if is_object(old) and is_object(value) else value
    return merged

"""Encodes the body of `POST /chat/completions`, including its tools. Pure."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, objects, without_none
from sidestream.output import OutputSchema
from sidestream.output.json_schema import allows_strict
from sidestream.providers.openai.account import as_json, moderation_body, plain_options, request_headers
from sidestream.providers.openai.chat.encode import hosted_tools
from sidestream.providers.openai.chat.encode.messages import CompletionsTarget, encode_messages
from sidestream.providers.openai.chat.options import (
    WIRE,
    AudioOutput,
    CompletionsContext,
    Dialect,
    OpenAIChatOptions,
    settings_of,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared import encoding
from sidestream.providers.shared.hosting import require_hosted, without_repeats
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.server_side import CustomTool
from sidestream.tools.spec import ToolSpec


class CompletionsTools(Struct, frozen=True):
    """The encoded tools, fields and headers of hosted tools, names of custom tools, and warnings."""

    tools: list[JsonObject]
    fields: JsonObject
    headers: dict[str, str]
    custom: frozenset[str]
    warnings: list[str]


def encode_tools(
    request: ModelRequest,
    model: str,
    display_name: str,
    hosting: hosted_tools.Hosting,
    *,
    has_strict: bool,
) -> CompletionsTools:
    """Encode the tools of a request. Raises NotHostedError for a tool that the server does not host."""
    strict = {spec.name for spec in request.tools if spec.strict and allows_strict(spec.parameters)}
    warnings = [encoding.loose_warning(spec) for spec in request.tools if spec.strict and spec.name not in strict]
    names = {tool.name for tool in request.server_side_tools if isinstance(tool, CustomTool)}
    # Skip functions that implement a custom tool, which is offered instead.
    tools = [
        _function(spec, is_strict=has_strict and spec.name in strict)
        for spec in request.tools
        if spec.name not in names
    ]
    fields: JsonObject = {}
    headers: dict[str, str] = {}
    if not request.server_side_tools:
        return CompletionsTools(tools, fields, headers, frozenset(), warnings)
    require_hosted(request.server_side_tools, hosted_tools.hosted_kinds(hosting), display_name)
    for tool in without_repeats(request.server_side_tools, CustomTool):
        found, needed = hosted_tools.row_of(hosting, model, tool, display_name)
        fields = hosted_tools.joined(fields, found)
        headers |= needed
    tools += fields.pop("tools", ())
    return CompletionsTools(tools, fields, headers, frozenset(names), warnings)


def server_tools_among(tools: Iterable[JsonObject]) -> tuple[str, ...]:
    """Return the types of the tools that the server runs."""
    return tuple(str(tool.get("type")) for tool in tools if tool.get("type") not in ("function", "custom"))


def _function(spec: ToolSpec, *, is_strict: bool) -> JsonObject:
    strict = {"strict": True} if is_strict else {}
    described = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": described | strict}


_DEFAULT = OpenAIChatOptions()
_DIALECT = Dialect()
DISPLAY_NAME = "OpenAI Chat Completions"


def encode_request(
    request: ModelRequest,
    model: str,
    *,
    provider: str = WIRE,
    display_name: str = DISPLAY_NAME,
    dialect: Dialect = _DIALECT,
    hosting: hosted_tools.Hosting = hosted_tools.OPENAI,
) -> encoding.EncodedRequest[CompletionsContext]:
    """Encode a request for a server dialect. Raises ConfigurationError for features that it does not support."""
    options, left_out = options_of(request, model, display_name, dialect)
    lacks = dialect.lacks | request.without
    tools = encode_tools(request, model, display_name, hosting, has_strict="strict" not in lacks)
    target = CompletionsTarget(
        instructions_role=options.instructions_role,
        image_detail=options.image_detail,
        id_length=dialect.id_length,
        custom_tools=tools.custom,
    )
    messages, warnings = encode_messages(request.messages, target)
    if not messages:
        raise encoding.nothing_to_send()
    warnings = [*tools.warnings, *warnings, *left_out]
    format_of, instruction = _response_format(request.output_schema, options, lacks, warnings)
    system = "\n\n".join(text for text in (request.system, instruction) if text and text.strip())
    if system:
        messages = [{"role": options.instructions_role, "content": system}, *messages]

    body: JsonObject = {"model": model, "messages": messages, "tools": tools.tools or None}
    body |= {"response_format": format_of, **tools.fields}
    body |= {**_plain_options(options, lacks), "stream": request.stream}
    if "web_search_options" in tools.fields and not tools.tools:
        body["tool_choice"] = None  # The API refuses it without functions, and search models always search.
    if request.stream and "stream_options" not in lacks:
        body["stream_options"] = _stream_options(options) or None
    body = encoding.merged(without_none(body), options.extra_body)
    return encoding.EncodedRequest(
        body=body,
        headers=tools.headers | request_headers(options.organization, options.project, options.extra_headers),
        context=CompletionsContext(
            provider=provider,
            audio_format=options.audio.format if options.audio else None,
            messages=request.messages,
            server_tools=server_tools_among(objects(body.get("tools"))),
            changes_ids=dialect.changes_ids,
        ),
        warnings=tuple(warnings),
    )


def options_of(
    request: ModelRequest, model: str, display_name: str, dialect: Dialect
) -> tuple[OpenAIChatOptions, list[str]]:
    """Merge the portable settings into the options. Returns them with warnings.

    Raises UnsupportedError for options of another provider.
    """
    options = encoding.checked_options(request.options, _DEFAULT, DISPLAY_NAME)
    return with_settings(options, request.settings, settings_of(dialect), display_name, model)


def _response_format(
    schema: OutputSchema | None, options: OpenAIChatOptions, lacks: frozenset[str], warnings: list[str]
) -> tuple[JsonObject | None, str | None]:
    """Return the response format as a parameter, or as an instruction if the server does not support it.

    Raises ConfigurationError if both `json_object` and an output type are set.
    """
    if schema is None:
        return ({"type": "json_object"}, None) if options.json_object else (None, None)
    if options.json_object:
        raise ConfigurationError("json_object and an output type are mutually exclusive; remove json_object")
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
    return usage | encoding.given(options, {"include_obfuscation": "include_obfuscation"})


def _audio(audio: AudioOutput) -> JsonObject:
    return {"voice": audio.voice, "format": audio.format}


def _prediction(text: str) -> JsonObject:
    return {"type": "content", "content": text}


PLAIN_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "max_completion_tokens": as_json,
    "temperature": as_json,
    "top_p": as_json,
    "frequency_penalty": as_json,
    "presence_penalty": as_json,
    "logit_bias": as_json,
    "stop": as_json,
    "seed": as_json,
    "logprobs": as_json,
    "top_logprobs": as_json,
    "reasoning_effort": as_json,
    "verbosity": as_json,
    "parallel_tool_calls": as_json,
    "tool_choice": as_json,
    "modalities": as_json,
    "audio": _audio,
    "prediction": _prediction,
    "service_tier": as_json,
    "store": as_json,
    "metadata": as_json,
    "prompt_cache_key": as_json,
    "prompt_cache_options": as_json,
    "prompt_cache_retention": as_json,
    "safety_identifier": as_json,
    "user": as_json,
    "moderation": moderation_body,
}
"""Encodings of the options that are sent under their own names."""


def _plain_options(options: OpenAIChatOptions, lacks: frozenset[str]) -> JsonObject:
    body = plain_options(options, PLAIN_OPTIONS)
    if options.top_logprobs is not None:
        body.setdefault("logprobs", True)
    if options.audio is not None:
        body.setdefault("modalities", ["text", "audio"])
    if "parallel_tool_calls" in lacks:
        body.pop("parallel_tool_calls", None)
    # A model that refused the old name supports the new one, even if its server usually does not.
    if "max_completion_tokens" in lacks and "max_tokens" not in lacks and "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    return body

"""Encoding of a request to the body of `generateContent`. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.jsontext import JsonObject, is_object, without_none
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import Replays
from sidestream.providers.google.computer import screen_of
from sidestream.providers.google.context import SESSION_KEY, GoogleContext, some_text
from sidestream.providers.google.encode.contents import ContentsTarget, encode_contents, system_instruction
from sidestream.providers.google.encode.server_side import server_side_tools_of, tool_entries
from sidestream.providers.google.options import GoogleImageOutput, GoogleMaps, GoogleOptions
from sidestream.providers.google.settings import SETTINGS
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared import encoding
from sidestream.providers.shared.continuation import replay_notices
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.spec import ToolSpec

FINAL_ANSWER_PROMPT = "Give your final answer now, as JSON that follows the schema."
"""Prompt for the second phase of a typed answer, which has no tools."""


class GeminiFamily(Struct, frozen=True):
    """Capabilities of a family of models."""

    pattern: re.Pattern[str]
    typed_output_beside_tools: bool
    signs_calls: bool
    mixes_tools: bool = True
    """Whether a request may have both hosted tools and functions."""


FAMILIES = (
    GeminiFamily(
        re.compile(r"gemini-[12](\.|-|$)"), typed_output_beside_tools=False, signs_calls=False, mixes_tools=False
    ),
    GeminiFamily(re.compile(r"gemma|learnlm"), typed_output_beside_tools=False, signs_calls=False),
    GeminiFamily(re.compile(r"gemini-\d"), typed_output_beside_tools=True, signs_calls=True),
    GeminiFamily(re.compile(r""), typed_output_beside_tools=True, signs_calls=False),
)
"""Families by the beginning of the model's name. The first match counts. Names without a number mean the newest
model."""


def family_of(model: str) -> GeminiFamily:
    """Return the family of a model, by the last segment of its name."""
    name = model.rpartition("/")[2]
    return next(family for family in FAMILIES if family.pattern.match(name))


_DEFAULT = GoogleOptions()
_ROOT = {"cached_content": "cachedContent", "service_tier": "serviceTier", "store": "store", "labels": "labels"}


def encode_request(request: ModelRequest, model: str, base_url: str) -> encoding.EncodedRequest[GoogleContext]:
    """Encode a request. Raises ConfigurationError if the API cannot serve it."""
    options = encoding.checked_options(request.options, _DEFAULT, "Google")
    options, warnings = with_settings(options, request.settings, SETTINGS, "Google", model)
    server_side = server_side_tools_of(request, options)
    tools = [] if "tools" in request.without else _tools(request, options, server_side, model)
    defers = defers_output(request, options.typed_output_beside_tools, model, tools)
    messages, token = unfinished(request.messages, SESSION_KEY)
    replays = Replays(request.replays)
    target = ContentsTarget(
        model=model,
        base_url=base_url,
        replays=replays,
        signs_calls=family_of(model).signs_calls,
        has_tools=bool(tools) or options.cached_content is not None,
    )
    contents, more = encode_contents(messages, target)
    warnings += more
    if "tools" in request.without and contents and contents[-1]["role"] == "model":
        contents.append({"role": "user", "parts": [{"text": FINAL_ANSWER_PROMPT}]})
    body: JsonObject = {
        "contents": contents,
        "systemInstruction": system_instruction(request.messages, request.system),
        "tools": tools or None,
        "toolConfig": _tool_config(request, options, server_side, tools) or None,
        "generationConfig": _generation_config(request, options, server_side, with_schema=not defers) or None,
        "safetySettings": [without_none(_safety(setting)) for setting in options.safety_settings] or None,
        "continuationToken": options.continuation_token or token,
        **encoding.given(options, _ROOT),
    }
    body = encoding.merged(without_none(_without_cached(body, warnings)), options.extra_body)
    if not body.get("contents"):
        raise encoding.nothing_to_send()
    return encoding.EncodedRequest(
        body=body,
        headers=options.extra_headers,
        context=GoogleContext(
            model=model,
            base_url=base_url,
            messages=request.messages,
            drafts=defers,
            screen=screen_of(server_side),
            functions=frozenset(spec.name for spec in request.tools),
        ),
        warnings=tuple(warnings),
        notices=replay_notices(None, replays),
        needs=tuple(replays.needed),
        defers_output=defers,
    )


def defers_output(request: ModelRequest, can: bool | None, model: str, tools: list[JsonObject]) -> bool:
    """Return whether the typed answer needs a second phase, because the model cannot combine a schema with tools."""
    can = family_of(model).typed_output_beside_tools if can is None else can
    return request.output_schema is not None and bool(tools) and not can


def unfinished(messages: Sequence[ChatMessage], *keys: str) -> tuple[Sequence[ChatMessage], str | None]:
    """Return the history without a paused answer, and the token that continues it. `keys` are session keys."""
    token, end = None, len(messages)
    while end and messages[end - 1].role == "model":
        sessions = [messages[end - 1].metadata.get(key) for key in keys]
        found = [some_text(session, "continuation_token") for session in sessions if is_object(session)]
        if not any(found):
            break
        token, end = token or next(filter(None, found)), end - 1
    return messages[:end], token


def _tools(request: ModelRequest, options: GoogleOptions, server_side: list[Any], model: str) -> list[JsonObject]:
    encoding.check_function_options(options.function_options, request.tools)
    functions = [_declaration(spec, options) for spec in request.tools]
    tools = tool_entries(server_side) + list(options.extra_tools)
    alone = sorted({name for tool in tools for name in tool} & _ALONE)
    if alone and functions and not family_of(model).mixes_tools:
        raise UnsupportedError(
            f"{model} does not accept hosted tools ({', '.join(alone)}) together with functions; run them here with "
            'execution="here", leave out the functions, or use Gemini 3'
        )
    return tools + ([{"functionDeclarations": functions}] if functions else [])


_ALONE = frozenset({"codeExecution", "fileSearch", "googleMaps", "googleSearch", "urlContext"})
"""Tools that older models do not combine with functions."""


def _declaration(spec: ToolSpec, options: GoogleOptions) -> JsonObject:
    body: JsonObject = {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}
    extra = options.function_options.get(spec.name)
    return body if extra is None else body | encoding.given(extra, _FUNCTION)


_FUNCTION = {"behavior": "behavior", "response_schema": "responseJsonSchema"}


def _tool_config(
    request: ModelRequest, options: GoogleOptions, server_side: list[Any], tools: list[JsonObject]
) -> JsonObject:
    if not tools:
        return {}
    config: JsonObject = {}
    calling = encoding.given(options, _CALLING)
    if options.function_calling is not None and (request.tools or options.function_calling != "any"):
        # The API refuses it without functions, and hosted tools cannot be forced.
        calling["mode"] = options.function_calling.upper()
    if calling:
        config["functionCallingConfig"] = calling
    maps = next((tool for tool in server_side if isinstance(tool, GoogleMaps)), None)
    retrieval = _retrieval(maps) if maps is not None else {}
    if retrieval:
        config["retrievalConfig"] = retrieval
    shown = options.include_server_side_tool_invocations
    is_mixed = bool(request.tools) and any("functionDeclarations" not in tool for tool in tools)
    if is_mixed if shown is None else shown:
        config["includeServerSideToolInvocations"] = True
    elif shown is False:
        config["includeServerSideToolInvocations"] = False
    return config


_CALLING = {
    "allowed_function_names": "allowedFunctionNames",
    "stream_function_call_arguments": "streamFunctionCallArguments",
}


def _retrieval(maps: GoogleMaps) -> JsonObject:
    place = encoding.given(maps, {"latitude": "latitude", "longitude": "longitude"})
    return ({"latLng": place} if place else {}) | encoding.given(maps, {"language": "languageCode"})


def _generation_config(
    request: ModelRequest, options: GoogleOptions, server_side: list[Any], *, with_schema: bool
) -> JsonObject:
    config = encoding.given(options, _GENERATION)
    images = [tool for tool in server_side if isinstance(tool, GoogleImageOutput)]
    modalities = [modality.upper() for modality in options.response_modalities]
    if images and not modalities:
        modalities = ["TEXT", "IMAGE"]
    if modalities:
        config["responseModalities"] = modalities
    look = {
        key: value for image in [*images, options.image] if image is not None for key, value in _image(image).items()
    }
    if look:
        config["imageConfig"] = look
    if options.media_resolution is not None:
        config["mediaResolution"] = f"MEDIA_RESOLUTION_{options.media_resolution.upper()}"
    if options.thinking is not None:
        thinking = encoding.given(options.thinking, {"include_thoughts": "includeThoughts", "budget": "thinkingBudget"})
        level = options.thinking.level
        config["thinkingConfig"] = thinking | ({"thinkingLevel": level.upper()} if level else {})
    if request.output_schema is not None and with_schema:
        if options.response_schema is not None:
            raise ConfigurationError(
                "response_schema and an output type are mutually exclusive; remove response_schema"
            )
        config |= {"responseMimeType": "application/json", "responseJsonSchema": request.output_schema.schema}
    return config


_GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "candidate_count": "candidateCount",
    "max_output_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "response_logprobs": "responseLogprobs",
    "logprobs": "logprobs",
    "response_mime_type": "responseMimeType",
    "response_schema": "responseSchema",
    "response_format": "responseFormat",
    "speech_config": "speechConfig",
    "audio_timestamp": "audioTimestamp",
    "audio_transcription": "audioTranscriptionConfig",
    "translation": "translationConfig",
    "enable_affective_dialog": "enableAffectiveDialog",
    "enable_enhanced_civic_answers": "enableEnhancedCivicAnswers",
    "routing": "routingConfig",
    "model_selection": "modelSelectionConfig",
}
"""Option → field of `generationConfig`."""


def _image(image: GoogleImageOutput) -> JsonObject:
    names = {
        "aspect_ratio": "aspectRatio",
        "size": "imageSize",
        "person_generation": "personGeneration",
        "prominent_people": "prominentPeople",
    }
    output = encoding.given(image, {"compression": "compressionQuality"})
    if image.output_format is not None:
        output["mimeType"] = f"image/{image.output_format}"
    return encoding.given(image, names) | ({"imageOutputOptions": output} if output else {})


def _safety(setting: Any) -> JsonObject:
    return {"category": setting.category, "threshold": setting.threshold, "method": setting.method}


def _without_cached(body: JsonObject, warnings: list[str]) -> JsonObject:
    """Remove tools and instructions if there is cached content. It has its own, and the API refuses both."""
    if body.get("cachedContent") is None:
        return body
    idle = [name for name in ("systemInstruction", "tools", "toolConfig") if body.get(name) is not None]
    if idle:
        warnings.append(f"{', '.join(idle)} left out: the cached content has its own")
    return {**body, **dict.fromkeys(idle)}

"""Our tables of fields, words and parameters against the types of the vendor's SDK, both ways."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from openai.types import CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionContentPartParam,
    ChatCompletionMessage,
    chat_completion,
    chat_completion_audio_param,
    chat_completion_chunk,
    chat_completion_content_part_input_audio_param,
    chat_completion_message,
    chat_completion_message_tool_call,
    chat_completion_stream_options_param,
    completion_create_params,
)

from requirements import requirement
from sidestream.providers.openai.chat.decode import state
from sidestream.providers.openai.chat.decode.content import AUDIO_TYPES
from sidestream.providers.openai.chat.decode.decoder import FIELDS, IGNORED, PLACED
from sidestream.providers.openai.chat.decode.outcome import REASONS
from sidestream.providers.openai.chat.encode.messages import AUDIO_FORMATS
from sidestream.providers.openai.chat.encode.request import PLAIN_OPTIONS
from sidestream.providers.openai.chat.options import AudioOutput, ChatPromptCache, OpenAIChatOptions
from sidestream.tools.configs import config_fields

FACTS = {"metadata", "moderation", "service_tier", "system_fingerprint"}
"""Fields of an answer that are told in the metadata of `finish`, as any unknown field would be."""

FIELDS_OF_OURS = {
    "reasoning_content": "of servers that show their reasoning: DeepSeek's name, which most took over",
    "reasoning": "the same at OpenRouter, Groq, Ollama",
    "reasoning_details": "beside it at OpenRouter",
    "executed_tools": "what Groq's compound models ran",
    "images": "of models that generate images, at OpenRouter",
    "reasoning_steps": "of Perplexity's deep research",
    "channel": "of every token at Groq",
    "token_id": "of every token at Together",
}
"""Fields of a delta that we read and the vendor's SDK does not know, each with its reason."""

REASONS_OF_OURS = {"eos": "Together", "model_length": "Mistral", "error": "OpenRouter and Mistral"}

BY_THE_ENCODER = {"messages", "model", "stream", "stream_options", "tools", "response_format", "web_search_options"}
NOT_OFFERED = {
    "n": "an answer has one choice",
    "max_tokens": "the old name of max_completion_tokens, sent to servers that know only that",
    "functions": "the old form of tools",
    "function_call": "the old form of tool_choice",
}


def fields(model: Any) -> set[str]:
    return set(model.model_fields)


def words(kind: Any) -> set[str]:
    """All words that a type allows, through unions and lists."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for inner in get_args(kind) for word in words(inner)}


def hints(params: Any) -> dict[str, Any]:
    return get_type_hints(params)


@requirement("R31", "R90")
def test_every_delta_and_message_field_is_decoded():
    vendor = fields(chat_completion_chunk.ChoiceDelta) | fields(ChatCompletionMessage)
    assert vendor - FIELDS.keys() == {"role"}
    assert FIELDS.keys() - vendor == FIELDS_OF_OURS.keys()


@requirement("R31", "R90")
def test_every_answer_and_choice_field_is_accounted_for():
    vendor = fields(ChatCompletionChunk) | fields(ChatCompletion)
    assert vendor - PLACED.keys() - IGNORED.keys() <= FACTS
    choice = fields(chat_completion_chunk.Choice) | fields(chat_completion.Choice)
    assert {f"choices[].{name}" for name in choice} <= PLACED.keys()


@requirement("R31", "R90")
def test_every_vendor_finish_reason_is_mapped():
    vendor = words(chat_completion_chunk.Choice.model_fields["finish_reason"].annotation)
    vendor |= words(chat_completion.Choice.model_fields["finish_reason"].annotation)
    assert len(vendor) >= 5
    assert vendor <= REASONS.keys()
    assert REASONS.keys() - vendor == REASONS_OF_OURS.keys()


@requirement("R31", "R90")
def test_every_call_kind_and_piece_field_is_decoded():
    (union, *_) = get_args(chat_completion_message_tool_call.ChatCompletionMessageToolCallUnion)
    kinds = {word for model in get_args(union) for word in words(model.model_fields["type"].annotation)}
    assert kinds == {"function", "custom"}
    assert kinds <= set(state.ToolCallPiece.__struct_fields__)
    assert fields(chat_completion_chunk.ChoiceDeltaToolCall) - {"type"} <= set(state.ToolCallPiece.__struct_fields__)
    assert fields(chat_completion_chunk.ChoiceDeltaToolCallFunction) == set(state.Function.__struct_fields__)
    assert fields(chat_completion_chunk.ChoiceDeltaFunctionCall) == set(state.Function.__struct_fields__)
    assert fields(chat_completion_chunk.ChoiceDeltaAudio) == set(state.AudioPiece.__struct_fields__)


def test_vendor_annotations_and_token_counts_are_known():
    assert words(chat_completion_message.Annotation.model_fields["type"].annotation) == {"url_citation"}
    assert fields(chat_completion_message.AnnotationURLCitation) == {"start_index", "end_index", "title", "url"}
    details = {"completion_tokens_details", "prompt_tokens_details"}
    assert fields(CompletionUsage) == {"completion_tokens", "prompt_tokens", "total_tokens"} | details


@requirement("R31", "R90")
def test_every_parameter_is_option_or_excluded_with_reason():
    vendor = hints(completion_create_params.CompletionCreateParamsStreaming).keys()
    assert len(vendor) >= 35
    assert PLAIN_OPTIONS.keys() | BY_THE_ENCODER | NOT_OFFERED.keys() == vendor
    assert not PLAIN_OPTIONS.keys() & (BY_THE_ENCODER | NOT_OFFERED.keys())
    offered = set(OpenAIChatOptions.__struct_fields__)
    assert offered >= PLAIN_OPTIONS.keys()
    assert hints(chat_completion_stream_options_param.ChatCompletionStreamOptionsParam).keys() <= offered


@requirement("R31", "R90")
@pytest.mark.parametrize(
    "name",
    ["service_tier", "verbosity", "reasoning_effort", "prompt_cache_retention"],
)
def test_option_values_match_vendor(name: str):
    vendor = words(hints(completion_create_params.CompletionCreateParamsStreaming)[name])
    assert vendor
    assert vendor == words(config_fields(OpenAIChatOptions)[name][0])


def test_nested_option_values_match_vendor():
    cache = hints(completion_create_params.PromptCacheOptions)
    assert {name: words(kind) for name, kind in cache.items()} == {
        name: words(kind) for name, (kind, _) in config_fields(ChatPromptCache).items()
    }
    formats = words(hints(chat_completion_audio_param.ChatCompletionAudioParam)["format"])
    assert formats == words(config_fields(AudioOutput)["format"][0]) == AUDIO_TYPES.keys()


def test_content_kinds_match_vendor():
    kinds = {word for model in get_args(ChatCompletionContentPartParam) for word in words(hints(model)["type"])}
    assert kinds == {"text", "image_url", "input_audio", "file"}
    spoken = hints(chat_completion_content_part_input_audio_param.InputAudio)["format"]
    assert set(AUDIO_FORMATS.values()) == words(spoken)

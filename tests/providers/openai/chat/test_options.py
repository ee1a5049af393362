"""Each option reaches the body, and only those that were set."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.openai.chat import AudioOutput, ChatPromptCache, OpenAIChatOptions
from sidestream.providers.openai.chat.encode.request import PLAIN_OPTIONS, encode_request
from sidestream.providers.openai.responses import Moderation, OpenAIResponsesOptions
from sidestream.providers.protocol import ModelRequest

OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "frequency_penalty": (-1, {"frequency_penalty": -1}),
    "presence_penalty": (1, {"presence_penalty": 1}),
    "logit_bias": ({"50256": -100}, {"logit_bias": {"50256": -100}}),
    "max_completion_tokens": (7, {"max_completion_tokens": 7}),
    "stop": (["a", "b"], {"stop": ["a", "b"]}),
    "seed": (0, {"seed": 0}),
    "logprobs": (True, {"logprobs": True}),
    "top_logprobs": (2, {"logprobs": True, "top_logprobs": 2}),
    "reasoning_effort": ("low", {"reasoning_effort": "low"}),
    "verbosity": ("low", {"verbosity": "low"}),
    "parallel_tool_calls": (False, {"parallel_tool_calls": False}),
    "tool_choice": ("required", {"tool_choice": "required"}),
    "modalities": (["text"], {"modalities": ["text"]}),
    "audio": (
        AudioOutput(voice="coral", format="mp3"),
        {"audio": {"voice": "coral", "format": "mp3"}, "modalities": ["text", "audio"]},
    ),
    "prediction": ("a file", {"prediction": {"type": "content", "content": "a file"}}),
    "service_tier": ("flex", {"service_tier": "flex"}),
    "store": (True, {"store": True}),
    "metadata": ({"a": "b"}, {"metadata": {"a": "b"}}),
    "prompt_cache_key": ("k", {"prompt_cache_key": "k"}),
    "prompt_cache_options": (
        ChatPromptCache(mode="explicit", ttl="30m"),
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    ),
    "prompt_cache_retention": ("24h", {"prompt_cache_retention": "24h"}),
    "safety_identifier": ("s", {"safety_identifier": "s"}),
    "user": ("u", {"user": "u"}),
    "moderation": (
        Moderation(model="omni", output="block"),
        {"moderation": {"model": "omni", "policy": {"output": {"mode": "block"}}}},
    ),
}
"""Option → a value, and what it adds to the body."""

PLAIN = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": False}


def body(options: Any, *, stream: bool = False) -> dict[str, Any]:
    request = ModelRequest(messages=(ChatMessage.user("Hi"),), options=options, stream=stream)
    return encode_request(request, "m").body


@requirement("R90")
@pytest.mark.parametrize("name", OPTIONS)
def test_option_reaches_body(name: str):
    value, expected = OPTIONS[name]
    assert body(OpenAIChatOptions(**{name: value})) == PLAIN | expected


def test_every_plain_option_is_covered():
    assert OPTIONS.keys() == PLAIN_OPTIONS.keys()


def test_stop_string_and_tool_choice_are_sent():
    choice = {"type": "function", "function": {"name": "a"}}
    made = body(OpenAIChatOptions(stop="###", tool_choice=choice))
    assert (made["stop"], made["tool_choice"]) == ("###", choice)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OpenAIChatOptions(), {"include_usage": True}),
        (OpenAIChatOptions(include_obfuscation=False), {"include_usage": True, "include_obfuscation": False}),
        (OpenAIChatOptions(include_usage=False), None),
    ],
)
def test_stream_options_are_sent_only_with_streams(options: OpenAIChatOptions, expected: Any):
    assert body(options, stream=True).get("stream_options") == expected
    assert "stream_options" not in body(options)


def test_extra_body_wins_and_objects_are_merged():
    options = OpenAIChatOptions(temperature=1, extra_body={"temperature": 0, "top_k": 5, "stream_options": {"x": 1}})
    made = body(options, stream=True)
    assert (made["temperature"], made["top_k"]) == (0, 5)
    assert made["stream_options"] == {"include_usage": True, "x": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 3},
        {"top_logprobs": 21},
        {"max_completion_tokens": 0},
        {"service_tier": "ultrafast"},
        {"reasoning_effort": "huge"},
        {"image_detail": "original"},
        {"extra_body": {"n": 2}},
    ],
)
def test_invalid_option_value_raises(fields: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        OpenAIChatOptions(**fields)


def test_options_of_other_provider_raise_with_valid_fields():
    with pytest.raises(UnsupportedError) as caught:
        body(OpenAIResponsesOptions())
    assert "max_completion_tokens" in str(caught.value)


def test_extra_headers_stay_out_of_repr():
    assert "secret" not in repr(OpenAIChatOptions(extra_headers={"X-Key": "secret"}))

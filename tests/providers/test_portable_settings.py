"""Portable settings: every provider sends each of them, or refuses it; none is ignored in silence."""

from collections.abc import Iterator
from typing import Any

import pytest

from requirements import requirement
from sidestream import jsontext
from sidestream.errors import UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.anthropic import AnthropicOptions, AnthropicThinking
from sidestream.providers.anthropic.clouds import HOSTS
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.openai.chat.options import OpenAIChatOptions
from sidestream.providers.openai.responses.options import OpenAIResponsesOptions, Reasoning
from sidestream.providers.protocol import ChatModel, Encoded, ModelRequest, Settings
from sidestream.providers.registry import caps_of, find_provider, providers
from sidestream.providers.shared.settings_mapping import PORTABLE
from sidestream.tools.configs import merged_configs
from sidestream.tools.spec import ToolSpec

Json = dict[str, Any]
VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 0.7, 1.5),
    "top_p": (0.5,),
    "max_tokens": (2000,),
    "stop": ("END", ["END", "STOP"]),
    "seed": (7,),
    "thinking": ("off", "on", "low", "medium", "high", True, False, 2048),
    "cache": (True, False),
    "tool_choice": ("required", "look"),
}
MODELS: dict[str, tuple[str, ...]] = {
    "openai-responses": ("gpt-5.6", "gpt-5.2", "gpt-5", "o3", "gpt-4.1", "gpt-5.6-pro"),
    "openai": ("gpt-5.6", "gpt-5", "gpt-4o", "ft:gpt-4o:acme"),
    "anthropic": (
        "claude-sonnet-5-5", "claude-opus-4-7", "claude-sonnet-4-6", "claude-haiku-4-5", "claude-fable-5", "minimax-m3",
    ),
    "google": (
        "gemini-3-flash-preview", "gemini-3-pro-preview", "gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.0-flash",
        "gemini-2.5-flash-image", "gemini-flash-latest",
        "interactions/gemini-3-flash-preview", "interactions/deep-research-preview-04-2026",
    ),
}  # fmt: skip
FULFILLED = {
    ("openai-responses:gpt-4.1", "thinking"),
    ("openai:gpt-4o", "thinking"),
    ("openai:ft:gpt-4o:acme", "thinking"),
    ("google:gemini-2.0-flash", "thinking"),
    ("google:gemini-2.5-flash-image", "thinking"),
    ("local:smollm2-135m", "thinking"),
} | {
    (model, "cache")
    for model in (
        *(f"anthropic:{model}" for model in MODELS["anthropic"]),
        *(f"{host.name}:{host.default_models.get('chat', 'some-model')}" for host in HOSTS),
    )
}
"""Where the setting `off` or False is fulfilled without a parameter: nothing is done that could be turned off."""


@pytest.fixture(autouse=True)
def _project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")  # Vertex has it in the paths of requests.


def models() -> Iterator[Any]:
    for name, provider in providers().items():
        if name == "replay":
            continue
        for model in MODELS.get(name, (provider.default_models.get("chat", "some-model"),)):
            yield pytest.param(f"{name}:{model}", id=f"{name}:{model}")


def model_of(text: str) -> ChatModel:
    provider, _, name = text.partition(":")
    found = find_provider(provider)
    # The URL of a host on a cloud is the user's, from variables.
    url = None if provider == "local" else "https://host.example/v1"
    headers = {"anthropic-workspace-id": "w"} if provider == "anthropic-aws" else {}
    return found.chat_model(name, Settings(api_key=None if provider == "local" else "k", base_url=url, headers=headers))


def encoded(text: str, **given: Any) -> Encoded:
    options = given.pop("options", None)
    # Without tools, there is nothing to choose.
    tools = (
        (ToolSpec("look", "", {"type": "object", "properties": {}}, strict=False),) if "tool_choice" in given else ()
    )
    settings: ModelSettings = given.pop("settings", None) or ModelSettings(**given)
    request = ModelRequest(messages=(ChatMessage.user("hi"),), options=options, settings=settings, tools=tools)
    return model_of(text).encode(request)


def body(text: str, **given: Any) -> Json:
    return jsontext.as_object(jsontext.loads(encoded(text, **given).call.body or b"{}"))


@requirement("R100")
@pytest.mark.parametrize("model", [*models()])
def test_every_setting_changes_request_or_raises(model: str) -> None:
    plain, with_tools = body(model), body(model, tool_choice=None)
    for name, value in [(name, value) for name, values in VALUES.items() for value in values]:
        refusal = refused(model, name, value)
        if refusal is not None:
            warned = encoded(model, **{name: value}, unsupported="warn")
            assert jsontext.loads(warned.call.body or b"") == (with_tools if name == "tool_choice" else plain)
            assert [name in warning and refusal in warning for warning in warned.warnings] == [True]
            continue
        is_fulfilled = value in ("off", False) and (model, name) in FULFILLED
        same = with_tools if name == "tool_choice" else plain
        assert (body(model, **{name: value}) != same) is not is_fulfilled, (name, value)
        assert not encoded(model, **{name: value}).warnings


def refused(model: str, name: str, value: Any) -> str | None:
    try:
        encoded(model, **{name: value})
    except UnsupportedError as error:
        return str(error)
    return None


@requirement("R100")
def test_every_setting_is_covered() -> None:
    assert VALUES.keys() == PORTABLE


@requirement("R100")
@pytest.mark.parametrize("model", [*models()])
def test_claimed_settings_are_mapped_and_others_raise(model: str) -> None:
    claimed = caps_of(model).settings
    assert model_of(model).portable_settings >= claimed  # type: ignore[attr-defined]
    for name in PORTABLE - claimed:
        with pytest.raises(UnsupportedError) as caught:
            body(model, **{name: VALUES[name][-1]})
        assert name in str(caught.value)


@requirement("R100")
def test_refused_setting_error_names_supporting_providers() -> None:
    with pytest.raises(UnsupportedError) as caught:
        body("anthropic:claude-haiku-4-5", seed=7)
    assert all(name in str(caught.value) for name in ("google", "mistral", "openai", "unsupported='warn'"))
    assert "openai-responses" not in str(caught.value)


@requirement("R100")
@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ("openai-responses:gpt-5.6", {"max_tokens": 9, "top_p": 0.5}, {"max_output_tokens": 9, "top_p": 0.5}),
        ("openai-responses:gpt-5.6", {"thinking": "on"}, {"reasoning": {"effort": "medium", "summary": "auto"}}),
        ("openai-responses:gpt-5.6", {"thinking": "high"}, {"reasoning": {"effort": "high", "summary": "auto"}}),
        ("openai-responses:gpt-5.6", {"thinking": "off"}, {"reasoning": {"effort": "none"}}),
        ("openai-responses:gpt-5.6", {"cache": True}, {"prompt_cache_options": {"mode": "implicit"}}),
        ("openai-responses:gpt-5.6", {"cache": False}, {"prompt_cache_options": {"mode": "explicit"}}),
        ("openai:gpt-5.6", {"max_tokens": 9, "stop": ["a"], "seed": 1},
         {"max_completion_tokens": 9, "stop": ["a"], "seed": 1}),
        ("openai:gpt-5.6", {"thinking": "low", "cache": False},
         {"reasoning_effort": "low", "prompt_cache_options": {"mode": "explicit"}}),
        ("mistral:m", {"max_tokens": 9, "seed": 1, "thinking": True},
         {"max_tokens": 9, "random_seed": 1, "reasoning_effort": "high"}),
        ("ollama:qwen3", {"max_tokens": 9, "thinking": "off"}, {"max_tokens": 9, "reasoning_effort": "none"}),
        ("openrouter:o/m", {"thinking": 2048}, {"reasoning": {"max_tokens": 2048}}),
        ("openrouter:o/m", {"thinking": "on"}, {"reasoning": {"enabled": True}}),
        ("llamacpp:m", {"thinking": False, "cache": False},
         {"chat_template_kwargs": {"enable_thinking": False}, "cache_prompt": False}),
        ("anthropic:claude-haiku-4-5", {"temperature": 0.5, "stop": "a"}, {"temperature": 0.5, "stop_sequences": ["a"]}),
        ("anthropic:claude-haiku-4-5", {"thinking": "low"},
         {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5120}),
        ("anthropic:claude-haiku-4-5", {"thinking": "high", "max_tokens": 4000},
         {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000}),
        ("anthropic:claude-sonnet-5-5", {"thinking": "low"},
         {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"},
          "max_tokens": 5120}),
        ("anthropic:claude-sonnet-5-5", {"thinking": "off"}, {"thinking": {"type": "disabled"}, "max_tokens": 4096}),
        ("anthropic:claude-sonnet-5-5", {"cache": True}, {"cache_control": {"type": "ephemeral", "ttl": "5m"}}),
        ("google:gemini-2.5-flash", {"thinking": "off"}, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
        ("google:gemini-2.5-flash", {"thinking": "on"},
         {"generationConfig": {"thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1}}}),
        ("google:gemini-3-flash-preview", {"thinking": "medium", "stop": "a", "seed": 1, "max_tokens": 9},
         {"generationConfig": {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "MEDIUM"},
                               "stopSequences": ["a"], "seed": 1, "maxOutputTokens": 9}}),
        ("google:interactions/gemini-3-flash-preview", {"thinking": "low", "temperature": 0.5},
         {"generation_config": {"thinking_level": "low", "thinking_summaries": "auto", "temperature": 0.5}}),
        ("local:smollm2-135m", {"seed": 1, "cache": True}, {"seed": 1, "cache_prompt": True}),
    ],
)  # fmt: skip
def test_setting_is_encoded_for_each_provider(model: str, given: Json, expected: Json) -> None:
    sent = body(model, **given)
    assert {name: sent.get(name) for name in expected} == expected


@requirement("R100")
@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("openai-responses:gpt-5", {"thinking": "off"}),
        ("openai-responses:gpt-4.1", {"thinking": "on"}),
        ("openai-responses:gpt-5.6", {"thinking": 2048}),
        ("openai-responses:gpt-5.2", {"cache": False}),
        ("mistral:m", {"thinking": "low"}),
        ("anthropic:claude-fable-5-2", {"thinking": "off"}),
        ("anthropic:claude-sonnet-5-5", {"thinking": 2048}),
        ("anthropic:claude-sonnet-5-5", {"temperature": 0.5}),
        ("anthropic:claude-haiku-4-5", {"thinking": 100}),
        ("anthropic:claude-haiku-4-5", {"thinking": "low", "max_tokens": 500}),
        ("anthropic:claude-haiku-4-5", {"thinking": "low", "temperature": 0.5}),
        ("anthropic:claude-haiku-4-5", {"temperature": 1.5}),
        ("google:gemini-3-flash-preview", {"thinking": "off"}),
        ("google:gemini-3-pro-preview", {"thinking": "medium"}),
        ("google:gemini-2.5-pro", {"thinking": "off"}),
        ("google:gemini-2.0-flash", {"thinking": "on"}),
        ("google:interactions/deep-research-preview-04-2026", {"temperature": 0.5}),
        ("local:smollm2-135m", {"thinking": "on"}),
    ],
)
def test_unsupported_setting_value_error_names_model(model: str, given: Json) -> None:
    with pytest.raises(UnsupportedError) as caught:
        body(model, **given)
    assert model.rpartition("/")[2].partition(":")[2] in str(caught.value)


@requirement("R100")
def test_option_wins_over_setting_of_same_level() -> None:
    options = OpenAIResponsesOptions(temperature=1.0, reasoning=Reasoning(effort="xhigh"))
    sent = body("openai-responses:gpt-5.6", options=options, temperature=0.2, thinking="low", top_p=0.5)
    assert (sent["temperature"], sent["reasoning"], sent["top_p"]) == (1.0, {"effort": "xhigh"}, 0.5)


@requirement("R100", "R104")
def test_call_setting_wins_over_agent_option() -> None:
    agent = OpenAIResponsesOptions(temperature=1.0, reasoning=Reasoning(effort="xhigh"))
    settings = merged_configs(ModelSettings(top_p=0.5), ModelSettings(temperature=0.2, thinking="low"))
    sent = body("openai-responses:gpt-5.6", options=agent, settings=settings)
    assert (sent["temperature"], sent["top_p"]) == (0.2, 0.5)
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}
    call = merged_configs(agent, OpenAIResponsesOptions(temperature=0.9))
    assert body("openai-responses:gpt-5.6", options=call, settings=settings)["temperature"] == 0.9


@requirement("R100")
def test_cache_setting_turns_off_agent_caching_option() -> None:
    agent = AnthropicOptions(prompt_cache="1h")
    settings = merged_configs(None, ModelSettings(cache=False))
    assert "cache_control" in str(body("anthropic:claude-haiku-4-5", options=agent))
    assert "cache_control" not in str(body("anthropic:claude-haiku-4-5", options=agent, settings=settings))
    assert "5m" not in str(body("anthropic:claude-haiku-4-5", options=agent, cache=True))


@requirement("R100")
def test_extra_body_of_setting_and_options_are_merged() -> None:
    options = OpenAIChatOptions(extra_body={"top_k": 3})
    sent = body("llamacpp:m", options=options, cache=True)
    assert (sent["top_k"], sent["cache_prompt"]) == (3, True)
    options = OpenAIChatOptions(extra_body={"chat_template_kwargs": {"language": "nl"}})
    kwargs = body("vllm:m", options=options, thinking="off")["chat_template_kwargs"]
    assert kwargs == {"language": "nl", "enable_thinking": False}
    assert (
        body("llamacpp:m", options=OpenAIChatOptions(extra_body={"cache_prompt": False}), cache=True)["cache_prompt"]
        is False
    )


@requirement("R100")
def test_thinking_setting_frees_forced_tool_like_option() -> None:
    thinking = AnthropicOptions(thinking=AnthropicThinking(type="enabled", budget_tokens=1024))
    by_option, by_setting = (
        body("anthropic:claude-haiku-4-5", options=thinking),
        body("anthropic:claude-haiku-4-5", thinking="low"),
    )
    assert by_option == by_setting

"""Configs remember which fields were set, and are merged by that."""

import copy
import pickle
from typing import Any

import msgspec
import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.providers.anthropic import AnthropicOptions
from sidestream.providers.openai.responses.options import OpenAIResponsesOptions, Reasoning
from sidestream.tools.configs import Config, changed, config_fields, defaults_of, levels_of, merged_configs
from sidestream.tools.server_side import RemoteMCP, WebSearch

AGENT = OpenAIResponsesOptions(store=False, temperature=0.1, reasoning=Reasoning(effort="low", summary="auto"))


@requirement("R104")
def test_only_set_fields_override() -> None:
    merged = merged_configs(AGENT, OpenAIResponsesOptions(temperature=0.9))
    assert merged == OpenAIResponsesOptions(store=False, temperature=0.9, reasoning=AGENT.reasoning)
    assert merged_configs(AGENT, OpenAIResponsesOptions()) == AGENT
    assert merged_configs(None, AGENT) == AGENT


@requirement("R104")
def test_field_set_to_its_default_overrides() -> None:
    merged = merged_configs(AGENT, OpenAIResponsesOptions(store=None, include_obfuscation=False))
    assert merged.store is None
    assert merged.temperature == 0.1
    assert levels_of(merged).keys() == {"store", "temperature", "reasoning", "include_obfuscation"}


@requirement("R104")
def test_nested_config_is_replaced_as_whole() -> None:
    merged = merged_configs(AGENT, OpenAIResponsesOptions(reasoning=Reasoning(effort="high")))
    assert merged.reasoning == Reasoning(effort="high")


@requirement("R104")
def test_extra_parameters_and_headers_are_merged_by_key() -> None:
    base = AnthropicOptions(extra_body={"a": 1, "b": 1}, extra_headers={"x": "1"}, tool_versions={"bash": "1"})
    over = AnthropicOptions(extra_body={"b": 2}, extra_headers={"y": "2"}, tool_versions={"memory": "2"})
    merged = merged_configs(base, over)
    assert merged.extra_body == {"a": 1, "b": 2}
    assert merged.extra_headers == {"x": "1", "y": "2"}
    assert merged.tool_versions == {"memory": "2"}
    assert base.extra_body == {"a": 1, "b": 1}


@requirement("R104")
def test_conflicting_fields_are_refused_after_merging() -> None:
    with pytest.raises(ConfigurationError):
        merged_configs(
            OpenAIResponsesOptions(previous_response_id="resp_1"), OpenAIResponsesOptions(conversation="conv_1")
        )


COPIES: dict[str, Any] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "changed": changed,
    "__replace__": lambda value: value.__replace__(),
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copy_keeps_record_of_set_fields(duplicate: Any) -> None:
    value = merged_configs(OpenAIResponsesOptions(store=None, top_p=0.5), OpenAIResponsesOptions(user=None))
    again = duplicate(value)
    assert again == value
    assert dict(levels_of(again)) == dict(levels_of(value)) == {"store": 0, "top_p": 0, "user": 1}


def test_record_is_excluded_from_equality_hash_repr_and_json() -> None:
    plain, explicit = WebSearch(), WebSearch(allowed_domains=())
    assert plain == explicit
    assert hash(plain) == hash(explicit)
    assert repr(plain) == repr(explicit) == "WebSearch()"
    assert msgspec.json.encode(plain) == msgspec.json.encode(explicit)


def test_fields_decoded_by_msgspec_count_if_not_default() -> None:
    decoded = msgspec.json.decode(b'{"store": false, "user": null}', type=OpenAIResponsesOptions)
    assert levels_of(decoded).keys() == {"store"}
    replaced = msgspec.structs.replace(AGENT, temperature=0.7, user=None)
    assert (replaced.temperature, replaced.store) == (0.7, False)
    assert levels_of(replaced).keys() == {"store", "temperature", "reasoning"}


def test_changed_config_is_validated() -> None:
    assert changed(AGENT, temperature=0.7) == msgspec.structs.replace(AGENT, temperature=0.7)
    with pytest.raises(ConfigurationError):
        changed(AGENT, temperature=7)


@pytest.mark.parametrize("config", [AnthropicOptions, OpenAIResponsesOptions, RemoteMCP, WebSearch])
def test_defaults_match_those_of_msgspec(config: type[Config]) -> None:
    expected = {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(config)
    }
    assert defaults_of(config) == expected
    assert {name: default for name, (_, default) in config_fields(config).items()} == expected


def test_empty_dict_is_copied() -> None:
    body: dict[str, Any] = {}
    options = OpenAIResponsesOptions(extra_body=body)
    body["store"] = True
    assert options.extra_body == {}
    assert OpenAIResponsesOptions().extra_body is not OpenAIResponsesOptions().extra_body


def test_empty_dict_is_refused_for_other_types() -> None:
    empty: Any = {}
    with pytest.raises(ConfigurationError):
        OpenAIResponsesOptions(temperature=empty)

"""What all encoders share: options, bodies, and the server-side tools of a request."""

from typing import Any

import pytest

from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError, UnsupportedError
from sidestream.jsontext import object_in, without_none
from sidestream.providers.openai.account import request_headers
from sidestream.providers.protocol import Settings
from sidestream.providers.registry import find_provider
from sidestream.providers.shared.encoding import check_function_options, checked_options, given, merged
from sidestream.providers.shared.hosting import allowed_names, refuse, refuse_others, require_hosted, without_repeats
from sidestream.text.redaction import redact
from sidestream.tools.configs import Config
from sidestream.tools.server_side import CodeInterpreter, CustomTool, RemoteMCP, ToolFilter, WebFetch, WebSearch
from sidestream.tools.spec import ToolSpec
from sidestream.transport.calls import response_object


class Options(Config, frozen=True, kw_only=True):
    size: int = 1
    names: tuple[str, ...] = ()


class OtherOptions(Config, frozen=True, kw_only=True):
    pass


def test_options_are_those_of_the_api_or_its_defaults():
    default = Options()
    chosen = Options(size=2)
    assert checked_options(None, default, "Api") is default
    assert checked_options(chosen, default, "Api") is chosen
    with pytest.raises(UnsupportedError) as caught:
        checked_options(OtherOptions(), default, "Api")
    assert all(word in str(caught.value) for word in ("Api", "Options", "OtherOptions", "size", "names"))


def test_only_fields_that_differ_from_their_defaults_are_sent():
    assert given(Options(names=("a",))) == {"names": ["a"]}
    assert given(Options(size=2, names=("a",)), {"size": "max_size"}) == {"max_size": 2}
    assert without_none({"a": None, "b": 0, "c": []}) == {"b": 0, "c": []}


@pytest.mark.parametrize(
    ("text", "found"), [('{"a": 1}', {"a": 1}), (b"{}", {}), ("[1]", None), ("{", None), ("[" * 100_000, None)]
)
def test_object_in_returns_only_objects(text: bytes | str, found: object):
    assert object_in(text) == found


@pytest.mark.parametrize(
    ("extra", "body"),
    [
        ({}, {"a": 1, "o": {"x": 1}}),
        ({"a": 2, "n": 3}, {"a": 2, "n": 3, "o": {"x": 1}}),
        ({"o": {"y": 2}}, {"a": 1, "o": {"x": 1, "y": 2}}),
        ({"o": None}, {"a": 1, "o": None}),
    ],
)
def test_extra_parameters_win_and_objects_are_merged(extra: dict[str, Any], body: dict[str, Any]):
    own = {"a": 1, "o": {"x": 1}}
    assert merged(own, extra) == body
    assert own == {"a": 1, "o": {"x": 1}}


def test_options_of_an_unknown_function_are_refused():
    check_function_options(["a"], [ToolSpec("a", "", {})])
    with pytest.raises(ConfigurationError, match="b"):
        check_function_options(["a", "b"], [ToolSpec("a", "", {})])


def test_a_tool_that_is_not_hosted_names_its_hosts_before_repeats_are_looked_at():
    tools = (WebSearch(), WebSearch(max_uses=1), WebFetch())
    with pytest.raises(UnsupportedError) as caught:
        require_hosted(tools, {WebSearch}, "Api")
    assert all(word in str(caught.value) for word in ("Api", "WebFetch", "anthropic", "google", "WebSearch"))


def test_equal_tools_count_once_and_different_ones_must_be_repeatable():
    tools = [WebSearch(), CustomTool(name="a"), CustomTool(name="b"), WebSearch(), CustomTool(name="a")]
    assert without_repeats(tools, CustomTool) == tools[:3]
    with pytest.raises(ConfigurationError, match="WebSearch"):
        without_repeats([WebSearch(), WebSearch(max_uses=1)], CustomTool)


def test_every_field_without_effect_is_named_with_its_advice():
    tool = CodeInterpreter(version="1", container_id="c")
    refuse(tool, "Api", memory_limit="none")
    refuse_others(tool, "Api", "version", "container_id")
    with pytest.raises(UnsupportedError) as both:
        refuse(tool, "Api", version="drop it", container_id="reuse it")
    assert all(word in str(both.value) for word in ("Api", "version", "drop it", "container_id", "reuse it"))
    with pytest.raises(UnsupportedError) as one:
        refuse_others(tool, "Api", "version")
    assert ("container_id" in str(one.value), "version" in str(one.value)) == (True, False)


def test_tools_of_an_mcp_server_are_chosen_by_name_only():
    server = {"label": "l", "url": "https://mcp.example"}
    assert allowed_names(RemoteMCP(**server), "Api") == []
    assert allowed_names(RemoteMCP(**server, allowed_tools=["a"]), "Api") == ["a"]
    assert allowed_names(RemoteMCP(**server, allowed_tools=ToolFilter(names=["a"])), "Api") == ["a"]
    with pytest.raises(UnsupportedError, match="read_only"):
        allowed_names(RemoteMCP(**server, allowed_tools=ToolFilter(names=["a"], read_only=True)), "Api")


def test_organisation_and_project_are_headers_if_they_are_set_and_extra_headers_win():
    assert request_headers(None, "", {}) == {}
    assert request_headers("o", "p", {"OpenAI-Project": "q"}) == {"OpenAI-Organization": "o", "OpenAI-Project": "q"}


@pytest.mark.parametrize("name", ["anthropic", "google", "openai", "openai-responses"])
def test_the_advice_for_a_missing_key_survives_redaction(name: str, monkeypatch: pytest.MonkeyPatch):
    provider = find_provider(name)
    for variable in getattr(provider, "key_variables", ()):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingKeyError) as caught:
        provider.chat_model("m", Settings(base_url="https://api.example"))
    assert redact(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"[" * 100_000])
def test_a_response_that_is_not_an_object_is_a_protocol_error(body: bytes):
    assert response_object(b'{"a": 1}') == {"a": 1}
    with pytest.raises(ProtocolError):
        response_object(body)

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


def test_checked_options_accepts_own_type_or_default():
    default = Options()
    chosen = Options(size=2)
    assert checked_options(None, default, "Api") is default
    assert checked_options(chosen, default, "Api") is chosen
    with pytest.raises(UnsupportedError) as caught:
        checked_options(OtherOptions(), default, "Api")
    assert all(word in str(caught.value) for word in ("Api", "Options", "OtherOptions", "size", "names"))


def test_only_non_default_fields_are_sent():
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
def test_extra_body_wins_and_objects_are_merged(extra: dict[str, Any], body: dict[str, Any]):
    own = {"a": 1, "o": {"x": 1}}
    assert merged(own, extra) == body
    assert own == {"a": 1, "o": {"x": 1}}


def test_options_of_unknown_function_raise():
    check_function_options(["a"], [ToolSpec("a", "", {})])
    with pytest.raises(ConfigurationError, match="b"):
        check_function_options(["a", "b"], [ToolSpec("a", "", {})])


def test_unhosted_tool_error_names_hosts_despite_repeats():
    tools = (WebSearch(), WebSearch(max_uses=1), WebFetch())
    with pytest.raises(UnsupportedError) as caught:
        require_hosted(tools, {WebSearch}, "Api")
    assert all(word in str(caught.value) for word in ("Api", "WebFetch", "anthropic", "google", "WebSearch"))


def test_equal_tools_count_once_and_conflicting_tools_raise():
    tools = [WebSearch(), CustomTool(name="a"), CustomTool(name="b"), WebSearch(), CustomTool(name="a")]
    assert without_repeats(tools, CustomTool) == tools[:3]
    with pytest.raises(ConfigurationError, match="WebSearch"):
        without_repeats([WebSearch(), WebSearch(max_uses=1)], CustomTool)


def test_fields_without_effect_are_named_with_advice():
    tool = CodeInterpreter(version="1", container_id="c")
    refuse(tool, "Api", memory_limit="none")
    refuse_others(tool, "Api", "version", "container_id")
    with pytest.raises(UnsupportedError) as both:
        refuse(tool, "Api", version="drop it", container_id="reuse it")
    assert all(word in str(both.value) for word in ("Api", "version", "drop it", "container_id", "reuse it"))
    with pytest.raises(UnsupportedError) as one:
        refuse_others(tool, "Api", "version")
    assert ("container_id" in str(one.value), "version" in str(one.value)) == (True, False)


def test_mcp_tools_are_allowed_by_name_only():
    server = {"label": "l", "url": "https://mcp.example"}
    assert allowed_names(RemoteMCP(**server), "Api") == []
    assert allowed_names(RemoteMCP(**server, allowed_tools=["a"]), "Api") == ["a"]
    assert allowed_names(RemoteMCP(**server, allowed_tools=ToolFilter(names=["a"])), "Api") == ["a"]
    with pytest.raises(UnsupportedError, match="read_only"):
        allowed_names(RemoteMCP(**server, allowed_tools=ToolFilter(names=["a"], read_only=True)), "Api")


def test_extra_headers_win_over_organisation_and_project():
    assert request_headers(None, "", {}) == {}
    assert request_headers("o", "p", {"OpenAI-Project": "q"}) == {"OpenAI-Organization": "o", "OpenAI-Project": "q"}


@pytest.mark.parametrize("name", ["anthropic", "google", "openai", "openai-responses"])
def test_missing_key_advice_survives_redaction(name: str, monkeypatch: pytest.MonkeyPatch):
    provider = find_provider(name)
    for variable in getattr(provider, "key_variables", ()):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingKeyError) as caught:
        provider.chat_model("m", Settings(base_url="https://api.example"))
    assert redact(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"[" * 100_000])
def test_non_object_response_raises_protocol_error(body: bytes):
    assert response_object(b'{"a": 1}') == {"a": 1}
    with pytest.raises(ProtocolError):
        response_object(body)

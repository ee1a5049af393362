"""Key, base URL, headers, files, models, and how to go on after a refusal."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError, ProviderError, RunError
from sidestream.messages.fold import Batch
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom, Finish
from sidestream.providers.anthropic import PROVIDER, AnthropicOptions
from sidestream.providers.anthropic.files import read_file
from sidestream.providers.anthropic.provider import MessagesModel
from sidestream.providers.protocol import ChatModel, FileRef, ModelRequest, Settings, decoding_all
from sidestream.providers.registry import find_provider
from sidestream.testing import MessagesScript
from sidestream.text.redaction import redact
from sidestream.tools.server_side import ImageGeneration, WebFetch
from sidestream.wire.http import HttpTransport

REQUEST = ModelRequest(messages=(ChatMessage.user("Hi"),))


def model(**settings: Any) -> MessagesModel:
    made = PROVIDER.chat_model("claude-sonnet-5-5", Settings(**{"api_key": "sk-ant-test-key", **settings}))
    assert isinstance(made, MessagesModel)
    return made


@requirement("R50")
def test_provider_has_name_alias_and_tools():
    assert (PROVIDER.name, PROVIDER.display_name) == ("anthropic", "Anthropic")
    assert find_provider("claude") is PROVIDER
    assert find_provider("anthropic") is PROVIDER
    assert WebFetch in PROVIDER.server_side_tools
    assert ImageGeneration not in PROVIDER.server_side_tools
    assert PROVIDER.transport("x", HttpTransport) is None
    assert isinstance(model(), ChatModel)
    assert (model().provider, model().name) == ("anthropic", "claude-sonnet-5-5")


@requirement("R50")
def test_missing_key_error_names_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", " ")
    with pytest.raises(MissingKeyError) as caught:
        PROVIDER.chat_model("claude-sonnet-5-5", Settings())
    assert "ANTHROPIC_API_KEY" in str(caught.value)


def test_api_key_wins_over_auth_token_with_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-key")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "sk-ant-token")
    encoded = PROVIDER.chat_model("claude-sonnet-5-5", Settings()).encode(REQUEST)
    assert encoded.call.headers["Authorization"] == "Bearer sk-ant-key"
    assert encoded.warnings == ("both ANTHROPIC_API_KEY and ANTHROPIC_AUTH_TOKEN are set; ANTHROPIC_API_KEY is used",)
    handed_in = PROVIDER.chat_model("claude-sonnet-5-5", Settings(api_key="sk-ant-mine")).encode(REQUEST)
    assert handed_in.warnings == ()


@requirement("R50")
@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_credentials_and_base_url_come_from_environment(monkeypatch: pytest.MonkeyPatch, variable: str):
    monkeypatch.setenv(variable, "sk-ant-env\n")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://env.example/")
    call = PROVIDER.chat_model("claude-sonnet-5-5", Settings()).encode(REQUEST).call
    assert (call.method, call.url) == ("POST", "https://env.example/v1/messages")
    assert call.key_variable == variable
    assert call.headers == {
        "Accept": "text/event-stream",
        "anthropic-version": "2026-10-21",
        "Authorization": "Bearer sk-ant-env",
        "Content-Type": "application/json",
    }


@requirement("R50")
@pytest.mark.parametrize(
    "settings", [Settings(auth=lambda: {"x-api-key": "gateway"}), Settings(base_url="http://127.0.0.1:1")]
)
def test_key_is_optional_for_custom_auth_or_local_server(settings: Settings):
    assert "Authorization" not in PROVIDER.chat_model("m", settings).encode(REQUEST).call.headers


@requirement("R50")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example", "https://api.example/v1/messages"),
        ("https://api.example/", "https://api.example/v1/messages"),
        ("https://api.example/v1/", "https://api.example/v1/messages"),
        ("http://localhost:8080/anthropic", "http://localhost:8080/anthropic/v1/messages"),
    ],
)
def test_base_url_may_include_version(url: str, expected: str):
    assert model(base_url=url).encode(REQUEST).call.url == expected


@pytest.mark.parametrize(
    "url", ["api.example", "ftp://a.example", "https://user:pass@a.example", "https://a.example?k=1"]
)
def test_invalid_base_url_raises_without_showing_password(url: str):
    with pytest.raises(ConfigurationError) as caught:
        model(base_url=url)
    assert "pass@" not in str(caught.value)


def test_explicit_headers_are_sent_and_key_is_redacted():
    made = model(api_key="sk-ant-very-secret-1234", headers={"X-Gateway": "g"})
    options = AnthropicOptions(extra_headers={"X-Trace": "1"}, workspace_id="ws_1", user_profile_id="p_1")
    call = made.encode(ModelRequest(messages=REQUEST.messages, options=options, stream=False)).call
    assert (call.headers["X-Gateway"], call.headers["X-Trace"]) == ("g", "1")
    assert (call.headers["anthropic-workspace-id"], call.headers["anthropic-user-profile-id"]) == ("ws_1", "p_1")
    assert call.headers["Accept"] == "application/json"
    assert not call.stream
    for shown in (repr(made), repr(call), redact("a line with sk-ant-very-secret-1234")):
        assert "very-secret" not in shown


@requirement("R55", "F24")
@pytest.mark.parametrize(
    ("message", "drop", "kind"),
    [
        ("container: Container container_1 has expired", "container", "sidestream.container-replaced"),
        ("Container with id 'container_1' not found", "container", "sidestream.container-replaced"),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", "thinking", "sidestream.session-fallback"),
        (
            "messages.1: `thinking` blocks in the latest message cannot be modified",
            "thinking",
            "sidestream.session-fallback",
        ),
        ("messages.1.content.2: Invalid encrypted_content", "session", "sidestream.session-fallback"),
        ("`web_search_tool_result` without a `server_tool_use`", "session", "sidestream.session-fallback"),
    ],
)
def test_refused_feature_is_dropped_with_notice(message: str, drop: str, kind: str):
    recovery = model().recover(ProviderError(message, status=400))
    assert recovery is not None
    assert recovery.drop == drop
    assert isinstance(recovery.notice, Custom)
    assert (recovery.notice.kind, recovery.notice.data["reason"]) == (kind, "refused")


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("max_tokens: must be greater than 0", status=400),
        ProviderError("Container container_1 has expired", status=500),
        RunError("connection lost", status=0),
    ],
)
def test_other_errors_are_not_recovered(error: RunError):
    assert model().recover(error) is None


@requirement("R53")
def test_sandbox_file_is_fetched_and_described_by_id():
    made = model(base_url="https://api.example")
    call = made.download(FileRef(id="file_1"))
    assert (call.method, call.url) == ("GET", "https://api.example/v1/files/file_1/content")
    assert call.headers["Accept"] == "application/binary"
    assert (call.headers["Authorization"], call.headers["anthropic-version"]) == (
        "Bearer sk-ant-test-key",
        "2026-10-21",
    )
    assert made.describe(FileRef(id="file_1")).url == "https://api.example/v1/files/file_1"
    assert made.download(FileRef(id="../a?b")).url == "https://api.example/v1/files/..%2Fa%3Fb/content"
    for strange in ("..", ""):
        with pytest.raises(ProtocolError):
            made.download(FileRef(id=strange))


def test_recorded_upload_is_parsed(recordings: Path):
    recording = json.loads((recordings / "anthropic/p-test_anthropic_code_execution_files.json").read_text("utf-8"))
    response = recording["exchanges"][0]["response"]["body"]
    found = read_file(response)
    assert (found.id, found.name, found.mime_type) == (response["id"], "data.csv", "text/csv")
    assert (found.size_bytes, found.is_downloadable) == (30, False)
    with pytest.raises(ProtocolError):
        read_file({})


def test_models_are_listed_with_capabilities():
    made = model(base_url="https://api.example")
    assert made.list_models().url == "https://api.example/v1/models?limit=1000"
    assert made.list_models("claude-a").url.endswith("&after_id=claude-a")
    entry: dict[str, Any] = {
        "id": "claude-x",
        "type": "model",
        "display_name": "Claude X",
        "max_input_tokens": 200000,
        "max_tokens": 64000,
        "lifecycle": "active",
        "capabilities": {"structured_outputs": {"supported": True}, "image_input": {"supported": False}},
    }
    page = {"data": [entry, {"id": 7}], "has_more": True, "last_id": "claude-x"}
    (found,), after = made.read_models(json.dumps(page).encode())
    assert after == "claude-x"
    assert (found.name, found.display_name) == ("claude-x", "Claude X")
    assert (found.max_input_tokens, found.max_output_tokens) == (200000, 64000)
    assert (found.typed_output, found.images_in, found.documents_in) == (True, False, None)
    assert found.capabilities == {**entry["capabilities"], "lifecycle": "active"}
    assert made.read_models(b'{"data": [], "has_more": false, "last_id": "x"}') == ([], None)
    with pytest.raises(ProtocolError):
        made.read_models(b"[]")


@pytest.mark.parametrize(
    ("method", "path", "is_model_call"),
    [
        ("POST", "/v1/messages", True),
        ("post", "https://api.anthropic.com/v1/messages?beta=true", True),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/v1/messages/batches", False),
        ("GET", "/v1/messages", False),
        ("POST", "/v1/files", False),
        ("POST", "/v1/responses", False),
    ],
)
def test_recorded_decoder_matches_only_model_calls(method: str, path: str, is_model_call: bool):
    for body in ({"model": "claude-x", "messages": "?"}, None, "text"):
        assert (PROVIDER.recorded_decoder(method, path, body) is not None) is is_model_call


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": "claude@latest"}),
        ("/v1/projects/p/locations/eu/publishers/anthropic/models/claude%40latest:streamRawPredict", {}),
        ("/model/claude%40latest/invoke-with-response-stream", {"anthropic_version": "bedrock-2023-05-31"}),
    ],
    ids=["anthropic", "vertex", "bedrock"],
)
def test_replayed_answer_belongs_to_requested_model(path: str, body: dict[str, Any]):
    decoder = PROVIDER.recorded_decoder("POST", path, body)
    assert decoder is not None
    events = [json.dumps(event).encode() for event in MessagesScript().text("Hi.").events()]
    batch = Batch()
    decoding_all(decoder)(events, batch)
    finish = batch.parts[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome is not None
    assert finish.outcome.message_metadata["_anthropic_session"]["model"] == "claude@latest"


def test_provider_import_is_light():
    code = (
        "import sys, sidestream.providers.anthropic; "
        "print([name for name in ('aiohttp', 'pydantic', 'anthropic', 'stamina') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"

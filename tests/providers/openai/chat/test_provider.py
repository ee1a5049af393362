"""Keys, addresses, presets, and what is known of a server."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError, ProviderError, RunError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom
from sidestream.providers.embedding import EmbedsText
from sidestream.providers.openai.chat import PRESETS, PROVIDER, OpenAIChatOptions
from sidestream.providers.openai.chat.provider import CompletionsModel, CompletionsProvider
from sidestream.providers.protocol import ChatModel, FileRef, ListsModels, ModelRequest, ResumesStreams, Settings
from sidestream.providers.registry import find_provider, providers
from sidestream.text.redaction import redact
from sidestream.tools.server_side import CustomTool, WebSearch
from sidestream.wire.http import HttpTransport
from support.places import ROOT

REQUEST = ModelRequest(messages=(ChatMessage.user("Hi"),))
HOSTED = [preset for preset in PRESETS if preset.key_variable]
LOCAL = [preset for preset in PRESETS if not preset.key_variable]


def model(**settings: Any) -> CompletionsModel:
    made = PROVIDER.chat_model("gpt-5.6", Settings(**{"api_key": "sk-test-key", **settings}))
    assert isinstance(made, CompletionsModel)
    return made


def each(presets: list[CompletionsProvider]) -> Any:
    return pytest.mark.parametrize("preset", [pytest.param(preset, id=preset.name) for preset in presets])


@requirement("R90")
def test_provider_has_name_models_and_tools():
    assert (PROVIDER.name, PROVIDER.display_name) == ("openai", "OpenAI Chat Completions")
    assert PROVIDER.default_models == {"chat": "gpt-5.6", "embeddings": "text-embedding-3-small"}
    assert PROVIDER.server_side_tools == {WebSearch, CustomTool}
    assert PROVIDER.transport("gpt-5.6", HttpTransport) is None
    made = model()
    assert isinstance(made, ChatModel)
    assert isinstance(made, ListsModels)
    assert isinstance(made, EmbedsText)
    assert not isinstance(made, ResumesStreams)
    assert (made.provider, made.name) == ("openai", "gpt-5.6")


@requirement("R71", "R90")
@each([PROVIDER, *PRESETS])
def test_every_server_is_found_by_name_and_aliases(preset: CompletionsProvider):
    for name in (preset.name, *preset.aliases):
        assert find_provider(name).name == preset.name


@requirement("R90")
def test_every_server_has_entry_point():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    entries: dict[str, str] = declared["project"]["entry-points"]["sidestream.providers"]
    ours = {name: value for name, value in entries.items() if "openai.chat" in value}
    assert ours.keys() == {server.name for server in (PROVIDER, *PRESETS)}
    loaded = providers()
    assert [loaded[server.name] for server in (PROVIDER, *PRESETS)] == [PROVIDER, *PRESETS]


@requirement("R90")
@each([PROVIDER, *HOSTED])
def test_missing_key_error_names_variable_and_url(preset: CompletionsProvider, monkeypatch: pytest.MonkeyPatch):
    assert preset.key_variable
    assert preset.keys_at
    monkeypatch.setenv(preset.key_variable, "  ")
    with pytest.raises(MissingKeyError) as caught:
        Agent(f"{preset.name}:any/model:free").check()
    shown = redact(str(caught.value))
    assert preset.key_variable in shown
    assert preset.keys_at in shown
    assert "[redacted]" not in shown


@requirement("R90")
@each(HOSTED)
def test_preset_has_own_key_and_base_url(preset: CompletionsProvider, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://env.example/v1")
    monkeypatch.setenv(preset.key_variable or "", f"key-of-{preset.name}")
    call = preset.chat_model("any/model:free", Settings()).encode(REQUEST).call
    assert call.url == re.sub(r"\{[^}]+\}", "eu-north-1", preset.base_url) + "/chat/completions"
    assert call.url.startswith("https://")
    assert call.headers["Authorization"] == f"Bearer key-of-{preset.name}"
    assert call.key_variable == preset.key_variable
    assert json.loads(call.body or b"")["model"] == "any/model:free"


@requirement("R90")
@each(LOCAL)
def test_local_server_needs_no_key(preset: CompletionsProvider):
    call = preset.chat_model("m", Settings()).encode(REQUEST).call
    assert re.match(r"http://localhost:\d+/v1/chat/completions$", call.url)
    assert "Authorization" not in call.headers
    given = preset.chat_model("m", Settings(api_key="k-1234567")).encode(REQUEST).call
    assert given.headers["Authorization"] == "Bearer k-1234567"


@requirement("R90")
def test_names_and_base_urls_are_unique():
    servers = (PROVIDER, *PRESETS)
    names = [name for server in servers for name in (server.name, *server.aliases)]
    assert len(set(names)) == len(names)
    assert len({server.base_url for server in servers}) == len(servers)


@requirement("R90")
@pytest.mark.parametrize(
    "settings",
    [
        Settings(auth=lambda: {"api-key": "azure"}),
        Settings(base_url="http://localhost:8080/v1"),
        Settings(base_url="http://127.0.0.1:1/v1"),
    ],
)
def test_key_is_optional_for_custom_auth_or_local_server(settings: Settings):
    headers = PROVIDER.chat_model("m", settings).encode(REQUEST).call.headers
    assert "Authorization" not in headers


def test_host_resembling_localhost_needs_key():
    with pytest.raises(MissingKeyError):
        PROVIDER.chat_model("m", Settings(base_url="https://localhost.evil.example/v1"))


@requirement("R90")
def test_key_base_url_and_headers_come_from_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env-key\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://env.example/v1/")
    monkeypatch.setenv("OPENAI_ORG_ID", "org_env")
    call = PROVIDER.chat_model("m", Settings()).encode(REQUEST).call
    assert call.url == "https://env.example/v1/chat/completions"
    assert call.headers == {
        "Accept": "text/event-stream",
        "Authorization": "Bearer sk-env-key",
        "OpenAI-Organization": "org_env",
        "Content-Type": "application/json",
    }


def test_explicit_settings_win_over_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env-key")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://env.example/v1")
    options = OpenAIChatOptions(organization="org_given", extra_headers={"X-Trace": "1"})
    made = model(base_url="https://given.example/v1", headers={"X-Gateway": "g"})
    call = made.encode(ModelRequest(messages=REQUEST.messages, options=options, stream=False)).call
    assert call.url == "https://given.example/v1/chat/completions"
    assert call.headers == {
        "Accept": "application/json",
        "Authorization": "Bearer sk-test-key",
        "X-Gateway": "g",
        "Content-Type": "application/json",
        "OpenAI-Organization": "org_given",
        "X-Trace": "1",
    }


@pytest.mark.parametrize("url", ["api.example/v1", "ftp://api.example", "https://user:pass@a.example"])
def test_invalid_base_url_raises_without_showing_password(url: str):
    with pytest.raises(ConfigurationError) as caught:
        model(base_url=url)
    assert "pass@" not in str(caught.value)


def test_api_key_stays_out_of_reprs_and_logs():
    made = model(api_key="sk-very-secret-key-1234")
    assert "very-secret" not in repr(made)
    assert "very-secret" not in repr(made.encode(REQUEST).call)
    assert "very-secret" not in redact("a log line with sk-very-secret-key-1234 in it")


def test_server_without_default_model_raises_but_lists_models():
    agent = Agent("ollama")
    with pytest.raises(ConfigurationError) as caught:
        agent.send_sync("hi")
    assert "ollama:MODEL" in str(caught.value)
    nameless = find_provider("ollama").chat_model("", Settings())
    assert isinstance(nameless, ListsModels)
    assert nameless.list_models().url == "http://localhost:11434/v1/models"


# Going on after a refusal


@requirement("R90")
@pytest.mark.parametrize(
    ("status", "message", "drop"),
    [
        (400, "Unrecognized request argument supplied: stream_options", "stream_options"),
        (400, "stream_options is not supported by this model", "stream_options"),
        (
            422,
            '{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],'
            '"msg":"Extra inputs are not permitted","input":32000}]},"type":"invalid_request_error"}',
            "max_completion_tokens",
        ),
        (400, "Unknown parameter: 'max_completion_tokens'", "max_completion_tokens"),
        (
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            "max_tokens",
        ),
        (400, "parallel_tool_calls is not supported", "parallel_tool_calls"),
        (400, "This response_format type is unavailable now", "response_format"),
        (400, "`json_schema` is not supported by this model", "response_format"),
        (400, "tools.0.function.strict: Extra inputs are not permitted", "strict"),
    ],
)
def test_refused_parameter_is_dropped_with_notice(status: int, message: str, drop: str):
    recovery = model().recover(ProviderError(message, status=status))
    assert recovery is not None
    assert recovery.drop == drop
    assert isinstance(recovery.notice, Custom)
    assert recovery.notice.kind == "sidestream.parameter-dropped"
    assert (recovery.notice.data["parameter"], recovery.notice.data["reason"]) == (drop, "refused")


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("Invalid schema for response_format 'City': 'required' is missing", status=400),
        ProviderError("max_completion_tokens is too large: 900000", status=400),
        ProviderError("stream_options is not supported", status=500),
        ProviderError("Unsupported value: 'temperature' does not support 0.2 with this model", status=400),
        ProviderError("The model `gpt-9` does not exist", status=404, code="model_not_found"),
        RunError("connection lost"),
    ],
)
def test_other_errors_are_not_recovered(error: RunError):
    assert model().recover(error) is None


def test_recorded_refusal_is_recovered(recordings: Path):
    path = recordings / "openai-chat" / "v-reasoning-model-legacy-parameter-error-whole.json"
    (exchange,) = json.loads(path.read_text("utf-8"))["exchanges"]
    said = exchange["response"]["body"]["error"]
    recovery = model().recover(ProviderError(said["message"], status=400, code=said["code"]))
    assert recovery is not None
    assert recovery.drop == "max_tokens"


# Models, files, embeddings, recordings


def test_models_are_listed_with_reported_details():
    made = model(base_url="https://api.example/v1")
    call = made.list_models()
    assert (call.method, call.url) == ("GET", "https://api.example/v1/models")
    entries = [
        {"id": "gpt-5.6", "object": "model", "created": 1, "owned_by": "openai"},
        {"id": "text-embedding-3-small", "object": "model"},
        {
            "id": "a/b",
            "name": "B",
            "description": "A b.",
            "context_length": 9,
            "top_provider": {"max_completion_tokens": 5},
        },
        {"id": "local", "meta": {"n_ctx_train": 8192}},
        {"id": "vllm", "max_model_len": 2048},
        {"no": "id"},
    ]
    found, after = made.read_models(json.dumps({"object": "list", "data": entries}).encode())
    assert after is None
    assert [info.name for info in found] == ["gpt-5.6", "text-embedding-3-small", "a/b", "local", "vllm"]
    assert [info.max_input_tokens for info in found] == [None, None, 9, 8192, 2048]
    assert found[0].capabilities == {"created": 1, "owned_by": "openai"}
    assert found[1].kinds == ("embeddings",)
    assert (found[2].display_name, found[2].description, found[2].max_output_tokens) == ("B", "A b.", 5)
    assert made.read_models(json.dumps(entries).encode())[0] == found


ABILITIES: list[tuple[dict[str, Any], dict[str, bool]]] = [
    ({}, {}),
    (
        {"architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]}},
        {"images_in": True, "documents_in": False, "audio_in": False, "images_out": False},
    ),
    (
        {"architecture": {"modality": "text+image->text+image"}},
        {"images_in": True, "documents_in": False, "audio_in": False, "images_out": True},
    ),
    (
        {"modalities": {"input": ["text", "audio", "pdf"]}},
        {"images_in": False, "documents_in": True, "audio_in": True},
    ),
    ({"modalities": ["text", "vision"]}, {"images_in": True, "documents_in": False, "audio_in": False}),
    ({"supported_parameters": ["tools"]}, {"client_tools": True, "thinking": False, "typed_output": False}),
    ({"capabilities": {"vision": True, "function_calling": False}}, {"images_in": True, "client_tools": False}),
    ({"capabilities": ["completion", "vision"]}, {"images_in": True}),
    ({"capabilities": "all", "modalities": 7, "architecture": [], "vision": "yes"}, {}),
]


@pytest.mark.parametrize(("entry", "expected"), ABILITIES)
def test_listed_model_has_reported_capabilities(entry: dict[str, Any], expected: dict[str, bool]):
    made = PROVIDER.chat_model("m", Settings(base_url="http://127.0.0.1:1"))
    assert isinstance(made, ListsModels)
    (info,), _ = made.read_models(json.dumps({"data": [{"id": "m", **entry}]}).encode())
    fields = ("images_in", "documents_in", "audio_in", "images_out", "thinking", "client_tools", "typed_output")
    assert {name: value for name in fields if (value := getattr(info, name)) is not None} == expected


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"7"])
def test_invalid_model_list_raises(body: bytes):
    with pytest.raises(ProtocolError):
        model().read_models(body)


def test_embeddings_use_same_server():
    made = model(base_url="https://api.example/v1")
    (batch,) = made.embedding_calls(["a", "b"], None)
    assert (batch.call.url, batch.count) == ("https://api.example/v1/embeddings", 2)
    assert json.loads(batch.call.body or b"") == {"model": "gpt-5.6", "input": ["a", "b"]}
    data = [{"index": index, "embedding": [index, 1.0]} for index in (1, 0)]
    assert made.read_embeddings(json.dumps({"data": data}).encode(), 2).vectors == ((0.0, 1.0), (1.0, 1.0))


def test_file_id_is_escaped_in_url():
    assert model().download(FileRef(id="../a?b")).url.endswith("/files/..%2Fa%3Fb/content")


@pytest.mark.parametrize(
    ("method", "path", "is_model_call"),
    [
        ("POST", "/v1/chat/completions", True),
        ("post", "https://api.openai.com/v1/chat/completions?x=1", True),
        ("POST", "/openai/deployments/gpt/chat/completions?api-version=1", True),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/chat/completions/chatcmpl-1", False),
        ("POST", "/v1/responses", False),
        ("POST", "/mcp", False),
    ],
)
def test_recorded_decoder_matches_only_model_calls(method: str, path: str, is_model_call: bool):
    for body in ({"model": "m", "audio": {"format": "wav"}}, None, "text"):
        assert (PROVIDER.recorded_decoder(method, path, body) is not None) is is_model_call
        assert all(preset.recorded_decoder(method, path, body) is None for preset in PRESETS)


def test_provider_import_is_light():
    code = (
        "import sys, sidestream.providers.openai.chat; "
        "print([name for name in ('aiohttp', 'pydantic', 'openai', 'stamina') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"

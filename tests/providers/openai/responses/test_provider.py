import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, MissingKeyError, ProtocolError, ProviderError, RunError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom
from sidestream.providers.openai.responses import PROVIDER, OpenAIResponsesOptions
from sidestream.providers.protocol import ChatModel, FileRef, ModelRequest, Settings
from sidestream.text.redaction import redact
from sidestream.tools.server_side import WebFetch, WebSearch
from sidestream.wire.http import HttpTransport

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
REQUEST = ModelRequest(messages=(ChatMessage.user("Hi"),))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def model(**settings: Any) -> ChatModel:
    return PROVIDER.chat_model("gpt-5.6", Settings(**{"api_key": "sk-test-key", **settings}))


@requirement("R30")
def test_provider_has_name_models_and_tools():
    assert PROVIDER.name == "openai-responses"
    assert PROVIDER.display_name == "OpenAI Responses"
    assert PROVIDER.default_models == {
        "chat": "gpt-5.6",
        "embeddings": "text-embedding-3-small",
        "media": "gpt-image-2",
    }
    assert WebSearch in PROVIDER.server_side_tools
    assert WebFetch not in PROVIDER.server_side_tools
    assert PROVIDER.transport("gpt-5.6", HttpTransport) is None
    assert isinstance(model(), ChatModel)
    assert (model().provider, model().name) == ("openai-responses", "gpt-5.6")


@requirement("R30")
def test_missing_key_error_names_variable(monkeypatch: pytest.MonkeyPatch):
    for blank in ("", "  "):
        monkeypatch.setenv("OPENAI_API_KEY", blank)
        with pytest.raises(MissingKeyError) as caught:
            PROVIDER.chat_model("gpt-5.6", Settings())
        assert "OPENAI_API_KEY" in str(caught.value)
        assert "platform.openai.com/api-keys" in str(caught.value)


@requirement("R30")
@pytest.mark.parametrize(
    "settings",
    [
        Settings(auth=lambda: {"api-key": "azure"}),
        Settings(base_url="http://localhost:8080/v1"),
        Settings(base_url="http://127.0.0.1:1/v1"),
        Settings(base_url="http://[::1]:1/v1"),
    ],
)
def test_key_is_optional_for_custom_auth_or_local_server(settings: Settings):
    headers = PROVIDER.chat_model("gpt-5.6", settings).encode(REQUEST).call.headers
    assert "Authorization" not in headers


@requirement("R30")
@pytest.mark.parametrize("host", ["localhost.evil.example", "127.0.0.1.evil.example", "example.com"])
def test_host_resembling_localhost_needs_key(host: str):
    with pytest.raises(MissingKeyError):
        PROVIDER.chat_model("gpt-5.6", Settings(base_url=f"https://{host}/v1"))


@requirement("R30")
def test_key_base_url_and_headers_come_from_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env-key\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://env.example/v1/")
    monkeypatch.setenv("OPENAI_ORG_ID", "org_env")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_env")
    call = PROVIDER.chat_model("gpt-5.6", Settings()).encode(REQUEST).call
    assert call.url == "https://env.example/v1/responses"
    assert call.method == "POST"
    assert call.key_variable == "OPENAI_API_KEY"
    assert call.headers == {
        "Accept": "text/event-stream",
        "Authorization": "Bearer sk-env-key",
        "OpenAI-Organization": "org_env",
        "OpenAI-Project": "proj_env",
        "Content-Type": "application/json",
    }


@requirement("R30")
def test_explicit_settings_win_over_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env-key")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://env.example/v1")
    monkeypatch.setenv("OPENAI_ORG_ID", "org_env")
    options = OpenAIResponsesOptions(organization="org_given", extra_headers={"X-Trace": "1"})
    given = model(base_url="https://given.example/v1", headers={"X-Gateway": "g"})
    call = given.encode(ModelRequest(messages=REQUEST.messages, options=options)).call
    assert call.url == "https://given.example/v1/responses"
    assert call.headers["Authorization"] == "Bearer sk-test-key"
    assert call.headers["OpenAI-Organization"] == "org_given"
    assert (call.headers["X-Gateway"], call.headers["X-Trace"]) == ("g", "1")


@requirement("R30")
def test_auth_callable_provides_headers_per_request():
    tokens = iter(("one", "two"))
    signed = model(auth=lambda: {"Authorization": f"Bearer {next(tokens)}"})
    assert [signed.encode(REQUEST).call.headers["Authorization"] for _ in range(2)] == ["Bearer one", "Bearer two"]


@requirement("R30")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example/v1/", "https://api.example/v1/responses"),
        (" https://api.example/v1// ", "https://api.example/v1/responses"),
        ("http://localhost:11434/v1", "http://localhost:11434/v1/responses"),
    ],
)
def test_base_url_is_normalised(url: str, expected: str):
    assert model(base_url=url).encode(REQUEST).call.url == expected


@requirement("R30")
@pytest.mark.parametrize(
    "url",
    [
        "api.example/v1",
        "ftp://api.example",
        "https://",
        "https://[broken",
        "https://a.example:port",
        "https://a.example?key=1",
        "https://user:pass@a.example",
    ],
)
def test_invalid_base_url_raises_without_showing_password(url: str):
    with pytest.raises(ConfigurationError) as caught:
        model(base_url=url)
    assert "pass@" not in str(caught.value)


def test_api_key_stays_out_of_reprs_and_logs():
    made = model(api_key="sk-very-secret-key-1234")
    assert "very-secret" not in repr(made)
    assert "very-secret" not in repr(made.encode(REQUEST).call)
    assert "very-secret" not in redact("a log line with sk-very-secret-key-1234 in it")


@requirement("R30")
def test_call_body_is_encoded_request():
    call = model().encode(REQUEST).call
    assert call.stream
    assert json.loads(call.body or b"")["model"] == "gpt-5.6"
    whole = model().encode(ModelRequest(messages=REQUEST.messages, stream=False)).call
    assert not whole.stream
    assert whole.headers["Accept"] == "application/json"


@requirement("F24", "R43")
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, "previous_response_not_found", "Previous response with id 'resp_1' not found."),
        (404, None, "Previous response with id 'resp_1' not found."),
        (400, None, "Previous response cannot be used for this organization due to Zero Data Retention."),
        (400, "unsupported_parameter", "Unsupported parameter: 'previous_response_id'"),
        (None, "previous_response_not_found", "gone"),
    ],
)
def test_refused_session_is_dropped(status: int | None, code: str | None, message: str):
    recovery = model().recover(ProviderError(message, status=status, code=code))
    assert recovery is not None
    assert recovery.drop == "session"
    assert recovery.notice is None, "the request that follows reports it"


@requirement("F24", "R33")
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Expected container_id: cntr_1"),
        (400, "Container is expired."),
        (404, "Container with id 'cntr_1' not found."),
        (400, "The container cntr_1 has expired"),
    ],
)
def test_missing_container_is_replaced_with_notice(status: int, message: str):
    recovery = model().recover(ProviderError(message, status=status))
    assert recovery is not None
    assert recovery.drop == "container"
    assert isinstance(recovery.notice, Custom)
    assert recovery.notice.kind == "sidestream.container-replaced"


@requirement("F24")
@pytest.mark.parametrize(
    "error",
    [
        ProviderError("Invalid 'temperature'", status=400, code="decimal_below_min_value"),
        ProviderError("Previous response with id 'resp_1' not found.", status=500),
        ProviderError("The model `gpt-9` does not exist", status=404, code="model_not_found"),
        RunError("connection lost"),
    ],
)
def test_other_errors_are_not_recovered(error: RunError):
    assert model().recover(error) is None


@requirement("R40")
def test_file_is_fetched_from_container_or_files_api():
    made = model(base_url="https://api.example/v1")
    call = made.download(FileRef(id="cfile_1", container_id="cntr_1"))
    assert (call.method, call.url) == ("GET", "https://api.example/v1/containers/cntr_1/files/cfile_1/content")
    assert call.headers["Accept"] == "application/binary"
    assert call.headers["Authorization"] == "Bearer sk-test-key"
    assert call.body is None
    assert made.download(FileRef(id="file-1")).url == "https://api.example/v1/files/file-1/content"


@requirement("R40")
def test_file_id_is_escaped_in_url():
    made = model(base_url="https://api.example/v1")
    assert made.download(FileRef(id="../a?b#c/d")).url == "https://api.example/v1/files/..%2Fa%3Fb%23c%2Fd/content"
    for strange in ("..", ".", ""):
        with pytest.raises(ProtocolError):
            made.download(FileRef(id=strange))


@pytest.mark.parametrize(
    ("method", "path", "is_model_call"),
    [
        ("POST", "/v1/responses", True),
        ("post", "https://api.openai.com/v1/responses?x=1", True),
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=4", True),
        ("POST", "/v1/responses/compact", False),
        ("POST", "/v1/responses/input_tokens", False),
        ("POST", "/v1/responses/resp_1/cancel", False),
        ("GET", "/v1/responses/resp_1/input_items", False),
        ("DELETE", "/v1/responses/resp_1", False),
        ("GET", "/v1/containers/cntr_1/files/cfile_1/content", False),
        ("POST", "/v1/chat/completions", False),
    ],
)
def test_recorded_decoder_matches_only_model_calls(method: str, path: str, is_model_call: bool):
    for body in ({"model": "gpt-5.6", "store": False}, None, "text"):
        assert (PROVIDER.recorded_decoder(method, path, body) is not None) is is_model_call


def test_recorded_decoder_matches_every_recorded_exchange(recordings: Path):
    for path in sorted((recordings / "openai-responses").glob("*.json")):
        for exchange in json.loads(path.read_text("utf-8"))["exchanges"]:
            sent = exchange["request"]
            decoder = PROVIDER.recorded_decoder(sent["method"], sent["path"], sent["body"])
            assert (decoder is not None) == ("/responses" in sent["path"]), sent["path"]


def test_provider_import_is_light():
    code = (
        "import sys, sidestream.providers.openai.responses; "
        "print([name for name in ('aiohttp', 'pydantic', 'openai', 'stamina') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"

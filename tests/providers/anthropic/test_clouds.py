"""Claude on clouds: URLs, credentials, and the requests that each host gets."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hostile.corpus import MORE_RECORDINGS
from sidestream import (
    Agent,
    AnthropicOptions,
    ConfigurationError,
    MissingKeyError,
    NotHostedError,
    RateLimitedError,
    UnsupportedError,
    WebSearch,
)
from sidestream.cli.inputs.default_model import chosen_model
from sidestream.messages.message import ChatMessage
from sidestream.providers import ModelRequest, Settings, caps_of, find_provider
from sidestream.providers.anthropic.clouds import HOSTS, ClaudeHost
from sidestream.providers.anthropic.options import AnthropicTool
from sidestream.providers.anthropic.versions import API_VERSION
from sidestream.providers.registry import base_urls, installed_providers
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.testing import FakeProvider, MessagesScript, aws_frame, aws_frames, json_reply
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy

RECORDED = MORE_RECORDINGS / "bedrock" / "c-bedrock-claude-invoke-stream.json"
LATE = MORE_RECORDINGS / "anthropic" / "m-late-search-result.json"
QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
VARIABLES = {
    "ANTHROPIC_FOUNDRY_RESOURCE": "my-resource",
    "AWS_REGION": "eu-west-1",
    "ANTHROPIC_AWS_WORKSPACE_ID": "wrkspc_1",
    "GOOGLE_CLOUD_PROJECT": "my-project",
    "ANTHROPIC_GOOGLE_CLOUD_WORKSPACE_ID": "wrkspc_2",
}
NAMES = [host.name for host in HOSTS]
SAID = MessagesScript().text("Hello.")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in HOSTS:
        for name in (*host.key_variables, host.base_url_variable):
            monkeypatch.delenv(name, raising=False)
    for name in ("AWS_DEFAULT_REGION", "CLOUD_ML_REGION", "ANTHROPIC_VERTEX_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def fake() -> AsyncGenerator[FakeProvider]:
    async with FakeProvider(base_path="") as server:
        yield server
        await close_session()


def model_of(name: str, **settings: Any) -> Any:
    provider = find_provider(name)
    return provider.chat_model("claude-x", Settings(**{"api_key": "key-0123456789", **settings}))


def call_of(name: str, *, options: Any = None, stream: bool = True, **settings: Any) -> Any:
    request = ModelRequest(messages=(ChatMessage.user("Hi"),), stream=stream, options=options)
    return model_of(name, **settings).encode(request).call


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("anthropic-foundry", "https://my-resource.services.ai.azure.com/anthropic/v1/messages"),
        ("anthropic-aws", "https://aws-external-anthropic.eu-west-1.api.aws/v1/messages"),
        (
            "anthropic-google-cloud",
            "https://claude.googleapis.com/v1/projects/my-project/locations/global/workspaces/wrkspc_2/invoke/v1/messages",
        ),
        ("anthropic-mantle", "https://bedrock-mantle.eu-west-1.api.aws/anthropic/v1/messages"),
        (
            "anthropic-vertex",
            "https://aiplatform.googleapis.com/v1/projects/my-project/locations/global/publishers/anthropic"
            "/models/claude-x:streamRawPredict",
        ),
        (
            "anthropic-bedrock",
            "https://bedrock-runtime.eu-west-1.amazonaws.com/model/claude-x/invoke-with-response-stream",
        ),
    ],
)
def test_url_of_host(name: str, url: str) -> None:
    assert call_of(name).url == url


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        ("europe-west1", "europe-west1-aiplatform.googleapis.com"),
        ("us-east5", "us-east5-aiplatform.googleapis.com"),
    ],
)
def test_vertex_host_depends_on_region(monkeypatch: pytest.MonkeyPatch, region: str, host: str) -> None:
    monkeypatch.setenv("CLOUD_ML_REGION", region)
    assert call_of("anthropic-vertex").url.startswith(f"https://{host}/v1/projects/my-project/locations/{region}/")


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
def test_missing_variable_of_url_is_named(monkeypatch: pytest.MonkeyPatch, host: ClaudeHost) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable)
    with pytest.raises(ConfigurationError, match=r"set (ANTHROPIC_|AWS_REGION)"):
        call_of(host.name)
    assert host.missing_variables
    assert host.base_url_variable not in base_urls() or host.name == "anthropic-vertex"


def test_key_without_variables_is_not_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for info in installed_providers():
        for variable in info.key_variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "token-0123456789")
    monkeypatch.delenv("AWS_REGION")
    ready = {info.name for info in installed_providers() if info.has_key and not info.missing_variables}
    assert ready == set()
    assert chosen_model().name == "local"


def test_base_urls_are_those_of_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_urls()["ANTHROPIC_BEDROCK_BASE_URL"] == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    monkeypatch.setenv("ANTHROPIC_BEDROCK_BASE_URL", "http://127.0.0.1:1")
    assert base_urls()["ANTHROPIC_BEDROCK_BASE_URL"] == "http://127.0.0.1:1"
    assert [host.missing_variables for host in HOSTS] == [()] * len(HOSTS)


@pytest.mark.parametrize("name", NAMES)
def test_key_is_sent_in_header_of_host(name: str) -> None:
    headers = call_of(name).headers
    if name == "anthropic-foundry":
        assert (headers["x-api-key"], "Authorization" in headers) == ("key-0123456789", False)
    else:
        assert headers["Authorization"] == "Bearer key-0123456789"
    has_version = name not in ("anthropic-vertex", "anthropic-bedrock")
    assert headers.get("anthropic-version") == (API_VERSION if has_version else None)


def test_keys_of_anthropic_are_not_sent_to_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://elsewhere.example")
    with pytest.raises(MissingKeyError, match="ANTHROPIC_FOUNDRY_API_KEY"):
        model_of("anthropic-foundry", api_key=None)
    for name in NAMES:
        call = call_of(name, api_key=None, auth=dict)
        assert "sk-ant" not in str(dict(call.headers))
        assert "elsewhere" not in call.url


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
def test_key_variable_is_used(monkeypatch: pytest.MonkeyPatch, host: ClaudeHost) -> None:
    for variable in host.key_variables:
        monkeypatch.setenv(variable, "from-variable-0123")
        sent = [str(value) for value in call_of(host.name, api_key=None).headers.values()]
        assert any("from-variable-0123" in value for value in sent)


@pytest.mark.parametrize("name", ["anthropic-aws", "anthropic-mantle", "anthropic-bedrock"])
def test_aws_host_without_key_is_signed(name: str) -> None:
    assert call_of(name, api_key=None).sign is not None
    assert call_of(name).sign is None


def test_missing_package_is_named_unless_key_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.auth", None)  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "google.auth", None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MissingKeyError, match="AWS_BEARER_TOKEN_BEDROCK"):
        model_of("anthropic-bedrock", api_key=None)
    with pytest.raises(ConfigurationError, match="pip install google-auth"):
        model_of("anthropic-vertex", api_key=None)


def test_workspace_of_aws_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_of("anthropic-aws").headers["anthropic-workspace-id"] == "wrkspc_1"
    monkeypatch.delenv("ANTHROPIC_AWS_WORKSPACE_ID")
    with pytest.raises(ConfigurationError, match="ANTHROPIC_AWS_WORKSPACE_ID"):
        call_of("anthropic-aws")
    call = call_of("anthropic-aws", options=AnthropicOptions(workspace_id="wrkspc_3"))
    assert call.headers["anthropic-workspace-id"] == "wrkspc_3"


@pytest.mark.parametrize("stream", [True, False])
def test_plain_hosts_get_same_body_as_anthropic(stream: bool) -> None:
    body = call_of("anthropic", stream=stream).body
    for name in ("anthropic-foundry", "anthropic-aws", "anthropic-google-cloud", "anthropic-mantle"):
        assert call_of(name, stream=stream).body == body


@pytest.mark.parametrize(("stream", "verb"), [(True, "streamRawPredict"), (False, "rawPredict")])
def test_vertex_rewrites_request(stream: bool, verb: str) -> None:
    call = call_of("anthropic-vertex", options=AnthropicOptions(betas=("a-1", "b-2")), stream=stream)
    body = json.loads(call.body)
    assert call.url.endswith(f"/models/claude-x:{verb}")
    assert "model" not in body
    assert (body["anthropic_version"], body["stream"]) == (API_VERSION, stream)
    assert call.headers["anthropic-beta"] == "a-1,b-2"


@pytest.mark.parametrize(("stream", "verb"), [(True, "invoke-with-response-stream"), (False, "invoke")])
def test_bedrock_rewrites_request(stream: bool, verb: str) -> None:
    call = call_of("anthropic-bedrock", options=AnthropicOptions(betas=("a-1", "b-2")), stream=stream)
    body = json.loads(call.body)
    assert call.url.endswith(f"/model/claude-x/{verb}")
    assert body.keys() & {"model", "stream"} == set()
    assert (body["anthropic_version"], body["anthropic_beta"]) == (API_VERSION, ["a-1", "b-2"])
    assert "anthropic-beta" not in {name.lower() for name in call.headers}


@pytest.mark.parametrize("name", ["anthropic-vertex", "anthropic-bedrock"])
def test_version_in_body_can_be_chosen(name: str) -> None:
    options = AnthropicOptions(extra_body={"anthropic_version": "bedrock-2023-05-31"})
    assert json.loads(call_of(name, options=options).body)["anthropic_version"] == "bedrock-2023-05-31"


@pytest.mark.parametrize(
    ("model", "segment"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("arn:aws:bedrock:us-east-1:1:x/y", "arn:aws:bedrock:us-east-1:1:x%2Fy"),
        ("a/../b?c#d", "a%2F..%2Fb%3Fc%23d"),
    ],
)
def test_model_of_bedrock_is_one_segment(model: str, segment: str) -> None:
    chat = find_provider("anthropic-bedrock").chat_model(model, Settings(api_key="k"))
    call = chat.encode(ModelRequest(messages=(ChatMessage.user("Hi"),))).call
    assert call.url.endswith(f".amazonaws.com/model/{segment}/invoke-with-response-stream")


def test_mantle_gets_user_profile_in_body() -> None:
    call = call_of("anthropic-mantle", options=AnthropicOptions(user_profile_id="profile_1"))
    assert json.loads(call.body)["user_profile_id"] == "profile_1"
    assert "anthropic-user-profile-id" not in call.headers


@pytest.mark.parametrize("name", ["anthropic-foundry", "anthropic-mantle", "anthropic-vertex", "anthropic-bedrock"])
def test_model_name_is_required(name: str) -> None:
    chat = find_provider(name).chat_model("", Settings(api_key="k"))
    with pytest.raises(ConfigurationError, match=f"{name}:MODEL"):
        chat.encode(ModelRequest(messages=(ChatMessage.user("Hi"),)))


@pytest.mark.parametrize("name", ["anthropic-mantle", "anthropic-vertex", "anthropic-bedrock"])
def test_untried_tool_is_refused_unless_named_by_type(name: str) -> None:
    model = model_of(name)
    with pytest.raises(NotHostedError):
        model.encode(ModelRequest(messages=(ChatMessage.user("Hi"),), server_side_tools=(WebSearch(),)))
    tool = AnthropicTool(type="web_search_20250305", name="web_search")
    sent = model.encode(ModelRequest(messages=(ChatMessage.user("Hi"),), server_side_tools=(tool,)))
    assert json.loads(sent.call.body)["tools"][0]["type"] == "web_search_20250305"


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
async def test_missing_apis_are_refused(fake: FakeProvider, host: ClaudeHost) -> None:
    url = f"{fake.base_url}/publishers/anthropic"
    agent = Agent(f"{host.name}:claude-x", base_url=url, api_key="key-0123456789")
    assert caps_of(host.name).list_models == host.lists_models
    if not host.lists_models:
        with pytest.raises(UnsupportedError):
            await agent.list_models()
    if not host.has_all_apis:
        with pytest.raises(UnsupportedError):
            await agent.upload(b"data", name="a.txt")
    assert fake.requests == []


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
@pytest.mark.parametrize("stream", [True, False])
async def test_answer_is_decoded(fake: FakeProvider, host: ClaudeHost, stream: bool) -> None:
    reply = aws_frames(SAID.events()) if host.name == "anthropic-bedrock" and stream else SAID.reply()
    fake.add(reply)
    agent = Agent(f"{host.name}:claude-x", base_url=f"{fake.base_url}/publishers/anthropic", api_key="key-0123456789")
    result = await agent.send("Hi", stream=stream)
    assert result.output == "Hello."
    assert result.usage is not None
    assert result.usage.output.total
    assert fake.requests[0].asks_for_stream == stream


async def test_price_of_cloud_is_anthropics(fake: FakeProvider) -> None:
    fake.add(MessagesScript(usage={"input_tokens": 1000, "output_tokens": 1000}).text("Hello.").reply())
    agent = Agent("anthropic-aws:claude-sonnet-5-5", base_url=fake.base_url, api_key="key-0123456789")
    usage = (await agent.send("Hi")).usage
    assert usage is not None
    assert usage.cost


async def test_exception_in_bedrock_stream_ends_run_with_error(fake: FakeProvider) -> None:
    slow = aws_frame({"message": "Too many tokens"}, exception_type="throttlingException", message_type="exception")
    fake.on("POST", "*", aws_frames([*SAID.events()[:3], slow]))
    agent = Agent(
        "anthropic-bedrock:claude-x",
        base_url=fake.base_url,
        api_key="key-0123456789",
        transport=HttpTransport(retry=QUICK),
    )
    with pytest.raises(RateLimitedError, match="Too many tokens"):
        await agent.send("Hi")


async def test_google_token_is_refreshed(fake: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "client_email": "me@example.com",
        "token_uri": f"{fake.base_url}/token",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    from sidestream.providers import google_token

    fake.on("POST", "/token", json_reply({"access_token": "ya29.token-1", "expires_in": 3600, "token_type": "Bearer"}))
    fake.on("POST", "*Predict", SAID.reply())
    url = f"{fake.base_url}/publishers/anthropic"
    agent = Agent("anthropic-vertex:claude-x", base_url=url, auth=google_token())
    assert [(await agent.send("Hi")).output for _ in range(2)] == ["Hello.", "Hello."]
    assert [request.path for request in fake.requests].count("/token") == 1
    assert fake.requests[-1].headers["authorization"] == "Bearer ya29.token-1"


async def test_google_token_without_credentials_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    agent = Agent("anthropic-google-cloud:claude-x")
    with pytest.raises(MissingKeyError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        await agent.send("Hi")


async def _replayed(path: Path, chunk_size: int | None = None) -> list[list[Any]]:
    recording = Recording.load(path)
    found: list[list[Any]] = []
    for run in replay(recording, ReplayTransport(recording, chunk_size)):
        async with run:
            found.append([part async for part in run])
    return found


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recordings: {RECORDED} is not there")
async def test_bedrock_recording_decodes_whatever_its_cuts() -> None:
    whole = await _replayed(RECORDED)
    text = "".join(part.delta for part in whole[0] if part.type == "text-delta")
    finish = whole[0][-1]
    assert (text, finish.reason, finish.usage.input.total, finish.usage.output.total) == ("2", "stop", 26, 5)
    for size in (1, 7, 100):
        assert await _replayed(RECORDED, size) == whole


@pytest.mark.skipif(not LATE.exists(), reason=f"no recordings: {LATE} is not there")
async def test_late_search_result_belongs_to_earlier_call() -> None:
    def find_files(path: str, pattern: str) -> str:
        """Find files."""
        return f"{path}a.ts"

    transport = ReplayTransport(Recording.load(LATE))
    agent = Agent("anthropic", transport=transport, api_key="none", tools=[find_files], server_side_tools=[WebSearch()])
    async with agent.stream("What is new?") as run:
        parts: list[Any] = [part async for part in run]
    (search,) = [part for part in parts if part.type == "tool-call" and part.provider_executed]
    (result,) = [part for part in parts if part.type == "tool-result" and part.provider_executed]
    steps = [part.step for part in parts if part.type == "step-start"]
    assert (result.id, steps, transport.remaining) == (search.id, [0, 1], 0)
    assert parts.index(result) > next(at for at, part in enumerate(parts) if part.type == "step-start" and part.step)
    assert parts[-1].reason == "stop"
    assert not any(part.type in ("error", "raw") for part in parts)

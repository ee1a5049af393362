"""Credentials and environments of the Interactions API: what is sent, and that secrets appear nowhere else."""

import json
import logging
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.errors import ConfigurationError, ProviderError
from sidestream.limits import Limits
from sidestream.providers.google import (
    PROVIDER,
    GoogleAllowedDomain,
    GoogleBearerCredential,
    GoogleEnvironment,
    GoogleInteractionsOptions,
    GoogleOAuthCredential,
    GoogleVariableCredential,
    read_credential,
    read_credentials,
)
from sidestream.providers.google.interactions.model import InteractionsModel
from sidestream.providers.protocol import Settings
from sidestream.testing import FakeProvider, InteractionScript, Recording, RecordingTransport, error_reply, json_reply
from sidestream.text.redaction import MAX_SECRETS, register_secret
from sidestream.wire.http import HttpTransport

pytest.importorskip("google.genai", reason="google-genai is not installed: bodies were not compared with its types")
environments = import_module("google.genai._gaos.types.interactions.environment")
credentials = import_module("google.genai._gaos.types.credentials")

CANARY = "canary-5up3r-s3cret"
BEARER = GoogleBearerCredential(id="github", token=CANARY, header_name="X-Token", prefix="")
OAUTH = GoogleOAuthCredential(
    id="mail",
    client_id="app",
    client_secret=f"{CANARY}-1",
    refresh_token=f"{CANARY}-2",
    token_url="https://auth.example/token",
    scopes=["read"],
)
VARIABLE = GoogleVariableCredential(
    id="var", value=f"{CANARY}-3", injection_location=["header", "query"], trusted_domains=["a.example"]
)
ENVIRONMENT = GoogleEnvironment(
    network=[
        GoogleAllowedDomain(domain="api.github.com", credential="github"),
        GoogleAllowedDomain(domain="*.a.example", headers={"X-Team": f"{CANARY}-4"}),
    ],
    env={"STAGE": "test", "PASSWORD": {"value": f"{CANARY}-5"}, "TOKEN": {"credential": "var"}},
)


def model(base_url: str = "https://gemini.example") -> InteractionsModel:
    made = PROVIDER.chat_model("interactions/gemini-3-flash-preview", Settings(api_key="key-0123", base_url=base_url))
    assert isinstance(made, InteractionsModel)
    return made


def agent_at(fake: FakeProvider, environment: GoogleEnvironment = ENVIRONMENT, **settings: Any) -> Agent:
    options = GoogleInteractionsOptions(environment=environment)
    return Agent(
        "google:interactions/gemini-3-flash-preview", base_url=fake.base_url, api_key="k", options=options, **settings
    )


@requirement("R66")
async def test_environment_is_sent_with_domains_and_variables():
    async with FakeProvider([InteractionScript().text("ok").reply()]) as fake:
        await agent_at(fake).send("hi")
        sent = fake.requests[0].json["environment"]
    assert sent == {
        "type": "remote",
        "network": {
            "allowlist": [
                {"domain": "api.github.com", "credential": "github"},
                {"domain": "*.a.example", "transform": {"X-Team": f"{CANARY}-4"}},
            ]
        },
        "env": {"STAGE": {"value": "test"}, "PASSWORD": {"value": f"{CANARY}-5"}, "TOKEN": {"credential": "var"}},
    }
    checked = environments.Environment.model_validate(sent).model_dump(exclude_none=True)
    assert checked == sent


@requirement("R66")
@pytest.mark.parametrize("network", ["disabled", {"allowlist": "disabled"}, {"allowlist": [{"domain": "*"}]}])
async def test_network_may_be_disabled_or_raw_object(network: Any):
    async with FakeProvider([InteractionScript().text("ok").reply()]) as fake:
        await agent_at(fake, GoogleEnvironment(network=network)).send("hi")
        assert fake.requests[0].json["environment"] == {"type": "remote", "network": network}


@pytest.mark.parametrize(
    "fields",
    [
        {"network": "off"},
        {"network": [{"credential": "x"}]},
        {"env": {"A": 5}},
        {"env": {"A": {"value": CANARY, "credential": "x"}}},
        {"env": {"A": {"secret": CANARY}}},
        {"env": {"A": {}}},
    ],
)
def test_invalid_environment_raises_without_showing_values(fields: dict[str, Any]):
    with pytest.raises(ConfigurationError) as caught:
        GoogleEnvironment(**fields)
    assert CANARY not in str(caught.value)


@requirement("R66")
def test_credentials_are_created_changed_listed_and_deleted():
    kinds = {
        "bearer_token": (BEARER, credentials.HTTPBearerConfig),
        "oauth2": (OAUTH, credentials.OAuth2Config),
        "environment_variable": (VARIABLE, credentials.EnvironmentVariableConfig),
    }
    for kind, (credential, theirs) in kinds.items():
        call = model().create_credential(credential)
        body = json.loads(call.body or b"")
        assert (call.method, call.url) == ("POST", "https://gemini.example/v1/credentials")
        assert body["type"] == kind
        assert theirs.model_validate(body).model_dump(exclude_none=True) == body
        changed = model().update_credential(credential)
        assert (changed.method, changed.url) == ("PATCH", f"https://gemini.example/v1/credentials/{credential.id}")
        assert json.loads(changed.body or b"") == {name: value for name, value in body.items() if name != "id"}
    assert model().list_credentials("a b").url.endswith("/credentials?page_token=a+b")
    deleted = model().delete_credential("a/b")
    assert (deleted.method, deleted.url.rpartition("/")[2]) == ("DELETE", "a%2Fb")
    page = {"credentials": [{"id": "x", "type": "oauth2", "status": "revoked"}], "next_page_token": "n"}
    (found,), after = read_credentials(json.dumps(page).encode())
    assert (found.id, found.type, found.status, after) == ("x", "oauth2", "revoked", "n")


@requirement("R66", "R95")
async def test_secrets_stay_out_of_reprs_errors_logs_and_recordings(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    caplog.set_level(logging.DEBUG)
    shown = repr([BEARER, OAUTH, VARIABLE, ENVIRONMENT, GoogleInteractionsOptions(environment=ENVIRONMENT)])
    recorder = RecordingTransport(HttpTransport())
    for number in range(MAX_SECRETS):  # those of the configs are the oldest now
        register_secret(f"another-secret-{number}")
    echoes = [
        error_reply(400, "INVALID_ARGUMENT", f"bad values {CANARY}-{first} and {CANARY}-{second}")
        for first, second in ((4, 5), (1, 2))
    ]
    async with FakeProvider([*echoes, json_reply({"id": "github", "status": "active"})]) as fake:
        for action in (
            agent_at(fake, transport=recorder).send("hi"),
            recorder.open(model(fake.base_url).create_credential(OAUTH), Limits()),
        ):
            with pytest.raises(ProviderError) as caught:
                await action
            shown += "".join(traceback.format_exception(caught.value))
        response = await recorder.open(model(fake.base_url).create_credential(BEARER), Limits())
        assert read_credential(await response.body()).status == "active"
        assert CANARY in str(fake.requests[0].json)
    path = tmp_path / "recording.json"
    recorder.recording.save(path)
    assert len(Recording.load(path).exchanges) == 3
    assert CANARY not in shown + caplog.text + path.read_text("utf-8")

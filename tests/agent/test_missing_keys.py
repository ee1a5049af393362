"""Agents without an API key: importable, checked at the first request or by `check`."""

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, MissingKeyError
from sidestream.errors import UnknownProviderError
from sidestream.server import create_app
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@requirement("R201")
def test_agent_without_key_can_be_created_and_shown():
    assert repr(Agent("openai-responses:gpt-5.6")) == "Agent(openai-responses:gpt-5.6)"


@requirement("R201")
async def test_first_request_names_missing_variable():
    agent = Agent("openai-responses")
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        await agent.send("hi")
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        agent.stream("hi")
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        await agent.embed_query("hi")


def test_check_names_missing_variable_of_any_model():
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        Agent("openai-responses").check()
    with pytest.raises(MissingKeyError, match="ANTHROPIC_API_KEY"):
        Agent(models=[ScriptedModel(["Hi."]), "anthropic"]).check()


async def test_key_set_after_creation_is_used(monkeypatch: pytest.MonkeyPatch):
    agent = Agent("openai-responses:gpt-5.6")
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        monkeypatch.setenv("OPENAI_API_KEY", "key-0123456789")
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        agent.check()
        assert (await agent.send("hi")).output == "Hi."


def test_override_needs_no_key():
    agent = Agent("openai-responses")
    with agent.override(model=ScriptedModel(["Hi."])):
        agent.check()
        assert agent.send_sync("hi").output == "Hi."


def test_other_mistakes_are_reported_at_creation():
    with pytest.raises(UnknownProviderError):
        Agent("nope")
    with pytest.raises(ConfigurationError, match="belongs to one provider"):
        Agent(models=["openai-responses", "anthropic"], base_url="https://example.com/v1")


def test_websocket_is_refused_with_key_when_provider_has_none(monkeypatch: pytest.MonkeyPatch):
    agent = Agent("anthropic", transport="websocket")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-0123456789")
    with pytest.raises(ConfigurationError, match="no WebSocket mode"):
        agent.check()


def test_server_checks_keys_when_it_is_created():
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        create_app(Agent("openai-responses"))

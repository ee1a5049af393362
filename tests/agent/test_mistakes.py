"""Mistakes of a first day, whose errors say what to write instead."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from sidestream import Agent, Chat, ConfigurationError, open_store
from sidestream.durable import RunClient, open_engine
from sidestream.errors import UnknownProviderError
from sidestream.testing import ScriptedModel


def test_chat_with_model_string_suggests_agent():
    with pytest.raises(ConfigurationError, match=r"write Chat\(Agent\('openai-responses'\)\)"):
        Chat(cast(Any, "openai-responses"))


def test_chat_without_agent_is_refused():
    with pytest.raises(ConfigurationError, match="a chat needs an agent, not None"):
        Chat(cast(Any, None))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api_key": 3}, "api_key must be a string, not int"),
        ({"api_key": b"key-canary-0123"}, "api_key must be a string, not bytes"),
        ({"base_url": 3}, "base_url must be a string, not int"),
        ({"headers": "x"}, "headers must be a dict of strings, not str"),
        ({"headers": {"X-Team": 3}}, "the value of 'X-Team' is not one"),
        ({"auth": "x"}, "auth must be a function that returns headers, not str"),
    ],
)
def test_credential_of_wrong_type_is_refused(settings: dict[str, Any], problem: str):
    with pytest.raises(ConfigurationError, match=problem) as caught:
        Agent("openai-responses", **settings)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("gpt-5.6", "openai-responses:gpt-5.6"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-3-pro", "google:gemini-3-pro"),
        ("anthropic/claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("openai-respones:gpt-5.6", "openai-responses"),
    ],
)
def test_unknown_provider_error_suggests_model_string(model: str, meant: str):
    with pytest.raises(UnknownProviderError) as caught:
        Agent(model)
    assert f"Did you mean {meant}" in str(caught.value)


@pytest.mark.parametrize("at", [datetime(2099, 1, 2, tzinfo=UTC), datetime(2099, 1, 2, 3)])
async def test_run_can_start_at_datetime(at: datetime, tmp_path: Path):
    store = open_store(tmp_path / "log.db")
    try:
        client = RunClient(Agent(ScriptedModel([])), "main", store=store, engine=open_engine("embedded", store))
        await client.start("talk", "Later.", at=at)
        assert str(at.timestamp()) in str(await store.read("talk"))
    finally:
        await store.aclose()


@pytest.mark.parametrize("at", ["tomorrow", True, float("nan")])
async def test_invalid_start_time_leaves_no_run(at: Any, tmp_path: Path):
    store = open_store(tmp_path / "log.db")
    try:
        client = RunClient(Agent(ScriptedModel([])), "main", store=store, engine=open_engine("embedded", store))
        with pytest.raises(ConfigurationError, match="at must be a datetime or seconds since 1970"):
            await client.start("talk", "Later.", at=at)
        assert not await store.read("talk")
    finally:
        await store.aclose()

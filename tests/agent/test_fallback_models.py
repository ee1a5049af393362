"""A list of models: the next one is called if the one before fails and has not said anything."""

import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    AnthropicOptions,
    AuthenticationError,
    Chat,
    CodeInterpreter,
    ConfigurationError,
    ConnectError,
    Conversation,
    Limits,
    ProviderError,
    RateLimitedError,
    RunError,
    UnsupportedError,
    open_store,
)
from sidestream.errors import StreamTruncatedError
from sidestream.parts import Custom, Finish, StepFinish, StreamStart, TextDelta
from sidestream.providers import Settings, find_provider
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    MessagesScript,
    ResponsesScript,
    ScriptedModel,
    check_stream,
    dropped,
    error_reply,
    responses_text,
    sse,
    tool_call,
)

FALLBACK = "sidestream.model-fallback"
QUICK = Limits(max_retries=0)


def gpt(fake: FakeProvider, name: str = "gpt-5") -> Any:
    return find_provider("openai-responses").chat_model(name, Settings(api_key="k", base_url=fake.base_url))


def claude(fake: FakeProvider, name: str = "claude-opus-5") -> Any:
    return find_provider("anthropic").chat_model(name, Settings(api_key="k", base_url=fake.base_url))


def hello() -> Any:
    return MessagesScript().text("Hello from the second.").reply()


FAILURES: list[tuple[str, list[Any]]] = [
    ("overloaded", [error_reply(529, "overloaded_error")]),
    ("unavailable", [error_reply(503)]),
    ("rate-limited", [error_reply(429, "rate_limit_exceeded")]),
    ("out-of-quota", [error_reply(429, "insufficient_quota", headers={"x-should-retry": "false"})]),
    ("dropped", [dropped()]),
    ("error-in-the-stream", [ResponsesScript().failed("server_error").reply()]),
    ("cut-before-the-first-event", [sse(responses_text("Never seen"), cut="reset", cut_after_bytes=0)]),
    ("cut-before-any-text", [sse(responses_text("Never seen"), cut="reset", cut_after_bytes=600)]),
]


@requirement("R73")
@pytest.mark.parametrize("replies", [replies for _, replies in FAILURES], ids=[name for name, _ in FAILURES])
async def test_failing_model_is_replaced_before_answering_and_reported(replies: list[Any]) -> None:
    async with FakeProvider(replies) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], limits=QUICK)
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
    check_stream(parts)
    assert isinstance(parts[0], StreamStart)
    notice = next(part for part in parts if isinstance(part, Custom) and part.kind == FALLBACK)
    assert isinstance(notice.data, dict)
    assert (notice.data["failed"], notice.data["model"]) == ("openai-responses:gpt-5", "anthropic:claude-opus-5")
    assert notice.data["error"]["message"]
    assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "Hello from the second."
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"
    assert run.error is None


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (error_reply(400, "invalid_request_error"), ProviderError),
        (error_reply(401, "invalid_api_key"), AuthenticationError),
        (error_reply(403, "permission_denied"), AuthenticationError),
        (error_reply(404, "model_not_found"), ProviderError),
        (error_reply(400, "context_length_exceeded"), RunError),
        (error_reply(422), ProviderError),
    ],
)
async def test_rejected_request_does_not_fall_back(reply: Any, error: type[RunError]) -> None:
    async with FakeProvider([reply]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], limits=QUICK)
        with pytest.raises(error):
            await agent.send("hi")
        assert second.requests == []


async def test_visible_text_prevents_fallback() -> None:
    events = responses_text("Half an answer that breaks off")
    said = next(place for place, event in enumerate(events) if event["type"] == "response.output_text.delta")
    broken = sse(events[: said + 1], cut="close")
    async with FakeProvider([broken]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], limits=QUICK)
        with pytest.raises(StreamTruncatedError) as caught:
            await agent.send("hi")
        assert caught.value.result.text
        assert second.requests == []


async def test_visible_search_prevents_fallback() -> None:
    events = ResponsesScript().web_search("weather").text("Sunny.").events()
    seen = next(place for place, event in enumerate(events) if event["type"] == "response.web_search_call.searching")
    async with FakeProvider([sse(events[: seen + 1], cut="close")]) as first, FakeProvider([hello()]) as second:
        with pytest.raises(StreamTruncatedError):
            await Agent(models=[gpt(first), claude(second)], limits=QUICK).send("hi")
        assert second.requests == []


async def test_visible_compaction_prevents_fallback() -> None:
    events = MessagesScript().compaction("What was said.").text("Done.").events()
    seen = next(place for place, event in enumerate(events) if event["type"] == "content_block_stop")
    async with FakeProvider([sse(events[: seen + 1], cut="close")]) as first, FakeProvider([hello()]) as second:
        with pytest.raises(StreamTruncatedError):
            await Agent(models=[claude(first), claude(second)], limits=QUICK).send("hi")
        assert second.requests == []


async def test_empty_block_does_not_prevent_fallback() -> None:
    events = responses_text("Never seen")
    said = next(place for place, event in enumerate(events) if event["type"] == "response.output_text.delta")
    async with FakeProvider([sse(events[:said], cut="close")]) as first, FakeProvider([hello()]) as second:
        run = Agent(models=[gpt(first), claude(second)], limits=QUICK).stream("hi")
        parts = [part async for part in run]
    check_stream(parts)
    assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "Hello from the second."


async def test_later_step_does_not_fall_back() -> None:
    def look(name: str) -> str:
        """Looks something up."""
        return name

    call = ResponsesScript().function_call("look", {"name": "a"}, "c0").reply()
    async with FakeProvider([call, error_reply(503)]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], tools=[look], limits=QUICK)
        with pytest.raises(ProviderError):
            await agent.send("hi")
        assert second.requests == []


async def test_each_model_is_retried_before_fallback() -> None:
    async with FakeProvider([error_reply(503), error_reply(503)]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], limits=Limits(max_retries=1))
        await agent.send("hi")
        assert (len(first.requests), len(second.requests)) == (2, 1)


async def test_last_error_is_raised_when_all_models_fail() -> None:
    async with (
        FakeProvider([error_reply(503)]) as first,
        FakeProvider([error_reply(429, "rate_limit_error")]) as second,
    ):
        third = ScriptedModel([ConnectError("nobody there", code="connect", retryable=True)], name="third")
        agent = Agent(models=[gpt(first), claude(second), third], limits=QUICK)
        with pytest.raises(ConnectError) as caught:
            await agent.send("hi")
    notices = [part for part in caught.value.result.notices if part.kind == FALLBACK]
    assert [part.data["model"] for part in notices] == ["anthropic:claude-opus-5", "scripted:third"]


async def test_rest_of_run_stays_with_answering_model() -> None:
    def look(name: str) -> str:
        """Looks something up."""
        return name

    replies = [MessagesScript().tool_use("look", {"name": "a"}).reply(), hello()]
    async with FakeProvider([error_reply(503)]) as first, FakeProvider(replies) as second:
        agent = Agent(models=[gpt(first), claude(second)], tools=[look], limits=QUICK)
        result = await agent.send("hi")
        assert (len(first.requests), len(second.requests)) == (1, 2)
    assert result.text.endswith("Hello from the second.")


async def test_cost_is_of_answering_model() -> None:
    async with FakeProvider([error_reply(503)]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], limits=Limits(max_retries=0, max_cost=1))
        result = await agent.send("hi")
    assert result.usage is not None
    expected = result.usage.input.total * 5 + result.usage.output.total * 25
    assert result.usage.cost == pytest.approx(expected / 1e6)


async def test_failed_step_costs_nothing_and_counts_as_step() -> None:
    async with FakeProvider([ResponsesScript().failed().reply()]) as first, FakeProvider([hello()]) as second:
        result = await Agent(models=[gpt(first), claude(second)], limits=QUICK).send("hi")
    steps = [part for part in result.parts if isinstance(part, StepFinish)]
    assert [(part.step, part.reason) for part in steps] == [(0, "error"), (1, "stop")]
    assert result.usage is not None
    assert result.usage.cost is not None


async def test_error_is_raised_when_no_step_is_left() -> None:
    async with FakeProvider([ResponsesScript().failed().reply()]) as first, FakeProvider([hello()]) as second:
        with pytest.raises(ProviderError):
            await Agent(models=[gpt(first), claude(second)], limits=Limits(max_retries=0, max_steps=1)).send("hi")
        assert second.requests == []


async def test_every_call_form_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sidestream.run")
    agent = Agent(models=[_down(), ScriptedModel(lambda _: "fine", name="up")])
    assert (await agent.send("hi")).text == "fine"
    assert "".join([chunk.text async for chunk in agent.send_stream("hi")]) == "fine"
    assert (await agent.send("hi", stream=False)).text == "fine"
    assert any("scripted:up" in record.getMessage() for record in caplog.records)


def test_sync_call_forms_fall_back() -> None:
    agent = Agent(models=[_down(), ScriptedModel(lambda _: "fine", name="up")])
    assert agent.send_sync("hi").text == "fine"
    assert "".join(chunk.text for chunk in agent.send_stream_sync("hi")) == "fine"
    with agent.stream_sync("hi") as run:
        assert any(isinstance(part, Custom) and part.kind == FALLBACK for part in run)


async def test_each_chat_turn_starts_with_first_model(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log.db")
    answers = [
        ResponsesScript(id="resp_1").text("One.").reply(),
        error_reply(503),
        ResponsesScript(id="resp_3").text("Three.").reply(),
    ]
    async with FakeProvider(answers) as first, FakeProvider([hello()]) as second:
        chat = Chat(Agent(models=[gpt(first), claude(second)], limits=QUICK), store=store)
        texts = [(await chat.send(prompt)).text for prompt in ("a", "b", "c")]
        sent = str(second.requests[0].json)
        records = await Conversation(store, chat.id).records()
    await store.aclose()
    assert texts == ["One.", "Hello from the second.", "Three."]
    assert "resp_1" not in sent
    assert "One." in sent
    assert sum(FALLBACK in str(record) for record in records) >= 1


async def test_waiting_run_resumes_with_fallback_model() -> None:
    def delete(name: str) -> str:
        """Deletes something."""
        return "gone"

    up = ScriptedModel([tool_call("delete", name="a"), "deleted"], name="up")
    down = _down()
    agent = Agent(models=[down, up], tools=[delete], approval="ask")
    waiting = await agent.send("hi")
    assert waiting.run_state is not None
    state = waiting.run_state.to_json()
    tried = len(down.requests)
    result = await agent.resume(state, [approval.approve() for approval in waiting.approvals])
    assert result.text == "deleted"
    assert len(down.requests) == tried


async def test_waiting_chat_turn_resumes_with_fallback_model_from_log(tmp_path: Path) -> None:
    def delete(name: str) -> str:
        """Deletes something."""
        return "gone"

    down, up = _down(), ScriptedModel([tool_call("delete", name="a"), "deleted"], name="up")
    agent = Agent(models=[down, up], tools=[delete], approval="ask")
    store = open_store(tmp_path / "log.db")
    chat = Chat(agent, store=store)
    waiting = await chat.send("hi")
    assert waiting.finish_reason == "approval"
    tried = len(down.requests)
    loaded = Chat(agent, id=chat.id, store=store)
    await loaded.load()
    result = await loaded.resume([approval.approve() for approval in loaded.approvals])
    await store.aclose()
    assert result.text == "deleted"
    assert len(down.requests) == tried


async def test_resumed_fallback_model_ignores_first_model_refusals(tmp_path: Path) -> None:
    def delete(name: str) -> str:
        """Deletes something."""
        return "gone"

    refusal = error_reply(400, "unsupported_parameter", "stream_options is not supported")
    calls = ChatScript().tool_call("delete", {"name": "a"}), ChatScript().text("deleted")
    async with (
        FakeProvider([refusal, error_reply(503)]) as first,
        FakeProvider([call.reply() for call in calls]) as second,
        aclosing(open_store(tmp_path / "log.db")) as store,
    ):
        models = [
            find_provider("openai-chat").chat_model(name, Settings(api_key="k", base_url=fake.base_url))
            for name, fake in (("first", first), ("second", second))
        ]
        agent = Agent(models=models, tools=[delete], approval="ask", limits=QUICK)
        chat = Chat(agent, store=store)
        await chat.load()
        async with chat.stream("hi") as run:
            assert [part async for part in run]
        loaded = Chat(agent, id=chat.id, store=store)
        await loaded.load()
        async with loaded.resume_stream([approval.approve() for approval in loaded.approvals]) as run:
            parts = [part async for part in run]
        assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "deleted"
        assert "stream_options" in second.requests[-1].json


async def test_tools_and_settings_are_encoded_for_called_model() -> None:
    async with FakeProvider([error_reply(503)]) as first, FakeProvider([hello()]) as second:
        agent = Agent(
            models=[gpt(first), claude(second)],
            server_side_tools=[CodeInterpreter()],
            max_tokens=77,
            limits=QUICK,
        )
        await agent.send("hi")
        asked: Any = first.requests[0].json
        other: Any = second.requests[0].json
    assert (asked["max_output_tokens"], asked["tools"][0]["type"]) == (77, "code_interpreter")
    assert (other["max_tokens"], other["tools"][0]["name"]) == (77, "code_execution")


async def test_warnings_of_next_model_follow_fallback_notice() -> None:
    async with FakeProvider([error_reply(503)]) as first, FakeProvider([hello()]) as second:
        agent = Agent(models=[gpt(first), claude(second)], seed=5, unsupported="warn", limits=QUICK)
        result = await agent.send("hi")
    kinds = [part.kind for part in result.parts if isinstance(part, Custom)]
    assert kinds[-2:] == [FALLBACK, "sidestream.warning"]
    assert "seed" in result.warnings[-1]


async def test_setting_unsupported_by_one_model_is_rejected_early() -> None:
    async with FakeProvider([hello()]) as first:
        agent = Agent(models=[claude(first), ScriptedModel(["x"])], seed=5)
        with pytest.raises(UnsupportedError):
            await agent.send("hi")
        assert first.requests == []


@pytest.mark.parametrize(
    "setting", [{"api_key": "sk-secret"}, {"base_url": "http://127.0.0.1:1"}, {"headers": {"A": "b"}}]
)
def test_keys_and_urls_of_provider_do_not_reach_another(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ConfigurationError) as caught:
        Agent(models=["openai-responses", "anthropic"], **setting)
    assert "sk-secret" not in str(caught.value)
    Agent(models=["anthropic:claude-opus-5", "anthropic:claude-haiku-5-5"], **setting)


async def test_options_are_rejected_for_models_of_several_providers() -> None:
    options = AnthropicOptions(max_tokens=5)
    models = [ScriptedModel(["x"]), find_provider("anthropic").chat_model("claude-opus-5", Settings(api_key="k"))]
    with pytest.raises(ConfigurationError, match="options"):
        Agent(models=models, options=options)
    with pytest.raises(ConfigurationError, match="options"):
        await Agent(models=models).send("hi", options=options)


@pytest.mark.parametrize("models", [[], "openai", None, 5])
def test_invalid_model_list_is_rejected(models: Any) -> None:
    with pytest.raises(ConfigurationError):
        Agent(models=models)


def test_model_and_model_list_together_are_rejected() -> None:
    with pytest.raises(ConfigurationError):
        Agent(ScriptedModel(["x"]), models=[ScriptedModel(["y"])])


async def test_override_replaces_whole_model_list() -> None:
    down = _down()
    agent = Agent(models=[down, ScriptedModel(["second"])])
    with agent.override(model=ScriptedModel(["overridden"])):
        assert (await agent.send("hi")).text == "overridden"
    assert down.requests == []


def _down() -> ScriptedModel:
    def fail(_: Any) -> Any:
        raise RateLimitedError("too many", status=429, retryable=True)

    return ScriptedModel(fail, name="down")

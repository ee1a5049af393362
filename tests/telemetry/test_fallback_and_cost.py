"""Spans of a run that moves to another model, what runs cost, and secrets that are in none of them."""

from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from conformance.suite.subjects import KEY, Subject
from conformance.suite.wires import Call, Text
from requirements import requirement
from sidestream import Agent, Limits, Price, RunError
from sidestream.providers import Settings, find_provider
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript, ScriptedModel, error_reply
from telemetry.collected import Collected, attributes

QUICK = Limits(max_retries=0)


def model(provider: str, name: str, fake: FakeProvider) -> Any:
    return find_provider(provider).chat_model(name, Settings(api_key="k", base_url=fake.base_url))


@requirement("R94")
@pytest.mark.parametrize(
    "failure",
    [error_reply(503), ResponsesScript().failed("server_error", "it broke").reply()],
    ids=["refused", "in the stream"],
)
async def test_spans_name_fallback_model_after_switch(collected: Collected, failure: Any):
    answer = MessagesScript().text("Hello.").reply()
    async with FakeProvider([failure]) as first, FakeProvider([answer]) as second:
        models = [model("openai-responses", "gpt-5", first), model("anthropic", "claude-opus-5", second)]
        result = await Agent(models=models, limits=QUICK, telemetry=collected.telemetry()).send("hi")
        ports = first.port, second.port
    run, (failed, answered) = collected.one("invoke_agent"), collected.named("chat")
    assert collected.children(run) == ["chat gpt-5", "chat claude-opus-5"]
    names = "gen_ai.provider.name", "gen_ai.request.model", "server.port"
    assert [attributes(failed)[name] for name in names] == ["openai", "gpt-5", ports[0]]
    assert [attributes(answered)[name] for name in names] == ["anthropic", "claude-opus-5", ports[1]]
    # The run's own span has the model that it ended with.
    assert [attributes(run)[name] for name in names[:2]] == ["anthropic", "claude-opus-5"]
    assert attributes(failed)["error.type"] == "ProviderError"
    assert [span.status.status_code for span in (answered, run)] == [StatusCode.UNSET] * 2
    (moved,) = [event for span in (run, answered) for event in span.events if event.name == "sidestream.model-fallback"]
    assert dict(moved.attributes or {}) == {
        "sidestream.notice.reason": "provider",
        "sidestream.notice.failed_model": "openai-responses:gpt-5",
        "sidestream.notice.model": "anthropic:claude-opus-5",
    }
    (point,) = collected.points("gen_ai.invoke_agent.duration")
    assert point.attributes["gen_ai.request.model"] == "claude-opus-5"
    tokens = {point.attributes["gen_ai.request.model"] for point in collected.points("gen_ai.client.token.usage")}
    assert "claude-opus-5" in tokens
    assert attributes(run)["gen_ai.usage.output_tokens"] == result.usage.output.total


def look(city: str) -> str:
    """Looks."""
    return f"sunny; the key is {KEY}"


@requirement("R94")
async def test_step_and_run_cost_are_attributes(collected: Collected, wired: Subject):
    prices = {wired.model: Price(input=1, output=2)}
    answers = Call("look", {"city": "Paris"}), Text("It is sunny.")
    async with wired.open(*answers, tools=[look], prices=prices, telemetry=collected.telemetry()) as talk:
        result = await talk.agent.send("hi")
    costs = [attributes(span)["sidestream.usage.cost"] for span in collected.named("chat")]
    assert len(costs) == 2
    assert result.usage.cost is not None
    assert sum(costs) == pytest.approx(result.usage.cost)
    assert attributes(collected.one("invoke_agent"))["sidestream.usage.cost"] == pytest.approx(result.usage.cost)


@requirement("R94")
async def test_unknown_cost_is_not_attribute(collected: Collected):
    await Agent(ScriptedModel(["Hi."]), telemetry=collected.telemetry()).send("hi")
    assert all("sidestream.usage.cost" not in attributes(span) for span in collected.spans)


# Secrets


@requirement("F44", "R94")
@pytest.mark.parametrize("captures_content", [False, True])
async def test_key_is_absent_from_spans_and_metrics(wired: Subject, collected: Collected, captures_content: bool):
    settings = collected.telemetry(capture_content=captures_content)
    late = wired.wire.refusal(503, KEY, f"try later, {KEY}", {"retry-after": "0", "x-request-id": KEY})
    answers = late, Call("look", {"city": KEY}), Text(f"You said {KEY}."), wired.wire.refusal(401, KEY, f"no: {KEY}")
    async with wired.open(*answers, tools=[look], telemetry=settings) as talk:
        await talk.agent.send(f"My key is {KEY}.", system=f"The key is {KEY}.")
        with pytest.raises(RunError):
            await talk.agent.send(f"My key is still {KEY}.")
    assert len(collected.named("chat")) == 3
    assert KEY not in collected.text()

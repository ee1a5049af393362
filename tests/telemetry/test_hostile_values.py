"""What a server or a backend does cannot spoil telemetry or a run: no secret, no half character, no flood, no failure."""

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from conformance.suite.subjects import AT_ONCE, KEY
from requirements import requirement
from sidestream import Agent
from sidestream.errors import RunError
from sidestream.limits import MAX_ATTRIBUTE_CHARS
from sidestream.telemetry import Telemetry
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript, ScriptedModel, error_reply, tool_call
from sidestream.wire.http import HttpTransport, close_session
from telemetry.collected import Collected, attributes

HALF = "\ud83d"
"""Half of a surrogate pair: it has no form in UTF-8, and an exporter that meets it loses the whole batch."""


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def agent_of(fake: FakeProvider, telemetry: Telemetry, **settings: Any) -> Agent:
    return Agent("openai-responses:gpt-5.6", base_url=fake.base_url, api_key=KEY, telemetry=telemetry, **settings)


@requirement("R94", "F44")
@pytest.mark.parametrize("capture", [False, True], ids=["without-content", "with-content"])
@pytest.mark.parametrize("text", [KEY, HALF, "x" * 100_000], ids=["key", "half-character", "long"])
async def test_server_names_and_ids_are_truncated_and_redacted(collected: Collected, text: str, capture: bool):
    script = ResponsesScript(id=f"resp_{text}", model=f"gpt {text}").web_search(text).text(f"Hi {text}")
    script.item(
        {
            "type": "mcp_call",
            "id": f"mcp_{text}",
            "name": f"do {text}",
            "server_label": text,
            "status": "failed",
            "error": text,
        }
    )
    calls = ResponsesScript().function_call("get_weather", {"city": text}, call_id=f"call {text}")
    async with FakeProvider([calls.reply(), script.reply()]) as fake:
        await agent_of(fake, collected.telemetry(capture_content=capture), tools=[get_weather]).send("hi")
    found = collected.spans
    assert KEY not in collected.text()
    for span in found:
        own = {
            name: value
            for name, value in attributes(span).items()
            if not name.endswith(("messages", "arguments", "result"))
        }
        assert all(len(value) <= MAX_ATTRIBUTE_CHARS for value in own.values() if isinstance(value, str))
        assert len(span.name) <= MAX_ATTRIBUTE_CHARS + 20
    assert encode_spans(found).SerializeToString()


@requirement("R94", "F44")
async def test_text_quoted_by_error_is_redacted(collected: Collected):
    refusal = error_reply(400, KEY, f"the key {KEY} is odd {HALF}")
    async with FakeProvider([refusal]) as fake:
        with pytest.raises(RunError):
            await agent_of(fake, collected.telemetry()).send("hi")
    assert "is odd" in (collected.one("chat").status.description or "")
    assert KEY not in collected.text()
    assert encode_spans(collected.spans).SerializeToString()


@requirement("R94", "F44")
async def test_mid_stream_error_is_redacted(collected: Collected):
    script = MessagesScript().text("Hi").error(KEY, f"broken by {KEY}")
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent(
            "anthropic:claude-sonnet-5-5", base_url=fake.base_url, api_key=KEY, telemetry=collected.telemetry()
        )
        with pytest.raises(RunError):
            await agent.send("hi")
    assert KEY not in collected.text()


@requirement("R94")
async def test_failing_processor_does_not_fail_run(collected: Collected, caplog: pytest.LogCaptureFixture):
    class Failing(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("full")

        def on_end(self, span: Any) -> None:
            raise RuntimeError("full")

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(Failing())
    telemetry = Telemetry(tracer_provider=tracers, meter_provider=collected.meters)
    model = ScriptedModel([tool_call("get_weather", city="Paris"), "Hi."])
    assert (await Agent(model, tools=[get_weather], telemetry=telemetry).send("hi")).text == "Hi."
    assert "span processor failed" in caplog.text


@requirement("R94")
async def test_failing_spans_do_not_fail_run(collected: Collected, caplog: pytest.LogCaptureFixture):
    from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Tracer

    class Broken(NonRecordingSpan):
        def set_attribute(self, key: str, value: Any) -> None:
            raise RuntimeError("broken")

        def set_attributes(self, attributes: Any) -> None:
            raise RuntimeError("broken")

    class Tracers(TracerProvider):
        def get_tracer(self, *args: Any, **options: Any) -> Tracer:
            class Own(Tracer):
                def start_span(self, *args: Any, **options: Any) -> Span:
                    return Broken(SpanContext(1, 2, is_remote=False))

                def start_as_current_span(self, *args: Any, **options: Any) -> Any:
                    raise NotImplementedError

            return Own()

    telemetry = Telemetry(tracer_provider=Tracers(shutdown_on_exit=False), meter_provider=collected.meters)
    assert (await Agent(ScriptedModel(["Hi."]), telemetry=telemetry).send("hi")).text == "Hi."
    assert "telemetry failed" in caplog.text


# Retries


@requirement("R94", "F20")
@pytest.mark.parametrize("failures", [0, 2])
async def test_attempts_are_on_span_and_retries_are_metric(collected: Collected, failures: int):
    failed = [error_reply(503, headers={"retry-after": "0"})] * failures
    async with FakeProvider([*failed, ResponsesScript().text("Hi").reply()]) as fake:
        await agent_of(fake, collected.telemetry(), transport=HttpTransport(retry=AT_ONCE)).send("hi")
        await close_session()
    found = attributes(collected.one("chat"))
    assert found["sidestream.request.attempts"] == 1 + failures
    assert found.get("sidestream.request.retry_causes", ()) == ("503",) * failures
    assert sum(point.value for point in collected.points("sidestream.retries")) == failures


@requirement("R94")
async def test_retried_request_is_one_successful_span(collected: Collected):
    script = [error_reply(503, headers={"retry-after": "0"}), ResponsesScript().text("Hi").reply()]
    async with FakeProvider(script) as fake:
        await agent_of(fake, collected.telemetry()).send("hi")
        assert len(fake.requests) == 2
    assert "error.type" not in attributes(collected.one("chat"))

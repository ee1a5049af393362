"""A run as spans and metrics, for every provider: by the conventions of OpenTelemetry for generative AI."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from conformance.suite.subjects import KEY, Subject
from conformance.suite.wires import Call, Text
from requirements import requirement
from sidestream import Agent, Chat, Limits
from sidestream.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    OutputInvalidError,
    RunError,
)
from sidestream.parts import StepStart
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, error_reply, json_reply, tool_call
from support.waiting import eventually
from telemetry.collected import Collected, attributes

PROVIDER_NAMES = {
    "openai-responses": "openai",
    "openai": "openai",
    "openrouter": "openrouter",
    "xai": "x_ai",
    "anthropic": "anthropic",
    "google": "gcp.gemini",
}
WEATHER = "How is the weather in Paris?"


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def model_of(subject: Subject) -> str:
    return subject.model.partition(":")[2]


# Steps and tools


@requirement("R94")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_run_span_contains_its_requests_and_tools(wired: Subject, collected: Collected, stream: bool):
    answers = Call("get_weather", {"city": "Paris"}), Text("It is sunny.")
    async with wired.open(*answers, tools=[get_weather], telemetry=collected.telemetry()) as talk:
        result = await talk.agent.send(WEATHER, stream=stream)
        port = talk.fake.port if talk.fake is not None else 0
    run, (first, last), tool = collected.one("invoke_agent"), collected.named("chat"), collected.one("execute_tool")
    model = model_of(wired)
    assert collected.children(run) == [f"chat {model}", "execute_tool get_weather", f"chat {model}"]
    assert (run.kind, first.kind, tool.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert {span.status.status_code for span in collected.spans} == {StatusCode.UNSET}
    for span, operation in ((run, "invoke_agent"), (first, "chat"), (last, "chat")):
        assert attributes(span)["gen_ai.operation.name"] == operation
        assert attributes(span)["gen_ai.provider.name"] == PROVIDER_NAMES[wired.row.provider]
        assert attributes(span)["gen_ai.request.model"] == model
    assert attributes(first)["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert attributes(last)["gen_ai.response.finish_reasons"] == ("stop",)
    assert (attributes(last)["server.address"], attributes(last)["server.port"]) == ("127.0.0.1", port)
    assert attributes(last)["gen_ai.request.stream"] is stream
    assert ("gen_ai.response.time_to_first_chunk" in attributes(last)) is stream
    assert attributes(run)["gen_ai.usage.input_tokens"] == result.usage.input.total
    assert attributes(run)["gen_ai.usage.output_tokens"] == result.usage.output.total
    assert attributes(first)["gen_ai.usage.input_tokens"] + attributes(last)["gen_ai.usage.input_tokens"] == (
        result.usage.input.total
    )
    assert attributes(run)["sidestream.run.steps"] == 2
    assert attributes(tool)["gen_ai.tool.name"] == "get_weather"
    assert attributes(tool)["gen_ai.tool.type"] == "function"
    assert attributes(tool)["gen_ai.tool.description"] == "The weather in a city."
    assert attributes(tool)["gen_ai.tool.call.id"]


@requirement("R94", "R115")
async def test_steering_message_is_not_first_chunk_of_answer(collected: Collected):
    name = "gen_ai.client.operation.time_to_first_chunk"
    counts: list[int] = []
    async with FakeProvider([ResponsesScript().text("One.").reply(), ResponsesScript().text("Two.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, telemetry=collected.telemetry())
        async with agent.stream("go") as run:
            async for part in run:
                if isinstance(part, StepStart) and part.step == 0:
                    await run.steer("more")
                    counts.append(sum(point.count for point in collected.points(name)))
    assert [*counts, sum(point.count for point in collected.points(name))] == [0, 2]


@requirement("R94")
async def test_durations_tokens_and_first_chunk_are_metrics(wired: Subject, collected: Collected):
    answers = Call("get_weather", {"city": "Paris"}), Text("It is sunny.")
    async with wired.open(*answers, tools=[get_weather], telemetry=collected.telemetry()) as talk:
        result = await talk.agent.send(WEATHER)
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER_NAMES[wired.row.provider],
        "gen_ai.request.model": model_of(wired),
        "server.address": "127.0.0.1",
    }
    assert sum(point.count for point in collected.points("gen_ai.client.operation.duration")) == 2
    assert sum(point.count for point in collected.points("gen_ai.client.operation.time_to_first_chunk")) == 2
    tokens = collected.points("gen_ai.client.token.usage")
    for kind, total in (("input", result.usage.input.total), ("output", result.usage.output.total)):
        assert sum(point.sum for point in tokens if point.attributes["gen_ai.token.type"] == kind) == total
    for point in (*tokens, *collected.points("gen_ai.client.operation.duration")):
        assert common.items() <= dict(point.attributes).items()
    (run,), (tool,) = collected.points("gen_ai.invoke_agent.duration"), collected.points("gen_ai.execute_tool.duration")
    assert (run.count, tool.count, tool.attributes["gen_ai.tool.name"]) == (1, 1, "get_weather")


@requirement("R94")
async def test_user_span_is_parent_and_tool_spans_nest(collected: Collected):
    tracer = collected.tracers.get_tracer("test")

    async def look_up(city: str) -> str:
        with tracer.start_as_current_span("query database"):
            return "sunny"

    def look_up_in_thread(city: str) -> str:
        with tracer.start_as_current_span("query in thread"):
            return "sunny"

    calls = tool_call("look_up", city="Paris"), tool_call("look_up_in_thread", city="Rome")
    agent = Agent(ScriptedModel([calls, "Sunny."]), tools=[look_up, look_up_in_thread], telemetry=collected.telemetry())
    with tracer.start_as_current_span("request") as outer:
        await agent.send(WEATHER)
        assert trace.get_current_span() is outer
    run = collected.one("invoke_agent")
    assert collected.children(collected.one("request")) == ["invoke_agent"]
    by_name = {span.name: span for span in collected.named("execute_tool")}
    assert collected.children(by_name["execute_tool look_up"]) == ["query database"]
    assert collected.children(by_name["execute_tool look_up_in_thread"]) == ["query in thread"]
    assert {span.context.trace_id for span in collected.spans} == {run.context.trace_id}


@requirement("R94")
async def test_run_read_elsewhere_belongs_to_span_it_was_made_in(collected: Collected):
    agent = Agent(ScriptedModel(["Hi."]), telemetry=collected.telemetry())
    with collected.tracers.get_tracer("test").start_as_current_span("request"):
        run = agent.stream("hi")
    async with run:
        assert [part.type async for part in run][-1] == "finish"
    assert collected.children(collected.one("request")) == ["invoke_agent"]


@requirement("R94")
async def test_subagent_is_run_below_its_tool(collected: Collected):
    inner = Agent(ScriptedModel(["Sunny."]), telemetry=collected.telemetry(agent_name="Forecaster"))
    outer = Agent(
        ScriptedModel([tool_call("forecast", task="Paris"), "Done."]),
        tools=[inner.as_tool("forecast", "The weather.")],
        telemetry=collected.telemetry(agent_name="Host"),
    )
    await outer.send("hi")
    host, forecaster = collected.one("invoke_agent Host"), collected.one("invoke_agent Forecaster")
    assert collected.children(collected.one("execute_tool forecast")) == ["invoke_agent Forecaster"]
    assert attributes(host)["gen_ai.agent.name"] == "Host"
    assert attributes(forecaster)["gen_ai.agent.name"] == "Forecaster"


@requirement("R94")
def test_sync_calls_are_traced_like_async(collected: Collected):
    agent = Agent(ScriptedModel(["Hi.", "Hi."]), telemetry=collected.telemetry())
    with collected.tracers.get_tracer("test").start_as_current_span("script"):
        agent.send_sync("hi")
        list(agent.stream_sync("hi"))
    assert collected.children(collected.one("script")) == ["invoke_agent", "invoke_agent"]


@requirement("R94")
async def test_conversation_and_portable_settings_are_attributes(collected: Collected):
    async with FakeProvider([ResponsesScript().text("Hi").reply()]) as fake:
        agent = Agent(
            "openai-responses:gpt-5.6",
            base_url=fake.base_url,
            api_key=KEY,
            temperature=0.5,
            max_tokens=100,
            telemetry=collected.telemetry(),
        )
        chat = Chat(agent)
        await chat.send("hi")
    found = attributes(collected.one("chat"))
    assert found["gen_ai.conversation.id"] == chat.id
    assert (found["gen_ai.request.temperature"], found["gen_ai.request.max_tokens"]) == (0.5, 100)
    assert found["gen_ai.response.id"].startswith("resp_")
    assert found["gen_ai.response.model"]


# Failures and other ends


@requirement("R94")
async def test_refused_request_is_error_on_its_span_and_run(wired: Subject, collected: Collected):
    refusal = wired.wire.wrong_key()
    async with wired.open(refusal, telemetry=collected.telemetry()) as talk:
        with pytest.raises(AuthenticationError):
            await talk.agent.send("hi")
    for span in (collected.one("chat"), collected.one("invoke_agent")):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "AuthenticationError"
        assert attributes(span)["http.response.status_code"] == refusal.status
    (point,) = collected.points("gen_ai.client.operation.duration")
    assert point.attributes["error.type"] == "AuthenticationError"
    assert KEY not in collected.text()


@requirement("R94")
async def test_broken_stream_is_error_and_keeps_received_data(wired: Subject, collected: Collected):
    whole = wired.wire.script(Text("A long answer.")).reply()
    broken = replace(whole, body=whole.body[:2], cut="close")
    async with wired.open(broken, telemetry=collected.telemetry()) as talk:
        assert talk.fake is not None
        talk.fake.on("GET", "*", error_reply(404))  # Nor can it be continued, where a provider offers that.
        with pytest.raises(RunError) as caught:
            await talk.agent.send("hi")
    span = collected.named("chat")[-1]
    assert attributes(span)["error.type"] == type(caught.value).__name__
    assert attributes(collected.one("invoke_agent"))["sidestream.run.finish_reason"] == "error"


@requirement("R94")
async def test_cancelled_run_ends_its_spans_without_error(wired: Subject, collected: Collected):
    gate = asyncio.Event()
    whole = wired.wire.script(Text("A long answer.")).reply()
    stalled = replace(whole, body=[*whole.body[:2], gate, *whole.body[2:]])
    async with wired.open(stalled, telemetry=collected.telemetry()) as talk:
        assert talk.fake is not None
        task = asyncio.create_task(talk.agent.send("hi"))
        await talk.fake.wait_for_requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    run = collected.one("invoke_agent")
    assert attributes(run)["sidestream.run.finish_reason"] == "cancelled"
    assert {span.status.status_code for span in collected.spans} == {StatusCode.UNSET}
    assert len(collected.named("chat")) == 1


@requirement("R94")
async def test_run_left_early_ends_its_spans(collected: Collected):
    agent = Agent(ScriptedModel(["One two three."]), telemetry=collected.telemetry())
    async with agent.stream("hi") as run:
        async for part in run:
            if part.type == "step-start":
                break
    assert attributes(collected.one("invoke_agent"))["sidestream.run.finish_reason"] == "cancelled"


@requirement("R94")
async def test_dropped_run_ends_its_spans(collected: Collected):
    agent = Agent(ScriptedModel(["One two three."]), telemetry=collected.telemetry())

    async def look() -> None:
        async for part in agent.stream("hi"):
            if part.type == "step-start":
                return

    await look()
    # The event loop closes the iterator that was left.
    await eventually(lambda: len(collected.named("chat")) == len(collected.named("invoke_agent")) == 1, pause_s=0)


@requirement("R94")
async def test_unstarted_run_has_no_span(collected: Collected):
    agent = Agent(ScriptedModel(["Hi."]), telemetry=collected.telemetry())
    await agent.stream("hi").aclose()
    assert collected.spans == ()


@requirement("R94")
async def test_user_function_error_ends_span_without_its_text(collected: Collected):
    def system(context: Any) -> str:
        raise ValueError("the password is hunter2")

    agent = Agent(ScriptedModel(["Hi."]), system=system, telemetry=collected.telemetry())
    with pytest.raises(ConfigurationError):
        async for _ in agent.stream("hi"):
            pass
    assert attributes(collected.one("invoke_agent"))["error.type"] == "ConfigurationError"


@requirement("R94")
async def test_raising_tool_is_error_of_its_span_only(collected: Collected):
    def fails(city: str) -> str:
        raise KeyError("secret detail")

    agent = Agent(
        ScriptedModel([tool_call("fails", city="Paris"), "Sorry."]), tools=[fails], telemetry=collected.telemetry()
    )
    await agent.send("hi")
    tool = collected.one("execute_tool")
    assert (tool.status.status_code, attributes(tool)["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert collected.one("invoke_agent").status.status_code is StatusCode.UNSET
    assert "secret detail" not in collected.text()


@requirement("R94")
async def test_run_cancelled_in_tool_ends_tool_span(collected: Collected):
    began = asyncio.Event()

    async def hangs() -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([tool_call("hangs"), "x"]), tools=[hangs], telemetry=collected.telemetry())
    task = asyncio.create_task(agent.send("hi"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attributes(collected.one("execute_tool"))["sidestream.tool.status"] == "unfinished"


@requirement("R94")
async def test_run_awaiting_approval_keeps_its_id_after_resume(collected: Collected):
    agent = Agent(
        ScriptedModel([tool_call("get_weather", city="Paris"), "Sunny."]),
        tools=[get_weather],
        approval="ask",
        telemetry=collected.telemetry(),
    )
    waiting = await agent.send("hi")
    (run,) = collected.named("invoke_agent")
    assert attributes(run)["sidestream.run.finish_reason"] == "approval"
    assert attributes(run)["sidestream.run.pending_approvals"] == 1
    assert collected.named("execute_tool") == []
    assert waiting.run_state is not None
    await agent.resume(waiting.run_state, [approval.approve() for approval in waiting.run_state.approvals])
    before, after = collected.named("invoke_agent")
    assert attributes(before)["sidestream.run.id"] == attributes(after)["sidestream.run.id"]
    assert attributes(after)["sidestream.run.finish_reason"] == "stop"
    assert collected.children(after)[0] == "execute_tool get_weather"


@requirement("R94")
async def test_refused_session_is_two_requests_and_notice(collected: Collected):
    gone = {
        "error": {"message": "Previous response with id 'resp_1' not found.", "code": "previous_response_not_found"}
    }
    script = [
        ResponsesScript().text("One").reply(),
        json_reply(gone, status=400),
        ResponsesScript().text("Two").reply(),
    ]
    async with FakeProvider(script) as fake:
        agent = Agent("openai-responses:gpt-5.6", base_url=fake.base_url, api_key=KEY, telemetry=collected.telemetry())
        chat = Chat(agent)
        await chat.send("hi")
        await chat.send("again")
    _, refused, replayed = collected.named("chat")
    assert attributes(refused)["http.response.status_code"] == 400
    assert replayed.status.status_code is StatusCode.UNSET
    run = collected.named("invoke_agent")[1]
    assert run.status.status_code is StatusCode.UNSET
    noticed = [event for span in collected.spans for event in span.events]
    assert [event.name for event in noticed] == ["sidestream.session-fallback"]
    assert dict(noticed[0].attributes or {}) == {"sidestream.notice.reason": "refused"}


@requirement("R94")
async def test_limit_is_finish_reason_of_run(collected: Collected):
    agent = Agent(
        ScriptedModel([tool_call("get_weather", city="Paris"), "x"]),
        tools=[get_weather],
        limits=Limits(max_steps=1),
        telemetry=collected.telemetry(),
    )
    await agent.send("hi")
    assert attributes(collected.one("invoke_agent"))["sidestream.run.finish_reason"] == "limit"


@requirement("R94")
async def test_invalid_output_is_error_without_its_text(collected: Collected):
    agent = Agent(
        ScriptedModel(['{"city": "hunter2"}'] * 9),
        output_type=dict[str, int],
        limits=Limits(max_output_retries=0),
        telemetry=collected.telemetry(),
    )
    with pytest.raises(OutputInvalidError):
        await agent.send("hi")
    assert attributes(collected.one("invoke_agent"))["error.type"] == "OutputInvalidError"
    assert "hunter2" not in collected.text()


# Content


@requirement("R94")
async def test_content_is_absent_from_spans_by_default(
    wired: Subject, collected: Collected, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    answers = Call("get_weather", {"city": "Parisville"}), Text("Sunnyish.")
    async with wired.open(*answers, tools=[get_weather], telemetry=collected.telemetry()) as talk:
        await talk.agent.send("How is Questionland?", system="You are Secretbot.")
    for text in ("Parisville", "Sunnyish", "Questionland", "Secretbot", "sunny"):
        assert text not in collected.text()


@requirement("R94")
@pytest.mark.parametrize("way", ["setting", "variable"])
async def test_captured_content_follows_conventions(
    wired: Subject, collected: Collected, monkeypatch: pytest.MonkeyPatch, way: str
):
    if way == "variable":
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    telemetry = collected.telemetry(capture_content=True if way == "setting" else None)
    answers = Call("get_weather", {"city": "Paris"}), Text("Sunny.")
    async with wired.open(*answers, tools=[get_weather], telemetry=telemetry) as talk:
        await talk.agent.send(f"Weather? My key is {KEY}.", system="Be brief.")
    first, last = collected.named("chat")
    asked = json.loads(attributes(first)["gen_ai.input.messages"])
    assert asked[0]["role"] == "user"
    assert asked[0]["parts"] == [{"type": "text", "content": "Weather? My key is [redacted]."}]
    assert json.loads(attributes(first)["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(attributes(first)["gen_ai.tool.definitions"]) == [{"type": "function", "name": "get_weather"}]
    (called,) = json.loads(attributes(first)["gen_ai.output.messages"])[0]["parts"]
    assert (called["type"], called["name"], called["arguments"]) == ("tool_call", "get_weather", {"city": "Paris"})
    results = json.loads(attributes(last)["gen_ai.input.messages"])[-1]
    assert [part["response"] for part in results["parts"]] == ["sunny"]
    for span in (last, collected.one("invoke_agent")):
        answer = json.loads(attributes(span)["gen_ai.output.messages"])[-1]
        assert answer == {"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}]}
    tool = attributes(collected.one("execute_tool"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"city": "Paris"}
    assert json.loads(tool["gen_ai.tool.call.result"]) == "sunny"
    assert KEY not in collected.text()


async def test_disabled_telemetry_reports_no_spans(collected: Collected):
    agent = Agent(ScriptedModel(["Hi."]), telemetry=False)
    with collected.tracers.get_tracer("test").start_as_current_span("request"):
        await agent.send("hi")
    assert [span.name for span in collected.spans] == ["request"]


@requirement("R94")
async def test_log_conflict_is_error_of_run(collected: Collected, tmp_path: Path):
    store = open_store(tmp_path / "talks.db")

    def chat(*answers: str) -> Chat[str]:
        return Chat(Agent(ScriptedModel(list(answers)), telemetry=collected.telemetry()), store=store, id="one")

    mine, theirs = chat("Hi.", "Hi."), chat("Ho.")
    await mine.load()
    await theirs.send("hi")
    with pytest.raises(ConflictError):
        await mine.send("hi")
    await store.aclose()
    _, run = collected.named("invoke_agent")
    assert attributes(run)["error.type"] == "ConflictError"
    assert attributes(run)["gen_ai.conversation.id"] == "one"


@requirement("R94")
async def test_run_out_of_time_ends_its_spans_with_reason(wired: Subject, collected: Collected):
    gate = asyncio.Event()
    whole = wired.wire.script(Text("A long answer.")).reply()
    stalled = replace(whole, body=[*whole.body[:2], gate, *whole.body[2:]])
    limits = Limits(max_run_s=0.2)
    async with wired.open(stalled, limits=limits, telemetry=collected.telemetry()) as talk:
        await talk.agent.send("hi")
    assert attributes(collected.one("invoke_agent"))["sidestream.run.finish_reason"] == "limit"
    assert len(collected.named("chat")) == 1


# Embeddings


@requirement("R94")
async def test_embedding_is_span_with_tokens_and_without_text(collected: Collected):
    vectors = [{"object": "embedding", "index": index, "embedding": [0.5, 0.25]} for index in range(2)]
    answer = {"object": "list", "model": "small", "data": vectors, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    async with FakeProvider([json_reply(answer), error_reply(400, message="no")]) as fake:
        agent = Agent(
            "openai?embeddings=text-embedding-3-small",
            base_url=fake.base_url,
            api_key=KEY,
            telemetry=collected.telemetry(),
        )
        await agent.embed_documents(["Questionland", "Answerland"])
        with pytest.raises(RunError):
            await agent.embed_query("Questionland")
    done, failed = collected.named("embeddings text-embedding-3-small")
    assert attributes(done)["gen_ai.operation.name"] == "embeddings"
    assert attributes(done)["gen_ai.provider.name"] == "openai"
    assert attributes(done)["gen_ai.usage.input_tokens"] == 7
    assert attributes(done)["gen_ai.embeddings.dimension.count"] == 2
    assert (failed.status.status_code, attributes(failed)["http.response.status_code"]) == (StatusCode.ERROR, 400)
    assert [point.sum for point in collected.points("gen_ai.client.token.usage")] == [7]
    assert "land" not in collected.text()

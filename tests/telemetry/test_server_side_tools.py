"""Tools that run at the provider are spans too, made of what the stream reports of them."""

from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.trace import StatusCode

from conformance.suite.subjects import KEY, Subject, scripted
from conformance.suite.wires import Text
from requirements import requirement
from sidestream import Agent, RemoteMCP
from sidestream.errors import StreamTruncatedError
from sidestream.parts import Raw
from sidestream.testing import (
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    ScriptedModel,
    sse,
)
from telemetry.collected import Collected, attributes

BY_ID = {subject.id: subject for subject in scripted()}
HOSTED: dict[str, tuple[str, Any, str]] = {
    "responses-search": ("openai-responses", ResponsesScript().web_search("Paris").text("Sunny."), "web_search"),
    "responses-code": (
        "openai-responses",
        ResponsesScript().code_interpreter("1+1", logs="2").text("2"),
        "code_interpreter",
    ),
    "anthropic-search": ("anthropic", MessagesScript().web_search("Paris").text("Sunny."), "web_search"),
    "anthropic-bash": ("anthropic", MessagesScript().bash("ls").text("Done."), "code_interpreter"),
    "google-code": ("google", GeminiScript().code("1+1", "2").text("2"), "code_interpreter"),
    "google-interactions-search": (
        "google-interactions",
        InteractionScript().hosted("google_search", {"queries": ["Paris"]}, {"found": 1}).text("Sunny."),
        "web_search",
    ),
}


async def ran(subject: Subject, script: Any, collected: Collected, **settings: Any) -> None:
    async with subject.open(script.reply(), telemetry=collected.telemetry(**settings)) as talk:
        await talk.agent.send("hi")


@requirement("R94")
@pytest.mark.parametrize(("provider", "script", "tool"), HOSTED.values(), ids=HOSTED)
async def test_provider_tool_is_span_below_its_request(collected: Collected, provider: str, script: Any, tool: str):
    await ran(BY_ID[provider], script, collected)
    (span,) = collected.named("execute_tool")
    assert collected.children(collected.one("chat")) == [f"execute_tool {tool}"]
    assert attributes(span)["gen_ai.tool.type"] == "extension"
    assert attributes(span)["gen_ai.tool.name"] == tool
    assert attributes(span)["sidestream.tool.provider_executed"] is True
    assert attributes(span)["sidestream.tool.status"] == "completed"
    assert attributes(span)["gen_ai.tool.call.id"]
    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & attributes(span).keys()
    (point,) = collected.points("gen_ai.execute_tool.duration")
    assert (point.count, point.attributes["gen_ai.tool.name"]) == (1, tool)


@requirement("R94")
async def test_provider_tool_input_and_result_are_content(collected: Collected):
    script = ResponsesScript().code_interpreter("print(40 + 2)", logs="42").text("42")
    await ran(BY_ID["openai-responses"], script, collected, capture_content=True)
    found = attributes(collected.one("execute_tool"))
    assert "print(40 + 2)" in found["gen_ai.tool.call.arguments"]
    assert "42" in found["gen_ai.tool.call.result"]


@requirement("R94")
async def test_failed_provider_tool_is_error_of_its_span(collected: Collected):
    script = MessagesScript().web_search("Paris", "max_uses_exceeded").text("Sorry.")
    await ran(BY_ID["anthropic"], script, collected)
    span = collected.one("execute_tool")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "ToolError"
    assert collected.one("chat").status.status_code is StatusCode.UNSET


@requirement("R94")
async def test_provider_tool_with_broken_stream_ends_with_its_request(collected: Collected):
    events = ResponsesScript().web_search("Paris").text("Sunny.").events()
    searching = next(i for i, event in enumerate(events) if event["type"] == "response.web_search_call.searching")
    async with BY_ID["openai-responses"].open(
        sse(events[: searching + 1], cut="close"), telemetry=collected.telemetry()
    ) as talk:
        with pytest.raises(StreamTruncatedError):
            await talk.agent.send("hi")
    assert attributes(collected.one("execute_tool"))["sidestream.tool.status"] == "running"


@requirement("R94")
async def test_each_of_several_calls_is_span(collected: Collected):
    script = ResponsesScript().web_search("Paris").web_search("Rome").text("Sunny.")
    await ran(BY_ID["openai-responses"], script, collected)
    ids = {attributes(span)["gen_ai.tool.call.id"] for span in collected.named("execute_tool")}
    assert len(ids) == 2


@requirement("R94")
async def test_remote_call_awaiting_approval_ends_as_waiting(collected: Collected):
    script = ResponsesScript().mcp_approval_request("docs", "search", {"q": "x"})
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent(
            "openai-responses:gpt-5.6",
            base_url=fake.base_url,
            api_key=KEY,
            server_side_tools=[RemoteMCP(label="docs", url="https://mcp.example/mcp")],
            telemetry=collected.telemetry(),
        )
        await agent.send("hi")
    assert attributes(collected.one("invoke_agent"))["sidestream.run.pending_approvals"] == 1
    assert collected.open.names == []


# Unknown events


@requirement("F06")
async def test_unknown_events_are_counted_without_other_effects(wired: Subject, collected: Collected):
    whole = wired.wire.script(Text("Hi there.")).reply()
    strange = {"event_type" if wired.id == "google-interactions" else "type": "sky.telepathy"}
    body = [*whole.body[:1], strange, strange, *whole.body[1:]]
    async with wired.open(replace(whole, body=body), telemetry=collected.telemetry()) as talk:
        run = talk.agent.stream("hi")
        parts = [part async for part in run]
    # Fields that are not known are reported once per response.
    count = 1 if wired.id == "google" else 2
    assert sum(isinstance(part, Raw) for part in parts) == count
    assert run.output == "Hi there."
    (point,) = collected.points("sidestream.unknown_events")
    assert point.value == count
    assert point.attributes["sidestream.event.type"] == "sky.telepathy"
    assert point.attributes["gen_ai.request.model"] == wired.model.partition(":")[2]
    assert attributes(collected.one("chat"))["sidestream.response.unknown_events"] == count


@requirement("F06")
async def test_counted_event_type_is_short_and_not_secret(collected: Collected):
    events = ResponsesScript().text("Hi").events()
    odd = [{"type": "x" * 5000}, {"type": "two words"}, {"type": KEY}]
    async with BY_ID["openai-responses"].open(
        sse([events[0], *odd, *events[1:]]), telemetry=collected.telemetry()
    ) as talk:
        await talk.agent.send("hi")
    kinds = {
        point.attributes["sidestream.event.type"]: point.value
        for point in collected.points("sidestream.unknown_events")
    }
    assert kinds == {"other": 3}
    assert KEY not in collected.text()


@requirement("F06")
async def test_no_event_is_counted_if_all_are_known(collected: Collected):
    await Agent(ScriptedModel(["Hi."]), telemetry=collected.telemetry()).send("hi")
    assert collected.points("sidestream.unknown_events") == []

"""Agents that run as tools, in the UI message stream: their calls under the call of the agent, live and stored."""

from collections.abc import Iterable
from typing import Any

import pytest

from protocols.stored_parts import stored
from protocols.ui_chunks import check, check_fields
from requirements import requirement
from sidestream import Agent, Price
from sidestream.errors import ProviderError
from sidestream.jsontext import dumps, loads
from sidestream.parts import (
    Custom,
    File,
    Finish,
    InputUsage,
    StepStart,
    StreamPart,
    StreamStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.testing import ScriptedModel, ScriptedReply, tool_call
from sidestream.tools.grants import CALL_GRANTED

Chunk = dict[str, Any]

SEARCH: list[Any] = [
    ToolCall("ws_1", "web_search", "web_search", True, input={"query": "eclipse 2027"}),
    ToolEvent("web_search", "running", {"type": "web_search_call.searching"}, call_id="ws_1"),
    ToolResult("ws_1", "web_search", "web_search", {"sources": [{"url": "https://a.test/"}]}, False, True),
]
CODE: list[Any] = [
    ToolInputStart("ci_1", "code_interpreter", provider_executed=True),
    *(ToolInputDelta("ci_1", delta) for delta in ('{"code": "print(', "6 *", ' 64)"}')),
    ToolInputEnd("ci_1"),
    ToolCall("ci_1", "code_interpreter", "code_interpreter", True, input={"code": "print(6 * 64)"}),
    ToolResult("ci_1", "code_interpreter", "code_interpreter", {"logs": "384"}, False, True),
]


def priced(*items: Any) -> ScriptedReply:
    return ScriptedReply(items, usage=Usage(InputUsage(total=10_000, no_cache=10_000)))


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def researcher(*script: Any, tools: Iterable[Any] = (), **settings: Any) -> Agent[Any]:
    """An agent that asks another one, which plays this script."""
    model, prices = ScriptedModel(list(script), name="child"), {"scripted:child": Price(input=1, output=1)}
    inner = Agent(model, tools=list(tools), prices=prices, **settings).as_tool("researcher", "Looks things up.")
    return Agent(ScriptedModel([tool_call("researcher", task="How long is it?"), "Long."]), tools=[inner])


def asking() -> Agent[Any]:
    """It searches, calls a function, runs code, and answers in many words."""
    text = "word " * 200
    return researcher(
        priced(*SEARCH, tool_call("add", a=1, b=2)),
        priced(*CODE, tool_call("add", a=3, b=4)),
        priced(text),
        tools=[add],
    )


async def parts_of(agent: Agent[Any]) -> list[StreamPart]:
    async with agent.stream("Go.") as run:
        return [part async for part in run]


def encoded(parts: Iterable[StreamPart], encoder: UIMessageEncoder | None = None) -> list[Chunk]:
    encoder = encoder or UIMessageEncoder("m1")
    return [chunk for part in parts for chunk in encoder.feed(part)]


def message_of(*responses: list[Chunk]) -> Chunk:
    folding = UIMessageFold()
    for chunks in responses:
        folding.feed(chunks)
    return folding.message()


def nested(message: Chunk) -> list[Chunk]:
    """The calls of agents, each with its state."""
    states = {part["data"]["call"]: part["data"] for part in message["parts"] if part["type"] == "data-tool"}
    calls = [part["data"] for part in message["parts"] if part["type"] == "data-call"]
    return [{**call, "data": states[call["call"]]} for call in calls]


def agent_of(message: Chunk) -> Chunk:
    (found,) = [part["data"] for part in message["parts"] if part["type"] == "data-tool" and "agent" in part["data"]]
    return found


def stored_parts(parts: Iterable[StreamPart], every: int) -> list[StreamPart]:
    """The parts as they come back from a log that writes what is open after so many of them."""
    bodies: list[Any] = [record.body for record in stored(parts, every)]
    return [part for body in bodies for part in body.parts]


@requirement("R141", "R143")
async def test_agent_calls_are_parts_under_its_call():
    chunks = encoded(await parts_of(asking()))
    check(chunks)
    message = message_of(chunks)
    agent = agent_of(message)
    assert agent["agent"] == {"steps": 3, "cost": 0.03}
    assert agent["status"] == "completed"
    # What its own tools found is theirs.
    assert not agent.keys() & {"queries", "pages"}
    calls = nested(message)
    assert [(call["part"]["type"], call["part"]["state"], call["parent"]) for call in calls] == [
        (f"tool-{name}", "output-available", agent["call"]) for name in ("web_search", "add", "code_interpreter", "add")
    ]
    assert [call["part"]["toolCallId"] for call in calls] == [f"{agent['call']}/{n}" for n in (1, 2, 3, 4)]
    assert [call["part"]["output"] for call in calls] == [
        {"sources": [{"url": "https://a.test/"}]},
        3,
        {"logs": "384"},
        7,
    ]
    search, function, *_ = (call["data"] for call in calls)
    assert (search["where"], search["queries"], search["pages"]) == ("scripted", ["eclipse 2027"], 1)
    assert (function["where"], function["step"], function["status"]) == ("here", 0, "completed")


@requirement("R141")
async def test_hidden_agent_events_are_not_sent():
    parts = await parts_of(asking())
    forwarded = [part for part in parts if isinstance(part, ToolEvent)]
    chunks = [chunk for part in forwarded for chunk in encoded([part], encoder_after(parts, part))]
    assert len(forwarded) > 200
    assert len(chunks) < 40
    assert "word" not in dumps(chunks).decode()
    # An input travels with its call and with its result, not with each stage.
    assert dumps(chunks).decode().count('"code":"print(6 * 64)"') == 2


def encoder_after(parts: list[StreamPart], last: StreamPart) -> UIMessageEncoder:
    encoder = UIMessageEncoder("m1")
    encoded(parts[: next(index for index, part in enumerate(parts) if part is last)], encoder)
    return encoder


@requirement("R141", "R143")
@pytest.mark.parametrize("every", [1, 7, 1000])
async def test_log_shows_same_calls_as_stream(every: int):
    parts = await parts_of(asking())
    live, again = (message_of(encoded(given)) for given in (parts, stored_parts(parts, every)))
    assert nested(again) == nested(live)
    assert agent_of(again) == agent_of(live)


@requirement("R141", "R143")
async def test_subscriber_joining_at_any_part_sees_same_message():
    parts = await parts_of(asking())
    whole = message_of(encoded(parts))
    for cut in range(1, len(parts)):
        encoder = UIMessageEncoder("m1")
        snapshot = encoded(parts[:cut], encoder)
        tail = [*encoder.rejoined(), *encoded(parts[cut:], encoder)]
        for chunk in tail:
            check_fields(chunk)
        joined = message_of(snapshot, tail)
        assert nested(joined) == nested(whole)
        assert agent_of(joined) == agent_of(whole)


def is_code(part: StreamPart) -> bool:
    return isinstance(part, ToolEvent) and part.provider_stage == "tool-input-delta" and part.event["id"] == "ci_1"


@requirement("R143")
async def test_subscriber_joining_during_code_gets_all_of_it():
    parts = await parts_of(asking())
    deltas = [index for index, part in enumerate(parts) if is_code(part)]
    encoder = UIMessageEncoder("m1")
    chunks = encoded(parts[: deltas[1] + 1], encoder)
    assert nested(message_of(chunks))[-1]["part"]["input"] == {"code": "print(6 *"}
    live = [chunk["data"] for chunk in chunks if chunk["type"] == "data-code"]
    (again,) = [chunk["data"] for chunk in encoder.rejoined() if chunk["type"] == "data-code"]
    assert again == {"call": live[0]["call"], "delta": "print(6 *", "whole": True}
    assert "".join(data["delta"] for data in live) == "print(6 *"
    encoded(parts[deltas[1] + 1 :], encoder)
    assert [chunk for chunk in encoder.rejoined() if chunk["type"] == "data-code"] == []


@requirement("R143")
async def test_failed_agent_keeps_calls_and_error():
    agent = researcher(priced(*SEARCH, tool_call("add", a=1, b=2)), [ProviderError("the model is gone")], tools=[add])
    message = message_of(encoded(await parts_of(agent)))
    (call,) = [part for part in message["parts"] if part["type"] == "tool-researcher"]
    assert (call["state"], call["errorText"]) == ("output-error", "the model is gone")
    assert [one["part"]["state"] for one in nested(message)] == ["output-available"] * 2
    assert agent_of(message)["agent"]["steps"] == 1


@requirement("R143")
async def test_nested_agents_nest_their_calls():
    inner = Agent(ScriptedModel([[*SEARCH, "Deep."]])).as_tool("archivist", "Knows archives.")
    chunks = encoded(await parts_of(researcher(tool_call("archivist", task="Find it."), "Found.", tools=[inner])))
    check(chunks)
    outer, deep = nested(message_of(chunks))
    assert (outer["part"]["type"], outer["data"]["agent"]["steps"]) == ("tool-archivist", 1)
    assert (deep["part"]["type"], deep["parent"]) == ("tool-web_search", outer["call"])
    assert deep["data"]["queries"] == ["eclipse 2027"]


@requirement("R143")
@pytest.mark.parametrize("is_approved", [True, False])
async def test_agent_call_awaits_approval_and_shows_decision(is_approved: bool):
    agent = researcher(tool_call("add", a=1, b=2), "Done.", tools=[add], approval="ask")
    encoder = UIMessageEncoder("m1")
    async with agent.stream("Go.") as run:
        parts = [part async for part in run]
        snapshot = encoded(parts, encoder)
        check(snapshot)
        (waiting,) = nested(message_of(snapshot))
        assert (waiting["part"]["state"], waiting["data"]["status"]) == ("approval-requested", "waiting")
        (request,) = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        state = run.state
    more = encoder.decided(request.approval_id, is_approved, None)
    more += encoder.resumed()
    (approval,) = state.approvals
    decision = approval.approve() if is_approved else approval.deny()
    async with agent.resume(state, [decision]) as run:
        async for part in run:
            more += encoder.feed(part)
    (call,) = nested(message_of(snapshot, more))
    assert call["part"]["state"] == ("output-available" if is_approved else "output-denied")
    assert agent_of(message_of(snapshot, more))["agent"]["steps"] == 2


@requirement("R143")
def test_repeated_attempt_marks_first_calls_unfinished():
    def forwarded(*parts: StreamPart) -> list[StreamPart]:
        return [
            ToolEvent("researcher", "delta", loads(part.to_json()), call_id="c1", provider_stage=part.type)
            for part in parts
        ]

    outer = ToolCall("c1", "researcher", "researcher", False, input={"task": "Go."})
    begun = forwarded(StreamStart(()), StepStart(0), ToolCall("f1", "add", "add", False, input={}))
    again = forwarded(StreamStart(()), StepStart(0), ToolCall("f2", "add", "add", False, input={}))
    message = message_of(encoded([StreamStart(()), StepStart(0), outer, *begun]))
    assert [call["data"]["status"] for call in nested(message)] == ["running"]
    message = message_of(encoded([StreamStart(()), StepStart(0), outer, *begun, *again]))
    assert [call["data"]["status"] for call in nested(message)] == ["unfinished", "running"]


@requirement("R141")
def test_event_resembling_forwarded_part_stays_tool_event():
    call = ToolCall("c1", "odd", "odd", True, input={})
    for event in ({"type": "tool-call"}, {"type": "finish", "reason": 3}, {"type": "other"}, "finish"):
        stage = event["type"] if isinstance(event, dict) and event["type"] != "other" else "finish"
        chunks = encoded([call, ToolEvent("odd", "delta", event, call_id="c1", provider_stage=stage)])
        assert [chunk["data"]["stage"] for chunk in chunks if chunk["type"] == "data-tool"] == ["running"]


PROGRAM = ToolCall("p1", "programmatic_tool_calling", "programmatic_tool_calling", False, input={"code": "add(1, 2)"})


@requirement("R141")
def test_program_calls_of_older_logs_nest_without_agent():
    made = ToolCall("p1:1", "add", "add", False, input={"a": 1})
    given = [made, ToolResult("p1:1", "add", "add", 3, False, False), Finish("stop", Usage(cost=0.5))]
    forwarded = [
        ToolEvent(PROGRAM.tool, "delta", loads(part.to_json()), call_id="p1", provider_stage=part.type)
        for part in given
    ]
    check_program(message_of(encoded([PROGRAM, *forwarded])))


@requirement("R122", "R141")
def test_program_calls_nest_below_program():
    caller = {"sidestream": {"caller": {"type": "program", "caller_id": "p1"}}}
    made = ToolCall("p1/1", "add", "add", False, input={"a": 1}, provider_metadata=caller)
    granted = Custom(CALL_GRANTED, {"call_id": "p1/1", "name": "add", "grant": "add"})
    event = ToolEvent("add", "delta", {"done": 1}, call_id="p1/1", provider_stage="progress")
    file = File("f", "text/csv", data=b"a", name="a.csv", tool="add", call_id="p1/1")
    result = ToolResult("p1/1", "add", "add", 3, False, False, provider_metadata=caller)
    message = message_of(encoded([PROGRAM, made, granted, event, file, result]))
    check_program(message)
    assert nested(message)[0]["data"]["grant"] == "add"
    (shown,) = [part for part in message["parts"] if part["type"] == "file"]
    assert shown["providerMetadata"]["sidestream"]["call"] == "p1"
    assert [part["toolCallId"] for part in message["parts"] if "toolCallId" in part] == ["p1"]


def check_program(message: Chunk) -> None:
    (found,) = nested(message)
    assert (found["parent"], found["part"]["output"]) == ("p1", 3)
    assert not any("agent" in part["data"] for part in message["parts"] if part["type"] == "data-tool")

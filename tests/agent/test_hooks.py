"""Hooks: what a program sees, changes and refuses at fixed points of a run."""

import asyncio
import re
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, Blocked, Chat, ConfigurationError, Hooks, RunContext, ToolContext, open_store
from sidestream.agent.hooks import Response
from sidestream.durable import RunClient, WorkerService, open_engine
from sidestream.jsontext import JsonObject
from sidestream.parts import StreamPart, TextDelta, ToolCall, ToolResult
from sidestream.providers import ModelRequest
from sidestream.stream import grammar
from sidestream.testing import ScriptedModel, tool_call

CALL = tool_call("look_up", order=7)
KEY = "sk-live-1234567890abcdef"


def look_up(order: int) -> str:
    """Look up an order."""
    return f"order {order}: key {KEY}"


class Seen(Hooks):
    """Notes what it sees."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.parts: list[StreamPart] = []

    async def before_request(self, request: ModelRequest, context: RunContext[Any]) -> None:
        self.points.append(f"request {context.step} of {len(request.messages)} messages")

    def after_response(self, response: Response, context: RunContext[Any]) -> None:
        names = [call.name for call in response.tool_calls]
        self.points.append(f"response {response.text!r} {names} {response.finish_reason}")

    def before_tool(self, call: ToolCall, context: RunContext[Any]) -> None:
        self.points.append(f"tool {call.name} {call.input}")

    async def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> None:
        self.points.append(f"result {result.result}")

    def on_part(self, part: StreamPart, context: RunContext[Any]) -> None:
        self.parts.append(part)


@requirement("R202")
async def test_hooks_see_every_point_in_order_and_every_part_once():
    seen = Seen()
    agent = Agent(ScriptedModel([CALL, "It is here."]), tools=[look_up], hooks=[seen])
    async with agent.stream("Where is order 7?") as run:
        parts = [part async for part in run]
    assert seen.points == [
        "request 0 of 1 messages",
        "response '' ['look_up'] tool-calls",
        "tool look_up {'order': 7}",
        f"result order 7: key {KEY}",
        "request 1 of 3 messages",
        "response 'It is here.' [] stop",
    ]
    assert seen.parts == parts


@requirement("R202")
async def test_hook_changes_request_input_and_result():
    class Changing(Hooks):
        def before_request(self, request: ModelRequest, context: RunContext[Any]) -> ModelRequest:
            return replace(request, system="Be brief.")

        def before_tool(self, call: ToolCall, context: RunContext[Any]) -> JsonObject:
            return {"order": 8}

        def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> str:
            return str(result.result).replace(KEY, "***")

    requests: list[ModelRequest] = []

    class Noting(Hooks):
        def before_request(self, request: ModelRequest, context: RunContext[Any]) -> None:
            requests.append(request)

    agent = Agent(ScriptedModel([CALL, "done"]), tools=[look_up], hooks=[Changing(), Noting()])
    result = await agent.send("Where is order 7?")
    assert [request.system for request in requests] == ["Be brief.", "Be brief."]
    assert [run.result for run in result.tool_runs] == ["order 8: key ***"]
    assert KEY not in str(requests[1].messages)
    (replaced,) = [notice for notice in result.notices if notice.kind == "sidestream.input-replaced"]
    assert replaced.data["input"] == {"order": 8}


class Blocking(Hooks):
    """Blocks at one point."""

    def __init__(self, point: str) -> None:
        self._point = point

    def _at(self, point: str) -> None:
        if point == self._point:
            raise Blocked(f"no {point}")

    def before_request(self, request: ModelRequest, context: RunContext[Any]) -> None:
        self._at("request")

    async def after_response(self, response: Response, context: RunContext[Any]) -> None:
        self._at("response")

    def before_tool(self, call: ToolCall, context: RunContext[Any]) -> None:
        self._at("tool")

    def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> None:
        self._at("result")

    def on_part(self, part: StreamPart, context: RunContext[Any]) -> None:
        self._at(part.type)
        if isinstance(part, TextDelta) and "secret" in part.delta:
            self._at("secret")


POINTS = ["request", "response", "tool", "result", "stream-start", "step-start", "tool-call", "tool-result", "secret"]


@requirement("R202")
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("point", POINTS)
async def test_blocked_run_ends_with_content_filter_and_says_who(point: str, streams: bool):
    model = ScriptedModel([CALL, "The secret word."])
    agent = Agent(model, tools=[look_up], hooks=[Seen(), Blocking(point)])
    async with agent.stream("Where is order 7?", stream=streams) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    result = await Agent(ScriptedModel([CALL, "The secret word."]), tools=[look_up], hooks=[Blocking(point)]).send(
        "Go."
    )
    assert result.finish_reason == "content-filter"
    assert (result.metadata["blocked_by"], result.metadata["blocked"]) == ("Blocking", f"no {point}")
    assert "secret" not in result.text


async def test_blocked_call_never_runs():
    ran: list[int] = []

    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    agent = Agent(ScriptedModel([tool_call("pay", amount=5), "ok"]), tools=[pay], hooks=[Blocking("tool")])
    assert (await agent.send("Pay.")).finish_reason == "content-filter"
    assert ran == []


async def test_conversation_continues_after_block(tmp_path: Any):
    class Once(Hooks):
        left = 1

        def before_tool(self, call: ToolCall, context: RunContext[Any]) -> None:
            if self.left:
                self.left -= 1
                raise Blocked("not now")

    agent = Agent(ScriptedModel([CALL, CALL, "It is here."]), tools=[look_up], hooks=[Once()])
    async with aclosing(open_store(tmp_path / "log.db")) as store:
        chat = Chat(agent, store=store, id="c")
        assert (await chat.send("Where is order 7?")).finish_reason == "content-filter"
        chat = Chat(agent, store=store, id="c")
        assert (await chat.send("And now?")).text == "It is here."


@requirement("R202")
async def test_hooks_of_sub_agent_apply_to_its_runs():
    seen = Seen()
    clerk = Agent(ScriptedModel([CALL, "Found."]), tools=[look_up], hooks=[seen])
    boss = Agent(
        ScriptedModel([tool_call("clerk", task="order 7?"), "Thanks."]), tools=[clerk.as_tool("clerk", "Looks up.")]
    )
    assert (await boss.send("Ask the clerk.")).text == "Thanks."
    assert "tool look_up {'order': 7}" in seen.points


@requirement("R202")
async def test_hooks_apply_on_worker(tmp_path: Any):
    agent = Agent(ScriptedModel([CALL, "done"]), tools=[look_up], hooks=[Blocking("tool"), Redacting()])
    async with aclosing(open_store(tmp_path / "log.db")) as store:
        engine = open_engine("embedded", store)
        client = RunClient(agent, "main", store=store, engine=engine)
        await client.start("talk", f"Is {KEY} the key?")
        service = WorkerService(store, engine, {"main": agent}, drain_s=0.0)
        working = asyncio.create_task(service.run())
        try:
            async with asyncio.timeout(30):
                records = [record async for record in client.follow("talk")]
        finally:
            service.stop()
            await working
    assert "'blocked_by': 'Blocking'" in str(records[-1].body)
    assert KEY not in str(records)


def redacted(value: Any) -> Any:
    match value:
        case str():
            return re.sub(r"sk-live-\w+", "***", value)
        case dict():
            return {name: redacted(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [redacted(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


class Redacting(Hooks):
    def before_store(self, record: JsonObject) -> JsonObject:
        return redacted(record)


async def test_log_and_loaded_conversation_have_redacted_text(tmp_path: Any):
    long = f"{KEY} " + "padding " * 4000  # Long texts are stored apart from their records.

    def dump(context: ToolContext) -> str:
        """Dump."""
        return long

    model = ScriptedModel([tool_call("dump"), f"The key is {KEY}.", "Which key?"])
    agent = Agent(model, tools=[dump], hooks=[Redacting()])
    async with aclosing(open_store(tmp_path / "log.db")) as store:
        chat = Chat(agent, store=store, id="c")
        assert KEY in (await chat.send(f"Is {KEY} the key?")).text
        again = Chat(agent, store=store, id="c")
        assert (await again.send("Say it again.")).text == "Which key?"
        assert "***" in str(again.messages)
        assert KEY not in str(again.messages)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in data for data in files)


def raising(*_: Any) -> None:
    raise LookupError("oops")


@pytest.mark.parametrize("name", ["before_request", "after_response", "before_tool", "after_tool", "on_part"])
async def test_defect_of_hook_names_it(name: str):
    broken = type("Broken", (Hooks,), {name: raising})()
    agent = Agent(ScriptedModel([CALL, "done"]), tools=[look_up], hooks=[broken])
    with pytest.raises(ConfigurationError, match=rf"Broken\.{name} raised LookupError: oops"):
        await agent.send("Go.")


async def test_request_of_wrong_type_is_refused():
    broken = type("Broken", (Hooks,), {"before_request": lambda *_: "a text"})()
    with pytest.raises(ConfigurationError, match=r"Broken\.before_request returned str; it must return ModelRequest"):
        await Agent(ScriptedModel(["done"]), hooks=[broken]).send("Go.")


def test_hooks_are_checked_when_agent_is_created():
    with pytest.raises(ConfigurationError, match="must be instances of Hooks"):
        Agent(ScriptedModel(["x"]), hooks=[Seen])  # pyright: ignore[reportArgumentType]

    class Late(Hooks):
        async def before_store(self, record: JsonObject) -> JsonObject:  # pyright: ignore[reportIncompatibleMethodOverride]
            return record

    with pytest.raises(ConfigurationError, match="plain function"):
        Agent(ScriptedModel(["x"]), hooks=[Late()])

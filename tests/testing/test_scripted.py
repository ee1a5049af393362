"""The in-process test model: replies of every kind, what it records, and how it fails."""

import asyncio
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    ConfigurationError,
    DataPart,
    File,
    Limits,
    Memory,
    ProviderError,
    RateLimitedError,
    Source,
    StreamPart,
    ThinkingPart,
    ToolResultPart,
    Usage,
    WebFetch,
    WebSearch,
)
from sidestream.errors import NotHostedError, StreamTruncatedError
from sidestream.parts import (
    Custom,
    Error,
    Finish,
    InputUsage,
    OutputUsage,
    TextDelta,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.providers import ModelRequest
from sidestream.testing import (
    ChatScript,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ModelReply,
    ResponsesScript,
    ScriptedModel,
    ScriptedReply,
    check_stream,
    pixel_png,
    tool_call,
)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def parts_of(agent: Agent[Any], **call: Any) -> list[StreamPart]:
    async with agent.stream("hi", **call, errors="parts") as run:
        parts = [part async for part in run]
    check_stream(parts)
    return parts


@requirement("R110")
@pytest.mark.parametrize("stream", [True, False])
async def test_script_of_calls_and_strings_drives_tools(stream: bool) -> None:
    model = ScriptedModel([tool_call("get_weather", city="Oslo"), "It is sunny."])
    agent = Agent(model, tools=[get_weather], system="Be brief.")
    result = await agent.send("How is Oslo?", stream=stream)
    assert result.messages[-1].text == "It is sunny."
    assert [message.role for message in result.messages] == ["user", "model", "tool", "model"]
    first, second = model.requests
    assert (first.system, [tool.name for tool in first.tools], first.stream) == ("Be brief.", ["get_weather"], stream)
    (answer,) = second.messages[-1].parts
    assert isinstance(answer, ToolResultPart)
    assert answer.result == "sunny in Oslo"
    assert model.remaining == 0


@requirement("R110", "R5")
async def test_parts_are_valid_stream_with_text_word_by_word() -> None:
    deltas = [
        part.delta for part in await parts_of(Agent(ScriptedModel(["one two three"]))) if isinstance(part, TextDelta)
    ]
    assert deltas == ["one", " two", " three"]


@requirement("R110")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("builder", [ResponsesScript, ChatScript, MessagesScript, GeminiScript, InteractionScript])
async def test_every_script_builder_works_as_reply(builder: Any, stream: bool) -> None:
    result = await Agent(ScriptedModel([builder().text("Hello there")])).send("hi", stream=stream)
    assert (result.output, result.finish_reason) == ("Hello there", "stop")
    assert result.usage is not None
    assert result.usage.input.total > 0


async def test_builder_supplies_events_and_files_of_hosted_tools() -> None:
    script = MessagesScript().code_execution("print(1)", stderr="oh", files=["file_1"], return_code=1).text("Done.")
    model = ScriptedModel([script], files={"file_1": pixel_png()})
    result = await Agent(model).send("plot")
    assert [file.data for file in result.files] == [pixel_png()]
    assert "code_interpreter" in {event.tool for event in result.tool_events}


async def test_missing_file_is_reported_as_lost() -> None:
    parts = await parts_of(Agent(ScriptedModel([MessagesScript().bash("ls", files=["file_9"]).text("Done.")])))
    (lost,) = [part for part in parts if isinstance(part, Error)]
    assert (lost.kind, lost.code) == ("tool", "not-scripted")


@requirement("R110")
async def test_function_answers_every_request() -> None:
    def respond(request: ModelRequest) -> ModelReply:
        last = request.messages[-1]
        return tool_call("get_weather", city="Rome") if last.role == "user" else f"{len(request.messages)} messages"

    agent = Agent(ScriptedModel(respond), tools=[get_weather])
    assert (await agent.send("a")).messages[-1].text == "3 messages"
    assert (await agent.send("b")).messages[-1].text == "3 messages"


async def test_async_function_can_be_script_entry() -> None:
    async def respond(request: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        return request.messages[-1].text.upper()

    model = ScriptedModel([respond, "second"])
    agent = Agent(model)
    assert [(await agent.send("one")).output, (await agent.send("two")).output] == ["ONE", "second"]


@requirement("R110")
@pytest.mark.parametrize("stream", [True, False])
async def test_error_instead_of_reply_is_raised_with_its_type(stream: bool) -> None:
    model = ScriptedModel([RateLimitedError("slow down", status=429), "ok"])
    with pytest.raises(RateLimitedError) as caught:
        await Agent(model).send("hi", stream=stream)
    assert caught.value.status == 429
    assert (await Agent(model).send("hi")).output == "ok"


async def test_error_after_items_breaks_stream_there() -> None:
    model = ScriptedModel([["Hel", ThinkingPart("hm"), StreamTruncatedError("gone")]])
    with pytest.raises(StreamTruncatedError) as caught:
        await Agent(model).send("hi")
    assert caught.value.result.output == "Hel"


async def test_error_part_ends_run() -> None:
    parts = await parts_of(Agent(ScriptedModel([["Hel", Error("provider", "overloaded", code="overloaded_error")]])))
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "error"
    assert [part.code for part in parts if isinstance(part, Error)] == ["overloaded_error"]


@requirement("R110")
async def test_approvals_stop_run_and_same_model_resumes_it() -> None:
    model = ScriptedModel([tool_call("get_weather", city="Oslo"), "Sunny."])
    agent = Agent(model, tools=[get_weather], approval=lambda question: "ask")
    waiting = await agent.send("hi")
    assert waiting.finish_reason == "approval"
    done = await agent.resume(waiting.run_state, [approval.approve() for approval in waiting.approvals])
    assert done.messages[-1].text == "Sunny."


async def test_provider_approval_requests_can_be_scripted() -> None:
    call = ToolCall("c1", "write", "mcp", True, input={"q": 1})
    request = ToolApprovalRequest("a1", "c1", "write", {"q": 1}, "wiki")
    model = ScriptedModel([[call, request], "Written."])
    agent = Agent(model)
    waiting = await agent.send("hi")
    assert [approval.tool for approval in waiting.approvals] == ["write"]
    done = await agent.resume(waiting.run_state, [waiting.approvals[0].approve()])
    assert done.messages[-1].text == "Written."


class City(Struct):
    name: str
    people: int


@requirement("R110")
async def test_invalid_typed_output_is_requested_again() -> None:
    model = ScriptedModel([{"name": "Oslo"}, {"name": "Oslo", "people": 717_710}])
    result = await Agent(model, output_type=City).send("hi")
    assert result.output == City("Oslo", 717_710)
    assert model.requests[0].output_schema is not None
    assert model.requests[1].messages[-1].role == "user"


async def test_message_is_reply_with_parts_and_metadata() -> None:
    picture = DataPart(pixel_png(), "image/png", "dot.png")
    message = ChatMessage.model(ThinkingPart("a dot"), "Here.", picture, metadata={"note": 1})
    result = await Agent(ScriptedModel([message])).send("draw")
    assert result.messages[-1].metadata == {"note": 1}
    assert (result.output, result.thinking) == ("Here.", "a dot")
    assert [(file.name, file.data) for file in result.files] == [("dot.png", pixel_png())]


async def test_stream_parts_are_sent_verbatim() -> None:
    items = [
        ToolCall("ws1", "web_search", "web_search", True, input={"query": "q"}),
        ToolEvent("web_search", "running", {"any": 1}, call_id="ws1"),
        ToolResult("ws1", "web_search", "web_search", {"hits": 2}, False, True),
        Source("s1", "url", url="https://example.com"),
        Custom("mine", {"x": 1}),
        File("f1", "text/plain", "a.txt", b"a"),
        "Found.",
    ]
    parts = await parts_of(Agent(ScriptedModel([items])))
    assert [part for part in parts if part in items] == items[:-1]


@requirement("R110")
async def test_usage_and_finish_reason_are_estimated_or_given() -> None:
    usage = Usage(InputUsage(100, 100), OutputUsage(7, 7))
    model = ScriptedModel(["Hello there", ScriptedReply(["cut sh"], usage=usage, reason="length", id="r2")])
    chat = Chat(Agent(model, system="x" * 400))
    first = await chat.send("hi")
    assert first.usage is not None
    assert 100 < first.usage.input.total < 120
    assert first.usage.output.total > 0
    second = await chat.send("more")
    unpriced = replace(usage, unpriced=("scripted:model",))
    assert (second.usage, second.finish_reason, second.id) == (unpriced, "length", "r2")


async def test_token_limits_apply_to_scripted_model() -> None:
    model = ScriptedModel(lambda request: tool_call("get_weather", city="Oslo"))
    result = await Agent(model, tools=[get_weather], limits=Limits(max_steps=3)).send("hi")
    assert (result.finish_reason, len(model.requests)) == ("limit", 3)


async def test_event_holds_reply_until_set() -> None:
    gate = asyncio.Event()
    agent = Agent(ScriptedModel([["before", gate, "after"], ["again", gate, "never"]]))
    seen: list[str] = []
    async with agent.stream("hi") as run:
        async for part in run:
            if isinstance(part, TextDelta):
                seen.append(part.delta)
                gate.set()
    assert seen == ["before", "after"]
    gate.clear()
    async with agent.stream("hi") as run:
        async for part in run:
            if isinstance(part, TextDelta):
                break


async def test_held_run_can_be_cancelled_from_other_task() -> None:
    run = Agent(ScriptedModel([["before", asyncio.Event(), "never"]])).stream("hi")
    held, texts = asyncio.Event(), list[str]()

    async def read() -> None:
        async for part in run:
            if isinstance(part, TextDelta):
                texts.append(part.delta)
                held.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(30):
        await held.wait()
        await asyncio.sleep(0)
        await run.cancel()
        await reading
    assert texts == ["before"]


@requirement("R5")
@pytest.mark.parametrize(
    "script",
    [
        [TextDelta("nowhere", "x")],
        [[ToolResultPart("c", "f", 1)]],
        [[ToolResult("c", "f", "f", 1, False, False)]],
    ],
)
async def test_impossible_reply_is_configuration_error(script: Any) -> None:
    with pytest.raises(ConfigurationError):
        await Agent(ScriptedModel(script)).send("hi")


async def test_exhausted_script_names_request_without_reply() -> None:
    agent = Agent(ScriptedModel(["one"]))
    await agent.send("a")
    with pytest.raises(ConfigurationError, match="request 2"):
        await agent.send("b")


def test_script_must_be_list() -> None:
    with pytest.raises(ConfigurationError, match="list"):
        ScriptedModel("Hello")  # pyright: ignore[reportArgumentType]


async def test_log_records_and_reloads_scripted_run(tmp_path: Any) -> None:
    from sidestream import open_store

    store = open_store(tmp_path / "log.db")
    agent = Agent(ScriptedModel([tool_call("get_weather", city="Oslo"), "Sunny."]), tools=[get_weather])
    chat = Chat(agent, store=store, id="c")
    await chat.send("hi")
    again = Chat(agent, store=store, id="c")
    await again.load()
    assert again.messages == chat.messages
    await store.aclose()


async def test_provider_error_can_be_first_reply() -> None:
    with pytest.raises(ProviderError):
        await Agent(ScriptedModel([ProviderError("no", status=500)])).send("hi")


def test_script_hosts_tools_of_its_builders_only():
    assert ScriptedModel(["Hello."]).hosted_tools == frozenset()
    assert WebSearch in ScriptedModel([ResponsesScript().text("Hello.")]).hosted_tools
    assert ScriptedModel(lambda request: "Hello.", hosts=[WebSearch]).hosted_tools == {WebSearch}
    assert ScriptedModel([ResponsesScript().text("Hello.")], hosts=[]).hosted_tools == frozenset()
    model = ScriptedModel(["Hello."])
    model.add(MessagesScript().text("Hello."))
    assert WebFetch in model.hosted_tools


async def test_tool_not_hosted_by_script_runs_here():
    model = ScriptedModel([tool_call("memory", command="view", path="/memories"), "Nothing."])
    async with Agent(model, server_side_tools=[Memory()]) as agent:
        result = await agent.send("What do you remember?")
    assert result.output == "Nothing."
    assert [entry.provider_executed for entry in result.tool_results] == [False]
    with pytest.raises(NotHostedError):
        await Agent(ScriptedModel(["Hello."])).send("Hi", server_side_tools=[Memory(execution="provider")])

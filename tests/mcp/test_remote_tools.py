"""Remote servers that this process calls, compared with those that a provider calls."""

from typing import Any

from requirements import requirement
from sidestream import Agent, Chat, ChatResult, RemoteMCP, StreamPart, ToolResult
from sidestream.mcp import MCPServer
from sidestream.parts import ToolCall, ToolEvent
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import ResponseHead
from sidestream.results import MCPResult
from sidestream.results.tool_runs import ToolRunFold
from sidestream.testing import ChatScript, FakeProvider, Reply, ResponsesScript, check_stream
from support.portable_compare import compared, fields_of

NUMBERS = {"a": 1, "b": 2}
LISTED = {"name": "add", "description": "Adds two numbers.", "input_schema": {"type": "object"}, "annotations": None}
PROBLEM = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "wrong"}]}


def remote(url: str, **settings: Any) -> RemoteMCP:
    settings = {"require_approval": "never", "allowed_tools": ["add", "learn", "paint"], **settings}
    return RemoteMCP(label="modern", url=url, **settings)


def calling(name: str, arguments: Any = NUMBERS) -> list[Reply]:
    return [ChatScript().tool_call(name, arguments, "call_1").reply(), ChatScript().text("done").reply()]


async def ran(model: str, server: RemoteMCP, replies: list[Reply]) -> tuple[list[StreamPart], ChatResult[str]]:
    """The parts of one run, and the result of another agent's run like it."""
    async with FakeProvider(replies * 2) as fake:
        first = Agent(model, base_url=fake.base_url, api_key="k", server_side_tools=[server])
        async with first, first.stream("go") as run:
            parts = [part async for part in run]
        check_stream(parts)
        async with Agent(model, base_url=fake.base_url, api_key="k", server_side_tools=[server]) as agent:
            return parts, await agent.send("go")


def seen(result: ChatResult[str]) -> dict[str, Any]:
    """What a program reads from a result."""
    typed = [run.typed for run in result.tool_runs]
    assert all(isinstance(one, MCPResult) for one in typed)
    return {
        "stages": [(event.tool, event.stage, (event.event or {}).get("type")) for event in result.tool_events],
        "text": [(piece.tool, piece.kind, piece.text) for piece in result.tool_text],
        "runs": [(run.tool, run.name, run.server, run.status, run.input, run.result_count) for run in result.tool_runs],
        "results": [run.result for run in result.tool_runs],
        "metadata": [event["type"] for event in result.metadata["mcp"]],
    }


@requirement("R81", "R121")
async def test_local_call_has_parts_of_hosted_call(modern_url: str) -> None:
    script = ResponsesScript().mcp_list_tools("modern", LISTED)
    script.mcp_call("modern", "add", NUMBERS, output='{"total":3}').text("done")
    only_add = remote(modern_url, allowed_tools=["add"])
    hosted_parts, hosted_result = await ran("openai-responses", only_add, [script.reply()])
    here_parts, here_result = await ran("groq:m", only_add, calling("add"))
    there, here = compared(hosted_parts, "mcp"), compared(here_parts, "mcp")
    assert here.order == there.order
    assert here.input_parts == there.input_parts
    assert here.items == there.items
    assert here.streamed == there.streamed
    assert here.result == there.result
    assert seen(here_result) == seen(hosted_result)
    (listed,) = (event["item"]["tools"] for event in here_result.metadata["mcp"] if _is_listing(event))
    assert [set(tool) for tool in listed] == [set(LISTED)]


@requirement("R81", "R121")
async def test_failed_local_call_has_parts_of_hosted_call(modern_url: str) -> None:
    script = ResponsesScript().mcp_list_tools("modern", LISTED).mcp_call("modern", "add", {"a": "x"}, error=PROBLEM)
    only_add = remote(modern_url, allowed_tools=["add"])
    hosted_parts, hosted_result = await ran("openai-responses", only_add, [script.text("done").reply()])
    here_parts, here_result = await ran("groq:m", only_add, calling("add", {"a": "x"}))
    there, here = compared(hosted_parts, "mcp"), compared(here_parts, "mcp")
    assert here.order == there.order
    assert fields_of(here.result) == fields_of(there.result)
    assert here.result["error"].keys() == PROBLEM.keys()
    hidden = {"results": None}
    assert seen(here_result) | hidden == seen(hosted_result) | hidden
    assert hosted_result.tool_runs[-1].error == "wrong"
    assert (here_result.tool_runs[-1].error or "").startswith("Error executing tool add")


def _is_listing(event: Any) -> bool:
    return event["type"] == "response.output_item.done" and event["item"]["type"] == "mcp_list_tools"


@requirement("R81")
async def test_listing_is_reported_by_run_that_requested_it(modern_url: str) -> None:
    answer = ChatScript().text("Hi.").reply()
    async with (
        FakeProvider([answer] * 2) as fake,
        Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[remote(modern_url)]) as agent,
    ):
        first, second = await agent.send("1"), await agent.send("2")
    assert [run.result_count for run in first.tool_runs] == [3]
    assert second.tool_runs == ()


@requirement("R76", "R81")
async def test_approved_local_call_passes_each_stage_once(modern_url: str) -> None:
    async with (
        FakeProvider(calling("add")) as fake,
        Agent(
            "groq:m",
            base_url=fake.base_url,
            api_key="k",
            server_side_tools=[remote(modern_url, require_approval="always")],
        ) as agent,
    ):
        chat = Chat(agent)
        first = await chat.send("Add")
        (asked,) = first.approvals
        assert (asked.server_label, asked.tool) == ("modern", "add")
        assert (first.tool_runs[-1].status, first.tool_runs[-1].server) == ("waiting", "modern")
        second = await chat.resume([asked.approve()])
    (run,) = second.tool_runs
    assert (run.tool, run.name, run.server, run.status) == ("mcp", "add", "modern", "completed")
    assert [stage.stage for stage in run.stages] == ["started", "running", "completed"]


@requirement("R76", "R81")
async def test_responses_client_is_asked_about_local_call(modern_url: str) -> None:
    server = remote(modern_url, require_approval="always")
    async with (
        FakeProvider(calling("add")) as fake,
        Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[server]) as agent,
        agent.stream("Add") as run,
    ):
        encoder = ResponsesEncoder(ResponseHead(id="resp_1", model="main", created=7))
        events = [*encoder.begin(), *[event async for part in run for event in encoder.feed(part)]]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    (asked,) = (item for item in done if item["type"] == "mcp_approval_request")
    assert (asked["server_label"], asked["name"]) == ("modern", "add")


@requirement("F43", "R81")
async def test_renamed_tool_is_reported_by_name_on_server(modern_url: str) -> None:
    def add(a: int, b: int) -> int:
        """Our own."""
        return a + b

    async with (
        FakeProvider(calling("modern_add")) as fake,
        Agent(
            "groq:m", base_url=fake.base_url, api_key="k", tools=[add], server_side_tools=[remote(modern_url)]
        ) as agent,
    ):
        result = await agent.send("Add")
        sent = fake.requests[1].json["messages"]
    assert [call["function"]["name"] for message in sent for call in message.get("tool_calls", ())] == ["modern_add"]
    assert [message["content"] for message in sent if message["role"] == "tool"] == ['{"total":3}']
    run = result.tool_runs[-1]
    assert isinstance(run.typed, MCPResult)
    assert (run.name, run.typed.name) == ("add", "add")
    assert run.result == {"server_label": "modern", "output": '{"total":3}'}
    (item,) = (e["item"] for e in result.metadata["mcp"] if e.get("item", {}).get("status") == "completed")
    assert item["name"] == "add"


@requirement("R80")
async def test_own_server_reports_no_provider_events(modern_url: str) -> None:
    server = MCPServer("modern", url=modern_url, approval="run")
    async with (
        FakeProvider(calling("add")) as fake,
        Agent("groq:m", base_url=fake.base_url, api_key="k", mcp=[server]) as agent,
        agent.stream("Add") as run,
    ):
        parts = [part async for part in run]
    assert not [part for part in parts if isinstance(part, ToolEvent)]
    (result,) = (part for part in parts if isinstance(part, ToolResult))
    assert result.result == {"total": 3}
    (call,) = (part for part in parts if isinstance(part, ToolCall))
    assert call.name == "add"
    folding = ToolRunFold()
    for part in parts:
        folding.feed(part)
    assert [(stage.tool, stage.stage) for stage in folding.taken()] == [
        ("mcp", "started"),
        ("mcp", "running"),
        ("mcp", "completed"),
    ]


@requirement("R81")
async def test_files_of_local_call_are_shown_to_model(everything_url: str) -> None:
    image = remote(everything_url, allowed_tools=["get-tiny-image"])
    _, result = await ran("groq:m", image, calling("get-tiny-image", {}))
    (item,) = (e["item"] for e in result.metadata["mcp"] if e.get("item", {}).get("status") == "completed")
    assert isinstance(item["output"], str)
    assert item["output"]
    assert {part["type"] for part in result.tool_runs[-1].result} == {"text", "data"}

"""One call, one record: across steps, pauses, approvals, restarts, the log and the web UI."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from server.chat_client import chatting, data
from sidestream import Agent, Chat, ChatResult, CodeInterpreter, RemoteMCP, ToolRun, WebFetch, WebSearch, tool
from sidestream.parts import (
    File,
    Finish,
    StepFinish,
    StepStart,
    StreamPart,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.results.results import fold
from sidestream.results.tool_runs import ToolRunFold, tool_runs
from sidestream.store import Store, open_store
from sidestream.store.log.fold import stream_of
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    Reply,
    ResponsesScript,
    pixel_png,
    sse,
)

Script = Any
URL = {"url": "https://x.example/"}
PAGE = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "T"}
FETCHED = {"type": "web_fetch_result", "url": URL["url"], "retrieved_at": None, "content": PAGE}
UNREACHABLE = {"type": "web_fetch_tool_result_error", "error_code": "url_not_accessible"}
RAN = {"type": "code_execution_result", "stdout": "3", "stderr": "", "return_code": 0, "content": []}
PROGRAM = {"type": "program", "code": "add(1, 2)", "call_id": "call_p"}
OUTPUT = {"type": "program_output", "call_id": "call_p", "status": "completed", "result": "3"}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def anthropic_program() -> list[Script]:
    """A program that calls a function, and ends with the next response."""
    return [
        MessagesScript(id="m1")
        .server_tool_use("code_execution", {"code": "add(1, 2)"}, call_id="call_p")
        .tool_use("add", {"a": 1, "b": 2}, call_id="call_f"),
        MessagesScript(id="m2").result("code_execution_tool_result", RAN, call_id="call_p").text("3"),
    ]


def responses_program() -> list[Script]:
    return [
        ResponsesScript(id="resp_1")
        .item(PROGRAM, prefix="cm")
        .function_call("add", {"a": 1, "b": 2}, call_id="call_f"),
        ResponsesScript(id="resp_2").item(OUTPUT, prefix="cmo").text("3"),
    ]


def gemini_code(call_id: str | None) -> list[Script]:
    done = {"outcome": "OUTCOME_OK", "output": "3", **({"id": call_id} if call_id else {})}
    return [
        GeminiScript().code("add(1, 2)", call_id=call_id).function_call("add", {"a": 1, "b": 2}),
        GeminiScript().part({"codeExecutionResult": done}).text("3"),
    ]


def interaction_code() -> list[Script]:
    call, arguments = "code_execution_call", {"code": "add(1, 2)"}
    return [
        InteractionScript()
        .step({"type": call, "id": "call_p"}, {"type": call, "arguments": arguments}, arguments=arguments)
        .function_call("add", {"a": 1, "b": 2}, call_id="call_f")
        .finish("requires_action"),
        InteractionScript().step({"type": "code_execution_result", "call_id": "call_p"}, result="3").text("3"),
    ]


LATE = {
    "anthropic": ("anthropic", "/v1", anthropic_program),
    "openai-responses": ("openai-responses", "/v1", responses_program),
    "google": ("google", "", lambda: gemini_code("call_p")),
    "google, without ids": ("google", "", lambda: gemini_code(None)),
    "google interactions": ("google:interactions/gemini-3-flash-preview", "/v1", interaction_code),
}
"""Provider, path and scripts of a hosted call whose result comes with the response after that of a function call."""


def changes(chunks: list[ChatResult[Any]]) -> dict[tuple[int, str], list[ToolRun]]:
    """The records of each call, in the order in which chunks had them."""
    found: dict[tuple[int, str], list[ToolRun]] = {}
    for chunk in chunks:
        for run in chunk.tool_runs:
            found.setdefault(run.key, []).append(run)
    return found


def assert_ends_once(records: list[ToolRun], status: str) -> None:
    """A record changes to its last status once, and is over once, in the end."""
    statuses = [run.status for run in records]
    first = statuses.index(status)
    assert set(statuses[first:]) == {status}
    assert not {"completed", "failed", "unfinished"} & set(statuses[:first])
    assert [run.is_over for run in records] == [False] * (len(records) - 1) + [True]


def shown_calls(parts: list[StreamPart]) -> list[tuple[str, str]]:
    """The calls of a run in the web UI, with their states."""
    encoder, message = UIMessageEncoder("m"), UIMessageFold("m")
    for part in parts:
        message.feed(encoder.feed(part))
    return calls_in(message.message())


def calls_in(message: Any) -> list[tuple[str, str]]:
    shown = [(part["toolCallId"], part["state"]) for part in message["parts"] if "toolCallId" in part]
    described = {part["id"] for part in message["parts"] if part["type"] == "data-tool"}
    assert described == {call for call, _ in shown}
    return shown


@requirement("R182")
@pytest.mark.parametrize("result", [FETCHED, UNREACHABLE], ids=["document", "error"])
async def test_call_keeps_record_after_pause(result: Any) -> None:
    paused = MessagesScript(id="m1").server_tool_use("web_fetch", URL, call_id="srv_1").pause_turn()
    scripts = [paused, MessagesScript(id="m2").result("web_fetch_tool_result", result, call_id="srv_1").text("Ok.")]
    async with FakeProvider([script.reply() for script in scripts]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, server_side_tools=[WebFetch()])
        chunks = [chunk async for chunk in agent.send_stream("hi")]
    status = "failed" if result is UNREACHABLE else "completed"
    ((key, records),) = changes(chunks).items()
    assert key == (0, "srv_1")
    assert_ends_once(records, status)
    (run,) = fold(chunks).tool_runs
    assert (run.status, run.input, run.error) == (status, URL, "url_not_accessible" if status == "failed" else None)
    assert len(run.files) == (status == "completed")


@requirement("R182")
@pytest.mark.parametrize(("provider", "path", "scripts"), LATE.values(), ids=LATE)
async def test_late_result_ends_record_of_its_call(provider: str, path: str, scripts: Any) -> None:
    async with FakeProvider([script.reply() for script in scripts()] * 2, base_path=path) as fake:
        agent = Agent(provider, base_url=fake.base_url, tools=[add], server_side_tools=[CodeInterpreter()])
        chunks = [chunk async for chunk in agent.send_stream("hi")]
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
    grammar.check(parts)
    hosted, function = fold(chunks).tool_runs
    assert (hosted.step, hosted.status, hosted.provider_executed) == (0, "completed", True)
    assert "add(1, 2)" in str(hosted.input)
    assert (function.step, function.status) == (0, "completed")
    for records in changes(chunks).values():
        assert_ends_once(records, "completed")
    assert [part.tool for part in parts if isinstance(part, ToolCall)] == [hosted.tool, "add"]
    assert [part.tool for part in parts if isinstance(part, ToolResult)] == ["add", hosted.tool]
    assert shown_calls(parts) == [(run.id, "output-available") for run in tool_runs(parts)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = open_store(tmp_path / "talks.db")
    yield opened
    await opened.aclose()


@requirement("R182")
@pytest.mark.parametrize("left_in", ["step", "between"])
async def test_call_keeps_record_after_restart(store: Store, left_in: str) -> None:
    paused = MessagesScript(id="m1").server_tool_use("web_fetch", URL, call_id="srv_1").pause_turn()
    answer = MessagesScript(id="m2").result("web_fetch_tool_result", FETCHED, call_id="srv_1").text("Ok.")
    async with FakeProvider([paused.reply(), answer.reply(), answer.reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, server_side_tools=[WebFetch()])
        first = Chat(agent, store=store, id="talk")
        await first.load()
        async with first.stream("hi") as run:
            async for part in run:
                if isinstance(part, ToolResult) if left_in == "step" else isinstance(part, StepFinish):
                    break
            await run.leave()
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        result = await chat.resume()
        page = await stored_message(store)
        again = Chat(agent, store=store, id="talk")
        await again.load()
    (resumed,) = result.tool_runs
    assert (resumed.key, resumed.status, resumed.input, resumed.is_over) == ((0, "srv_1"), "completed", URL, True)
    assert calls_in(page) == [("srv_1", "output-available")]
    logged = [*stream_of(await records(store))]
    assert [part.id for part in logged if isinstance(part, ToolCall)] == ["srv_1"]
    (run,) = tool_runs(logged)
    assert (run.key, run.status) == ((0, "srv_1"), "completed")
    assert again.messages == chat.messages


async def records(store: Store) -> list[Any]:
    from sidestream.store.log.conversation import Conversation

    return await Conversation(store, "talk").records()


async def stored_message(store: Store) -> Any:
    """The answer as the web UI's message, from the log."""
    encoder, message = UIMessageEncoder("m"), UIMessageFold("m")
    for part in stream_of(await records(store)):
        message.feed(encoder.feed(part))
    return message.message()


@requirement("R182")
async def test_open_call_keeps_record_over_approval() -> None:
    agent_tools = [tool(approval="ask")(add)]
    async with FakeProvider([script.reply() for script in responses_program()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=agent_tools)
        waiting = await agent.send("hi")
        program, function = waiting.tool_runs
        assert [(run.status, run.is_over) for run in (program, function)] == [("running", False), ("waiting", False)]
        run = agent.resume(waiting.run_state, [call.approve() for call in waiting.approvals])
        chunks = [chunk async for chunk in run.chunks()]
    found = changes(chunks)
    assert {*found} == {program.key, function.key}
    for key, given in ((program.key, program.input), (function.key, function.input)):
        assert_ends_once(found[key], "completed")
        assert found[key][-1].input == given
    assert not [part for chunk in chunks for part in chunk.parts if isinstance(part, ToolCall)]


@requirement("R182")
async def test_web_ui_shows_late_result_in_one_card(tmp_path: Path) -> None:
    scripts = [sse(script.events()) for script in responses_program()]
    async with FakeProvider(scripts) as fake, chatting(fake, tmp_path, tools=[add], approval="ask") as client:
        asked = data(await client.say("Add."), "approval")[0]
        answer = {"approvalId": asked["approval"], "approved": True, "digest": asked["digest"]}
        await client.post({"id": "c1", **answer})
        chat = await client.chat()
    message = chat["messages"][-1]
    assert calls_in(message) == [("call_p", "output-available"), ("call_f", "output-available")]
    states = {part["id"]: part["data"]["status"] for part in message["parts"] if part["type"] == "data-tool"}
    assert states == {"call_p": "completed", "call_f": "completed"}


@requirement("R182")
@pytest.mark.parametrize("resumes", [False, True], ids=["policy", "user"])
async def test_approved_remote_call_is_one_record(resumes: bool) -> None:
    request = ResponsesScript(id="resp_1").mcp_approval_request("docs", "search", {"q": "x"})
    done = ResponsesScript(id="resp_2").mcp_call("docs", "search", {"q": "x"}, output="found").text("Ok.")
    call_id = next(event["item"]["id"] for event in request.events() if event["type"] == "response.output_item.done")
    made = done.events()
    for event in made:
        if event.get("item", {}).get("type") == "mcp_call":
            event["item"]["approval_request_id"] = call_id
    remote = RemoteMCP(label="docs", url="https://mcp.example/mcp")
    async with FakeProvider([request.reply(), sse(made)]) as fake:
        agent = Agent(
            "openai-responses",
            base_url=fake.base_url,
            server_side_tools=[remote],
            approval="ask" if resumes else lambda _: "run",
        )
        first = agent.stream("hi")
        chunks = [chunk async for chunk in first.chunks()]
        if resumes:
            decisions = [call.approve() for call in first.state.approvals]
            chunks += [chunk async for chunk in agent.resume(first.state, decisions).chunks()]
    ((key, records),) = changes(chunks).items()
    assert key == (0, call_id)
    assert_ends_once(records, "completed")
    parts = [part for chunk in chunks for part in chunk.parts]
    assert shown_calls([part for part in parts if part.type != "text-end"]) == [(call_id, "output-available")]


@requirement("R182")
async def test_new_call_with_known_id_is_another_record() -> None:
    scripts = [
        MessagesScript(id="m1")
        .server_tool_use("web_search", {"query": "a"}, call_id="c")
        .tool_use("add", {"a": 1, "b": 2}, call_id="f"),
        MessagesScript(id="m2")
        .server_tool_use("web_search", {"query": "b"}, call_id="c")
        .result("web_search_tool_result", [], call_id="c")
        .text("Ok."),
    ]
    async with FakeProvider([script.reply() for script in scripts]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, tools=[add], server_side_tools=[WebSearch()])
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
    runs = {run.key: (run.status, run.input) for run in tool_runs(parts) if run.tool == "web_search"}
    assert runs == {(0, "c"): ("unfinished", {"query": "a"}), (1, "c"): ("completed", {"query": "b"})}
    stages = [stage.provider_stage for run in tool_runs(parts) if run.key == (0, "c") for stage in run.stages]
    assert stages == ["start", "stop"]
    assert shown_calls(parts) == [("c", "input-available"), ("f", "output-available"), ("c#1", "output-available")]


@requirement("R182")
async def test_record_with_files_ends_once() -> None:
    cited = {"type": "container_file_citation", "container_id": "cntr_1", "start_index": 0, "end_index": 4}
    script = (
        ResponsesScript()
        .code_interpreter("plot()", container_id="cntr_1", images=["data:image/png;base64,iVBORw0KGgo="])
        .text("Done", annotations=[{**cited, "file_id": "cfile_a", "filename": "plot.png"}])
    )
    async with FakeProvider([script.reply()]) as fake:
        fake.add_file("/v1/containers/cntr_1/files/cfile_a/content", pixel_png(), "application/octet-stream")
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=[CodeInterpreter()])
        chunks = [chunk async for chunk in agent.send_stream("plot")]
    ((_, records),) = changes(chunks).items()
    assert_ends_once(records, "completed")
    over = next(place for place, chunk in enumerate(chunks) if any(run.is_over for run in chunk.tool_runs))
    assert "".join(chunk.output for chunk in chunks[:over]) == ""
    (run,) = fold(chunks).tool_runs
    assert [file.name for file in run.files][-1] == "plot.png"
    assert len(run.files) == len(records[-1].files) + 1


@pytest.mark.parametrize("is_changed", [False, True], ids=["same", "rewritten"])
async def test_file_cited_in_two_steps_is_delivered_once(is_changed: bool) -> None:
    cited = {"type": "container_file_citation", "container_id": "cntr_1", "start_index": 0, "end_index": 4}
    cited |= {"file_id": "cfile_a", "filename": "a.csv"}
    scripts = [
        ResponsesScript(id="resp_1")
        .code_interpreter("write()", container_id="cntr_1")
        .text("Done", annotations=[cited])
        .function_call("add", {"a": 1, "b": 2}),
        ResponsesScript(id="resp_2").text("Done", annotations=[cited]),
    ]
    path = "/v1/containers/cntr_1/files/cfile_a/content"
    async with FakeProvider([script.reply() for script in scripts]) as fake:
        first, second = b"1\n", b"2\n" if is_changed else b"1\n"
        fake.on("GET", path, Reply(body=first), Reply(body=second))
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[add], server_side_tools=[CodeInterpreter()])
        result = await agent.send("write")
    assert [file.data for file in result.files] == ([first, second] if is_changed else [first])
    # The second citation names no code of its response: it is no call.
    assert [(run.step, run.tool) for run in result.tool_runs] == [(0, "code_interpreter"), (0, "add")]


@requirement("R182")
@pytest.mark.parametrize("error", ["401 Unauthorized", {"code": 401, "message": "401 Unauthorized"}])
async def test_failed_tool_list_is_failed_run(error: Any) -> None:
    item = {"type": "mcp_list_tools", "server_label": "docs", "tools": [], "error": error}
    failed = {"type": "response.mcp_list_tools.failed"}
    script = ResponsesScript().item(item, failed, prefix="mcpl").text("I could not reach it.")
    async with FakeProvider([script.reply()]) as fake:
        remote = RemoteMCP(label="docs", url="https://mcp.example/mcp")
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=[remote])
        chunks = [chunk async for chunk in agent.send_stream("hi")]
    ((_, records),) = changes(chunks).items()
    assert_ends_once(records, "failed")
    assert (records[-1].server, records[-1].error) == ("docs", "401 Unauthorized")


def test_repeated_step_has_its_calls_once() -> None:
    call = ToolCall("c", "web_search", "web_search", True, input={"query": "a"})
    lost = ToolCall("d", "web_search", "web_search", True, input={"query": "b"})
    result = ToolResult("c", "web_search", "web_search", [], False, True)
    failed = ToolResult("c", "web_search", "web_search", {"error_code": "unavailable"}, True, True)
    steps = [StepStart(0), ToolInputStart("c", "web_search", True), call, StepFinish(0, "other", Usage())]
    runs = tool_runs([*steps, StepStart(1), failed, lost, StepStart(1), result, Finish("stop", Usage())])
    assert [(run.key, run.status, run.error) for run in runs] == [((0, "c"), "completed", None)]


def test_call_reported_again_keeps_its_record() -> None:
    call = ToolCall("c", "web_search", "web_search", True, input={"query": "a"})
    result = ToolResult("c", "web_search", "web_search", [], False, True)
    event = ToolEvent("web_search", "completed", {}, call_id="c", provider_stage="result")
    runs = tool_runs([StepStart(0), call, StepStart(1), event, call, result, Finish("stop", Usage())])
    assert [(run.key, run.status) for run in runs] == [((0, "c"), "completed")]


def test_file_after_end_belongs_to_record() -> None:
    folding = ToolRunFold()
    parts = [
        ToolCall("c", "code_execution", "code_execution", True, input={"code": "1"}),
        ToolResult("c", "code_execution", "code_execution", {}, False, True),
        TextStart("t"),
    ]
    ends = [run.is_over for part in parts for run in folding.feed(part)]
    assert ends == [False, False, True]
    assert folding.feed(File("f", "text/csv", "a.csv", b"1", call_id="c")) == ()
    assert [file.name for run in folding.runs for file in run.files] == ["a.csv"]

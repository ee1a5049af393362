"""Tool runs: one record per call, whoever ran it, and the code as it is written."""

import itertools
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, CodeInterpreter, ImageGeneration, ToolError, ToolRun, WebSearch
from sidestream.messages.fold import MessageMetadata
from sidestream.parts import (
    File,
    Finish,
    Stage,
    StepStart,
    StreamPart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import fold
from sidestream.results.tool_code import CodeFold
from sidestream.results.tool_runs import ToolRunFold, tool_runs
from sidestream.testing import FakeProvider, GeminiScript, MessagesScript, ResponsesScript, pixel_png
from support.places import RECORDINGS

CODE = 'x = "é"\nprint(x)\n'
FILES = sorted(RECORDINGS.rglob("*.json")) if RECORDINGS.is_dir() else []


async def runs_of(provider: str, script: Any, **settings: Any) -> tuple[ToolRun, ...]:
    """The tool runs of one scripted answer."""
    async with FakeProvider([script.reply()]) as fake:
        return (await Agent(provider, base_url=fake.base_url, **settings).send("hi")).tool_runs


@requirement("R105")
async def test_hosted_search_is_one_record_with_query_count_and_stages() -> None:
    script = ResponsesScript().web_search("eclipse", sources=["https://a.example/", "https://b.example/"]).text("Soon.")
    (run,) = await runs_of("openai-responses", script)
    assert (run.tool, run.name, run.provider_executed, run.status) == ("web_search", "web_search", True, "completed")
    assert (run.queries, run.result_count) == (("eclipse",), 2)
    assert [stage.stage for stage in run.stages] == ["started", "running", "completed"]
    assert [stage.provider_stage for stage in run.stages] == ["added", "searching", "done"]
    times = [stage.at for stage in run.stages]
    assert None not in times
    assert times == sorted(times, key=lambda at: at or 0)
    assert run.seconds == (times[-1] or 0) - (times[0] or 0)


@requirement("R105")
async def test_file_search_snippet_has_at_most_200_characters() -> None:
    script = ResponsesScript().file_search("fib", results=[{"file_id": "f", "text": "1 1 2 3 " * 99}, {"text": "x"}])
    (run,) = await runs_of("openai-responses", script.text("ok"))
    assert run.result_count == 2
    assert run.snippet.startswith("1 1 2 3 1 1")
    assert len(run.snippet) == 200


@requirement("R105")
async def test_code_image_and_function_runs_hold_code_files_and_errors() -> None:
    def broken(city: str) -> str:
        raise ToolError("no such city")

    scripts = [
        ResponsesScript()
        .code_interpreter(["1+", "1"], logs="2\n", container_id="cntr_1")
        .image(pixel_png(), partials=2)
        .function_call("broken", {"city": "Oslo"}),
        ResponsesScript().text("ok"),
    ]
    async with FakeProvider([script.reply() for script in scripts]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url, tools=[broken]).send("hi")
    code, image, function = result.tool_runs
    assert (code.code, code.snippet, code.status) == ("1+1", "2", "completed")
    assert (image.previews, [file.data for file in image.files]) == (2, [pixel_png()])
    assert (function.tool, function.provider_executed, function.status) == ("broken", False, "failed")
    assert function.input == {"city": "Oslo"}
    assert "no such city" in (function.error or "")


@requirement("R105")
async def test_chunks_carry_changed_records_up_to_result() -> None:
    script = ResponsesScript().code_interpreter(["1+", "1"], logs="2\n", container_id="c").text("ok")
    async with FakeProvider([script.reply()]) as fake:
        chunks = [chunk async for chunk in Agent("openai-responses", base_url=fake.base_url).send_stream("hi")]
    live = [run for chunk in chunks for run in chunk.tool_runs]
    assert [run.status for run in live][:2] == ["started", "running"]
    assert all(first != second for first, second in itertools.pairwise(live))
    assert fold(chunks).tool_runs == (live[-1],)
    assert live[-1].status == "completed"


HOSTED: dict[str, tuple[Any, Any, str]] = {
    "openai-responses": (ResponsesScript().web_search("eclipse"), WebSearch, "web_search_call"),
    "anthropic": (MessagesScript().bash("ls", stdout="a.csv"), CodeInterpreter, "code_execution"),
    "google": (GeminiScript().code(CODE, output="1"), CodeInterpreter, "ode"),
}
"""A tool of each provider, and what the type or the key of its events has in it."""


@requirement("R3", "R105")
@pytest.mark.parametrize("policy", get_args(MessageMetadata))
@pytest.mark.parametrize("provider", HOSTED)
async def test_raw_events_are_as_sent_under_every_policy(provider: str, policy: MessageMetadata) -> None:
    script, tool, kind = HOSTED[provider]
    async with FakeProvider([script.text("ok").reply()]) as fake:
        result = await Agent(provider, base_url=fake.base_url, message_metadata=policy).send("hi")
    sent = json.dumps(script.chunks() if provider == "google" else script.events(), sort_keys=True)
    assert result.raw_tool_events
    for event in result.raw_tool_events:
        assert json.dumps(event.event, sort_keys=True) in sent
        assert event.provider_tool
        assert event.provider_stage
    assert any(kind in json.dumps(event.event) for event in result.raw_tool_events)
    assert result.events_of(tool) == result.events_of(tool.key) == result.raw_tool_events
    assert result.events_of(result.raw_tool_events[0].provider_tool) == result.raw_tool_events
    assert result.events_of(ImageGeneration) == []


@requirement("R105")
@pytest.mark.parametrize(
    ("provider", "script"),
    [
        ("openai-responses", ResponsesScript().code_interpreter([CODE[:3], CODE[3:]], logs="1", container_id="c")),
        ("anthropic", MessagesScript().code_execution(CODE, stdout="1")),
        ("google", GeminiScript().code(CODE, output="1")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_code_is_streamed_on_every_provider(provider: str, script: Any) -> None:
    async with FakeProvider([script.text("ok").reply()]) as fake:
        chunks = [chunk async for chunk in Agent(provider, base_url=fake.base_url).send_stream("hi")]
    written = [chunk.code for chunk in chunks if chunk.code]
    assert "".join(written) == CODE == fold(chunks).code
    assert (len(written) > 1) is (provider != "google")
    assert [run.code for run in fold(chunks).tool_runs] == [CODE]


def test_newline_separates_code_of_two_calls() -> None:
    folding = CodeFold()
    calls = [
        ToolCall(f"c{n}", "code_execution", "code_execution", True, input={"code": code})
        for n, code in enumerate(["a", "b\n", "c"])
    ]
    assert "".join(map(folding.feed, calls)) == "a\nb\nc"


def test_shell_commands_are_lines_of_code() -> None:
    folding = CodeFold()
    parts: list[StreamPart] = [
        ToolInputStart("c", "shell", True),
        ToolInputDelta("c", '{"commands":["ls '),
        ToolInputDelta("c", '-l","pwd"]}'),
        ToolInputEnd("c"),
        ToolCall("c", "shell", "shell", True, input={"commands": ["ls -l", "pwd"]}),
    ]
    assert [folding.feed(part) for part in parts] == ["", "ls ", "-l", "", "\npwd"]


def test_call_with_late_final_id_is_one_record() -> None:
    parts: list[StreamPart] = [
        ToolInputStart("item", "get", False),
        ToolInputEnd("item"),
        ToolCall("call_1", "get", "get", False, input={}),
        ToolResult("call_1", "get", "get", "ok", False, False),
    ]
    (run,) = tool_runs(parts)
    assert (run.id, run.call_id, run.status, run.snippet) == ("item", "call_1", "completed", "ok")


def test_id_reused_in_later_step_is_other_call() -> None:
    event = ToolEvent("get", "started", {}, call_id="c", provider_stage="start")
    call = ToolCall("c", "get", "get", False, input={})
    result = ToolResult("c", "get", "get", "ok", False, False)
    runs = tool_runs([StepStart(0), event, call, result, StepStart(1), event, call])
    assert [(run.key, run.status) for run in runs] == [((0, "c"), "completed"), ((1, "c"), "running")]


def test_grounding_without_call_is_record_of_its_tool() -> None:
    found = {"webSearchQueries": ["q"], "groundingChunks": [{"web": {"uri": "https://a.example/", "title": "A"}}]}
    parts = [
        StepStart(0),
        ToolEvent("web_search", "completed", {"groundingMetadata": found}, provider_stage="grounding"),
        Finish("stop", Usage()),
    ]
    (run,) = tool_runs(parts)
    assert (run.call_id, run.queries, run.result_count, run.snippet) == ("web_search", ("q",), 1, "A")
    assert run.status == "completed"


@pytest.mark.parametrize(
    ("reason", "status"), [("approval", "waiting"), ("error", "unfinished"), ("stop", "unfinished")]
)
def test_call_without_result_is_waiting_or_unfinished(reason: Any, status: str) -> None:
    parts = [
        ToolCall("c", "get", "mcp", True, input={"a": 1}),
        ToolApprovalRequest("a", "c", "get", {"a": 1}, "shop"),
        Finish(reason, Usage()),
    ]
    (run,) = tool_runs(parts)
    assert (run.status, run.server, run.is_over) == (status, "shop", status != "waiting")


def test_field_of_function_result_names_no_server() -> None:
    result = {"server_name": "db1", "rows": 3}
    (mine,) = tool_runs([ToolResult("c", "look", "look", result, False, False)])
    (hosted,) = tool_runs([ToolResult("c", "look", "mcp", result, False, True)])
    assert (mine.server, hosted.server) == (None, "db1")


@requirement("R182")
def test_each_stage_is_passed_once() -> None:
    events = [ToolEvent("agent", stage, {}, call_id="c") for _ in range(3) for stage in ("started", "delta", "running")]
    (run,) = tool_runs([*events, ToolResult("c", "agent", "agent", "ok", False, False)])
    assert [stage.stage for stage in run.stages] == ["started", "running", "completed"]
    assert [stage.event for stage in run.stages] == [{}, {}, None]


def calls_seen(parts: list[StreamPart]) -> set[str]:
    """The ids of calls, inputs and events of a run; events without one count by their tool."""
    ids = {part.id for part in parts if isinstance(part, ToolCall | ToolResult | ToolInputStart)}
    ids |= {part.call_id for part in parts if isinstance(part, ToolEvent) and part.call_id is not None}
    for ended, call in itertools.pairwise(parts):
        if isinstance(ended, ToolInputEnd) and isinstance(call, ToolCall) and ended.id != call.id:
            ids.discard(ended.id)  # The final id of a call supersedes the one that its input streamed under.
    named = {run.tool for run in tool_runs(part for part in parts if not isinstance(part, ToolEvent))}
    events = {part.tool for part in parts if isinstance(part, ToolEvent) and part.call_id is None}
    return ids | {tool for tool in events if tool not in named}


@requirement("R105")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recording_has_one_record_per_call(path: Path) -> None:
    recording = Recording.load(path)
    for run in replay(recording, ReplayTransport(recording)):
        parts = [part async for part in run]
        records = tool_runs(parts)
        assert {record.call_id for record in records} == calls_seen(parts)
        assert all(record.is_over or record.status == "waiting" for record in records)
        assert all(len(record.snippet) <= 200 for record in records)
        folding = ChunkFold()
        assert fold(chunk for part in parts for chunk in folding.feed(part)).tool_runs == records
        code = CodeFold()
        written = "".join(map(code.feed, parts))
        assert all(record.code in written for record in records if record.code)


IDS = st.sampled_from(["a", "b"])
TOOLS = st.sampled_from(["web_search", "code_execution", "shell", "get"])
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    *("results", "sources", "text", "url", "query", "queries", "code", "commands", "error", "output"),
                    *(
                        "item",
                        "outcome",
                        "exit_code",
                        "groundingMetadata",
                        "server_label",
                        "message",
                        "content",
                        "type",
                    ),
                )
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)
PARTS: st.SearchStrategy[StreamPart] = st.one_of(
    st.builds(StepStart, st.integers(0, 2)),
    st.builds(ToolInputStart, IDS, TOOLS, st.booleans()),
    st.builds(ToolInputDelta, IDS, st.text(max_size=9)),
    st.builds(ToolInputEnd, IDS),
    st.builds(ToolCall, IDS, TOOLS, TOOLS, st.booleans(), input=VALUE),
    st.builds(ToolEvent, TOOLS, st.sampled_from(get_args(Stage)), VALUE, call_id=st.none() | IDS),
    st.builds(ToolResult, IDS, TOOLS, TOOLS, VALUE, st.booleans(), st.booleans(), preliminary=st.booleans()),
    st.builds(ToolApprovalRequest, IDS, IDS, TOOLS, VALUE),
    st.builds(File, IDS, st.just("a/b"), data=st.just(b"x"), call_id=st.none() | IDS),
    st.builds(Finish, st.sampled_from(["stop", "error", "approval"]), st.just(Usage())),
)


@requirement("R105")
@given(st.lists(PARTS, max_size=12))
def test_garbage_does_not_raise_and_every_change_is_reported(parts: list[StreamPart]) -> None:
    folding, code = ToolRunFold(), CodeFold()
    last: dict[tuple[int, str], ToolRun] = {}
    for at, part in enumerate(parts):
        code.feed(part)
        for run in folding.feed(part, float(at)):
            last[run.key] = run
    # A file that is downloaded after the end joins the record, which is not reported again.
    expected = {key: replace(run, files=()) if run.is_over else run for key, run in last.items()}
    found = {run.key: replace(run, files=()) if run.is_over else run for run in folding.runs}
    assert found.items() <= expected.items()


@requirement("R105")
def test_tool_events_are_found_by_class_across_providers() -> None:
    names = {"web_search": "google_search", "mcp": "mcp", "get": None}
    events = [ToolEvent(tool, "completed", {}, provider_tool=name) for tool, name in names.items()]
    folding = ChunkFold()
    result = fold(chunk for event in events for chunk in folding.feed(event))
    assert [event.tool for event in result.events_of(WebSearch)] == ["web_search"]
    assert result.events_of("google_search") == result.events_of(WebSearch)
    assert result.events_of(WebSearch(max_uses=1)) == result.events_of(WebSearch)
    assert [event.tool for event in result.events_of("get")] == ["get"]


@requirement("R105")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_every_recorded_event_belongs_to_known_tool(path: Path) -> None:
    """A name that no class of tools has would not be found by `events_of`."""
    from sidestream.tools.server_side import TOOLS as CLASSES

    known = {*CLASSES, "advisor"}
    recording = Recording.load(path)
    for run in replay(recording, ReplayTransport(recording)):
        assert {part.tool async for part in run if isinstance(part, ToolEvent)} <= known


@requirement("R121")
def test_origin_of_call_is_read_from_provider_and_run() -> None:
    metadata = {
        "openai-responses": {"item_id": "fc_1", "caller": {"type": "program", "caller_id": "p1"}},
        "sidestream": {"server_label": "docs", "server_tool": "read page"},
    }
    call = ToolCall("c1", "docs_read_page", "mcp", False, {}, provider_metadata=metadata)
    (run,) = tool_runs([call])
    assert (run.server, run.name, run.caller) == ("docs", "read page", "p1")


@pytest.mark.parametrize("metadata", [None, {}, {"x": 1}, {"x": {"caller": 1}}, {"x": {"caller": {"type": "direct"}}}])
def test_call_without_origin_was_made_by_model(metadata: Any) -> None:
    (run,) = tool_runs([ToolCall("c1", "f", "f", False, {}, provider_metadata=metadata)])
    assert (run.server, run.name, run.caller) == (None, "f", None)

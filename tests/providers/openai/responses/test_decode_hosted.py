"""Tools that only the provider runs: searches, MCP with its approvals, tool search, programs, compaction."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream.parts import (
    Custom,
    Finish,
    Raw,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from support.streams import (
    EVERY_ITEM,
    Event,
    added,
    around,
    decode,
    done,
    event,
    file_search,
    function_call,
    input_text,
    items,
    mcp_call,
    message,
    of,
    one,
    plain,
    response,
    stream,
    web_search,
    without_events,
)


@requirement("R3")
def test_web_search_emits_events_then_call_then_result():
    sources = [{"type": "url", "url": "https://example.com/a"}]
    parts = items(web_search(0))
    assert [part.provider_stage for part in of(parts, ToolEvent)] == [
        "added",
        "in_progress",
        "searching",
        "completed",
        "done",
    ]
    assert without_events(parts) == [
        ToolInputStart("ws_1", "web_search", True),
        ToolInputDelta("ws_1", '{"type":"search","query":"news"}'),
        ToolInputEnd("ws_1"),
        ToolCall(
            "ws_1", "web_search", "web_search", True, {"type": "search", "query": "news"}, provider_tool="web_search"
        ),
        ToolResult("ws_1", "web_search", "web_search", {"status": "completed", "sources": sources}, False, True),
    ]


@pytest.mark.parametrize(
    "action",
    [
        {"type": "open_page", "url": "https://example.com"},
        {"type": "find_in_page", "url": "https://example.com", "pattern": "x"},
    ],
)
def test_web_search_actions_are_call_input(action: Event):
    assert one(items(web_search(0, action=action)), ToolCall).input == action


@requirement("R3")
def test_events_of_search_without_start_name_their_call():
    parts = items(web_search(0)[1:])
    assert {emitted.call_id for emitted in of(parts, ToolEvent)} == {one(parts, ToolCall).id}


def test_failed_search_is_error_result():
    assert one(items(web_search(0, status="failed")), ToolResult).is_error


def test_file_search_has_queries_and_results():
    results = [{"file_id": "file_1", "filename": "a.txt", "score": 0.9, "text": "Paris", "attributes": {}}]
    parts = items(file_search(0, results))
    assert one(parts, ToolCall).input == {"queries": ["paris"]}
    assert one(parts, ToolResult).result == {"status": "completed", "results": results}


@requirement("R3", "R14")
@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("web_search_call", "web_search"),
        ("x_search_call", "x_search"),
        ("view_image_call", "x_search"),
        ("view_x_video_call", "x_search"),
        ("code_execution_call", "code_interpreter"),
        ("file_search_call", "file_search"),
        ("image_generation_call", "image_generation"),
        ("code_interpreter_call", "code_interpreter"),
        ("computer_call", "computer_use"),
        ("local_shell_call", "local_shell"),
        ("shell_call", "shell"),
        ("apply_patch_call", "apply_patch"),
        ("mcp_call", "mcp"),
        ("mcp_list_tools", "mcp"),
        ("mcp_approval_request", "mcp"),
        ("tool_search_call", "tool_search"),
    ],
)
def test_tool_events_are_emitted_once_under_their_key(kind: str, tool: str):
    sent = stream(EVERY_ITEM[kind])
    emitted = of(decode(sent), ToolEvent)
    assert [part.event for part in emitted] == sent[1:-1]
    assert {part.tool for part in emitted} == {tool}
    assert len({part.call_id for part in emitted}) == 1


@requirement("R3")
@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("x_semantic_search", "x_search"),
        ("view_image", "x_search"),
        ("browse_page", "web_search"),
        ("code_execution", "code_interpreter"),
        ("collections_search", "file_search"),
    ],
)
def test_undeclared_custom_call_belongs_to_its_tool(name: str, tool: str):
    item = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_1", "name": name, "status": "completed"}
    item["input"] = '{"code":"1"}'
    sent = stream(around(0, item, input=""))
    parts = decode(sent, runs_custom_calls=True)
    call = one(parts, ToolCall)
    assert (call.name, call.tool, call.input, call.provider_executed) == (name, tool, {"code": "1"}, True)
    assert one(parts, ToolResult).id == call.id
    assert {part.tool for part in of(parts, ToolEvent)} == {tool}
    assert one(parts, Finish).reason == "stop"


@requirement("R2")
@pytest.mark.parametrize(("status", "reason"), [("completed", "stop"), (None, "stop"), ("incomplete", "length")])
def test_done_event_ends_response_with_its_status(status: str | None, reason: str):
    *events, last = stream(message(0, "Hi"))
    done = {**last, "type": "response.done", "response": {**last["response"], "status": status}}
    parts = decode([*events, done])
    assert one(parts, Finish).reason == reason
    assert decode([*events, last, done]) == decode([*events, last])


@requirement("R37")
def test_mcp_call_streams_arguments_and_has_output():
    assert without_events(items(mcp_call(0, '{"question":"why"}'))) == [
        ToolInputStart("mcp_1", "ask", True),
        ToolInputDelta("mcp_1", '{"question":"why"}'),
        ToolInputEnd("mcp_1"),
        ToolCall("mcp_1", "ask", "mcp", True, {"question": "why"}, provider_tool="mcp"),
        ToolResult("mcp_1", "ask", "mcp", {"server_label": "wiki", "output": "42"}, False, True),
    ]


@requirement("R37")
@pytest.mark.parametrize(
    "fields",
    [
        {"status": "failed", "output": None, "error": {"type": "http_error", "code": 500, "message": "down"}},
        {"status": "completed", "output": None, "error": {"type": "mcp_tool_execution_error", "content": []}},
        {"status": "failed", "output": None, "error": "it broke"},
        {"status": "failed", "output": None},
    ],
)
def test_failed_mcp_call_is_error_result_with_server_error(fields: dict[str, Any]):
    result = one(items(mcp_call(0, "{}", **fields)), ToolResult)
    assert result.is_error
    assert result.result.get("error") == fields.get("error")


@requirement("R37")
def test_mcp_tool_list_and_its_error_stay_in_event():
    item = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "wiki"}
    listed = one(items(done(0, {**item, "tools": [{"name": "ask"}], "error": None})), ToolEvent)
    assert listed.event["item"]["tools"] == [{"name": "ask"}]
    failed = one(items(done(0, {**item, "tools": [], "error": "unreachable"})), ToolEvent)
    assert failed.event["item"]["error"] == "unreachable"


@requirement("R37", "F10")
def test_mcp_tool_list_without_end_comes_from_final_response():
    lists = [
        {"id": f"mcpl_{label}", "type": "mcp_list_tools", "server_label": label, "tools": [{"name": label}]}
        for label in ("a", "b")
    ]
    events = [added(0, {**lists[0], "tools": []}), added(1, {**lists[1], "tools": []}), done(1, lists[1])]
    emitted = of(decode([*events, event("completed", response=response(lists))]), ToolEvent)
    assert [part.provider_stage for part in emitted] == ["added", "added", "done", "done"]
    assert emitted[-1].event == lists[0]


@requirement("R37", "R7")
def test_approval_request_is_pending_call_under_its_id():
    parts = decode(stream(plain(0, "mcp_approval_request", server_label="wiki", name="ask", arguments='{"q":1}')))
    call = one(parts, ToolCall)
    assert (call.id, call.name, call.tool, call.input) == ("mcp_approval_request_1", "ask", "mcp", {"q": 1})
    assert one(parts, ToolApprovalRequest) == ToolApprovalRequest(
        "mcp_approval_request_1", "mcp_approval_request_1", "ask", {"q": 1}, "wiki"
    )
    assert of(parts, ToolResult) == []
    assert one(parts, Finish).reason == "approval"


@requirement("R37")
@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "done-only"])
def test_approved_call_keeps_approval_request_id(whole: bool):
    events = mcp_call(0, '{"q":1}', approval_request_id="mcpr_9")
    parts = items(events[-1:] if whole else events)
    assert {part.id for part in of(parts, ToolCall) + of(parts, ToolResult)} == {"mcpr_9"}
    assert {part.call_id for part in of(parts, ToolEvent)} == {"mcpr_9"}
    assert input_text(parts, "mcpr_9") == '{"q":1}'


@requirement("R37")
def test_approved_call_takes_approval_id_from_final_item():
    events = mcp_call(0, '{"q":1}', approval_request_id="mcpr_9")
    events[0]["item"]["approval_request_id"] = None
    parts = items(events)
    assert (one(parts, ToolCall).id, one(parts, ToolResult).id) == ("mcpr_9", "mcpr_9")


@requirement("R37", "R8")
def test_pending_approval_is_not_counted_as_tool_use():
    asked = decode(stream(EVERY_ITEM["mcp_approval_request"]))
    called = decode(stream(mcp_call(0, "{}", approval_request_id="mcpr_9")))
    assert one(asked, Finish).usage.server_tool_use == {}
    assert one(called, Finish).usage.server_tool_use == {"mcp": 1}


@requirement("R37")
def test_approval_and_its_call_in_one_response_stay_separate():
    approval = plain(0, "mcp_approval_request", server_label="wiki", name="ask", arguments="{}")
    calls = of(items(approval, mcp_call(1, "{}", approval_request_id="mcp_approval_request_1")), ToolCall)
    assert len(calls) == len({call.id for call in calls}) == 2


@requirement("R36")
@pytest.mark.parametrize(("execution", "hosted"), [("server", True), ("client", False)])
def test_tool_search_execution_sets_provider_executed(execution: str, hosted: bool):
    search = plain(0, "tool_search_call", call_id="call_1", execution=execution, arguments={"goal": "crm"})
    parts = decode(stream(search))
    call = one(parts, ToolCall)
    assert (call.tool, call.input, call.provider_executed) == ("tool_search", {"goal": "crm"}, hosted)
    assert one(parts, Finish).reason == ("stop" if hosted else "tool-calls")


@requirement("R36")
def test_tool_search_output_without_call_id_follows_last_call():
    result = one(items(EVERY_ITEM["tool_search_output"]), ToolResult)
    assert (result.id, result.result) == ("tool_search_call_1", {"tools": [{"type": "function", "name": "crm"}]})


@requirement("R36")
def test_program_calls_functions_and_has_output():
    caller = {"type": "program", "caller_id": "call_1"}
    program = plain(0, "program", call_id="call_1", code="await tools.f({})", fingerprint="gAAA")
    inner = function_call(1, "{}", call_id="call_2")
    inner[-1]["item"]["caller"] = caller
    output = plain(2, "program_output", call_id="call_1", status="completed", result="42")
    parts = items(program, inner, output)
    assert [(c.id, c.tool, c.provider_executed) for c in of(parts, ToolCall)] == [
        ("call_1", "programmatic_tool_calling", True),
        ("call_2", "get_weather", False),
    ]
    assert of(parts, ToolCall)[0].input == {"code": "await tools.f({})"}
    assert one(parts, ToolResult).result == {"status": "completed", "result": "42"}
    assert (of(parts, ToolCall)[1].provider_metadata or {})["openai-responses"]["caller"] == caller


@requirement("R36")
def test_compaction_is_emitted_at_start_and_end():
    events = EVERY_ITEM["compaction"]
    found = items(events)
    assert [part.kind for part in of(found, Custom)] == ["openai.compaction.compacting", "openai.compaction"]
    assert of(found, Custom)[1].data == events[-1]["item"]


@pytest.mark.parametrize(
    "kind",
    [
        "additional_tools",
        "configuration_update",
        "function_call_output",
        "custom_tool_call_output",
        "mcp_approval_response",
    ],
)
def test_provider_specific_items_become_custom_parts(kind: str):
    item = EVERY_ITEM[kind][-1]["item"]
    assert items(EVERY_ITEM[kind]) == [Custom(f"openai.{kind}", item)]


@requirement("F13")
def test_mcp_call_with_broken_arguments_still_has_result():
    found = items(mcp_call(0, '{"q":'))
    call = one(found, ToolCall)
    assert (call.input, call.input_text) == (None, '{"q":')
    assert one(found, ToolResult).result["output"] == "42"


@pytest.mark.parametrize("kind", sorted(EVERY_ITEM))
def test_streamed_input_of_every_call_equals_its_input(kind: str):
    found = items(EVERY_ITEM[kind])
    assert of(found, Raw) == []
    for call in of(found, ToolCall):
        assert json.loads(input_text(found, call.id)) == call.input

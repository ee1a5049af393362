"""Tools that change files and run commands: apply patch, the shells, computer use."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream.parts import (
    Custom,
    Finish,
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
    decode,
    done,
    event,
    input_text,
    items,
    message,
    of,
    one,
    patch,
    plain,
    shell,
    shell_output,
    stream,
    without_events,
)

UPDATE = {"type": "update_file", "path": "src/a.py", "diff": '-"a"\n+"b"\n'}
CREATE = {"type": "create_file", "path": "b.txt", "diff": "+hello\n"}
DELETE = {"type": "delete_file", "path": "old.txt"}


@requirement("R34")
def test_diff_streams_escaped_inside_operation_json():
    assert without_events(items(patch(0, UPDATE, '-"a"\n', '+"b"\n'))) == [
        ToolInputStart("call_1", "apply_patch", False),
        ToolInputDelta("call_1", '{"type":"update_file","path":"src/a.py","diff":"'),
        ToolInputDelta("call_1", r"-\"a\"\n"),
        ToolInputDelta("call_1", r"+\"b\"\n"),
        ToolInputDelta("call_1", '"}'),
        ToolInputEnd("call_1"),
        ToolCall("call_1", "apply_patch", "apply_patch", False, UPDATE, action={}, provider_tool="apply_patch"),
    ]


@requirement("R34")
def test_file_deletion_streams_at_once_and_is_called_at_end():
    events = patch(0, DELETE)
    at_start = without_events(items(events[0]))
    assert at_start == [
        ToolInputStart("call_1", "apply_patch", False),
        ToolInputDelta("call_1", '{"type":"delete_file","path":"old.txt"}'),
        ToolInputEnd("call_1"),
    ]
    whole = without_events(items(events))
    call = ToolCall("call_1", "apply_patch", "apply_patch", False, DELETE, action={}, provider_tool="apply_patch")
    assert whole == [*at_start, call]


@requirement("R34")
@pytest.mark.parametrize("operation", [UPDATE, CREATE, DELETE], ids=lambda o: o["type"])
@pytest.mark.parametrize("begun", [True, False], ids=["added", "done-only"])
def test_patch_without_diff_deltas_closes_once(operation: Event, begun: bool):
    opening = {**operation, "diff": ""} if "diff" in operation else operation
    item = {"id": "apc_1", "type": "apply_patch_call", "call_id": "call_1", "status": "completed"}
    beginning = [added(0, {**item, "operation": opening})] if begun else []
    found = items(beginning, done(0, {**item, "operation": operation}))
    assert json.loads(input_text(found, "call_1")) == operation
    assert len(of(found, ToolInputEnd)) == 1
    assert one(found, ToolCall).input == operation


@requirement("R34")
def test_diff_present_in_first_item_is_not_repeated():
    item = {"id": "apc_1", "type": "apply_patch_call", "call_id": "call_1", "operation": UPDATE}
    found = items(added(0, item), done(0, item))
    assert json.loads(input_text(found, "call_1")) == UPDATE


@requirement("R34", "F12")
def test_streamed_diff_is_used_when_final_item_lacks_it():
    events = patch(0, UPDATE, *UPDATE["diff"])
    found = items([*events[:-1], done(0, {**events[-1]["item"], "operation": {"type": "update_file", "path": "x"}})])
    assert one(found, ToolCall).input["diff"] == '-"a"\n+"b"\n'


@requirement("R34")
def test_patch_is_client_call_and_finishes_as_tool_calls():
    parts = decode(stream(patch(0, DELETE)))
    assert one(parts, ToolCall).provider_executed is False
    assert one(parts, Finish).reason == "tool-calls"


@requirement("R34", "R3")
def test_every_patch_event_is_tool_event():
    sent = stream(patch(0, CREATE, "+hel", "lo\n"))
    assert [part.event for part in of(decode(sent), ToolEvent)] == sent[1:-1]


@requirement("R36")
def test_local_shell_call_has_its_action():
    action = {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 100, "working_directory": "/tmp"}
    found = without_events(items(plain(0, "local_shell_call", call_id="call_1", status="completed", action=action)))
    assert found == [
        ToolInputStart("call_1", "local_shell", False),
        ToolInputDelta("call_1", json.dumps(action, separators=(",", ":"))),
        ToolInputEnd("call_1"),
        ToolCall(
            "call_1",
            "local_shell",
            "local_shell",
            False,
            action,
            action={
                "command": ["ls", "-l"],
                "script": "ls -l",
                "env": {},
                "timeout_ms": 100,
                "working_directory": "/tmp",
            },
            provider_tool="local_shell",
        ),
    ]


@requirement("R36")
def test_shell_commands_stream_incrementally():
    found = without_events(items(shell(0, ["echo ", '"hi"'], ["ls"])))
    assert found[0] == ToolInputStart("call_1", "shell", True)
    assert [part.delta for part in of(found, ToolInputDelta)] == [
        '{"commands":["',
        "echo ",
        r"\"hi\"",
        '"',
        ',"',
        "ls",
        '"',
        "]}",
    ]


@requirement("R36")
def test_shell_call_starts_with_its_item():
    assert without_events(items(shell(0, ["ls"])[0])) == [
        ToolInputStart("call_1", "shell", True),
        ToolInputEnd("call_1"),
    ]


@requirement("R36")
def test_shell_input_json_equals_call_input():
    found = items(shell(0, ["echo ", '"hi"'], ["ls"], timeout_ms=1000, max_output_length=None))
    assert json.loads(input_text(found, "call_1")) == {"commands": ['echo "hi"', "ls"], "timeout_ms": 1000}
    assert one(found, ToolCall).input == {"commands": ['echo "hi"', "ls"], "timeout_ms": 1000}


@requirement("R36")
@pytest.mark.parametrize("left_out", ["shell_call_command.done", "shell_call_command.delta", "output_item.added"])
def test_shell_commands_survive_missing_events(left_out: str):
    events = [e for e in shell(0, ["echo hi"]) if e["type"] != f"response.{left_out}"]
    found = items(events)
    assert one(found, ToolCall).input == {"commands": ["echo hi"]}
    assert json.loads(input_text(found, "call_1")) == {"commands": ["echo hi"]}


@requirement("R36")
@pytest.mark.parametrize(
    ("environment", "context", "hosted"),
    [
        ({"type": "container_reference", "container_id": "cntr_1"}, {}, True),
        ({"type": "container_auto"}, {}, True),
        ({"type": "local"}, {}, False),
        (None, {"hosted_shell": True}, True),
        (None, {"hosted_shell": False}, False),
        (None, {}, False),
    ],
)
def test_shell_execution_follows_environment_or_request(
    environment: Event | None, context: dict[str, Any], hosted: bool
):
    parts = decode(stream(shell(0, ["ls"], environment=environment)), **context)
    assert one(parts, ToolCall).provider_executed is hosted
    assert one(parts, Finish).reason == ("stop" if hosted else "tool-calls")


@requirement("R36")
def test_shell_execution_follows_response_tools():
    tools = [{"type": "web_search"}, {"type": "shell", "environment": {"type": "container_auto"}}]
    events = stream(shell(0, ["ls"], environment=None))
    events[0]["response"]["tools"] = tools
    assert one(decode(events), ToolCall).provider_executed is True


@requirement("R36")
def test_hosted_shell_output_is_result_of_its_call():
    result = one(items(shell(0, ["ls"]), shell_output(1, "a.txt\n")), ToolResult)
    assert (result.id, result.name, result.is_error) == ("call_1", "shell", False)
    assert result.result["output"][0]["stdout"] == "a.txt\n"


@requirement("R36", "R3")
def test_shell_output_events_belong_to_their_call():
    events = of(items(shell(0, ["ls"]), shell_output(1, "a.txt\n")), ToolEvent)
    assert {part.call_id for part in events} == {"call_1"}
    assert [(part.provider_stage, part.output_index) for part in events][-4:] == [
        ("added", 1),
        ("delta", 1),
        ("done", 1),
        ("done", 1),
    ]


@requirement("R36")
def test_timed_out_command_is_error_result():
    assert one(items(shell(0, ["sleep 9"]), shell_output(1, "", {"type": "timeout"})), ToolResult).is_error


@requirement("R36")
def test_computer_actions_keep_safety_checks():
    click = {"type": "click", "button": "left", "x": 1, "y": 2}
    checks = [{"id": "sc_1", "code": "malicious_instructions", "message": "Sure?"}]
    legacy = plain(0, "computer_call", call_id="call_1", action=click, pending_safety_checks=checks)
    assert one(items(legacy), ToolCall).input == {"action": click, "pending_safety_checks": checks}
    batched = plain(0, "computer_call", call_id="call_1", actions=[click, click], pending_safety_checks=[])
    call = one(items(batched), ToolCall)
    assert (call.tool, call.provider_executed) == ("computer_use", False)
    assert call.input == {"actions": [click, click]}


@requirement("R36")
def test_screenshot_is_result_of_computer_call():
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    call = plain(0, "computer_call", call_id="call_1", action={"type": "screenshot"})
    result = one(items(call, plain(1, "computer_call_output", call_id="call_1", output=shot)), ToolResult)
    assert (result.id, result.tool, result.result["output"]) == ("call_1", "computer_use", shot)


@requirement("R36")
@pytest.mark.parametrize(
    "kind", ["shell_call_output", "apply_patch_call_output", "local_shell_call_output", "computer_call_output"]
)
def test_output_without_call_in_response_is_custom_part(kind: str):
    output = next(e for e in reversed(EVERY_ITEM[kind]) if e["type"] == "response.output_item.done")
    found = items({**output, "output_index": 0})
    assert one(found, Custom) == Custom(f"openai.{kind}", output["item"])
    assert of(found, ToolResult) == []


def test_failed_patch_is_error_result():
    answer = plain(1, "apply_patch_call_output", call_id="call_1", status="failed", output="no such file")
    assert one(items(patch(0, DELETE), answer), ToolResult).is_error


@pytest.mark.parametrize("index", [0, 5], ids=["of a message", "of nothing"])
def test_command_without_shell_call_is_only_event(index: int):
    command = event("shell_call_command.delta", output_index=index, command_index=0, delta="ls")
    begun = message(0, "Hi")
    found = items(begun[:3], command, begun[3:])
    assert one(found, ToolEvent).event["delta"] == "ls"
    assert without_events(found) == items(begun)

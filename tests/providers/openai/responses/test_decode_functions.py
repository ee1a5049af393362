"""Calls that the client answers with a function or a custom tool: ids, streamed inputs, broken inputs."""

import json

import pytest

from requirements import requirement
from sidestream.parts import Finish, Raw, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart
from support.streams import (
    added,
    custom_tool,
    decode,
    done,
    event,
    function_call,
    input_text,
    items,
    of,
    one,
    response,
    stream,
)


@requirement("R32", "R1")
def test_arguments_stream_before_call_under_call_id():
    assert items(function_call(0, '{"city":', '"Rome"}')) == [
        ToolInputStart("call_1", "get_weather", False),
        ToolInputDelta("call_1", '{"city":'),
        ToolInputDelta("call_1", '"Rome"}'),
        ToolInputEnd("call_1"),
        ToolCall(
            "call_1",
            "get_weather",
            "get_weather",
            False,
            {"city": "Rome"},
            provider_metadata={"openai-responses": {"item_id": "fc_call_1"}},
        ),
    ]


@requirement("R32")
@pytest.mark.parametrize("arguments", ["", "null", "  ", "{}", None])
def test_blank_arguments_are_empty_object(arguments: str | None):
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "now", "arguments": arguments}
    call = one(items(done(0, item)), ToolCall)
    assert (call.input, call.input_error) == ({}, None)


@requirement("R32")
def test_missing_arguments_are_empty_object():
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "now"}
    assert one(items(done(0, item)), ToolCall).input == {}


@requirement("F13")
@pytest.mark.parametrize("arguments", ['{"city": "Ro', "{'city': 1}", "[1]", "3", '"text"', '{"a":1}}', '{"a":NaN}'])
def test_non_object_arguments_give_input_error_and_raw_text(arguments: str):
    parts = decode(stream(function_call(0, arguments)))
    call = one(parts, ToolCall)
    assert call.input is None
    assert call.input_error
    assert call.input_text == arguments
    assert one(parts, Finish).reason == "tool-calls"


@requirement("R32", "F12")
def test_final_arguments_override_deltas():
    streamed, final = function_call(0, '{"city":"Rom"}'), function_call(0, '{"city":"Rome"}')
    assert one(items(streamed[:-1], final[-1]), ToolCall).input == {"city": "Rome"}


@requirement("F10")
def test_missing_argument_deltas_come_from_final_item():
    events = [e for e in function_call(0, '{"city":', '"Rome"}') if e.get("delta") != '"Rome"}']
    found = items(events)
    assert input_text(found, "call_1") == '{"city":"Rome"}'


@requirement("F04")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "name": "pay", "arguments": '{"sum":1}'},
        {"type": "custom_tool_call", "name": "sql", "input": "DROP TABLE a"},
        {"type": "shell_call", "action": {"commands": ["rm -rf /tm"]}},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["rm"], "env": {}}},
        {"type": "computer_call", "action": {"type": "type", "text": "he"}},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a", "diff": "-a"}},
    ],
    ids=lambda item: item["type"],
)
def test_call_truncated_by_token_limit_has_no_input(item: dict[str, object]):
    cut = {**item, "id": "item_1", "call_id": "call_1", "status": "incomplete"}
    parts = decode(stream(done(0, cut), end="incomplete"))
    call = one(parts, ToolCall)
    assert call.input is None
    assert call.input_error
    assert one(parts, Finish).reason == "length"


def test_call_keeps_namespace_and_caller():
    caller = {"type": "program", "caller_id": "call_9"}
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    call = one(items(done(0, {**item, "namespace": "crm", "caller": caller})), ToolCall)
    assert call.provider_metadata == {"openai-responses": {"namespace": "crm", "caller": caller, "item_id": "fc_1"}}


@requirement("F18")
def test_parallel_calls_keep_their_own_inputs():
    first = function_call(0, '{"city":', '"Rome"}')
    second = function_call(1, '{"city":', '"Oslo"}', call_id="call_2")
    mixed = [e for pair in zip(first, second, strict=True) for e in pair]
    found = items(mixed)
    assert [(call.id, call.input["city"]) for call in of(found, ToolCall)] == [("call_1", "Rome"), ("call_2", "Oslo")]
    assert input_text(found, "call_1") == '{"city":"Rome"}'
    assert input_text(found, "call_2") == '{"city":"Oslo"}'


@requirement("R36")
def test_custom_tool_input_streams_as_json_string():
    found = items(custom_tool(0, "SELECT ", 'name\nFROM "t"'))
    assert found[0] == ToolInputStart("call_1", "sql", False, "custom")
    assert found[-1] == ToolCall("call_1", "sql", "custom", False, 'SELECT name\nFROM "t"', provider_tool="sql")
    assert json.loads(input_text(found, "call_1")) == 'SELECT name\nFROM "t"'


@requirement("R36")
def test_custom_tool_without_deltas_keeps_its_input():
    call = one(items(custom_tool(0, "SELECT 1")[-1]), ToolCall)
    assert call.input == "SELECT 1"


@requirement("R36", "F10")
@pytest.mark.parametrize("left_out", [(), ("response.custom_tool_call_input.done",)])
def test_streamed_custom_input_is_used_when_final_item_lacks_it(left_out: tuple[str, ...]):
    events = [e for e in custom_tool(0, "SELECT ", "1") if e["type"] not in left_out]
    del events[-1]["item"]["input"]
    assert one(items(events), ToolCall).input == "SELECT 1"


@requirement("F11", "R32")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "name": "f", "input": "x"},
        {"type": "shell_call", "action": {"commands": ["ls"]}},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "computer_call", "action": {"type": "wait"}},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "tool_search_call", "execution": "client", "arguments": {}},
    ],
    ids=lambda item: item["type"],
)
@pytest.mark.parametrize("first", [None, "call_0"], ids=["none", "other"])
def test_call_uses_call_id_of_final_item(item: dict[str, object], first: str | None):
    beginning = {**item, "id": "item_1", "call_id": first}
    events = [added(0, beginning), done(0, {**item, "id": "item_1", "call_id": "call_1"})]
    call = one(items(events), ToolCall)
    assert (call.id, call.provider_executed) == ("call_1", False)


@requirement("F10", "R2")
def test_arguments_of_unknown_call_are_raw_until_item_names_it():
    events = function_call(0, '{"a":1}')[1:]
    found = items(events)
    assert [raw.event["type"] for raw in of(found, Raw)] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]
    assert one(found, ToolCall).input == {"a": 1}
    assert len(of(found, ToolInputStart)) == len(of(found, ToolInputEnd)) == 1


@requirement("F10")
def test_call_without_final_item_uses_finished_arguments():
    events = function_call(0, '{"a":1}')[:-1]
    parts = decode([*events, event("completed", response=response())])
    assert one(parts, ToolCall).input == {"a": 1}
    assert one(parts, Finish).reason == "tool-calls"


@requirement("F01")
def test_call_without_final_item_is_dropped_when_stream_is_cut():
    parts = decode(function_call(0, '{"a":1}')[:-1])
    assert of(parts, ToolCall) == []
    assert one(parts, Finish).reason == "error"


@requirement("F09")
def test_calls_sharing_call_id_are_both_kept():
    second = {"id": "fc_2", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":2}'}
    calls = of(items(function_call(0, '{"a":1}'), done(1, second)), ToolCall)
    assert [call.input for call in calls] == [{"a": 1}, {"a": 2}]
    assert len({call.id for call in calls}) == 2


@requirement("F11")
@pytest.mark.parametrize("shared", ["", "fc"])
def test_calls_sharing_item_id_are_told_apart_by_index(shared: str):
    events = [
        {**e, "item": {**e["item"], "id": shared}} if "item" in e else {**e, "item_id": shared}
        for e in [*function_call(0, '{"a":1}'), *function_call(1, '{"a":2}', call_id="call_2")]
    ]
    calls = of(items(events), ToolCall)
    assert [(call.id, call.input) for call in calls] == [("call_1", {"a": 1}), ("call_2", {"a": 2})]


@requirement("F11")
def test_calls_are_not_duplicated_when_ids_change():
    def item(item_id: str, number: int) -> dict[str, object]:
        arguments = f'{{"n":{number}}}'
        return {
            "id": item_id,
            "type": "function_call",
            "call_id": f"call_{number}",
            "name": "f",
            "arguments": arguments,
        }

    events = [added(0, item("a", 1)), added(1, item("b", 2)), done(1, item("b2", 2))]
    parts = decode([*events, event("completed", response=response([item("a9", 1), item("b9", 2)]))])
    assert sorted((call.id, call.input["n"]) for call in of(parts, ToolCall)) == [("call_1", 1), ("call_2", 2)]

"""The code interpreter: code as it is written, the call before it runs, then logs, images and the container."""

import json

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.parts import File, ToolCall, ToolEvent, ToolInputDelta, ToolInputEnd, ToolInputStart, ToolResult
from support.streams import (
    PNG,
    PNG_BASE64,
    code,
    decode,
    decode_whole,
    input_text,
    interleaved,
    items,
    of,
    one,
    response,
    stream,
    without_events,
)


@requirement("R33")
def test_container_and_code_stream_as_one_json_input():
    logs = [{"type": "logs", "logs": "hi\n"}]
    assert without_events(items(code(0, "print(", '"hi")\n', outputs=logs))) == [
        ToolInputStart("ci_1", "code_interpreter", True),
        ToolInputDelta("ci_1", '{"container_id":"cntr_1","code":"'),
        ToolInputDelta("ci_1", "print("),
        ToolInputDelta("ci_1", r"\"hi\")\n"),
        ToolInputDelta("ci_1", '"}'),
        ToolInputEnd("ci_1"),
        ToolCall(
            "ci_1",
            "code_interpreter",
            "code_interpreter",
            True,
            {"container_id": "cntr_1", "code": 'print("hi")\n'},
            provider_tool="code_interpreter",
        ),
        ToolResult(
            "ci_1",
            "code_interpreter",
            "code_interpreter",
            {"status": "completed", "container_id": "cntr_1", "outputs": logs},
            False,
            True,
        ),
    ]


@requirement("R3", "R33")
def test_events_are_emitted_verbatim_before_derived_parts():
    sent = stream(code(0, "a", "b"))
    parts = decode(sent)
    emitted = of(parts, ToolEvent)
    assert [part.event for part in emitted] == sent[1:-1]
    assert [part.provider_stage for part in emitted] == [
        "added",
        "in_progress",
        "delta",
        "delta",
        "done",
        "interpreting",
        "completed",
        "done",
    ]
    assert {(part.tool, part.call_id, part.output_index) for part in emitted} == {("code_interpreter", "ci_1", 0)}
    order = [type(part).__name__ for part in parts]
    assert order[3:9] == [
        "ToolEvent",
        "ToolInputStart",
        "ToolInputDelta",
        "ToolEvent",
        "ToolEvent",
        "ToolInputDelta",
    ]


@requirement("R33")
def test_call_is_emitted_before_code_runs():
    parts = decode(stream(code(0, "x")))
    call = next(n for n, part in enumerate(parts) if isinstance(part, ToolCall))
    running = next(n for n, part in enumerate(parts) if getattr(part, "provider_stage", "") == "interpreting")
    assert call < running


AWKWARD = ['say("hi")', "a\nb\t\\", "line\u2028paragraph\u2029", "😀 café", "\x00\x1f", "</script>", "'\"`"]


@requirement("F17", "R33")
@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_escaped_code_survives_streamed_json(text: str, cut: int):
    deltas = [text[n : n + cut] for n in range(0, len(text), cut)]
    found = items(code(0, *deltas))
    assert json.loads(input_text(found, "ci_1")) == {"container_id": "cntr_1", "code": text}
    assert one(found, ToolCall).input["code"] == text


@requirement("F17", "R33")
def test_character_split_between_deltas_is_restored():
    whole = code(0, 'print("😀")')
    halves = code(0, 'print("\ud83d', '\ude00")')
    events = [*halves[:4], *[e for e in whole if e["type"].endswith("code.done")], *whole[-3:]]
    found = items(events)
    assert json.loads(input_text(found, "ci_1"))["code"] == 'print("😀")'
    assert one(found, ToolCall).input["code"] == 'print("😀")'


@requirement("F17")
@given(st.lists(st.text(st.characters(codec=None), max_size=8), max_size=6))
def test_arbitrary_code_deltas_survive_streamed_json(deltas: list[str]):
    # Through JSON first, as on the wire: halves of a pair that meet are one character there.
    text = json.loads(json.dumps("".join(deltas)))
    whole, streamed = code(0, text), code(0, *deltas)
    events = [*streamed[:-4], *whole[-4:]]
    found = items(events)
    assert json.loads(input_text(found, "ci_1"))["code"] == text
    assert one(found, ToolCall).input["code"] == text


@requirement("R33")
def test_code_images_become_files_of_call():
    outputs = [
        {"type": "logs", "logs": "drawn"},
        {"type": "image", "url": "data:image/jpeg;base64," + PNG_BASE64},
        {"type": "image", "url": "https://example.com/plot.png"},
    ]
    files = of(items(code(2, "plot()", outputs=outputs)), File)
    assert files == [
        File(
            "ci_1:output:1",
            "image/png",
            "output_2_1.png",
            PNG,
            tool="code_interpreter",
            call_id="ci_1",
        ),
        File(
            "ci_1:output:2",
            "image/png",
            "output_2_2.png",
            url="https://example.com/plot.png",
            tool="code_interpreter",
            call_id="ci_1",
        ),
    ]


def test_image_with_invalid_url_is_not_file():
    outputs = [{"type": "image", "url": "javascript:alert(1)"}, {"type": "image", "url": "data:image/png;base64,%%%"}]
    assert of(items(code(0, "x", outputs=outputs)), File) == []


@requirement("R33")
@pytest.mark.parametrize("status", ["failed", "incomplete"])
def test_failed_code_is_error_result(status: str):
    events = code(0, "1/0")
    events[-1]["item"]["status"] = status
    assert one(items(events), ToolResult).is_error


@requirement("F10", "R33")
def test_code_present_only_in_final_item_is_emitted():
    assert without_events(items(code(0, "x = 1")[-1])) == [
        ToolInputStart("ci_1", "code_interpreter", True),
        ToolInputDelta("ci_1", '{"container_id":"cntr_1","code":"'),
        ToolInputDelta("ci_1", "x = 1"),
        ToolInputDelta("ci_1", '"}'),
        ToolInputEnd("ci_1"),
        ToolCall(
            "ci_1",
            "code_interpreter",
            "code_interpreter",
            True,
            {"container_id": "cntr_1", "code": "x = 1"},
            provider_tool="code_interpreter",
        ),
        ToolResult(
            "ci_1",
            "code_interpreter",
            "code_interpreter",
            {"status": "completed", "container_id": "cntr_1", "outputs": None},
            False,
            True,
        ),
    ]


@requirement("F10", "R33")
def test_streamed_code_is_used_when_final_item_lacks_it():
    events = [e for e in code(0, "x = ", "1") if not e["type"].endswith("code.done")]
    events[-1]["item"]["code"] = None
    found = items(events)
    assert one(found, ToolCall).input["code"] == "x = 1"
    assert json.loads(input_text(found, "ci_1"))["code"] == "x = 1"


@requirement("R9", "R33")
def test_non_streaming_code_matches_streamed_code():
    item = code(0, "x = 1")[-1]["item"]
    whole, streamed = decode_whole(response([item])), decode(stream(code(0, "x = 1")))
    assert of(whole, ToolCall) == of(streamed, ToolCall)
    assert of(whole, ToolResult) == of(streamed, ToolResult)


@requirement("F18", "R33")
def test_parallel_code_calls_keep_their_results():
    first = code(0, "a = ", "1", outputs=[{"type": "logs", "logs": "one"}])
    second = code(1, "b = ", "2", item_id="ci_2", outputs=[{"type": "logs", "logs": "two"}], container="cntr_2")
    found = items(interleaved(first, second))
    assert [json.loads(input_text(found, call)) for call in ("ci_1", "ci_2")] == [
        {"container_id": "cntr_1", "code": "a = 1"},
        {"container_id": "cntr_2", "code": "b = 2"},
    ]
    assert {part.id: part.result["outputs"][0]["logs"] for part in of(found, ToolResult)} == {
        "ci_1": "one",
        "ci_2": "two",
    }

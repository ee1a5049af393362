"""Text, thoughts, function calls and hosted tools of generateContent, streamed and whole."""

import base64
import json

import pytest

from providers.google.gemini_wire import both, decode, decode_whole, session
from requirements import requirement
from sidestream.jsontext import as_object
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart, ThinkingPart
from sidestream.parts import (
    Custom,
    File,
    Finish,
    ReasoningEnd,
    ReasoningStart,
    StreamPart,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputStart,
    ToolResult,
)
from sidestream.testing.gemini_script import GeminiScript
from support.streams import PNG, input_text, inside, messages, of, one, streamed_text


def script() -> GeminiScript:
    return GeminiScript()


def test_consecutive_text_parts_form_one_block():
    for parts in both(script().text("Hello my world").text(" again")):
        assert streamed_text(parts) == "Hello my world again"
        assert [part.id for part in of(parts, TextStart)] == ["text-0"]
        assert [part.text for m in messages(parts) for part in m.parts] == ["Hello my world again"]


@requirement("R63")
def test_thoughts_become_reasoning_closed_before_text():
    for parts in both(script().thought("Let me think.", signature="sig==").text("Yes.")):
        assert [type(part).__name__ for part in inside(parts) if "Delta" not in type(part).__name__] == [
            "ReasoningStart",
            "ReasoningEnd",
            "TextStart",
            "TextEnd",
        ]
        assert one(parts, ReasoningEnd).signature == "sig=="
        assert [part for m in messages(parts) for part in m.parts] == [
            ThinkingPart("Let me think.", "thought-0"),
            TextPart("Yes.", "text-0"),
        ]


def test_separated_text_blocks_get_distinct_ids():
    parts = decode(script().text("a").code("1", "1").text("b").thought("c").text("d").chunks())
    assert [part.id for part in of(parts, TextStart)] == ["text-0", "text-1", "text-2"]
    assert [part.id for part in of(parts, ReasoningStart)] == ["thought-0"]


def test_empty_text_creates_no_block():
    parts = decode(script().text([""]).function_call("f", {}).text([""]).chunks())
    assert of(parts, TextStart) == []


@requirement("R63")
def test_function_call_keeps_api_id():
    for parts in both(script().function_call("weather", {"city": "Köln"}, call_id="x8i00o1q", signature="s")):
        call = one(parts, ToolCall)
        assert (call.id, call.name, call.input, call.provider_executed) == (
            "x8i00o1q",
            "weather",
            {"city": "Köln"},
            False,
        )
        assert json.loads(input_text(parts, call.id)) == call.input
        assert one(parts, Finish).reason == "tool-calls"
        assert session(parts)["parts"] == [
            {
                "call_id": "x8i00o1q",
                "part": {
                    "functionCall": {"name": "weather", "id": "x8i00o1q", "args": {"city": "Köln"}},
                    "thoughtSignature": "s",
                },
            }
        ]


@requirement("R63")
def test_generated_call_ids_are_not_kept_in_session():
    for parts in both(script().function_call("a", {"n": 1}).function_call("a", {"n": 2})):
        first, second = of(parts, ToolCall)
        assert first.id != second.id
        assert [entry["part"]["functionCall"] for entry in session(parts)["parts"]] == [
            {"name": "a", "args": {"n": 1}},
            {"name": "a", "args": {"n": 2}},
        ]


def test_generated_call_ids_differ_between_responses():
    ids = {one(decode(GeminiScript(response_id=name).function_call("f", {}).chunks()), ToolCall).id for name in "ab"}
    assert len(ids) == 2


@requirement("F50")
def test_generated_call_ids_differ_when_response_ids_are_missing():
    chunks = [{**chunk, "responseId": None} for chunk in script().function_call("f", {}).chunks()]
    histories = [(ChatMessage.user("a"),), (ChatMessage.user("a"), ChatMessage.user("b"))]
    ids = [one(decode(chunks, messages=history), ToolCall).id for history in histories]
    assert len({*ids}) == 2
    assert one(decode(chunks, messages=histories[0]), ToolCall).id == ids[0]


def test_call_without_arguments_has_empty_input():
    for parts in both(script().function_call("now")):
        assert one(parts, ToolCall).input == {}
        assert json.loads(input_text(parts, one(parts, ToolCall).id)) == {}


def test_repeated_call_id_makes_separate_call():
    parts = decode(
        script().function_call("f", {"n": 1}, call_id="x").function_call("f", {"n": 2}, call_id="x").chunks()
    )
    assert [call.input for call in of(parts, ToolCall)] == [{"n": 1}, {"n": 2}]
    assert len({call.id for call in of(parts, ToolCall)}) == 2


@requirement("R63")
def test_streamed_arguments_form_growing_json():
    pieces = [
        ("$.recipe.ingredients[0].amount", "16 oz"),
        ("$.recipe.ingredients[0].name", 'Lasagna "wide"\n'),
        ("$.recipe.ingredients[1].amount", None),
        ("$.recipe.steps[0]", "Preheat to 190°C"),
        ("$.recipe.steps[1]", ""),
        ("$.recipe['odd key'].deep", True),
        ("$.count", 3),
        ("$.ratio", 0.5),
    ]
    expected = {
        "recipe": {
            "ingredients": [{"amount": "16 oz", "name": 'Lasagna "wide"\n'}, {"amount": None}],
            "steps": ["Preheat to 190°C", ""],
            "odd key": {"deep": True},
        },
        "count": 3,
        "ratio": 0.5,
    }
    for parts in both(script().streamed_call("cook", *pieces, signature="s")):
        call = one(parts, ToolCall)
        assert call.input == expected
        assert json.loads(input_text(parts, call.id)) == expected
        assert session(parts)["parts"][0]["part"] == {
            "functionCall": {"name": "cook", "args": expected},
            "thoughtSignature": "s",
        }


def test_out_of_order_argument_pieces_form_correct_input():
    pieces = [("$.a.x", 1), ("$.b", 2), ("$.a.y", 3)]
    parts = decode(script().streamed_call("f", *pieces).chunks())
    call = one(parts, ToolCall)
    assert call.input == {"a": {"x": 1, "y": 3}, "b": 2}
    assert input_text(parts, call.id) == '{"a":{"x":1},"b":2'  # An object that was closed cannot grow in the text.


@requirement("F18")
def test_interleaved_streamed_calls_stay_separate():
    def piece(call_id: str, **fields: object) -> dict[str, object]:
        return {"functionCall": {"id": call_id, "willContinue": True, **fields}}

    def argument(path: str, text: str) -> list[dict[str, object]]:
        return [{"jsonPath": path, "stringValue": text, "willContinue": True}]

    interleaved = [
        piece("a", name="f"),
        piece("b", name="g"),
        piece("a", partialArgs=argument("$.x", "one ")),
        piece("b", partialArgs=argument("$.y", "two ")),
        piece("a", partialArgs=argument("$.x", "more")),
        piece("b", partialArgs=argument("$.y", "less"), willContinue=False),
        piece("a", willContinue=False),
    ]
    composed = script()
    for part in interleaved:
        composed.part(part)
    parts = decode(composed.chunks())
    assert {call.id: (call.name, call.input) for call in of(parts, ToolCall)} == {
        "a": ("f", {"x": "one more"}),
        "b": ("g", {"y": "two less"}),
    }
    for call in of(parts, ToolCall):
        assert json.loads(input_text(parts, call.id)) == call.input


def test_unfinished_call_is_emitted_with_input_error():
    composed = script().part({"functionCall": {"name": "rm", "willContinue": True}})
    composed.part(
        {"functionCall": {"partialArgs": [{"jsonPath": "$.path", "stringValue": "/tm"}], "willContinue": True}}
    )
    parts = decode(composed.chunks())
    call = one(parts, ToolCall)
    assert call.input is None
    assert call.input_error == "the input is incomplete"


@requirement("R62")
def test_code_and_result_emit_events_call_and_result():
    for parts in both(script().code("print(1)", "1\n", call_id="c1", signature="s").text("One.")):
        events = of(parts, ToolEvent)
        assert [(e.provider_tool, e.provider_stage, e.call_id) for e in events] == [
            ("code_execution", "interpreting", "c1"),
            ("code_execution", "completed", "c1"),
        ]
        assert events[0].event == {
            "executableCode": {"language": "PYTHON", "code": "print(1)", "id": "c1"},
            "thoughtSignature": "s",
        }
        call, result = one(parts, ToolCall), one(parts, ToolResult)
        assert (call.provider_tool, call.input, call.provider_executed) == (
            "code_execution",
            {"language": "PYTHON", "code": "print(1)"},
            True,
        )
        assert (result.id, result.result, result.is_error) == ("c1", {"outcome": "OUTCOME_OK", "output": "1\n"}, False)
        assert parts.index(events[0]) < parts.index(call) < parts.index(events[1]) < parts.index(result)
        assert one(parts, Finish).usage.server_tool_use == {"code_execution": 1}
        assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize("outcome", ["OUTCOME_FAILED", "OUTCOME_DEADLINE_EXCEEDED"])
def test_failed_code_is_error_result(outcome: str):
    parts = decode(script().code("1/0", "ZeroDivisionError", outcome=outcome).chunks())
    assert one(parts, ToolResult).is_error
    assert of(parts, ToolEvent)[-1].stage == "failed"


def test_image_in_code_output_becomes_file_of_call():
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}\n"
    for parts in both(script().code("plot()", url, call_id="c1").code("1", "1", call_id="c2")):
        file = one(parts, File)
        assert (file.data, file.mime_type, file.name) == (PNG, "image/png", "image_0.png")
        assert (file.tool, file.call_id) == ("code_interpreter", "c1")


def test_code_without_ids_is_paired_with_next_result():
    parts = decode(script().code("1", "1").code("2", "2").chunks())
    assert [result.id for result in of(parts, ToolResult)] == [call.id for call in of(parts, ToolCall)]


def test_result_without_call_creates_call():
    parts = decode(script().part({"codeExecutionResult": {"outcome": "OUTCOME_OK", "id": "c9"}}).chunks())
    assert one(parts, ToolCall).id == one(parts, ToolResult).id == "c9"


def test_second_result_of_call_is_only_event():
    composed = script().code("1", "1", call_id="c").part({"codeExecutionResult": {"outcome": "OUTCOME_OK", "id": "c"}})
    parts = decode(composed.chunks())
    assert len(of(parts, ToolResult)) == 1
    assert len(of(parts, ToolEvent)) == 3


@requirement("R14")
@pytest.mark.parametrize(
    ("tool_type", "key"),
    [
        ("GOOGLE_SEARCH_WEB", "google_search"),
        ("GOOGLE_SEARCH_IMAGE", "google_search"),
        ("URL_CONTEXT", "url_context"),
        ("GOOGLE_MAPS", "google_maps"),
        ("FILE_SEARCH", "file_search"),
        ("SOMETHING_NEW", "something_new"),
    ],
)
def test_hosted_calls_use_key_of_their_type(tool_type: str, key: str):
    composed = script().tool_call(tool_type, {"queries": ["x"]}, call_id="t1", signature="a")
    composed.tool_response(tool_type, {"found": 1}, call_id="t1", signature="b").text("Done.")
    for parts in both(composed):
        assert [event.provider_tool for event in of(parts, ToolEvent)] == [key, key]
        assert (one(parts, ToolCall).provider_tool, one(parts, ToolCall).input) == (key, {"queries": ["x"]})
        assert one(parts, ToolResult).result == {"found": 1}
        assert [entry["part"].get("thoughtSignature") for entry in session(parts)["parts"][:2]] == ["a", "b"]


@requirement("R62")
def test_inline_data_becomes_file_of_its_code_call():
    composed = script().code("plot()", "ok", call_id="c1").inline_data(PNG).inline_data(b"a,b\n1,2\n", "text/csv")
    for parts in both(composed):
        image, table = of(parts, File)
        assert (image.mime_type, image.name, image.data, image.tool, image.call_id) == (
            "image/png",
            "image_0.png",
            PNG,
            "code_interpreter",
            "c1",
        )
        assert (table.mime_type, table.name, table.data) == ("text/csv", "file_1.csv", b"a,b\n1,2\n")
        assert [part.name for m in messages(parts) for part in m.parts if isinstance(part, DataPart)] == [
            "image_0.png",
            "file_1.csv",
        ]


def test_image_type_comes_from_content_not_claim():
    parts = decode(script().inline_data(PNG, "image/jpeg").inline_data(b"<html>", "image/png").chunks())
    assert [(file.mime_type, file.name) for file in of(parts, File)] == [
        ("image/png", "image_0.png"),
        ("text/plain", "image_1.txt"),
    ]


def test_raw_audio_keeps_its_claimed_type():
    parts = decode(script().inline_data(b"\x00\x01\x02\xff" * 9, "audio/L16;codec=pcm;rate=24000").chunks())
    assert one(parts, File).mime_type == "audio/L16;codec=pcm;rate=24000"


def test_thought_image_is_not_deliverable():
    for parts in both(script().inline_data(PNG, thought=True).inline_data(PNG)):
        assert one(parts, Custom).kind == "google.thought-image"
        assert len(of(parts, File)) == 1


def test_thought_images_are_numbered_from_zero():
    for parts in both(script().inline_data(PNG, thought=True).inline_data(PNG, thought=True)):
        assert [as_object(part.data)["index"] for part in of(parts, Custom)] == [0, 1]


def test_file_uri_becomes_link():
    parts = decode(script().part({"fileData": {"fileUri": "gs://b/x.png", "mimeType": "image/png"}}).chunks())
    assert one(parts, File).url == "gs://b/x.png"
    assert [part for m in messages(parts) for part in m.parts] == [LinkPart("gs://b/x.png", "image/png")]


@requirement("R63")
def test_signatures_keep_their_text_span():
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "Hello ", "thoughtSignature": "first"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "wor"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "ld"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "", "thoughtSignature": "last"}]}, "finishReason": "STOP"}]},
    ]
    parts = decode(chunks)
    assert one(parts, TextEnd).id == "text-0"
    assert session(parts)["parts"] == [
        {"text_id": "text-0", "start": 0, "end": 6, "thoughtSignature": "first"},
        {"text_id": "text-0", "start": 6, "end": 11},
        {"text_id": "text-0", "start": 11, "end": 11, "thoughtSignature": "last"},
    ]


def test_lone_signature_keeps_its_position():
    for parts in both(script().function_call("f", {}, call_id="1").part({"text": "", "thoughtSignature": "t"})):
        assert session(parts)["parts"][1] == {"part": {"text": "", "thoughtSignature": "t"}}
    parts = decode(script().part({"thoughtSignature": "alone"}).chunks())
    assert session(parts)["parts"] == [{"part": {"thoughtSignature": "alone"}}]


@requirement("R64")
def test_first_phase_text_is_draft_not_output():
    composed = script().thought("Hm.").tool_call("URL_CONTEXT", call_id="t").text("It is 42.", signature="s")
    composed.grounding({"web": {"uri": "https://x.example", "title": "x"}}, supports=[(0, 9, "It is 42.", [0])])
    for parts in both(composed, drafts=True):
        assert of(parts, TextStart) == []
        assert one(parts, Custom) == Custom("sidestream.draft", {"text": "It is 42."})
        assert one(parts, Finish).metadata["draft"] == "It is 42."
        drafts = [entry["part"] for entry in session(parts)["parts"] if "text" in entry.get("part", {})]
        assert "".join(part["text"] for part in drafts) == "It is 42."
        assert drafts[-1]["thoughtSignature"] == "s"


def test_non_streaming_answer_may_be_list_of_chunks():
    composed = script().text("Hello world")
    assert streamed_text(decode_whole(composed.chunks())) == "Hello world"


def names(parts: list[StreamPart]) -> list[str]:
    return [type(part).__name__ for part in parts]


def test_hosted_input_starts_before_its_call():
    parts = inside(decode(script().code("1", "1").chunks()))
    assert names(parts)[:2] == ["ToolEvent", "ToolInputStart"]
    assert of(parts, ToolInputStart)[0].provider_executed

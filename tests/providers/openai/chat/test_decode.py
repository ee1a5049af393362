"""What each field of a chunk becomes."""

import base64
import json
from typing import Any

import pytest

from providers.openai.chat.chat_wire import USAGE, call_piece, chunk, decode, decode_whole, emitted, stream, whole
from requirements import requirement
from sidestream.messages.message import ChatMessage, TextPart, ThinkingPart
from sidestream.parts import (
    File,
    Finish,
    InputUsage,
    OutputUsage,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
)
from sidestream.testing.chat_script import ChatScript
from support.streams import PNG, input_text, messages, of, one, streamed_text

TEXT = "chatcmpl-1:text"
REASONING = "chatcmpl-1:reasoning"
CITATION = {
    "type": "url_citation",
    "url_citation": {"start_index": 3, "end_index": 9, "url": "https://example.com/a", "title": "A"},
}


@requirement("R90")
def test_text_streams_as_one_block():
    assert emitted({"content": ""}, {"content": "Hi "}, {"content": "you"}) == [
        TextStart(TEXT),
        TextDelta(TEXT, "Hi "),
        TextDelta(TEXT, "you"),
        TextEnd(TEXT),
    ]


@requirement("R90")
def test_response_metadata_is_emitted_once_with_nonempty_id():
    azure = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{"a": 1}]}
    parts = decode([azure, *stream({"content": "Hi"})])
    assert one(parts, ResponseMetadata) == ResponseMetadata("chatcmpl-1", "gpt-5.6", 1762317021, "openai")
    assert one(parts, Finish).metadata["prompt_filter_results"] == [{"a": 1}]
    assert of(parts, Raw) == []


@requirement("R90", "F05")
def test_refusal_is_separate_text_with_content_filter_reason():
    parts = decode(stream({"refusal": "I "}, {"refusal": "cannot."}))
    assert streamed_text(parts) == "I cannot."
    assert one(parts, TextStart).provider_metadata == {"openai": {"refusal": True}}
    assert (one(parts, Finish).reason, one(parts, Finish).raw_reason) == ("content-filter", "refusal")
    assert messages(parts)[0].text == "I cannot."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_block_ends_when_text_starts(field: str):
    assert emitted({field: "First "}, {field: "thought"}, {"content": "So."}) == [
        ReasoningStart(REASONING),
        ReasoningDelta(REASONING, "First "),
        ReasoningDelta(REASONING, "thought"),
        ReasoningEnd(REASONING),
        TextStart(TEXT),
        TextDelta(TEXT, "So."),
        TextEnd(TEXT),
    ]


def test_reasoning_under_both_names_is_emitted_once():
    assert one(emitted({"reasoning_content": "Hm", "reasoning": "Hm"}), ReasoningDelta).delta == "Hm"


def test_reasoning_after_text_is_second_block():
    parts = emitted({"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, {"content": "d"})
    assert [part.id for part in of(parts, ReasoningStart)] == [REASONING, f"{REASONING}:1"]
    assert one(parts, TextStart).id == TEXT
    assert streamed_text(parts) == "bd"


def test_reasoning_details_are_kept_on_reasoning_end():
    details = [{"type": "reasoning.encrypted", "data": "gAAA"}]
    parts = emitted({"reasoning": "Hm", "reasoning_details": []}, {"reasoning_details": details}, {"content": "So."})
    assert one(parts, ReasoningEnd).provider_metadata == {"openai": {"reasoning_details": details}}
    assert of(parts, Raw) == []


def test_content_may_be_list_of_text_and_thinking():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    parts = emitted({"content": [thinking]}, {"content": [{"type": "text", "text": "So."}]})
    assert (one(parts, ReasoningDelta).delta, one(parts, TextDelta).delta) == ("Hm", "So.")


def test_unknown_content_kind_is_raw():
    strange = {"type": "hologram", "data": 1}
    parts = emitted({"content": [strange, {"type": "text", "text": "So."}]})
    assert one(parts, Raw).event["choices"][0]["delta"]["content"][0] == strange
    assert streamed_text(parts) == "So."


# Tool calls


@requirement("R90")
def test_call_streams_arguments_and_is_emitted_at_end():
    pieces = [
        call_piece(0, "get", "", id="call_1", type="function"),
        call_piece(0, None, '{"a":'),
        call_piece(0, None, "1}"),
    ]
    assert emitted(*pieces, reason="tool_calls") == [
        ToolInputStart("call_1", "get", False),
        ToolInputDelta("call_1", '{"a":'),
        ToolInputDelta("call_1", "1}"),
        ToolInputEnd("call_1"),
        ToolCall("call_1", "get", "get", False, {"a": 1}),
    ]


@requirement("R90", "F18")
def test_interleaved_parallel_calls_are_told_apart_by_index():
    parts = decode(
        stream(
            call_piece(0, "a", '{"x"', id="call_a"),
            call_piece(1, "b", '{"y"', id="call_b"),
            call_piece(0, None, ":1}"),
            call_piece(1, None, ":2}"),
            reason="tool_calls",
        )
    )
    assert [(c.id, c.name, c.input) for c in of(parts, ToolCall)] == [
        ("call_a", "a", {"x": 1}),
        ("call_b", "b", {"y": 2}),
    ]
    assert [input_text(parts, call_id) for call_id in ("call_a", "call_b")] == ['{"x":1}', '{"y":2}']
    assert one(parts, Finish).reason == "tool-calls"


@requirement("R90")
@pytest.mark.parametrize("arguments", ['{"city":"Rome"}', {"city": "Rome"}], ids=["text", "object"])
def test_complete_arguments_in_one_piece_are_accepted(arguments: Any):
    parts = emitted(call_piece(0, "get", arguments, id="call_1"))
    assert one(parts, ToolCall).input == {"city": "Rome"}
    assert input_text(parts, "call_1") == '{"city":"Rome"}'


@requirement("R90")
@pytest.mark.parametrize("index", [None, 0], ids=["no index", "one index"])
def test_calls_sharing_index_are_told_apart_by_id(index: int | None):
    parts = emitted(call_piece(index, "a", "{}", id="call_a"), call_piece(index, "b", "{}", id="call_b"))
    assert [(call.id, call.name) for call in of(parts, ToolCall)] == [("call_a", "a"), ("call_b", "b")]


def test_pieces_without_index_join_named_or_last_call():
    parts = emitted(
        call_piece(None, "a", '{"x"', id="call_a"),
        call_piece(None, None, ":1}"),
        call_piece(None, "b", "", id="call_b"),
        call_piece(None, None, "{}", id="call_b"),
    )
    assert [(c.id, c.input) for c in of(parts, ToolCall)] == [("call_a", {"x": 1}), ("call_b", {})]


def test_calls_without_index_and_id_are_told_apart_by_name():
    parts = emitted(call_piece(None, "a", "{}"), call_piece(None, "b", "{}"))
    assert [call.name for call in of(parts, ToolCall)] == ["a", "b"]
    assert len({call.id for call in of(parts, ToolCall)}) == 2


@requirement("R90")
def test_generated_call_id_is_stable_per_conversation():
    def made(history: str) -> str:
        messages = (ChatMessage.user(history),)
        return one(decode(stream(call_piece(0, "get", "{}")), messages=messages), ToolCall).id

    assert made("one") == made("one") != made("two")
    assert made("one").startswith("call_")


def test_repeated_call_id_is_given_only_to_first_call():
    parts = emitted(call_piece(0, "a", "{}", id="call_1"), call_piece(1, "b", "{}", id="call_1"))
    ids = [call.id for call in of(parts, ToolCall)]
    assert ids[0] == "call_1"
    assert len(set(ids)) == 2


def test_name_may_be_split_or_repeated():
    in_pieces = [call_piece(0, "get_", id="call_1"), call_piece(0, "weather"), call_piece(0, None, "{}")]
    assert one(emitted(*in_pieces), ToolCall).name == "get_weather"
    again = [call_piece(0, "get", '{"a"', id="call_1"), call_piece(0, "get", ":1}", id="call_1")]
    assert (one(emitted(*again), ToolCall).name, one(emitted(*again), ToolCall).input) == ("get", {"a": 1})


def test_arguments_before_name_wait_for_it():
    parts = emitted(call_piece(0, None, '{"a"', id="call_1"), call_piece(0, "get", ":1}"))
    assert one(parts, ToolInputStart).name == "get"
    assert (input_text(parts, "call_1"), one(parts, ToolCall).input) == ('{"a":1}', {"a": 1})


def test_call_without_arguments_has_empty_object():
    parts = emitted(call_piece(0, "now", "", id="call_1"))
    assert (one(parts, ToolCall).input, input_text(parts, "call_1")) == ({}, "{}")


def test_changed_id_without_name_continues_call():
    parts = emitted(call_piece(0, "get", '{"a"', id="call_1"), call_piece(0, None, ":1}", id="call_2"))
    assert (one(parts, ToolCall).id, one(parts, ToolCall).input) == ("call_1", {"a": 1})


def test_custom_tool_input_is_json_string():
    events = ChatScript().custom_call("sql", ['SELECT "a"\n', "FROM b"], "call_1").chunks()
    parts = decode(events)
    assert one(parts, ToolCall).input == 'SELECT "a"\nFROM b'
    assert json.loads(input_text(parts, "call_1")) == 'SELECT "a"\nFROM b'
    assert one(parts, Finish).reason == "tool-calls"


@pytest.mark.parametrize("stream_it", [True, False])
def test_legacy_function_call_becomes_tool_call(stream_it: bool):
    if stream_it:
        pieces = [{"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"a":1}'}}]
        parts = decode(stream(*pieces, reason="function_call"))
    else:
        parts = decode_whole(
            whole({"content": None, "function_call": {"name": "get", "arguments": '{"a":1}'}}, "function_call")
        )
    assert (one(parts, ToolCall).name, one(parts, ToolCall).input) == ("get", {"a": 1})
    assert (one(parts, Finish).reason, one(parts, Finish).raw_reason) == ("tool-calls", "function_call")


# Sources, speech, probabilities


def test_citations_become_sources_with_text_span():
    parts = emitted({"content": "See Rome"}, {"annotations": [CITATION]}, {"annotations": [CITATION]})
    assert one(parts, Source) == Source(
        f"{TEXT}:source:0", "url", url="https://example.com/a", title="A", start=3, end=9, text_id=TEXT
    )
    assert one(parts, TextEnd).annotations == (CITATION,)


def test_citations_after_finish_reason_become_sources():
    parts = decode([*stream({"content": "See Rome"}), chunk({"annotations": [CITATION]})])
    assert one(parts, Source).text_id == TEXT
    assert of(parts, Raw) == []


def test_unknown_annotation_is_raw_and_kept():
    parts = emitted({"content": "Hi"}, {"annotations": [{"type": "map_pin"}]})
    assert one(parts, Raw).event == {"type": "map_pin"}
    assert one(parts, TextEnd).annotations == ({"type": "map_pin"},)


@pytest.mark.parametrize("cut", [None, 5], ids=["each encoded by itself", "one text cut anywhere"])
def test_speech_becomes_text_and_file(cut: int | None):
    data = bytes(range(100))
    encoded = base64.b64encode(data).decode()
    pieces = [base64.b64encode(data[:50]).decode(), base64.b64encode(data[50:]).decode()]
    if cut:
        pieces = [encoded[n : n + cut] for n in range(0, len(encoded), cut)]
    parts = decode(ChatScript(id="chatcmpl-1").audio(pieces, "Hello you").chunks(), audio_format="pcm16")
    assert streamed_text(parts) == "Hello you"
    assert one(parts, TextStart).provider_metadata == {"openai": {"transcript": True}}
    assert one(parts, File) == File(
        "audio_1",
        "audio/pcm",
        "audio.pcm",
        data,
        provider_metadata={"openai": {"id": "audio_1", "expires_at": 1762320621}},
    )


def test_invalid_base64_speech_is_raw():
    parts = decode(ChatScript().audio(["***"], "Hello").chunks())
    assert of(parts, File) == []
    assert one(parts, Raw).event["audio"]["data"] == "***"


def test_logprobs_are_on_text_delta_or_finish():
    one_token, other = {"token": "Hi", "logprob": -0.1}, {"token": "{", "logprob": -0.2}
    with_text = chunk({"content": "Hi"})
    with_text["choices"][0]["logprobs"] = {"content": [one_token], "refusal": None}
    with_call = chunk(call_piece(0, "get", "{}", id="call_1"))
    with_call["choices"][0]["logprobs"] = {"content": [other]}
    parts = decode([with_text, with_call, chunk({}, "stop")])
    assert one(parts, TextDelta).provider_metadata == {"openai": {"logprobs": [one_token]}}
    assert one(parts, Finish).metadata["logprobs"] == [other]


# The end


@requirement("R7", "R90")
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content-filter"),
        ("eos", "stop"),
        ("model_length", "length"),
        ("abort", "other"),
        ("tool_calls", "stop"),
    ],
)
def test_finish_reasons_are_mapped_and_raw_reason_is_kept(word: str, reason: str):
    finish = one(decode(stream({"content": "Hi"}, reason=word)), Finish)
    assert (finish.reason, finish.raw_reason) == (reason, word)


@requirement("R90")
def test_calls_override_stop_reason():
    assert one(decode(stream(call_piece(0, "get", "{}", id="call_1"))), Finish).reason == "tool-calls"


@requirement("R8", "R90")
def test_usage_is_read_from_last_chunk_without_choices():
    finish = one(decode([*stream({"content": "Hi"}), chunk(usage=USAGE, choices=[])]), Finish)
    assert finish.usage == Usage(InputUsage(30, 15, 10, 5), OutputUsage(9, 5, 4), raw=USAGE)


def test_repeated_usage_counts_once_and_missing_usage_is_zero():
    counted = [chunk({"content": "a"}, usage={"completion_tokens": n}) for n in (1, 2, 3)]
    assert one(decode([*counted, chunk({}, "stop")]), Finish).usage.output.total == 3
    assert one(decode(stream({"content": "a"})), Finish).usage == Usage()


def test_usage_counts_reasoning_reported_separately():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 22,
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    assert one(decode([*stream({"content": "a"}), chunk(usage=usage, choices=[])]), Finish).usage.output == OutputUsage(
        12, 5, 7
    )


@pytest.mark.parametrize("place", ["x_groq", "choice", "choice of delta"])
def test_usage_is_found_in_choice_or_vendor_field(place: str):
    delta, last = chunk({"content": "a"}), chunk({}, "stop")
    match place:
        case "choice":
            last["choices"][0]["usage"] = USAGE
        case "choice of delta":
            delta["choices"][0]["usage"] = USAGE
        case _:
            last["x_groq"] = {"id": "req_1", "usage": USAGE}
    assert one(decode([chunk({"content": "H"}), delta, last]), Finish).usage.input.total == 30


def test_response_facts_are_in_finish_metadata():
    facts = {
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "timings": {"predicted_n": 9},
        "obfuscation": "xx",
    }
    last = chunk({}, "stop", **facts, response_id="forged")
    last["choices"][0]["stop_reason"] = "###"
    finish = one(decode([chunk({"content": "a"}), last]), Finish)
    assert finish.metadata == {
        "response_id": "chatcmpl-1",
        "model": "gpt-5.6",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "timings": {"predicted_n": 9},
        "stop_reason": "###",
    }


@requirement("R9", "R90")
@pytest.mark.parametrize(
    "script",
    [
        ChatScript().text(["Hi ", "you"], annotations=[CITATION]),
        ChatScript().reasoning("Hm").text("So."),
        ChatScript().refusal("No."),
        ChatScript().text("I look.").tool_call("a", {"x": 1}).tool_call("b", {}),
        ChatScript().custom_call("sql", "SELECT 1"),
        ChatScript().tool_call("a", ['{"x": ']).stop("length"),
        ChatScript().audio([base64.b64encode(PNG).decode()], "Hello"),
        ChatScript(usage=None).text("Hi").stop("length"),
    ],
)
def test_non_streaming_answer_matches_its_stream(script: ChatScript):
    streamed, at_once = decode(script.chunks()), decode_whole(script.response())
    assert messages(streamed) == messages(at_once)
    for kind in (ResponseMetadata, ToolCall, Source, TextEnd, File, Finish):
        assert of(streamed, kind) == of(at_once, kind)


def test_non_streaming_calls_without_ids_stay_separate():
    calls = [{"type": "function", "function": {"name": name, "arguments": ""}} for name in ("now", "here")]
    parts = decode_whole(whole({"content": None, "tool_calls": calls}, "tool_calls"))
    assert [(call.name, call.input) for call in of(parts, ToolCall)] == [("now", {}), ("here", {})]


def test_non_streaming_answer_without_reason_is_complete():
    assert one(decode_whole(whole({"content": "Hi"}, None)), Finish).reason == "stop"


def test_complete_message_in_stream_is_read_once():
    alone = decode([whole({"content": "Hi"})])
    assert (streamed_text(alone), one(alone, Finish).reason) == ("Hi", "stop")
    repeated = decode(
        [*stream({"content": "Hi"}), {**whole({"content": "Hi"}), "choices": whole({"content": "Hi"})["choices"]}]
    )
    assert streamed_text(repeated) == "Hi"


def test_message_contains_thinking_and_text():
    (message,) = messages(decode(stream({"reasoning": "Hm"}, {"content": "So."})))
    assert [type(part) for part in message.parts] == [ThinkingPart, TextPart]

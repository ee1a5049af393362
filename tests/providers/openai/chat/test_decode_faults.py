"""What goes wrong in streams: cut, broken, repeated, late, unknown."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from providers.openai.chat.chat_wire import call_piece, chunk, decode, decode_whole, stream, whole
from requirements import requirement
from sidestream.parts import Error, Finish, Raw, TextDelta, TextEnd, ToolCall, ToolInputEnd
from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.testing.chat_script import ChatScript
from support.streams import of, one, streamed_text

FULL = ChatScript().reasoning("Hm").text("I look.").tool_call("get", {"a": 1}).tool_call("get", {"a": 2})


@requirement("F01", "R90")
@pytest.mark.parametrize("count", range(len(FULL.chunks()) - 1))
def test_stream_cut_before_finish_reason_is_truncated(count: int):
    parts = decode(FULL.chunks()[:count])
    assert one(parts, Error).kind == "truncated"
    assert one(parts, Finish).reason == "error"
    assert of(parts, ToolCall) == []


def test_finish_reason_alone_completes_stream():
    assert one(decode(stream({"content": "Hi"})), Finish).reason == "stop"


@requirement("F01")
def test_broken_connection_is_error_after_finish_reason():
    decoder = CompletionsDecoder(CompletionsContext())
    for event in stream({"content": "Hi"}):
        decoder.feed(json.dumps(event).encode())
    *_, error, finish = decoder.close(Error("timeout", "too late"))
    assert (error, finish) == (Error("timeout", "too late"), Finish("error", finish.usage, "timeout"))  # type: ignore[union-attr]
    assert decoder.close() == []


@requirement("F03", "R90")
@pytest.mark.parametrize(
    ("event", "kind", "code", "retryable"),
    [
        ({"error": {"message": "m", "type": "server_error", "code": None}}, "provider", "server_error", True),
        ({"error": {"message": "m", "code": 429}}, "rate-limit", "429", True),
        ({"error": {"message": "m", "code": 599}}, "provider", "599", True),
        ({"error": {"message": "m", "code": 600}}, "provider", "600", False),
        ({"error": {"message": "m", "code": 400, "type": "exceed_context_size_error"}}, "provider", "400", False),
        ({"error": {"message": "m", "code": "insufficient_quota"}}, "rate-limit", "insufficient_quota", False),
        ({"error": "m"}, "provider", None, False),
        ({"object": "error", "message": "m", "type": "invalid"}, "provider", "invalid", False),
        (
            {
                "id": "x",
                "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
                "error": {"message": "m", "code": 502},
            },
            "provider",
            "502",
            True,
        ),
    ],
)
def test_stream_error_ends_stream(event: Any, kind: str, code: str | None, retryable: bool):
    parts = decode([chunk({"content": "Half"}), event, chunk({"content": " more"}), chunk({}, "stop")])
    error = one(parts, Error)
    assert (error.kind, error.message, error.code, error.retryable) == (kind, "m", code, retryable)
    assert (streamed_text(parts), one(parts, Finish).reason) == ("Half", "error")


@requirement("F03")
def test_error_finish_reason_is_error():
    parts = decode([*stream({"content": "Half"}, reason="error")])
    assert (one(parts, Error).kind, one(parts, Finish).reason) == ("provider", "error")


@requirement("F16", "R90")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no such model", "code": "model_not_found"}}, "no such model"),
        (b"<html>", "the body is not JSON"),
        (b"[1]", "the body is not a chat completion: it has no choices"),
        ({"choices": []}, "the body is not a chat completion: it has no choices"),
    ],
)
def test_invalid_non_streaming_body_is_error(body: Any, message: str):
    parts = decode_whole(body)
    assert one(parts, Error).message == message
    assert one(parts, Finish).reason == "error"


@requirement("F04")
def test_arguments_truncated_by_limit_have_no_input():
    parts = decode(ChatScript().tool_call("get", '{"city": "Ro', "call_1").stop("length").chunks())
    call = one(parts, ToolCall)
    assert (call.input, call.input_text) == (None, '{"city": "Ro')
    assert one(parts, Finish).reason == "length"
    custom = one(decode(ChatScript().custom_call("sh", "rm -r /tmp/x").stop("length").chunks()), ToolCall)
    assert custom.input_error == "the input is incomplete"


@requirement("F13", "R90")
@pytest.mark.parametrize("text", ['{"a": ', "[1]", "get(1)", '{"a": NaN}'])
def test_broken_arguments_are_emitted_as_text(text: str):
    call = one(decode(stream(call_piece(0, "get", text, id="call_1"))), ToolCall)
    assert call.input is None
    assert call.input_error
    assert call.input_text == text


@requirement("F06", "R90")
@pytest.mark.parametrize("event", [{"hello": 1}, {}, [], 7, None, "text", {"object": "thread.run"}])
def test_unknown_event_is_raw_and_text_is_intact(event: Any):
    parts = decode(
        [chunk({"content": "Hi "}), json.dumps(event).encode(), chunk({"content": "you"}), chunk({}, "stop")]
    )
    assert one(parts, Raw) == Raw("openai", event)
    assert streamed_text(parts) == "Hi you"


@requirement("F06")
def test_unknown_delta_field_is_raw_beside_known_fields():
    event = chunk({"content": "Hi", "videos": [{"type": "video_url"}]})
    parts = decode([event, chunk({"content": "!", "videos": []}), chunk({}, "stop")], provider="openrouter")
    assert one(parts, Raw) == Raw("openrouter", event)
    assert streamed_text(parts) == "Hi!"


@requirement("F07", "R90")
@pytest.mark.parametrize(
    "delta",
    [
        {"content": 7},
        {"content": [7]},
        {"refusal": {}},
        {"reasoning": {"text": "Hm"}},
        {"tool_calls": "get"},
        {"tool_calls": [7]},
        {"tool_calls": [{"index": "0", "function": {"name": "get"}}]},
        {"tool_calls": [{"index": 0, "function": "get"}]},
        {"function_call": []},
        {"audio": "data"},
        {"annotations": {}},
        "text",
        ["text"],
    ],
)
def test_malformed_field_is_raw_and_text_is_intact(delta: Any):
    event = chunk(delta)
    parts = decode([chunk({"content": "Hi "}), event, chunk({"content": "you"}), chunk({}, "stop")])
    assert one(parts, Raw).event == event
    assert (streamed_text(parts), of(parts, ToolCall)) == ("Hi you", [])


@requirement("F07")
@pytest.mark.parametrize("event", [{"choices": {}}, {"choices": [7]}, {"choices": "x"}, chunk({}, 7)])
def test_malformed_choices_are_raw(event: Any):
    parts = decode([event, *stream({"content": "Hi"})])
    assert one(parts, Raw).event == event
    assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize(
    "field", ["content", "refusal", "tool_calls", "function_call", "audio", "annotations", "reasoning"]
)
def test_null_field_is_ignored(field: str):
    parts = decode(stream({field: None}, {"content": "Hi"}))
    assert of(parts, Raw) == []
    assert streamed_text(parts) == "Hi"


@requirement("F08")
@pytest.mark.parametrize("data", [b"", b"[DONE]", b"keepalive", b'{"type":"ping"}'])
def test_keep_alives_are_ignored(data: bytes):
    events = stream({"content": "Hi"})
    assert decode([events[0], data, *events[1:], data]) == decode(events)


@requirement("F08")
def test_invalid_utf8_is_replaced():
    parts = decode([b'{"choices":[{"delta":{"content":"a\xffb"}}]}', chunk({}, "stop")])
    assert streamed_text(parts) == "a\ufffdb"


@requirement("F09", "R90")
def test_repeated_start_and_end_are_ignored():
    start = call_piece(0, "get", "", id="call_1")
    parts = decode(
        [chunk(start), chunk(start), chunk(call_piece(0, None, "{}")), chunk({}, "tool_calls"), chunk({}, "stop")]
    )
    assert (one(parts, ToolCall).name, one(parts, Finish).raw_reason) == ("get", "tool_calls")


@requirement("F09")
def test_repeated_complete_arguments_are_raw():
    again = chunk(call_piece(0, None, '{"a":1}'))
    parts = decode(
        [chunk(call_piece(0, "get", '{"a":', id="call_1")), chunk(call_piece(0, None, "1}")), again, chunk({}, "stop")]
    )
    assert one(parts, ToolCall).input == {"a": 1}
    assert one(parts, Raw).event == again


@requirement("F09")
@pytest.mark.parametrize("delta", [{"content": "late"}, call_piece(1, "b", "{}"), {"reasoning": "late"}])
def test_delta_after_finish_reason_is_raw(delta: Any):
    late = chunk(delta)
    parts = decode([*stream({"content": "Hi"}), late, chunk({"role": "assistant", "content": ""})])
    assert one(parts, Raw).event == late
    assert (streamed_text(parts), of(parts, ToolCall)) == ("Hi", [])


def test_other_choices_are_raw():
    other = chunk({"content": "other"})
    other["choices"][0]["index"] = 1
    parts = decode([chunk({"content": "Hi"}), other, chunk({}, "stop")])
    assert (streamed_text(parts), one(parts, Raw).event) == ("Hi", other)


@requirement("F10", "R90")
def test_unnamed_call_starts_and_ends_once():
    parts = decode(stream(call_piece(3, None, '{"a":1}')))
    assert (one(parts, ToolCall).name, one(parts, ToolCall).input) == ("", {"a": 1})
    assert one(parts, ToolInputEnd).id == one(parts, ToolCall).id


def test_empty_piece_starts_no_call():
    assert one(decode(stream({"tool_calls": [{"index": 0}, {}]})), Finish).reason == "stop"


def test_lone_surrogates_survive():
    parts = decode(stream({"content": "\ud83d"}, {"content": "\ude00"}))
    assert [part.delta for part in of(parts, TextDelta)] == ["\ud83d", "\ude00"]
    assert one(parts, TextEnd).text is None


_SCALAR = (
    st.none() | st.booleans() | st.integers(-3, 600) | st.sampled_from(["", "a", "{}", "stop", "tool_calls", "text"])
)
_KEYS = st.sampled_from(
    [
        "id",
        "model",
        "created",
        "choices",
        "index",
        "delta",
        "message",
        "finish_reason",
        "logprobs",
        "usage",
        "error",
        "object",
        "content",
        "refusal",
        "role",
        "audio",
        "data",
        "transcript",
        "tool_calls",
        "function",
        "custom",
        "name",
        "arguments",
        "input",
        "function_call",
        "annotations",
        "type",
        "url_citation",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "text",
        "thinking",
        "prompt_tokens",
    ]
)
_JSON = st.recursive(
    _SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=25
)
_PIECES = st.sampled_from(FULL.chunks())
_DELTAS = st.dictionaries(_KEYS, _JSON, max_size=4).map(chunk)


@requirement("F07", "R5", "R90")
@given(st.lists(_JSON | _PIECES | _DELTAS, max_size=12), st.booleans())
def test_arbitrary_json_leaves_legal_stream(events: list[Any], has_end: bool):
    decode([*(json.dumps(event).encode() for event in events), *([chunk({}, "stop")] if has_end else [])])


@requirement("F07", "R5")
@given(_JSON | st.dictionaries(_KEYS, _JSON, max_size=5).map(whole))
def test_arbitrary_non_streaming_body_leaves_legal_stream(body: Any):
    decode_whole(json.dumps(body).encode())


@requirement("R90")
def test_text_after_refusal_is_separate_block() -> None:
    parts = decode(stream({"refusal": "No"}, {"content": "but"}, {"content": " yes"}))
    texts = [(part.id.rpartition(":")[2], part.delta) for part in parts if isinstance(part, TextDelta)]
    assert texts == [("refusal", "No"), ("text", "but"), ("text", " yes")]

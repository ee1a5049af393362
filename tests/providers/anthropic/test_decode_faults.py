"""Faults of a stream, for every kind of content block: cut, doubled, left out, unknown, unreadable."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from providers.anthropic.messages_wire import EVERY_BLOCK, decode, decode_whole
from requirements import requirement
from sidestream.parts import (
    Error,
    File,
    Finish,
    Raw,
    ReasoningStart,
    ResponseMetadata,
    StreamPart,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputStart,
    ToolResult,
)
from sidestream.testing.messages_script import MessagesScript
from support.streams import Event, messages, of, one, streamed_text, wire

each_block = pytest.mark.parametrize("kind", sorted(EVERY_BLOCK))


def outcome(parts: list[StreamPart]) -> dict[str, object]:
    """What a run leaves behind; events and raw parts are its journey."""
    finish = one(parts, Finish)
    return {
        "messages": [(m.role, m.parts, m.metadata) for m in messages(parts)],
        "calls": of(parts, ToolCall),
        "results": of(parts, ToolResult),
        "files": of(parts, File),
        "end": (finish.reason, finish.raw_reason, finish.usage),
    }


@requirement("F01", "R4")
@each_block
def test_stream_cut_at_any_event_is_truncated(kind: str):
    events = EVERY_BLOCK[kind].events()
    for end in range(len(events)):
        parts = decode(events[:end])
        error, finish = parts[-2:]
        assert isinstance(error, Error)
        assert (error.kind, error.retryable) == ("truncated", True)
        assert isinstance(finish, Finish)
        assert (finish.reason, finish.raw_reason) == ("error", "truncated")
        assert all(message.metadata == {} for message in messages(parts))


@requirement("F01")
def test_stream_without_last_event_is_truncated():
    parts = decode(MessagesScript().text("Hello").events()[:-1])
    assert [m.text for m in messages(parts)] == ["Hello"]
    assert one(parts, Error).kind == "truncated"


@requirement("F03")
@each_block
def test_error_inside_any_block_is_one_error_with_code(kind: str):
    events = EVERY_BLOCK[kind].events()
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for end in range(len(events)):
        parts = decode([*events[:end], failure, *events[end:]])
        error = one(parts, Error)
        assert (error.code, error.retryable) == ("overloaded_error", True)
        assert one(parts, Finish).reason == "error"


@requirement("F03")
def test_error_instead_of_message_is_error():
    answer = {"type": "error", "error": {"type": "api_error", "message": "boom"}, "request_id": "req_1"}
    for parts in (decode_whole(answer), decode([answer]), decode([{"error": answer["error"]}])):
        assert (one(parts, Error).message, one(parts, Error).code) == ("boom", "api_error")


@requirement("F04")
@each_block
def test_message_cut_by_limit_finishes_as_length(kind: str):
    events = EVERY_BLOCK[kind].events()
    limit = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 1}}
    for end in range(1, len(events) - 2):
        parts = decode([*events[:end], limit, {"type": "message_stop"}])
        assert of(parts, Error) == []
        assert one(parts, Finish).reason == "length"
        assert all(call.provider_executed or call.input_error for call in of(parts, ToolCall)[-1:])


@requirement("F06")
@each_block
def test_unknown_event_only_adds_raw_part(kind: str):
    events = EVERY_BLOCK[kind].events()
    clean = decode(events)
    new: Event = {"type": "content_block_telepathy", "index": 0, "thought": 1}
    for place in range(len(events)):
        parts = decode([*events[:place], new, *events[place:]])
        assert one(parts, Raw).event == new
        assert [part for part in parts if not isinstance(part, Raw)] == clean


@requirement("F06")
def test_unknown_block_is_raw_and_text_is_intact():
    block = {"type": "hologram", "id": "h1", "content": None}
    built = MessagesScript().text("Be").block(block, {"type": "hologram_delta", "light": 1}).text("fore")
    parts = decode(built.events())
    strange = [event for event in built.events() if event.get("index") == 1]
    assert [raw.event for raw in of(parts, Raw)] == strange
    assert [m.text for m in messages(parts)] == ["Before"]
    assert one(decode_whole(built.response()), Raw).event == block


@requirement("F06")
def test_unknown_delta_is_raw():
    built = MessagesScript().block({"type": "text", "text": ""}, {"type": "smell_delta", "smell": "rose"}).text("Hi")
    assert one(decode(built.events()), Raw).event["delta"]["type"] == "smell_delta"


def test_unknown_server_side_tool_uses_its_name_as_key():
    parts = decode(MessagesScript().server_tool_use("time_travel", {"to": 1985}).text("Hi").events())
    assert {part.tool for part in of(parts, ToolEvent)} == {"time_travel"}
    assert one(parts, ToolCall).provider_executed


@requirement("F07")
@pytest.mark.parametrize(
    "broken",
    [
        {"type": "message_start", "message": None},
        {"type": "message_start"},
        {"type": "content_block_start", "index": "0", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "index": 5, "content_block": []},
        {"type": "content_block_start", "index": 5, "content_block": {"type": "text", "text": 7}},
        {"type": "content_block_start", "index": 5, "content_block": {"type": "tool_use", "id": "a", "name": None}},
        {"type": "content_block_start", "index": 5, "content_block": {"type": "web_search_tool_result"}},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": None}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": "x"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_stop"},
        {"type": "message_delta", "delta": [], "usage": {}},
        {"type": ["error"]},
        [],
        7,
    ],
)
def test_unreadable_event_only_adds_raw_part(broken: Any):
    events = MessagesScript().text(["Hi ", "you"]).events()
    clean = decode(events)
    for place in range(len(events)):
        parts = decode([*events[:place], broken, *events[place:]])
        assert one(parts, Raw).event == broken
        assert [part for part in parts if not isinstance(part, Raw)] == clean


@requirement("F08")
def test_pings_are_ignored():
    events = MessagesScript().text("Hello you").events()
    noise = [b"", b"[DONE]", b"ping", {"type": "ping"}]
    assert decode([piece for event in events for piece in (*noise, event)]) == decode(events)


@requirement("F09")
def test_repeated_message_start_is_ignored():
    events = MessagesScript().text("Hello").events()
    parts = decode([events[0], *events])
    assert parts == decode(events)
    assert len(of(parts, ResponseMetadata)) == 1


@requirement("F09")
@each_block
def test_stream_resent_from_start_is_emitted_once(kind: str):
    events = EVERY_BLOCK[kind].events()
    assert outcome(decode([*events[:-2], *events])) == outcome(decode(events))


@requirement("F09")
@each_block
def test_repeated_starts_and_stops_are_ignored(kind: str):
    events = EVERY_BLOCK[kind].events()
    doubled = [e for sent in events for e in ((sent,) if sent["type"] == "content_block_delta" else (sent, sent))]
    parts = decode(doubled)
    assert outcome(parts) == outcome(decode(events))
    starts = [part.id for part in parts if isinstance(part, TextStart | ReasoningStart | ToolInputStart)]
    assert len(starts) == len(set(starts))


@requirement("F09")
def test_delta_after_block_end_is_raw():
    events = MessagesScript().text("Hello").text("Bye").events()
    late = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " late"}}
    parts = decode([*events[:5], late, *events[5:]])
    assert one(parts, Raw).event == late
    assert [m.text for m in messages(parts)] == ["HelloBye"]


@requirement("F09")
def test_events_after_end_are_not_emitted():
    events = MessagesScript().text("Hello").events()
    assert decode([*events, *MessagesScript().text("Other").events()]) == decode(events)


@requirement("F10")
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_block_without_start_is_opened_by_first_delta(kind: str):
    events = EVERY_BLOCK[kind].events()
    parts = decode([event for event in events if event["type"] != "content_block_start"])
    assert [m.parts for m in messages(parts)] == [m.parts for m in messages(decode(events))]


@requirement("F10")
@each_block
def test_blocks_without_stop_have_same_outcome(kind: str):
    events = EVERY_BLOCK[kind].events()
    assert outcome(decode([e for e in events if e["type"] != "content_block_stop"])) == outcome(decode(events))


@requirement("F10")
@pytest.mark.parametrize(
    "stray",
    [
        {"type": "content_block_stop", "index": 9},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    ],
)
def test_event_without_block_is_raw(stray: Event):
    events = MessagesScript().text("Hello").events()
    parts = decode([*events[:3], stray, *events[3:]])
    assert one(parts, Raw).event == stray
    assert streamed_text(parts) == "Hello"


@requirement("F11")
def test_blocks_are_matched_by_index_not_id():
    events = MessagesScript().text("Hi ").tool_use("f", {"a": 1}, "toolu_1").text("you").events()
    renamed = [{**event, "id": f"x{number}", "item_id": f"y{number}"} for number, event in enumerate(events)]
    assert decode(renamed) == decode(events)


@requirement("F11")
def test_blocks_with_same_index_stay_separate():
    built = MessagesScript().thinking("Hm").text("Hello").web_search("news").tool_use("f", {"a": 1})
    parts = decode([{**event, "index": 0} if "index" in event else event for event in built.events()])
    assert [m.text for m in messages(parts)] == ["Hello"]
    assert [call.name for call in of(parts, ToolCall)] == ["web_search", "f"]
    assert len(of(parts, ToolResult)) == 1


@requirement("F18")
def test_interleaved_blocks_stay_separate():
    rows = [MessagesScript().text("The text").events()[1:-2], MessagesScript().bash("ls", stdout="A").events()[1:-2]]
    first = [{**event, "index": 0} for event in rows[0]]
    second = [{**event, "index": event["index"] + 1} for event in rows[1]]
    mixed = [event for pair in zip(first, second, strict=False) for event in pair] + second[len(first) :]
    head, *_, delta, stop = MessagesScript().events()
    parts = decode([head, *mixed, delta, stop])
    assert [m.text for m in messages(parts)] == ["The text"]
    assert one(parts, ToolCall).input == {"command": "ls"}
    assert one(parts, ToolResult).result["stdout"] == "A"


@requirement("F16")
@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"content": "text"}', b"\xff"])
def test_invalid_non_streaming_body_is_error(body: bytes):
    parts = decode_whole(body)
    assert one(parts, Finish).reason == "error"
    assert len(of(parts, Error)) == 1


FIELDS = [
    "type", "index", "delta", "content_block", "message", "content", "text", "id", "name", "input", "usage",
    "tool_use_id", "partial_json", "citation", "citations", "thinking", "signature", "error", "source", "stop_reason",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)


@requirement("F07", "R5")
@given(st.lists(JSON, max_size=4), st.sampled_from(sorted(EVERY_BLOCK)), st.data())
def test_garbage_leaves_legal_stream(garbage: list[Any], kind: str, data: st.DataObject):
    events: list[Any] = EVERY_BLOCK[kind].events()
    for piece in garbage:
        place = data.draw(st.integers(0, len(events)))
        if isinstance(piece, dict) and data.draw(st.booleans()):
            piece = {**data.draw(st.sampled_from(EVERY_BLOCK[kind].events())), **piece}
        events = [*events[:place], piece, *events[place:]]
    decode([wire(event) for event in events])


@requirement("F09", "R5")
@given(st.data())
def test_arbitrary_event_order_leaves_legal_stream(data: st.DataObject):
    pool = [event for kind in sorted(EVERY_BLOCK) for event in EVERY_BLOCK[kind].events()]
    decode(data.draw(st.lists(st.sampled_from(pool), max_size=40)))


CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
ENDED = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": {"input_tokens": 3}}


SILENT_DELTA = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 4}}


@pytest.mark.parametrize("between", [[], [SILENT_DELTA]], ids=["message_stop", "message_delta"])
def test_message_start_may_contain_complete_message(between: list[Event]):
    message = {**ENDED, "content": [{"type": "text", "text": "Hm."}, CALL], "stop_reason": "tool_use"}
    events: list[Event] = [{"type": "message_start", "message": message}, *between, {"type": "message_stop"}]
    parts = decode(events)
    assert streamed_text(parts) == "Hm."
    assert one(parts, ToolCall).input == {"a": 1}
    finish = one(parts, Finish)
    assert (finish.reason, finish.raw_reason, finish.usage.input.total) == ("tool-calls", "tool_use", 3)
    assert of(parts, Error) == []
    assert one(decode(events[:-1]), Finish).reason == "error"

"""Faults of a stream of events, for every kind of output item: cut, doubled, left out, out of order, renamed, huge."""

import base64
import json
import tracemalloc

import pytest

from requirements import requirement
from sidestream.parts import (
    Error,
    File,
    Finish,
    Raw,
    StreamPart,
    TextEnd,
    ToolCall,
    ToolEvent,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.testing import pixel_png
from support.streams import (
    EVERY_ITEM,
    Event,
    code,
    decode,
    event,
    function_call,
    image,
    input_text,
    interleaved,
    message,
    messages,
    of,
    one,
    reasoning,
    response,
    stream,
    summary,
    web_search,
)

KINDS = sorted(EVERY_ITEM)


def each_item():
    return pytest.mark.parametrize("kind", KINDS)


def outcome(parts: list[StreamPart]) -> dict[str, object]:
    """What a run leaves behind; events, previews and raw parts are its journey."""
    finish = one(parts, Finish)
    return {
        "messages": [(m.role, m.parts) for m in messages(parts)],
        "calls": of(parts, ToolCall),
        "results": [result for result in of(parts, ToolResult) if not result.preliminary],
        "files": of(parts, File),
        "end": (finish.reason, finish.raw_reason, finish.usage),
    }


@requirement("F01", "R4")
@each_item()
def test_stream_cut_anywhere_is_error(kind: str):
    events = stream(EVERY_ITEM[kind])
    for end in range(len(events)):
        parts = decode(events[:end])
        error, finish = parts[-2:]
        assert isinstance(error, Error)
        assert (error.kind, error.retryable) == ("truncated", True)
        assert isinstance(finish, Finish)
        assert (finish.reason, finish.raw_reason) == ("error", "truncated")
        assert len(of(parts, Finish)) == 1


@requirement("F01")
def test_cut_stream_keeps_parts_and_ends_session():
    (stored,) = messages(decode(stream(message(0, "Once ", "upon ", "a time"))[:5]))
    assert stored.text == "Once upon "
    assert stored.metadata == {}


@requirement("F03")
@each_item()
def test_error_in_middle_of_any_item_is_one_error_with_code(kind: str):
    events = stream(EVERY_ITEM[kind])
    failure = {"type": "error", "code": "server_error", "message": "boom"}
    for end in range(len(events)):
        parts = decode([*events[:end], failure])
        assert one(parts, Error).code == "server_error"
        assert one(parts, Finish).reason == "error"


@requirement("F04")
@each_item()
def test_response_cut_by_limit_finishes_with_length(kind: str):
    events = stream(EVERY_ITEM[kind])
    limit = event("incomplete", response=response(status="incomplete"))
    for end in range(1, len(events)):
        parts = decode([*events[:end], limit])
        assert of(parts, Error) == []
        assert one(parts, Finish).reason == "length"
        assert all(file.data for file in of(parts, File))


@requirement("F05")
def test_content_filter_finishes_as_filtered_without_message():
    parts = decode(stream(end="incomplete", incomplete_details={"reason": "content_filter"}))
    finish = one(parts, Finish)
    assert (finish.reason, finish.raw_reason) == ("content-filter", "content_filter")
    assert messages(parts) == []


@requirement("F06")
@each_item()
def test_unknown_event_anywhere_adds_only_itself(kind: str):
    events = stream(EVERY_ITEM[kind])
    clean = decode(events)
    new: Event = {"type": "response.telepathy", "thought": 1}
    for place in range(len(events)):
        parts = decode([*events[:place], new, *events[place:]])
        assert one(parts, Raw).event == new
        assert [part for part in parts if not isinstance(part, Raw)] == clean


@requirement("F09")
@each_item()
def test_repeated_events_do_not_change_outcome(kind: str):
    events = stream(EVERY_ITEM[kind])
    parts = decode([e for sent in events for e in (sent, sent)])
    assert outcome(parts) == outcome(decode(events))
    assert len(of(parts, ToolInputStart)) == len({part.id for part in of(parts, ToolInputStart)})


@requirement("F09")
@each_item()
def test_repeated_events_without_numbers_leave_same_message(kind: str):
    events = [{key: value for key, value in e.items() if key != "sequence_number"} for e in stream(EVERY_ITEM[kind])]
    doubled = decode([e for sent in events for e in (sent, sent)])
    assert outcome(doubled) == outcome(decode(events))


@requirement("F09")
@each_item()
def test_stream_resent_from_start_is_decoded_once(kind: str):
    events = stream(EVERY_ITEM[kind])
    parts = decode([*events[:-1], *events])
    assert outcome(parts) == outcome(decode(events))


@requirement("F09")
@pytest.mark.parametrize("numbered", [True, False], ids=["lower number", "no number"])
def test_delta_after_item_end_is_raw(numbered: bool):
    events = stream(message(0, "Hello"), message(1, "Bye", item_id="msg_2"))
    late = {**events[3], "delta": " late", **({} if numbered else {"sequence_number": None})}
    parts = decode([*events[:8], late, *events[8:]])
    assert one(parts, Raw).event == late
    assert [m.text for m in messages(parts)] == ["HelloBye"]


@requirement("F09")
def test_reordered_deltas_leave_final_text():
    events = stream(message(0, "one ", "two ", "three"))
    events[3], events[5] = events[5], events[3]
    parts = decode(events)
    assert [m.text for m in messages(parts)] == ["one two three"]
    assert one(parts, TextEnd).text == "one two three"


@requirement("F10")
@each_item()
def test_items_without_start_events_leave_same_outcome(kind: str):
    events = stream(EVERY_ITEM[kind])
    parts = decode([e for e in events if not e["type"].endswith(".added") or "annotation" in e])
    assert outcome(parts) == outcome(decode(events))


@requirement("F10")
@each_item()
def test_items_without_done_events_leave_same_outcome(kind: str):
    events = stream(EVERY_ITEM[kind])
    parts = decode([e for e in events if not e["type"].endswith(".done")])
    assert outcome(parts) == outcome(decode(events))


@requirement("F10")
@each_item()
def test_items_with_only_done_event_leave_same_outcome(kind: str):
    events = stream(EVERY_ITEM[kind])
    kept = [e for e in events if e["type"] in ("response.output_item.done", "response.completed")]
    assert outcome(decode(kept)) == outcome(decode(events))


@requirement("F11")
@each_item()
def test_ids_changing_with_every_event_are_one_item(kind: str):
    events = stream(EVERY_ITEM[kind])
    clean, parts = decode(events), decode(renamed(events))
    assert counts(parts) == counts(clean)
    assert [m.text for m in messages(parts)] == [m.text for m in messages(clean)]
    assert [call.input for call in of(parts, ToolCall)] == [call.input for call in of(clean, ToolCall)]


def renamed(events: list[Event]) -> list[Event]:
    """The same stream with a new item id in every event, as one gateway sends it."""
    changed: list[Event] = []
    for number, sent in enumerate(events):
        new = {**sent, "item_id": f"x{number}"} if "item_id" in sent else dict(sent)
        if "item" in sent:
            new["item"] = {**sent["item"], "id": f"x{number}"}
        if sent["type"] == "response.completed":
            output = [{**item, "id": f"y{place}"} for place, item in enumerate(sent["response"]["output"])]
            new["response"] = {**sent["response"], "output": output}
        changed.append(new)
    return changed


def counts(parts: list[StreamPart]) -> dict[str, int]:
    names = [type(part).__name__ for part in parts]
    return {name: names.count(name) for name in names}


@requirement("F11")
def test_items_with_equal_indexes_stay_separate():
    items = (reasoning(0, summary(0, "Hm")), web_search(0), message(0, "Hello"), function_call(0, '{"a":1}'))
    parts = decode(stream(*items))
    assert [m.text for m in messages(parts)] == ["Hello"]
    assert [call.name for call in of(parts, ToolCall)] == ["web_search", "get_weather"]


@requirement("F12")
def test_stored_message_is_final_payload_not_deltas():
    events = stream(message(0, "Helo"))
    final = stream(message(0, "Hello"))
    mixed = [b if a["type"].endswith((".done", "completed")) else a for a, b in zip(events, final, strict=True)]
    parts = decode(mixed)
    assert [m.text for m in messages(parts)] == ["Hello"]


@requirement("F13")
def test_broken_arguments_keep_text_and_have_no_input():
    call = one(decode(stream(function_call(0, '{"city": "Ro', "me"))), ToolCall)
    assert (call.input, call.input_text) == (None, '{"city": "Rome')
    assert call.input_error


@requirement("F14")
def test_twenty_megabyte_image_is_decoded_without_many_copies():
    data = pixel_png() + bytes(15_000_000)
    text = base64.b64encode(data).decode()
    assert len(text) > 20_000_000
    events = [json.dumps(sent).encode() for sent in stream(image(0, text, result=text))]
    size = max(map(len, events))
    tracemalloc.start()
    parts = decode(events)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert one(parts, File).data == data
    preview = next(result for result in of(parts, ToolResult) if result.preliminary)
    assert preview.result["partial_image_b64"] == text
    # The preview, the item, and the final response hold the text once each, and there are the bytes of the file.
    assert peak < 6 * size


@requirement("F17")
@pytest.mark.parametrize("text", ['"', "\\", "\n\r\t", "\u2028\u2029", "😀", "\x00\x7f", "'''\\\"", "\\u0041", "\\\\n"])
def test_code_is_exact_when_deltas_have_one_character(text: str):
    parts = decode(stream(code(0, *f"x = r{text}")))
    assert json.loads(input_text(parts, "ci_1"))["code"] == f"x = r{text}"
    assert one(parts, ToolCall).input["code"] == f"x = r{text}"


@requirement("F18")
def test_interleaved_items_do_not_mix():
    red, green = (base64.b64encode(pixel_png(**{colour: 255})).decode() for colour in ("red", "green"))
    parts = decode(
        stream(
            interleaved(
                image(0, red, item_id="ig_red", result=red),
                code(1, "a=", "1", item_id="ci_a", outputs=[{"type": "logs", "logs": "A"}]),
                message(2, "The ", "text ", "between"),
                code(3, "b=", "2", item_id="ci_b", outputs=[{"type": "logs", "logs": "B"}]),
                image(4, green, item_id="ig_green", result=green),
            )
        )
    )
    results = {part.id: part for part in of(parts, ToolResult) if not part.preliminary}
    assert [results[name].result["outputs"][0]["logs"] for name in ("ci_a", "ci_b")] == ["A", "B"]
    inputs = {call.id: call.input.get("code") for call in of(parts, ToolCall)}
    assert inputs == {"ig_red": None, "ci_a": "a=1", "ci_b": "b=2", "ig_green": None}
    assert {file.call_id: file.data for file in of(parts, File)} == {
        "ig_red": pixel_png(red=255),
        "ig_green": pixel_png(green=255),
    }
    assert [m.text for m in messages(parts)] == ["The text between"]
    assert all(part.call_id and part.call_id in inputs for part in of(parts, ToolEvent))
    assert len(of(parts, ToolInputStart)) == len(of(parts, ToolInputEnd)) == 4

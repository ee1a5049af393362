"""What the decoder does not know or cannot read becomes raw, and the stream continues."""

import copy
import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest

from requirements import requirement
from sidestream.parts import Finish, Raw, TextEnd
from sidestream.providers.openai.responses.decode.decoder import EVENTS, IGNORED, PASSED_ON
from support.streams import (
    EVERY_ITEM,
    Event,
    added,
    decode,
    done,
    event,
    message,
    messages,
    of,
    one,
    refusal,
    response,
    stages,
    stored,
    stream,
    streamed_text,
    summary,
    wire,
)


@requirement("R2", "F06")
@pytest.mark.parametrize(
    "unknown",
    [
        {"type": "response.telepathy.delta", "delta": "…", "output_index": 3},
        {"type": None, "delta": "x"},
        {"type": ["response.created"]},
        {"no": "type"},
        [1, 2],
        "text",
        7,
        None,
    ],
    ids=repr,
)
def test_unknown_event_is_raw_and_text_is_intact(unknown: Any):
    events: list[Any] = stream(message(0, "Hel", "lo"))
    parts = decode([*events[:4], unknown, *events[4:]])
    assert one(parts, Raw) == Raw("openai-responses", unknown)
    assert [m.text for m in messages(parts)] == ["Hello"]
    assert one(parts, Finish).reason == "stop"


@requirement("R2", "F06")
def test_unknown_item_is_raw_at_start_and_end():
    item = {"id": "tp_1", "type": "telepathy_call", "thought": "hm"}
    parts = decode(stream(added(0, item), done(0, item), message(1, "Hello")))
    kinds = [raw.event["type"] for raw in of(parts, Raw)]
    assert kinds[:2] == ["response.output_item.added", "response.output_item.done"]
    assert [raw.event["item"] for raw in of(parts, Raw)[:2]] == [item, item]
    assert [m.text for m in messages(parts)] == ["Hello"]


@requirement("R2", "F06")
def test_unknown_content_part_is_raw():
    parts = [{"type": "hologram", "shape": "cube"}, {"type": "output_text", "text": "Hello", "annotations": []}]
    emitted = decode(stream(done(0, {"id": "msg_1", "type": "message", "content": parts})))
    assert one(emitted, Raw).event == {"type": "hologram", "shape": "cube"}
    assert streamed_text(emitted) == "Hello"


@requirement("R31")
@pytest.mark.parametrize("name", sorted(PASSED_ON))
def test_known_events_without_item_are_raw(name: str):
    assert one(decode(stream({"type": name, "delta": "UklG"})), Raw).event["type"] == name


@requirement("R31")
@pytest.mark.parametrize("name", sorted(IGNORED))
def test_ignored_events_emit_no_parts(name: str):
    assert decode(stream({"type": name})) == decode(stream())


@requirement("F08")
@pytest.mark.parametrize("data", [b"", b"[DONE]", b"ping", b": keep-alive", b"HEARTBEAT"], ids=repr)
def test_keep_alives_without_json_are_ignored(data: bytes):
    events = stream(message(0, "Hello"))
    assert decode([*events[:3], data, *events[3:]]) == decode(events)


@requirement("F08")
def test_invalid_utf8_is_replaced_not_dropped():
    delta = b'{"type":"response.output_text.delta","output_index":0,"item_id":"m","delta":"a\xffb"}'
    assert streamed_text(decode([delta])) == "a\ufffdb"


# Every field of every event, in turn missing or of another type.

EVERY_EVENT = {
    **EVERY_ITEM,
    "error": [{"type": "error", "code": "c", "message": "m", "param": None}],
    "nested error": [{"type": "error", "error": {"code": "c", "message": "m"}}],
    "opening": [event(name, response=response()) for name in ("created", "queued", "in_progress")],
    "refusal": refusal(0, "No"),
    "raw reasoning": [
        event(f"{name}.{end}", output_index=0, content_index=0, **{field: "x"})
        for name in ("reasoning", "reasoning_text")
        for end, field in (("delta", "delta"), ("done", "text"))
    ],
    "reasoning parts": [
        event(f"reasoning_part.{end}", output_index=0, content_index=0, part={"type": "reasoning_text", "text": "x"})
        for end in ("added", "done")
    ],
    "summary": [{**e, "output_index": 0} for e in summary(0, "x")],
    "failed stages": [
        {**e, "output_index": 0, "item_id": "x"}
        for tool in (
            "web_search_call",
            "x_search_call",
            "file_search_call",
            "code_interpreter_call",
            "code_execution_call",
            "image_generation_call",
        )
        for e in stages(tool, "failed")
    ]
    + [{**e, "output_index": 0} for tool in ("mcp_call", "mcp_list_tools") for e in stages(tool, "failed")],
    "executing stages": [
        {**e, "output_index": 0, "item_id": "x"}
        for e in [
            *stages("code_interpreter_call", "executing"),
            *stages("mcp_call", "executing"),
            *stages("mcp_call_output", "delta", "done"),
        ]
    ],
    "incomplete": [event("incomplete", response=response(status="incomplete"))],
    "failed": [event("failed", response=response(status="failed", error={"code": "c", "message": "m"}))],
    "cancelled": [event("cancelled", response=response(status="cancelled"))],
    "done": [event("done", response=response(status="completed"))],
}
MISSING = object()
WRONG: list[Any] = [MISSING, None, [], {}, "x", 7, -1, 1.5, True, [[]], [{}], {"type": []}]


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the fields of a JSON value are, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, content in inner:
        yield (*at, key)
        yield from places(content, (*at, key))


def changed(sent: Event, place: tuple[str | int, ...], value: Any) -> Event:
    """The event with this value at this place. Shares all that is beside the place."""
    other: Any = copy.copy(sent)
    holder = other
    for key in place[:-1]:
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return other


@requirement("R2", "F07")
@pytest.mark.parametrize("kind", sorted(EVERY_EVENT))
def test_malformed_fields_leave_legal_storable_stream(kind: str):
    events = stream(EVERY_EVENT[kind])
    encoded = [wire(sent) for sent in events]
    usual = decode(encoded)
    assert [part for part in usual if stored(part) != part] == []
    for number, sent in enumerate(events):
        for place in places(sent):
            for value in WRONG:
                parts = decode([*encoded[:number], changed(sent, place, value), *encoded[number + 1 :]])
                other = [part for part, seen in zip_longest(parts, usual) if part is not None and part != seen]
                assert [part for part in other if stored(part) != part] == [], (sent["type"], place, value)


def test_sample_events_cover_every_decoded_type():
    assert {e["type"] for events in EVERY_EVENT.values() for e in stream(events)} == EVENTS.keys()


@requirement("R2", "F07")
@pytest.mark.parametrize("name", sorted(EVENTS.keys() - {"error"}))
def test_event_without_required_field_is_raw(name: str):
    sent = next(e for events in EVERY_EVENT.values() for e in stream(events) if e["type"] == name)
    broken = {key: value for key, value in sent.items() if key not in ("output_index", "response")}
    assert broken != sent
    parts = decode([broken, *stream(message(9, "Hello"))])
    assert of(parts, Raw)[0].event == broken
    assert [m.text for m in messages(parts)] == ["Hello"]


@requirement("R2", "F07")
@pytest.mark.parametrize("wrong", [{"delta": None}, {"output_index": "0"}, {"content_index": []}, {"item_id": 3}])
def test_malformed_delta_is_raw_and_final_text_is_kept(wrong: Event):
    events = stream(message(0, "Hel", "lo"))
    broken = {**events[3], **wrong}
    parts = decode([*events[:3], broken, *events[4:]])
    assert one(parts, Raw).event == broken
    assert [m.text for m in messages(parts)] == ["Hello"]
    assert len(of(parts, TextEnd)) == 1


def test_raw_keeps_event_json_unchanged():
    sent = {"type": "response.new", "deep": {"list": [1, 2.5, None, "ü", {"a": []}]}}
    assert json.dumps(one(decode([sent]), Raw).event) == json.dumps(sent)


@requirement("F07", "F17")
def test_lone_surrogate_in_malformed_field_is_raw():
    parts = decode([b'{"type":"response.output_text.delta","output_index":0,"delta":["\\ud800"],"item_id":"m"}'])
    assert any(isinstance(part, Raw) for part in parts)

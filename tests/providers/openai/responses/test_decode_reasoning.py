"""Reasoning: summaries and raw reasoning as blocks that are active, then can conclude, then are concluded."""

import pytest

from requirements import requirement
from sidestream.messages.message import ThinkingPart
from sidestream.parts import Raw, ReasoningDelta, ReasoningEnd, ReasoningStart
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from support.streams import (
    Event,
    decode,
    event,
    items,
    message,
    messages,
    of,
    one,
    reasoning,
    response,
    stream,
    summary,
    thoughts,
    wire,
)


@requirement("R38")
def test_stored_summary_ends_when_done():
    assert items(reasoning(0, summary(0, "First ", "thought"), summary(1, "Second")), store=True) == [
        ReasoningStart("rs_1:0"),
        ReasoningDelta("rs_1:0", "First "),
        ReasoningDelta("rs_1:0", "thought"),
        ReasoningEnd("rs_1:0"),
        ReasoningStart("rs_1:1"),
        ReasoningDelta("rs_1:1", "Second"),
        ReasoningEnd("rs_1:1"),
    ]


@requirement("R38")
def test_last_unstored_summary_ends_with_encrypted_content():
    assert items(reasoning(0, summary(0, "First"), summary(1, "Second"), encrypted="gAAA"), store=False) == [
        ReasoningStart("rs_1:0"),
        ReasoningDelta("rs_1:0", "First"),
        ReasoningEnd("rs_1:0"),
        ReasoningStart("rs_1:1"),
        ReasoningDelta("rs_1:1", "Second"),
        ReasoningEnd("rs_1:1", encrypted_content="gAAA"),
    ]


@requirement("R38")
@pytest.mark.parametrize(("store", "at_part_done"), [(True, 1), (False, 0)])
def test_summary_end_depends_on_store(store: bool, at_part_done: int):
    events = stream(reasoning(0, summary(0, "Thought"), encrypted="gAAA"))
    (place,) = [n for n, e in enumerate(events) if e["type"] == "response.reasoning_summary_part.done"]
    assert len(concluded_before_close(events[: place + 1], store)) == at_part_done
    assert one(decode(events, store=store), ReasoningEnd).encrypted_content == (None if store else "gAAA")


def concluded_before_close(events: list[Event], store: bool) -> list[ReasoningEnd]:
    decoder = ResponsesDecoder(ResponsesContext(store=store))
    return of([part for e in events for part in decoder.feed(wire(e))], ReasoningEnd)


@requirement("R38")
@pytest.mark.parametrize("store", [True, False])
def test_reasoning_without_summary_keeps_encrypted_content(store: bool):
    assert items(reasoning(0, encrypted="gAAA"), store=store) == [
        ReasoningStart("rs_1:0"),
        ReasoningEnd("rs_1:0", encrypted_content="gAAA"),
    ]


@requirement("R38")
def test_encrypted_content_comes_from_final_item():
    events = reasoning(0, encrypted="whole")
    events[0]["item"]["encrypted_content"] = "half"
    assert one(items(events, store=False), ReasoningEnd).encrypted_content == "whole"


@requirement("R38")
def test_second_ciphertext_of_item_is_not_emitted():
    events = stream(reasoning(0, summary(0, "Hm"), encrypted="one"))
    final = {**events[-1]["response"]["output"][0], "encrypted_content": "two"}
    parts = decode([*events[:-1], event("completed", response=response([final]))], store=False)
    assert one(parts, ReasoningEnd) == ReasoningEnd("rs_1:0", encrypted_content="one")


@requirement("R38")
def test_raw_reasoning_is_separate_block():
    assert items(reasoning(0, thoughts("I ", "think"))) == [
        ReasoningStart("rs_1:0"),
        ReasoningDelta("rs_1:0", "I "),
        ReasoningDelta("rs_1:0", "think"),
        ReasoningEnd("rs_1:0"),
    ]


@requirement("R38")
def test_summary_and_raw_reasoning_are_separate_blocks():
    found = items(reasoning(0, summary(0, "Sum"), thoughts("Raw")))
    assert {(part.id, part.delta) for part in of(found, ReasoningDelta)} == {
        ("rs_1:0", "Sum"),
        ("rs_1:content:0", "Raw"),
    }
    assert len(of(found, ReasoningStart)) == len(of(found, ReasoningEnd)) == 2


@requirement("R38")
@pytest.mark.parametrize("name", ["reasoning_text", "reasoning"])
def test_both_raw_reasoning_event_names_are_decoded(name: str):
    events = [{**e, "type": e["type"].replace("reasoning_text", name)} for e in thoughts("I ", "think")]
    found = items(reasoning(0, thoughts("I ", "think"))[0], [{**e, "output_index": 0} for e in events])
    assert [part.delta for part in of(found, ReasoningDelta)] == ["I ", "think"]


def test_raw_reasoning_inside_content_parts_is_one_block():
    part = {"type": "reasoning_text", "text": ""}
    around = [
        event("content_part.added", content_index=0, part=part),
        *thoughts("I think"),
        event("content_part.done", content_index=0, part={**part, "text": "I think"}),
    ]
    found = items(reasoning(0, around))
    assert found == [ReasoningStart("rs_1:0"), ReasoningDelta("rs_1:0", "I think"), ReasoningEnd("rs_1:0")]


@requirement("R38")
def test_reasoning_present_only_in_final_item_is_emitted():
    item = reasoning(0, summary(0, "One"), summary(1, "Two"), thoughts("Raw"), encrypted="gAAA")[-1]
    found = items(item, store=False)
    assert [part.delta for part in of(found, ReasoningDelta)] == ["One", "Two", "Raw"]
    assert [part.encrypted_content for part in of(found, ReasoningEnd)] == ["gAAA"] * 3


@requirement("F12")
def test_final_summary_replaces_streamed_summary():
    streamed, final = reasoning(0, summary(0, "Thougt")), reasoning(0, summary(0, "Thought"))
    mixed = [b if a["type"].endswith("done") else a for a, b in zip(streamed, final, strict=True)]
    parts = decode(stream(mixed, message(1, "Hi")))
    assert one(parts, ReasoningEnd).text == "Thought"
    assert [m.parts[0] for m in messages(parts)] == [ThinkingPart("Thought", "rs_1:0")]


@requirement("F09")
@pytest.mark.parametrize("store", [True, False])
def test_summary_delta_after_its_end_is_raw(store: bool):
    late = event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="late")
    events = reasoning(0, summary(0, "Thought"), [late])
    found = items(events, store=store)
    assert one(found, Raw).event["delta"] == "late"
    assert [part.delta for part in of(found, ReasoningDelta)] == ["Thought"]


@requirement("F10")
def test_summary_without_item_start_opens_one_block():
    events = reasoning(0, summary(0, "Thought"))
    kept = [e for e in events if not e["type"].endswith("added")]
    assert items(kept) == items(events)


def test_thinking_precedes_text_in_message():
    parts = decode(stream(reasoning(0, summary(0, "Hm")), message(1, "Hi")))
    assert [type(part).__name__ for m in messages(parts) for part in m.parts] == ["ThinkingPart", "TextPart"]

"""Messages: text blocks, annotations as sources, refusals, phases, and the files that citations name."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.messages.message import TextPart
from sidestream.parts import Finish, Raw, Source, TextDelta, TextEnd, TextStart, ToolEvent
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.protocol import FileRef
from support.streams import (
    CONTAINER_CITATION,
    FILE_CITATION,
    FILE_PATH,
    URL_CITATION,
    Event,
    code,
    decode,
    done,
    event,
    items,
    message,
    messages,
    of,
    one,
    refusal,
    response,
    stream,
    streamed_text,
    wire,
    without_events,
)


def test_text_streams_as_start_deltas_and_end():
    assert items(message(0, "Hello ", "world")) == [
        TextStart("msg_1"),
        TextDelta("msg_1", "Hello "),
        TextDelta("msg_1", "world"),
        TextEnd("msg_1"),
    ]


def test_two_contents_of_message_are_two_blocks():
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in ("one", "two")]
    emitted = decode(stream(done(0, {"id": "msg_1", "type": "message", "content": parts})))
    assert [(part.id, part.delta) for part in of(emitted, TextDelta)] == [("msg_1", "one"), ("msg_1:1", "two")]
    assert [m.parts for m in messages(emitted)] == [(TextPart("one", "msg_1"), TextPart("two", "msg_1:1"))]


@requirement("R36")
def test_message_phase_is_on_text_start_and_end():
    start, *_, end = items(message(0, "Let me look", phase="commentary"))
    phase = {"openai-responses": {"phase": "commentary"}}
    assert start == TextStart("msg_1", provider_metadata=phase)
    assert end == TextEnd("msg_1", provider_metadata=phase)


def test_logprobs_are_on_their_delta():
    chances = [{"token": "Hi", "logprob": -0.1}]
    events = [{**e, "logprobs": chances} if e["type"].endswith("delta") else e for e in message(0, "Hi")]
    assert one(items(events), TextDelta).provider_metadata == {"openai-responses": {"logprobs": chances}}


def test_empty_message_is_not_stored():
    assert messages(decode(stream(message(0)))) == []


@requirement("R39")
@pytest.mark.parametrize(
    ("annotation", "source"),
    [
        (URL_CITATION, {"kind": "url", "url": "https://example.com/a", "title": "A", "start": 0, "end": 2}),
        (FILE_CITATION, {"kind": "document", "file_id": "file_1", "title": "a.txt", "start": 2, "end": 2}),
        (FILE_PATH, {"kind": "file_path", "file_id": "file_2", "start": 1, "end": 1}),
        (
            CONTAINER_CITATION,
            {
                "kind": "container_file",
                "file_id": "cfile_1",
                "title": "plot.png",
                "start": 1,
                "end": 3,
                "provider_metadata": {"openai-responses": {"container_id": "cntr_1"}},
            },
        ),
    ],
    ids=lambda value: value.get("type", ""),
)
def test_citation_becomes_source_and_annotation(annotation: Event, source: dict[str, Any]):
    found = without_events(items(message(0, "Hey", annotations=[annotation])))
    assert found == [
        TextStart("msg_1"),
        TextDelta("msg_1", "Hey"),
        Source("msg_1:source:0", text_id="msg_1", **source),
        TextEnd("msg_1", (annotation,)),
    ]


@requirement("R39")
def test_annotations_stay_with_their_block():
    first = message(0, "One", annotations=[URL_CITATION])
    second = message(1, "Two", item_id="msg_2", annotations=[FILE_CITATION])
    ends = of(items(first, second), TextEnd)
    assert [(end.id, end.annotations) for end in ends] == [("msg_1", (URL_CITATION,)), ("msg_2", (FILE_CITATION,))]


@requirement("R39")
def test_citation_present_only_in_final_item_becomes_source():
    without, late = message(0, "Hi"), message(0, "Hi", annotations=[URL_CITATION])
    found = items(without[:-1], late[-1])
    assert one(found, Source).url == "https://example.com/a"
    assert one(found, TextEnd).annotations == (URL_CITATION,)


def test_citation_before_its_text_opens_text_block():
    annotation = message(0, "Hi", annotations=[URL_CITATION])[3]
    parts = decode(stream(annotation, message(0, "Hi")))
    assert one(parts, TextStart) == TextStart("msg_1")
    assert one(parts, Finish).reason == "stop"


def test_citation_repeated_with_final_text_is_emitted_once():
    assert len(of(items(message(0, "Hi", annotations=[URL_CITATION, FILE_CITATION])), Source)) == 2


@requirement("R2")
def test_unknown_annotation_is_raw_and_kept_on_text_end():
    new = {"type": "video_citation", "video_id": "v_1"}
    found = items(message(0, "Hi", annotations=[new]))
    assert one(found, Raw).event["annotation"] == new
    assert one(found, TextEnd).annotations == (new,)


@requirement("R40")
def test_container_citation_is_code_interpreter_event():
    events = message(1, "See plot", annotations=[CONTAINER_CITATION])
    sent = stream(code(0, "plot()"), events)
    emitted = of(decode(sent), ToolEvent)[-1]
    (annotation,) = [e for e in sent if e["type"] == "response.output_text.annotation.added"]
    assert (emitted.tool, emitted.event, emitted.call_id) == ("code_interpreter", annotation, "ci_1")


def downloads(*groups: list[Event]) -> tuple[FileRef, ...]:
    decoder = ResponsesDecoder(ResponsesContext())
    for sent in stream(*groups):
        decoder.feed(wire(sent))
    return decoder.downloads


@requirement("R40")
def test_file_cited_twice_is_fetched_once():
    again = {**CONTAINER_CITATION, "start_index": 5, "end_index": 9}
    assert downloads(code(0, "plot()"), message(1, "See plot", annotations=[CONTAINER_CITATION, again])) == (
        FileRef(id="cfile_1", name="plot.png", container_id="cntr_1", tool="code_interpreter", call_id="ci_1"),
    )


@requirement("R40")
def test_empty_citation_span_fetches_no_file():
    empty = {**CONTAINER_CITATION, "start_index": 4, "end_index": 4}
    assert downloads(code(0, "plot()"), message(1, "Done", annotations=[empty])) == ()


@requirement("R40")
def test_same_file_id_in_two_containers_is_two_files():
    other = {**CONTAINER_CITATION, "container_id": "cntr_2"}
    first, second = code(0, "a"), code(1, "b", item_id="ci_2", container="cntr_2")
    refs = downloads(first, second, message(2, "See", annotations=[CONTAINER_CITATION, other]))
    assert [(ref.container_id, ref.call_id) for ref in refs] == [("cntr_1", "ci_1"), ("cntr_2", "ci_2")]


@requirement("R40")
def test_other_citations_fetch_no_file():
    assert downloads(message(0, "Hi", annotations=[URL_CITATION, FILE_CITATION, FILE_PATH])) == ()


@requirement("F05", "R7")
def test_refusal_is_text_and_finishes_as_content_filter():
    parts = decode(stream(refusal(0, "I can", "not.")))
    marked = {"openai-responses": {"refusal": True}}
    assert one(parts, TextStart) == TextStart("msg_1", provider_metadata=marked)
    assert streamed_text(parts) == "I cannot."
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.raw_reason) == ("content-filter", "refusal")


@requirement("F05")
def test_empty_refusal_is_content_filter_without_message():
    parts = decode(stream(refusal(0)))
    assert messages(parts) == []
    assert one(parts, Finish).reason == "content-filter"


@requirement("F12")
def test_longer_final_text_adds_one_delta():
    events = [e for e in message(0, "Hello ", "world") if e.get("delta") != "world"]
    assert of(items(events), TextDelta) == [TextDelta("msg_1", "Hello "), TextDelta("msg_1", "world")]


@requirement("F12")
@pytest.mark.parametrize("field", ["output_text", "refusal"])
def test_text_done_event_replaces_deltas_when_last(field: str):
    name = "text" if field == "output_text" else "refusal"
    where = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events = [
        event(f"{field}.delta", delta="Helo wrld", **where),
        event(f"{field}.done", **where, **{name: "Hello world"}),
    ]
    parts = decode(stream(events))
    assert streamed_text(parts) == "Helo wrld"
    assert one(parts, TextEnd).text == "Hello world"
    assert [m.text for m in messages(parts)] == ["Hello world"]


@requirement("F12")
def test_last_final_text_is_stored():
    where = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events = [
        event("output_text.delta", delta="a", **where),
        event("output_text.done", text="b", **where),
        event("content_part.done", part={"type": "output_text", "text": "c", "annotations": []}, **where),
    ]
    assert [m.text for m in messages(decode(stream(events)))] == ["c"]
    item = {"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "d", "annotations": []}]}
    done = event("output_item.done", output_index=0, item=item)
    assert [m.text for m in messages(decode(stream([*events, done])))] == ["d"]


@requirement("F12", "R6")
@pytest.mark.parametrize("place", ["content_part.done", "output_item.done"])
def test_different_final_text_replaces_deltas(place: str):
    streamed, final = message(0, "Helo wrld"), message(0, "Hello world")
    mixed = [b if a["type"] == f"response.{place}" else a for a, b in zip(streamed, final, strict=True)]
    if place == "content_part.done":
        mixed[-1] = final[-1]
    parts = decode(stream(mixed))
    assert streamed_text(parts) == "Helo wrld"
    assert one(parts, TextEnd).text == "Hello world"
    assert [m.text for m in messages(parts)] == ["Hello world"]


def test_null_final_text_keeps_deltas():
    events = message(0, "Hello")
    events[-1]["item"]["content"] = []
    final = {"type": "output_text", "text": None, "annotations": None}
    nulled = [
        {**e, "text": None} if "text" in e else {**e, "part": final} if e["type"].endswith("part.done") else e
        for e in events
    ]
    assert [m.text for m in messages(decode(stream(nulled)))] == ["Hello"]


@requirement("F10")
def test_message_present_only_in_final_response_is_emitted():
    item = message(0, "Hello", annotations=[URL_CITATION])[-1]["item"]
    parts = decode([event("completed", response=response([item]))])
    assert [type(part).__name__ for part in parts][2:7] == [
        "ResponseMetadata",
        "TextStart",
        "TextDelta",
        "Source",
        "TextEnd",
    ]
    assert (streamed_text(parts), one(parts, TextEnd).annotations) == ("Hello", (URL_CITATION,))

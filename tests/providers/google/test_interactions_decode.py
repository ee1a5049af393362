"""Steps of the Interactions API, streamed and whole."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from providers.google.gemini_wire import as_run, both_interactions, interaction, kept, whole_interaction
from requirements import requirement
from sidestream.messages.message import DataPart, TextPart, ThinkingPart
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningEnd,
    ResponseMetadata,
    Source,
    StepFinish,
    StepOutcome,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.providers.google.interactions.decode import STATUSES, InteractionsDecoder
from sidestream.providers.google.interactions.options import InteractionContext
from sidestream.providers.google.interactions.steps import STEPS
from sidestream.stream import grammar
from sidestream.testing.gemini_script import InteractionScript
from support.streams import PNG, input_text, messages, of, one, streamed_text, wire

HOSTED = {
    "code_execution": "code_execution",
    "google_search": "google_search",
    "url_context": "url_context",
    "file_search": "file_search",
    "google_maps": "google_maps",
    "mcp_server_tool": "mcp",
    "retrieval": "retrieval",
    "processing": "processing",
}


def script() -> InteractionScript:
    return InteractionScript()


@requirement("R66")
def test_thoughts_and_text_become_blocks_of_their_steps():
    for parts in both_interactions(script().thought("Let me see", signature="s1").text("Hello world")):
        assert one(parts, ReasoningEnd).signature == "s1"
        assert [part for m in messages(parts) for part in m.parts] == [
            ThinkingPart("Let me see", "thought-0"),
            TextPart("Hello world", "text-1"),
        ]
        assert one(parts, Finish).reason == "stop"
        assert one(parts, ResponseMetadata).provider == "google"


def test_thought_without_summary_keeps_only_signature():
    for parts in both_interactions(script().thought(signature="s1").text("Hi")):
        assert of(parts, ReasoningEnd) == []
        assert kept(parts)["_google_interactions_session"]["steps"][0] == {"type": "thought", "signature": "s1"}


@requirement("R66")
def test_function_call_streams_its_arguments():
    for parts in both_interactions(script().function_call("weather", {"city": "Köln"}, call_id="f1")):
        call = one(parts, ToolCall)
        assert (call.id, call.name, call.input, call.provider_executed) == ("f1", "weather", {"city": "Köln"}, False)
        assert json.loads(input_text(parts, "f1")) == {"city": "Köln"}
        assert (one(parts, Finish).reason, one(parts, Finish).raw_reason) == ("tool-calls", "requires_action")


@pytest.mark.parametrize("text", ['{"a": ', "[1]", "nonsense"])
def test_non_object_arguments_are_emitted_with_input_error(text: str):
    call = one(interaction(script().function_call("f", text).chunks()), ToolCall)
    assert call.input is None
    assert call.input_error
    assert call.input_text == text


@pytest.mark.parametrize("text", ["", "  ", "null"])
def test_blank_arguments_are_empty_object(text: str):
    parts = interaction(script().function_call("f", text, call_id="f1").chunks())
    assert (one(parts, ToolCall).input, one(parts, ToolCall).input_error) == ({}, None)
    assert json.loads(input_text(parts, "f1")) in ({}, None)


@requirement("R66")
@pytest.mark.parametrize(("name", "key"), HOSTED.items())
def test_hosted_tool_emits_events_call_and_result(name: str, key: str):
    composed = script().hosted(name, {"q": ["x"]}, [{"found": 1}], call_id="t1").text("Done.")
    streamed, whole = both_interactions(composed)
    events = of(streamed, ToolEvent)
    assert [event.event for event in events] == [e for e in composed.chunks() if e.get("index") in (0, 1)]
    assert {event.provider_tool for event in events} == {key}
    assert {event.call_id for event in events} == {"t1"}
    for parts in (streamed, whole):
        call, result = one(parts, ToolCall), one(parts, ToolResult)
        assert (call.id, call.provider_tool, call.input, call.provider_executed) == ("t1", key, {"q": ["x"]}, True)
        assert (result.id, result.result, result.is_error) == ("t1", [{"found": 1}], False)
        assert one(parts, Finish).usage.server_tool_use == {key: 1}
    assert [event.event for event in of(whole, ToolEvent)] == composed.response()["steps"][:2]


def test_failed_tool_is_error_result():
    parts = interaction(script().hosted("code_execution", {"code": "1/0"}, "Traceback", is_error=True).chunks())
    assert one(parts, ToolResult).is_error


@requirement("F18")
def test_interleaved_steps_stay_separate():
    composed = script().hosted("google_search", {"queries": ["a"]}, ["A"], call_id="t1")
    composed.text("Hello world").hosted("code_execution", {"code": "1"}, "1", call_id="t2")
    composed.function_call("f", {"n": 1}, call_id="f1").function_call("f", {"n": 2}, call_id="f2")
    parts = interaction(composed.chunks(interleaved=True))
    assert {call.id: call.input for call in of(parts, ToolCall)} == {
        "t1": {"queries": ["a"]},
        "t2": {"code": "1"},
        "f1": {"n": 1},
        "f2": {"n": 2},
    }
    assert {result.id: result.result for result in of(parts, ToolResult)} == {"t1": ["A"], "t2": "1"}
    assert streamed_text(parts) == "Hello world"


def test_files_from_model_and_code_are_deliverables():
    content = {
        "type": "image",
        "mime_type": "image/png",
        "data": script().file(PNG).response()["steps"][0]["content"][0]["data"],
    }
    composed = script().hosted("code_execution", {"code": "plot()"}, [content], call_id="c").file(PNG)
    for parts in both_interactions(composed):
        made, shown = of(parts, File)
        assert (made.data, made.tool, made.call_id, made.name) == (PNG, "code_interpreter", "c", "image_0.png")
        assert (shown.data, shown.tool, shown.name) == (PNG, None, "image_1.png")
        assert [part.name for m in messages(parts) for part in m.parts if isinstance(part, DataPart)] == [
            "image_0.png",
            "image_1.png",
        ]


def test_file_uri_becomes_link():
    content = {"type": "video", "mime_type": "video/mp4", "uri": "https://x.example/v.mp4"}
    parts = interaction(script().step({"type": "model_output"}, content, content=[content]).chunks())
    assert one(parts, File).url == "https://x.example/v.mp4"


@requirement("R66")
@pytest.mark.parametrize(
    ("annotation", "fields"),
    [
        (
            {"type": "url_citation", "url": "https://a.example", "title": "A"},
            {"kind": "url", "url": "https://a.example", "title": "A"},
        ),
        (
            {
                "type": "file_citation",
                "document_uri": "gs://d",
                "file_name": "d.pdf",
                "media_id": "m",
                "page_number": 2,
            },
            {"kind": "document", "url": "gs://d", "title": "d.pdf", "file_id": "m"},
        ),
        (
            {"type": "place_citation", "url": "https://maps.example", "name": "Café", "place_id": "p"},
            {"kind": "place", "url": "https://maps.example", "title": "Café", "file_id": "p"},
        ),
    ],
)
def test_annotations_become_sources_with_character_offsets(annotation: dict[str, Any], fields: dict[str, Any]):
    text = "Grüße 🌍 aus Köln."
    start = len("Grüße 🌍 aus ".encode())
    cited = {**annotation, "start_index": start, "end_index": start + len("Köln.".encode())}
    for parts in both_interactions(script().text(text, annotations=[cited])):
        source = one(parts, Source)
        assert {name: getattr(source, name) for name in fields} == fields
        assert text[source.start : source.end] == source.cited_text == "Köln."
        assert one(parts, TextEnd).annotations == (cited,)


@pytest.mark.parametrize("kind", ["word_info", "speech_metadata"])
def test_annotations_of_speech_are_kept_and_cite_nothing(kind: str):
    spoken = {"type": kind, "start_index": 0, "end_index": 5, "start_offset": "0.2s"}
    for parts in both_interactions(script().text("Hello world", annotations=[spoken])):
        assert one(parts, TextEnd).annotations == (spoken,)
        assert not any(isinstance(part, Source | Raw) for part in parts)


@requirement("R66")
@pytest.mark.parametrize(("status", "reason"), STATUSES.items())
def test_statuses_map_to_finish_reasons(status: str, reason: str):
    for parts in both_interactions(script().text("So far").finish(status)):
        finish = one(parts, Finish)
        expected = "stop" if status == "requires_action" else reason
        assert (finish.reason, finish.raw_reason if reason != "error" else status) == (expected, status)
        assert len(of(parts, Error)) == (reason == "error")


def test_usage_counts_tools_as_input_and_thoughts_as_output():
    usage = {
        "total_input_tokens": 100,
        "total_cached_tokens": 40,
        "total_tool_use_tokens": 20,
        "total_output_tokens": 7,
        "total_thought_tokens": 5,
        "total_tokens": 132,
    }
    for parts in both_interactions(InteractionScript(usage=usage).text("x")):
        found = one(parts, Finish).usage
        assert (found.input.total, found.input.no_cache, found.input.cache_read) == (120, 80, 40)
        assert (found.output.total, found.output.text, found.output.reasoning) == (12, 7, 5)


def test_paused_interaction_keeps_continuation_token():
    composed = script().text("One").finish("requires_continuation", continuation_token="t")
    for parts in both_interactions(composed):
        assert (one(parts, StepFinish).outcome or StepOutcome()).is_paused
        assert kept(parts)["_google_interactions_session"]["continuation_token"] == "t"


@requirement("F01")
def test_stream_cut_after_any_event_is_truncated():
    composed = script().thought("Hm.", signature="s").hosted("google_search", {}, []).text("Hi there")
    events = composed.function_call("f", {"a": 1}).chunks()
    for count in range(len(events)):
        parts = interaction(events[:count])
        assert one(parts, Error).kind == "truncated"
        assert one(parts, StepFinish).outcome is None


def test_cancelled_status_update_ends_stream_as_other():
    events = script().text("So far").chunks()[:-1]
    update = {"event_type": "interaction.status_update", "interaction_id": "x", "status": "cancelled"}
    assert one(interaction([*events, update]), Finish).reason == "other"


@requirement("F03")
def test_error_event_ends_stream_with_one_error():
    events = script().text("So far").error("internal", "broken").chunks()
    parts = interaction([*events, *events])
    error = one(parts, Error)
    assert (error.kind, error.code, error.message) == ("provider", "internal", "broken")
    assert streamed_text(parts) == "So far"
    bare = interaction([*events[:-1], {"error": {"code": 503, "message": "down", "status": "UNAVAILABLE"}}])
    assert one(bare, Error).retryable


def test_failed_output_is_error():
    composed = script().step({"type": "model_output"}, error={"code": "x", "message": "no"}, content=[])
    assert one(whole_interaction(composed.response()), Error).message == "no"


def test_delta_without_start_opens_its_step():
    events = script().text("Hello world").hosted("google_search", {"queries": ["x"]}, ["y"], call_id="t").chunks()
    resumed = [event for event in events if event["event_type"] not in ("step.start", "interaction.created")]
    parts = interaction(resumed)
    assert streamed_text(parts) == "Hello world"
    assert one(parts, ToolCall).input == {"queries": ["x"]}
    assert of(parts, Raw) == []


def test_client_steps_are_not_emitted():
    composed = script().step(
        {"type": "user_input"}, {"type": "text", "text": "Hi?"}, content=[{"type": "text", "text": "Hi?"}]
    )
    composed.step({"type": "function_result", "call_id": "f"}, {"type": "function_result", "result": "x"}, result="x")
    for parts in both_interactions(composed.text("Hello.")):
        assert [part for m in messages(parts) for part in m.parts] == [TextPart("Hello.", "text-2")]
        assert of(parts, Raw) == []


def test_steps_in_final_event_are_emitted():
    composed = script().thought("Hm.").text("Hello.")
    created, completed = composed.chunks()[0], composed.chunks()[-1]
    parts = interaction([created, {**completed, "interaction": composed.response()}])
    assert streamed_text(parts) == "Hello."


@pytest.mark.parametrize(("streamed", "deltas"), [("Hel", ["Hel", "lo"]), ("Hallo", ["Hallo"]), ("", ["Hello"])])
def test_final_event_completes_or_replaces_cut_text(streamed: str, deltas: list[str]):
    composed = script().text("Hello")
    created, start, delta, *_, completed = composed.chunks()
    cut = [{**delta, "delta": {"type": "text", "text": streamed}}] if streamed else []
    parts = interaction([created, start, *cut, {**completed, "interaction": composed.response()}])
    assert [part.delta for part in of(parts, TextDelta)] == deltas
    assert [part.text for m in messages(parts) for part in m.parts if isinstance(part, TextPart)] == ["Hello"]


def test_stop_without_step_is_raw():
    events = script().text("Hi").chunks()
    parts = interaction([*events[:-1], {"event_type": "step.stop", "index": 9}, events[-1]])
    assert len(of(parts, Raw)) == 1


def test_decoder_reports_resume_point_of_broken_stream():
    decoder = InteractionsDecoder(InteractionContext())
    assert decoder.resume_point is None
    events = InteractionScript(interaction_id="v1_a").text("Hello world").chunks()
    for event in events[:4]:
        decoder.feed(json.dumps(event).encode())
    assert decoder.resume_point == ("v1_a", "event_3")


@requirement("R64")
def test_first_phase_text_is_draft_not_output():
    for parts in both_interactions(script().thought("Hm.", signature="s").text("It is 42."), drafts=True):
        assert of(parts, TextStart) == []
        assert one(parts, Custom) == Custom("sidestream.draft", {"text": "It is 42."})
        assert one(parts, Finish).metadata["draft"] == "It is 42."
        steps = kept(parts)["_google_interactions_session"]["steps"]
        assert steps[1]["content"] == [{"type": "text", "text": "It is 42."}]


BAD_EVENTS: list[Any] = [
    {"event_type": "brand.new", "x": 1},
    {"event_type": "step.start", "index": "0", "step": {"type": "thought"}},
    {"event_type": "step.start", "index": 7, "step": []},
    {"event_type": "step.start", "index": 7, "step": {"type": "hologram"}},
    {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
    {"event_type": "step.delta", "index": 0, "delta": {"type": "hologram"}},
    {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": None}},
    {"event_type": "step.delta", "index": 0, "delta": {"type": "image", "data": "not base64!"}},
    {"event_type": "step.delta", "index": 9, "delta": {"type": "arguments_delta", "arguments": "{}"}},
    {"event_type": "step.delta", "index": 0, "delta": {"type": "arguments_delta", "arguments": "{}"}},
    {
        "event_type": "step.delta",
        "index": 0,
        "delta": {"type": "text_annotation_delta", "annotations": [{"type": "x"}]},
    },
    {"event_type": "interaction.created", "interaction": "x"},
    {"event_type": "interaction.completed", "interaction": None},
    {},
    [],
    "text",
    None,
]


@requirement("F06", "F07", "R2")
@pytest.mark.parametrize("bad", BAD_EVENTS, ids=lambda bad: json.dumps(bad)[:60])
def test_unreadable_event_is_raw_and_text_is_intact(bad: Any):
    events = script().text(["Hel", "lo"]).chunks()
    parts = interaction([*events[:3], json.dumps(bad).encode(), *events[3:]])
    assert len(of(parts, Raw)) == 1
    assert "".join(part.text for m in messages(parts) for part in m.parts if isinstance(part, TextPart)) == "Hello"
    assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}", b'{"error": {"message": "no"}}'])
def test_invalid_body_is_error(body: bytes):
    assert len(of(whole_interaction(body), Error)) == 1


STEP_TYPES = [*(f"{name}_call" for name in HOSTED), *(f"{name}_result" for name in HOSTED)]
WORDS = "type text id call_id name arguments content summary signature result data annotations start_index end_index "
FIELDS = (WORDS + "is_error uri mime_type error status usage").split()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "x", "text", "thought", "function_call", *STEP_TYPES]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
EVENTS = st.fixed_dictionaries(
    {
        "event_type": st.sampled_from(["step.start", "step.delta", "step.stop", "interaction.created", "x"]),
        "index": st.integers(0, 2),
        "step": VALUES,
        "delta": VALUES,
        "interaction": VALUES,
    }
)


@requirement("F07", "R5")
@given(st.lists(EVENTS | VALUES, max_size=8), VALUES)
def test_arbitrary_json_yields_legal_finished_stream(events: list[Any], steps: Any):
    parts = interaction(json.dumps(event).encode() for event in events)
    assert isinstance(parts[-1], Finish)
    whole_interaction({"status": "completed", "steps": [steps, *events]})


def test_close_after_end_returns_no_parts():
    decoder = InteractionsDecoder(InteractionContext())
    emitted = [part for event in script().text("Hi").chunks() for part in decoder.feed(json.dumps(event).encode())]
    as_run(emitted)
    assert decoder.close() == []
    assert decoder.feed(b"{}") == []


@requirement("F07")
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("kind", [*STEPS])
@pytest.mark.parametrize(
    "delta",
    [
        {"type": "text", "text": "astray"},
        {"type": "thought_summary", "content": {"type": "text", "text": "astray"}},
        {"type": "text_annotation_delta", "annotations": [{"type": "url_citation", "url": "https://x.example"}]},
        {"type": "arguments_delta", "arguments": "{}"},
    ],
    ids=lambda delta: delta["type"],
)
def test_misplaced_delta_leaves_legal_stream(delta: Any, kind: str, is_cut: bool):
    start = {"event_type": "step.start", "index": 0, "step": {"type": kind, "id": "c1", "name": "f"}}
    events = [start, {"event_type": "step.delta", "index": 0, "delta": delta}, {"event_type": "step.stop", "index": 0}]
    first, *_, last = script().text("Hi").chunks()
    decoder = InteractionsDecoder(InteractionContext())
    parts = [part for event in (first, *events, *(() if is_cut else (last,))) for part in decoder.feed(wire(event))]
    grammar.check(as_run([*parts, *decoder.close()]))


@requirement("F09")
def test_repeated_events_are_raw_and_change_no_message():
    whole = script().thought("Let me see", signature="s1").text("Hello world").function_call("f", {"a": 1}).chunks()
    once = interaction(whole)
    for place, event in enumerate(whole[:-1]):
        for later in (place + 1, len(whole) - 1):
            parts = interaction([*whole[:later], event, *whole[later:]])
            grammar.check(parts)
            assert messages(parts) == messages(once)
            assert [raw.event for raw in of(parts, Raw)] == [event]


@requirement("F09")
def test_stream_resent_from_middle_keeps_its_text():
    events = script().text("Hello ").text("world").chunks()
    parts = interaction([*events[:-1], *events[2:]])
    assert streamed_text(parts) == streamed_text(interaction(events))


def test_events_without_ids_are_never_deduplicated():
    events = [{k: v for k, v in e.items() if k != "event_id"} for e in script().text("ha").chunks()]
    (delta,) = [e for e in events if e["event_type"] == "step.delta"][:1]
    place = events.index(delta)
    assert streamed_text(interaction([*events[:place], delta, *events[place:]])).startswith(delta["delta"]["text"] * 2)


def test_annotation_at_offset_zero_starts_at_zero():
    annotation = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 5}
    for cited in (annotation, {key: value for key, value in annotation.items() if key != "start_index"}):
        content = {"type": "text", "text": "Hello world", "annotations": [cited]}
        (source,) = of(
            whole_interaction({"status": "completed", "steps": [{"type": "model_output", "content": [content]}]}),
            Source,
        )
        assert (source.start, source.end, source.cited_text, source.text_id) == (0, 5, "Hello", "text-0")

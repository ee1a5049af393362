"""Grounding: what an answer rests on, as sources with spans of characters."""

from typing import Any

import pytest

from providers.google.gemini_wire import both, decode, kept
from requirements import requirement
from sidestream.parts import Finish, Raw, Source, TextEnd, ToolEvent
from sidestream.providers.google.decode.grounding import merge
from sidestream.providers.google.decode.state import MAX_CITED_BYTES, GrowingText
from sidestream.testing.gemini_script import GeminiScript
from support.streams import messages, of, one

WEB = {"web": {"uri": "https://a.example", "title": "A", "domain": "a.example"}}
OTHER = {"web": {"uri": "https://b.example", "title": "B"}}
TEXT = "Grüße 🌍 aus Köln. Schönes Wetter 😀!"


def place(text: str, part: str) -> tuple[int, int]:
    """The bytes of a part of a text."""
    start = len(text[: text.index(part)].encode())
    return start, start + len(part.encode())


@requirement("R62")
@pytest.mark.parametrize("part", ["Grüße 🌍", "🌍", "Köln.", "Schönes Wetter 😀!", TEXT])
def test_byte_offsets_become_character_offsets(part: str):
    start, end = place(TEXT, part)
    for stated in (part, None):
        for parts in both(GeminiScript().text(TEXT).grounding(WEB, supports=[(start, end, stated, [0])])):
            source = one(parts, Source)
            assert TEXT[source.start : source.end] == source.cited_text == part
            assert (source.text_id, source.kind, source.url, source.title) == (
                "text-0",
                "url",
                "https://a.example",
                "A",
            )
            assert source.provider_metadata == {"google": {"domain": "a.example"}}


@requirement("R62")
@pytest.mark.parametrize(
    ("offset", "character"),
    [
        (0, 0),
        (2, 2),
        (3, 2),
        (4, 3),
        (5, 3),
        (6, 4),
        (8, 6),
        (9, 6),
        (10, 6),
        (11, 6),
        (12, 7),
        (13, 8),
        (99, 8),
        (-3, 0),
    ],
)
def test_offset_inside_character_moves_to_its_start(offset: int, character: int):
    # Bytes: G 0, r 1, ü 2-3, ß 4-5, e 6, space 7, 🌍 8-11, a 12.
    text = GrowingText()
    text.pieces += ["Grü", "ße 🌍a"]
    assert text.characters(0, offset).end == character


def test_span_ending_inside_character_ends_before_it():
    parts = decode(GeminiScript().text("ab🌍cd").grounding(WEB, supports=[(0, 4, None, [0])]).chunks())
    source = one(parts, Source)
    assert (source.start, source.end, source.cited_text) == (0, 2, "ab")


def test_wrong_offset_is_corrected_by_segment_text():
    parts = decode(GeminiScript().text("One. Two. Three.").grounding(WEB, supports=[(3, 7, "Two.", [0])]).chunks())
    assert (one(parts, Source).start, one(parts, Source).end) == (5, 9)


def test_offsets_across_text_blocks_map_to_own_block():
    script = GeminiScript().text("Für Anna. ").code("1", "1").text("Für Otto.")
    start, end = place("Für Anna. Für Otto.", "Otto")
    source = one(decode(script.grounding(WEB, supports=[(start, end, "Otto", [0])]).chunks()), Source)
    assert (source.text_id, source.start, source.end) == ("text-1", 4, 8)


def test_offsets_may_be_relative_to_one_block():
    script = GeminiScript().text("One. ").code("1", "1").text("Two and three.")
    source = one(decode(script.grounding(WEB, supports=[(4, 7, "and", [0])]).chunks()), Source)
    assert (source.text_id, source.start, source.end) == ("text-1", 4, 7)


@requirement("R62")
def test_cited_and_uncited_chunks_become_sources():
    script = GeminiScript().text("One. Two.")
    script.grounding(
        WEB, OTHER, {"web": {"uri": "https://c.example"}}, supports=[(0, 4, "One.", [0, 1]), (5, 9, "Two.", [1])]
    )
    for parts in both(script):
        assert [(source.url, source.start, source.end) for source in of(parts, Source)] == [
            ("https://a.example", 0, 4),
            ("https://b.example", 0, 4),
            ("https://b.example", 5, 9),
            ("https://c.example", None, None),
        ]
        assert len({source.id for source in of(parts, Source)}) == 4
        assert len(one(parts, TextEnd).annotations) == 2


@requirement("R62")
@pytest.mark.parametrize(
    ("chunk", "tool", "fields"),
    [
        (
            {
                "retrievedContext": {
                    "uri": "gs://x",
                    "title": "Doc",
                    "text": "passage",
                    "documentName": "d/1",
                    "pageNumber": 3,
                }
            },
            "file_search",
            {"kind": "document", "url": "gs://x", "title": "Doc", "file_id": "d/1"},
        ),
        (
            {"retrievedContext": {"text": "passage", "fileSearchStore": "fileSearchStores/s"}},
            "file_search",
            {"kind": "document", "file_id": "fileSearchStores/s"},
        ),
        (
            {"maps": {"uri": "https://maps.example", "title": "Café", "placeId": "places/1", "text": "nice"}},
            "google_maps",
            {"kind": "place", "url": "https://maps.example", "title": "Café", "file_id": "places/1"},
        ),
        (
            {"image": {"sourceUri": "https://page.example", "imageUri": "https://i.example/x.png", "title": "Pic"}},
            "google_search",
            {"kind": "url", "url": "https://page.example", "title": "Pic"},
        ),
    ],
)
def test_documents_places_and_images_become_sources(chunk: dict[str, Any], tool: str, fields: dict[str, Any]):
    for parts in both(GeminiScript().text("A fact.").grounding(chunk, supports=[(0, 7, "A fact.", [0])])):
        source = one(parts, Source)
        assert {name: getattr(source, name) for name in fields} == fields
        assert (source.start, source.end) == (0, 7)
        assert one(parts, ToolEvent).provider_tool == tool


@requirement("R3", "R14", "R62")
def test_grounding_is_one_event_kept_on_message_and_result():
    script = GeminiScript().text("A fact.")
    script.grounding(WEB, supports=[(0, 7, "A fact.", [0])], webSearchQueries=["fact", ""])
    for parts in both(script):
        event = one(parts, ToolEvent)
        metadata = script.response()["candidates"][0]["groundingMetadata"]
        assert (event.provider_tool, event.event) == ("google_search", {"groundingMetadata": metadata})
        assert parts.index(event) < parts.index(one(parts, Source))
        assert kept(parts)["grounding_metadata"] == metadata
        assert one(parts, Finish).metadata["grounding_metadata"] == metadata
        assert one(parts, Finish).usage.server_tool_use == {"google_search": 1}
        (message,) = messages(parts)
        assert message.metadata["grounding_metadata"] == metadata


def test_empty_grounding_emits_no_event():
    parts = decode(GeminiScript().text("x").candidate(groundingMetadata={}).chunks())
    assert of(parts, ToolEvent) == []


def test_widget_token_is_google_maps_event():
    parts = decode(GeminiScript().text("x").candidate(groundingMetadata={"googleMapsWidgetContextToken": "t"}).chunks())
    assert one(parts, ToolEvent).tool == "google_maps"


@requirement("R62", "R14")
@pytest.mark.parametrize(
    ("chunk", "other"),
    [
        ({"maps": {"uri": "https://maps.example", "title": "Café"}}, "google_maps"),
        ({"retrievedContext": {"uri": "gs://x", "title": "Doc"}}, "file_search"),
    ],
)
def test_search_with_other_grounding_keeps_its_key(chunk: dict[str, Any], other: str):
    script = GeminiScript().text("A fact.").grounding(chunk, WEB, webSearchQueries=["fact"])
    for parts in both(script):
        assert [event.provider_tool for event in of(parts, ToolEvent)] == ["google_search", other]
        (first, second) = of(parts, ToolEvent)
        assert first.event == second.event


@requirement("R62")
def test_fetched_pages_are_url_context_events():
    script = GeminiScript().text("x").url_context("https://a.example").grounding(WEB, supports=[(0, 1, "x", [0])])
    for parts in both(script):
        read, grounded = of(parts, ToolEvent)
        assert (read.tool, read.provider_tool, read.stage) == ("web_fetch", "url_context", "completed")
        assert read.event["urlContextMetadata"]["urlMetadata"][0]["retrievedUrl"] == "https://a.example"
        assert grounded.provider_tool == "url_context"
    failed = GeminiScript().text("x").url_context("https://a.example", status="URL_RETRIEVAL_STATUS_PAYWALL")
    assert one(decode(failed.chunks()), ToolEvent).stage == "failed"


def test_recitation_citations_become_sources():
    citations = {"citationSources": [{"startIndex": 3, "endIndex": 7, "uri": "https://c.example", "license": "mit"}]}
    source = one(decode(GeminiScript().text("ab code").candidate(citationMetadata=citations).chunks()), Source)
    assert (source.url, source.start, source.end) == ("https://c.example", 3, 7)


def test_grounding_chunk_of_unknown_kind_is_raw():
    parts = decode(GeminiScript().text("x").grounding({"hologram": {"uri": "x"}}, WEB).chunks())
    assert one(parts, Raw).event == {"groundingChunk": {"hologram": {"uri": "x"}}}
    assert len(of(parts, Source)) == 1


def test_grounding_chunks_are_merged_without_duplicate_sources():
    def grounded(chunk: Any, end: int) -> dict[str, Any]:
        support = {"segment": {"startIndex": end - 4, "endIndex": end}, "groundingChunkIndices": [0]}
        return {"groundingMetadata": {"groundingChunks": [chunk], "groundingSupports": [support]}}

    head = {"content": {"parts": [{"text": "One. Two."}]}}
    last = {"candidates": [{"finishReason": "STOP", **grounded(OTHER, 9)}]}
    parts = decode([{"candidates": [{**head, **grounded(WEB, 4)}]}, last, last])
    assert [(source.url, source.start) for source in of(parts, Source)] == [
        ("https://a.example", 0),
        ("https://b.example", 5),
    ]
    joined = kept(parts)["grounding_metadata"]
    assert joined["groundingChunks"][:2] == [WEB, OTHER]
    assert joined["groundingSupports"][1]["groundingChunkIndices"] == [1]


def test_repeated_grounding_replaces_earlier_grounding():
    grounding = {"groundingChunks": [WEB]}
    merge(grounding, {"groundingChunks": [WEB, OTHER]})
    assert grounding == {"groundingChunks": [WEB, OTHER]}


@requirement("R62")
@pytest.mark.parametrize("is_stated", [True, False])
@pytest.mark.parametrize("start", [{"startIndex": 0}, {}], ids=["zero", "missing"])
def test_support_at_offset_zero_starts_at_zero(start: dict[str, int], is_stated: bool):
    stated = {"text": "Hello"} if is_stated else {}
    support = {"segment": {**start, "endIndex": 5, **stated}, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [WEB], "groundingSupports": [support]}
    candidate = {
        "content": {"parts": [{"text": "Hello world"}]},
        "groundingMetadata": grounding,
        "finishReason": "STOP",
    }
    source = one(decode([{"candidates": [candidate]}]), Source)
    assert (source.start, source.end, source.cited_text, source.text_id) == (0, 5, "Hello", "text-0")


@pytest.mark.parametrize("start", [{"startIndex": 0}, {}], ids=["zero", "missing"])
def test_recitation_at_offset_zero_starts_at_zero(start: dict[str, int]):
    citations = {"citationSources": [{**start, "endIndex": 5, "uri": "https://c.example"}]}
    candidate = {"content": {"parts": [{"text": "Hello world"}]}, "citationMetadata": citations, "finishReason": "STOP"}
    source = one(decode([{"candidates": [candidate]}]), Source)
    assert (source.start, source.end, source.cited_text) == (0, 5, "Hello")


def test_long_span_keeps_its_end_and_truncates_quote():
    text = "é" * 100_000
    support = {"segment": {"startIndex": 0, "endIndex": 200_000}, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [WEB], "groundingSupports": [support]}
    candidate = {"content": {"parts": [{"text": text}]}, "groundingMetadata": grounding, "finishReason": "STOP"}
    source = one(decode([{"candidates": [candidate]}]), Source)
    assert (source.start, source.end) == (0, 100_000)
    assert source.cited_text == "é" * (MAX_CITED_BYTES // 2)

"""What cannot be read becomes a raw part; everything around it is read all the same."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from providers.google.gemini_wire import as_run, decode, decode_whole
from requirements import requirement
from sidestream.parts import Error, Finish, Raw
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.decode.decoder import GenerateContentDecoder
from sidestream.testing.gemini_script import GeminiScript
from support.streams import of, one, streamed_text

BAD_PARTS: list[Any] = [
    {"hologram": {"x": 1}},
    {},
    {"thought": True},
    {"text": None},
    {"text": 7},
    {"text": "x", "thoughtSignature": 5},
    {"functionCall": None},
    {"functionCall": []},
    {"functionCall": {"args": {}}},
    {"functionCall": {"name": "f", "args": "x"}},
    {"functionCall": {"name": 1}},
    {"functionResponse": {"name": "f", "response": {}}},
    {"executableCode": "print"},
    {"codeExecutionResult": {"outcome": [1]}},
    {"toolCall": {"id": 4}},
    {"toolResponse": {"id": "t", "response": "x"}},
    {"inlineData": {"mimeType": "image/png"}},
    {"inlineData": {"mimeType": "image/png", "data": "no base64!"}},
    {"fileData": {"mimeType": "image/png"}},
    "text",
    None,
]


@requirement("F06", "F07", "R2")
@pytest.mark.parametrize("part", BAD_PARTS, ids=lambda part: json.dumps(part)[:40])
def test_unreadable_part_is_raw_and_text_is_intact(part: Any):
    script = GeminiScript().text(["Hel"]).part(part).text(["lo"])
    parts = decode(script.chunks())
    (raw,) = of(parts, Raw)
    assert raw.event in (part, {"part": part})
    assert streamed_text(parts) == "Hello"
    assert one(parts, Finish).reason == "stop"


@requirement("F06", "F07")
@pytest.mark.parametrize(
    "field",
    [
        {"candidates": {}},
        {"candidates": ["x"]},
        {"candidates": [{"content": []}]},
        {"candidates": [{"content": {"parts": {}}}]},
        {"candidates": [{"finishReason": [3]}]},
        {"candidates": [{"groundingMetadata": "x"}]},
        {"candidates": [{"brandNew": 1}]},
        {"usageMetadata": []},
        {"promptFeedback": "SAFETY"},
        {"brandNew": {"a": 1}},
        [],
        "text",
        None,
        {},
    ],
    ids=lambda field: json.dumps(field)[:40],
)
def test_unreadable_field_is_raw_and_stream_continues(field: Any):
    chunks = GeminiScript().text(["Hel", "lo"]).chunks()
    parts = decode([chunks[0], json.dumps(field).encode(), *chunks[1:]])
    assert len(of(parts, Raw)) == 1
    assert streamed_text(parts) == "Hello"
    assert one(parts, Finish).reason == "stop"


@requirement("F07")
@pytest.mark.parametrize(
    "piece",
    [
        {"jsonPath": "x", "stringValue": "a"},
        {"jsonPath": "$", "stringValue": "a"},
        {"jsonPath": "$[0]", "stringValue": "a"},
        {"jsonPath": "$.a[", "stringValue": "a"},
        {"jsonPath": "$.a[99999999]", "stringValue": "a"},
        {"jsonPath": "$.known.deeper", "stringValue": "a"},
        {"jsonPath": "$.known[0]", "stringValue": "a"},
        {"jsonPath": "$.nothing"},
    ],
    ids=lambda piece: piece["jsonPath"],
)
def test_unplaceable_argument_piece_is_raw(piece: dict[str, Any]):
    script = GeminiScript().part({"functionCall": {"name": "f", "willContinue": True}})
    known = {"jsonPath": "$.known", "stringValue": "v"}
    script.part({"functionCall": {"partialArgs": [known], "willContinue": True}})
    script.part({"functionCall": {"partialArgs": [piece], "willContinue": True}}).part({"functionCall": {}})
    parts = decode(script.chunks())
    assert len(of(parts, Raw)) == 1
    assert one(parts, Finish).reason == "tool-calls"


@requirement("R183")
def test_unknown_fields_are_reported_once_per_response():
    chunks = GeminiScript().text(["Hel", "lo ", "you"]).chunks()
    for number, chunk in enumerate(chunks):
        chunk["mood"] = number
        chunk["candidates"][0]["colour"] = "red"
    parts = decode(json.dumps(chunk).encode() for chunk in chunks)
    assert [raw.event for raw in of(parts, Raw)] == [{"colour": "red"}, {"mood": 0}]
    assert streamed_text(parts) == "Hello you"


@requirement("F08")
@pytest.mark.parametrize("data", [b"", b"[DONE]", b"ping"])
def test_keep_alives_without_json_are_ignored(data: bytes):
    chunks = [json.dumps(chunk).encode() for chunk in GeminiScript().text(["Hel", "lo"]).chunks()]
    assert decode([chunks[0], data, *chunks[1:]]) == decode(chunks)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "STOP", "$.a", "aGk=", "image/png"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["text", "thought", "thoughtSignature", "functionCall", "name", "args", "id", "partialArgs", "jsonPath",
         "stringValue", "willContinue", "executableCode", "code", "codeExecutionResult", "outcome", "toolCall",
         "toolResponse", "toolType", "inlineData", "data", "mimeType", "candidates", "content", "parts", "index",
         "finishReason", "groundingMetadata", "groundingChunks", "groundingSupports", "segment", "startIndex",
         "endIndex", "groundingChunkIndices", "web", "maps", "uri", "urlContextMetadata", "urlMetadata",
         "webSearchQueries", "citationMetadata", "citationSources", "promptFeedback", "blockReason", "usageMetadata",
         "error", "message"]), inner, max_size=5),
    max_leaves=25,
)  # fmt: skip


@requirement("F07", "R5")
@given(st.lists(JSON, max_size=6))
def test_arbitrary_json_yields_legal_finished_stream(chunks: list[Any]):
    wrapped = [
        chunk if number % 2 else {"candidates": [{"content": {"parts": [chunk]}, "groundingMetadata": chunk}]}
        for number, chunk in enumerate(chunks)
    ]
    parts = decode(json.dumps(chunk).encode() for chunk in wrapped)
    assert isinstance(parts[-1], Finish)
    decode_whole(wrapped)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_arbitrary_bytes_are_error(data: list[bytes]):
    decoder = GenerateContentDecoder(GoogleContext())
    emitted = [part for chunk in data for part in decoder.feed(chunk)]
    assert one(as_run(emitted + decoder.close()), Error).kind in ("truncated", "protocol")

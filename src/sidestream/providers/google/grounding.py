"""What an answer is grounded in: chunks and the spans they support as sources, and which tool the event is of.

The wire counts UTF-8 bytes; a source counts characters of its text block.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject, as_list, as_object, is_object, objects
from sidestream.providers.decoding import present
from sidestream.providers.google.state import GeminiBlock, GenerateContentState
from sidestream.providers.google.values import some_text

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


class Span(Struct, frozen=True):
    """Characters of a text block."""

    block: GeminiBlock
    start: int
    end: int


def characters(text: str, offset: int) -> int:
    """The character at a byte offset; an offset inside a character is its start."""
    if text.isascii():
        return max(0, min(offset, len(text)))
    data = text.encode("utf-8", "surrogatepass")
    offset = max(0, min(offset, len(data)))
    while offset and offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return len(data[:offset].translate(None, _CONTINUATION_BYTES))


def on_grounding(s: GenerateContentState, metadata: JsonObject) -> None:
    """`source` for each chunk and each span that it supports."""
    if not metadata:
        return
    for tool in _tools(s, metadata):
        s.tool_event(tool, "grounding", {"groundingMetadata": metadata})
    _count_searches(s, metadata)
    s.grounding = merged(s.grounding, metadata)
    chunks = as_list(metadata.get("groundingChunks"))
    cited: set[int] = set()
    for support in objects(metadata.get("groundingSupports")):
        segment = as_object(support.get("segment"))
        span = _span(s, segment)
        if span is not None:
            span.block.annotations.append(support)
        for index in _indices(support):
            if 0 <= index < len(chunks):
                cited.add(index)
                _chunk_source(s, chunks[index], span, some_text(segment, "text"))
    for index, chunk in enumerate(chunks):
        if index not in cited:
            _chunk_source(s, chunk, None, None)


def on_citations(s: GenerateContentState, metadata: JsonObject) -> None:
    """`source` for each."""
    for citation in [*objects(metadata.get("citationSources")), *objects(metadata.get("citations"))]:
        segment = {key: citation.get(key) for key in ("startIndex", "endIndex")}
        fields = {"kind": "url", "url": some_text(citation, "uri"), "title": some_text(citation, "title")}
        _emit_source(s, fields, _span(s, segment) if some_text(citation, "uri") else None, None)


def _tools(s: GenerateContentState, metadata: JsonObject) -> list[str]:
    """The tools of a grounding: by the kinds of its chunks and by what was searched for."""
    kinds = {kind for chunk in objects(metadata.get("groundingChunks")) for kind in chunk}
    searched = (
        metadata.get("webSearchQueries") or metadata.get("imageSearchQueries") or metadata.get("searchEntryPoint")
    )
    grounded = {
        "google_search": searched,
        "google_maps": "maps" in kinds or metadata.get("googleMapsWidgetContextToken"),
        "file_search": "retrievedContext" in kinds,
    }
    tools = [tool for tool, is_grounded in grounded.items() if is_grounded]
    return tools or ["url_context" if "url_context_metadata" in s.metadata else "google_search"]


def _count_searches(s: GenerateContentState, metadata: JsonObject) -> None:
    count = sum(bool(query) for query in as_list(metadata.get("webSearchQueries")))
    if count and not any(call.tool == "google_search" for call in s.hosted.values()):
        s.server_tool_use["google_search"] = s.server_tool_use.get("google_search", 0) + count


def merged(first: JsonObject, second: JsonObject) -> JsonObject:
    """Groundings of several chunks as one; indices of the later continue those of the earlier."""
    a, b = as_list(first.get("groundingChunks")), as_list(second.get("groundingChunks"))
    if not first or first == second or (a and b[: len(a)] == a):
        return {**first, **second}
    supports = [
        {**support, "groundingChunkIndices": [len(a) + index for index in _indices(support)]}
        for support in objects(second.get("groundingSupports"))
    ]
    lists: JsonObject = {
        "groundingChunks": a + b,
        "groundingSupports": as_list(first.get("groundingSupports")) + supports,
    }
    for key in ("webSearchQueries", "imageSearchQueries"):
        known = as_list(first.get(key))
        lists[key] = known + [query for query in as_list(second.get(key)) if query not in known]
    return {**first, **second, **{key: value for key, value in lists.items() if value}}


def _indices(support: JsonObject) -> list[int]:
    return [index for index in as_list(support.get("groundingChunkIndices")) if isinstance(index, int)]


def _span(s: GenerateContentState, segment: JsonObject) -> Span | None:
    """The span of a segment: by its offsets in all the text, or in one block, if its own text agrees; else by that."""
    start, end = segment.get("startIndex") or 0, segment.get("endIndex")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    stated = some_text(segment, "text")
    blocks = [block for block in s.blocks if block.family == "text"]
    places = [place for place in [_in_all(blocks, start, end), *(_in(block, start, end) for block in blocks)] if place]
    if stated is None:
        return places[0] if places else None
    for place in places:
        if place.block.text[place.start : place.end] == stated:
            return place
    for block in blocks:
        at = block.text.find(stated)
        if at >= 0:
            return Span(block, at, at + len(stated))
    return places[0] if places else None


def _in_all(blocks: list[GeminiBlock], start: int, end: int) -> Span | None:
    """The span in the text of all blocks together; it is in the block where it begins."""
    for block in blocks:
        text = block.text
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if start < size or block is blocks[-1]:
            return _in(block, start, end)
        start, end = start - size, end - size
    return None


def _in(block: GeminiBlock, start: int, end: int) -> Span | None:
    first, last = characters(block.text, start), characters(block.text, end)
    return Span(block, first, last) if first < last else None


def _chunk_source(s: GenerateContentState, chunk: Any, span: Span | None, segment: str | None) -> None:
    kind = next((key for key in SOURCES if is_object(chunk) and is_object(chunk.get(key))), None)
    if kind is None:
        s.raw({"groundingChunk": chunk})
        return
    _emit_source(s, SOURCES[kind](chunk[kind]), span, segment)


def _emit_source(s: GenerateContentState, fields: JsonObject, span: Span | None, cited: str | None) -> None:
    details = present(fields.pop("details", {}))
    place: JsonObject = {}
    if span is not None:
        cited = span.block.text[span.start : span.end]
        place = {"text_id": span.block.id, "start": span.start, "end": span.end}
    key = (fields.get("url"), fields.get("file_id"), *place.values(), cited, str(details) if not place else "")
    if key in s.emitted_sources:
        return
    s.emitted_sources.add(key)
    s.source({**fields, **place, "cited_text": cited}, details)


def _web(web: JsonObject) -> JsonObject:
    return {
        "kind": "url",
        "url": some_text(web, "uri"),
        "title": some_text(web, "title"),
        "details": _but(web, "uri", "title"),
    }


def _image(image: JsonObject) -> JsonObject:
    details = _but(image, "sourceUri", "title")
    return {"kind": "url", "url": some_text(image, "sourceUri"), "title": some_text(image, "title"), "details": details}


def _document(document: JsonObject) -> JsonObject:
    file_id = (
        some_text(document, "documentName") or some_text(document, "mediaId") or some_text(document, "fileSearchStore")
    )
    return {
        "kind": "document",
        "url": some_text(document, "uri"),
        "file_id": file_id,
        "title": some_text(document, "title"),
        "details": _but(document, "uri", "title"),
    }


def _place(place: JsonObject) -> JsonObject:
    return {
        "kind": "place",
        "url": some_text(place, "uri"),
        "file_id": some_text(place, "placeId"),
        "title": some_text(place, "title"),
        "details": _but(place, "uri", "title", "placeId"),
    }


def _but(value: JsonObject, *known: str) -> JsonObject:
    return {key: content for key, content in value.items() if key not in known}


SOURCES: dict[str, Callable[[JsonObject], JsonObject]] = {
    "web": _web,
    "image": _image,
    "retrievedContext": _document,
    "maps": _place,
}
"""Kind of a grounding chunk → the fields of its source."""

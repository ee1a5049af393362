"""Conversion of grounding metadata to tool events and sources, with the text spans that each source supports.

The API counts UTF-8 bytes. A source counts characters of its text block.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject, as_list, as_object, canonical, is_array, is_object, objects, without_none
from sidestream.providers.google.context import some_text
from sidestream.providers.google.decode.state import GeminiBlock, GenerateContentState

_VISIT = 64
"""Cost of looking into a block, besides the length of its text."""


class Span(Struct, frozen=True):
    """A range of characters in a block, and the text quoted from it."""

    block: GeminiBlock
    start: int
    end: int
    cited: str

    def holds(self, text: str) -> bool:
        """Return whether the span covers exactly this text."""
        if self.end - self.start != len(text):
            return False
        return self.cited == text or self.block.text[self.start : self.end] == text


def on_grounding(s: GenerateContentState, metadata: JsonObject) -> None:
    """Emit `source` for each chunk and each span that it supports."""
    if not metadata:
        return
    for tool in _tools(s, metadata):
        s.tool_event(tool, "grounding", {"groundingMetadata": metadata})
    _count_searches(s, metadata)
    merge(s.grounding, metadata)
    chunks = as_list(metadata.get("groundingChunks"))
    cited: set[int] = set()
    for support in objects(metadata.get("groundingSupports")):
        segment = as_object(support.get("segment"))
        span = _span(s, segment)
        if span is not None:
            span.block.annotations.append(support)
        for index in dict.fromkeys(_indices(support)):
            if 0 <= index < len(chunks):
                cited.add(index)
                _chunk_source(s, chunks[index], span, some_text(segment, "text"))
    for index, chunk in enumerate(chunks):
        if index not in cited:
            _chunk_source(s, chunk, None, None)


def on_citations(s: GenerateContentState, metadata: JsonObject) -> None:
    """Emit `source` for each citation."""
    for citation in [*objects(metadata.get("citationSources")), *objects(metadata.get("citations"))]:
        segment = {key: citation.get(key) for key in ("startIndex", "endIndex")}
        fields = {"kind": "url", "url": some_text(citation, "uri"), "title": some_text(citation, "title")}
        _emit_source(s, fields, _span(s, segment) if some_text(citation, "uri") else None, None)


def _tools(s: GenerateContentState, metadata: JsonObject) -> list[str]:
    """Return the tools behind a grounding, judged by its kinds of chunks and its queries."""
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
    if count and "google_search" not in s.hosted_tools:
        s.server_tool_use["google_search"] = s.server_tool_use.get("google_search", 0) + count


def merge(all: JsonObject, new: JsonObject) -> None:
    """Add a grounding to those of earlier chunks, continuing their indices. `all` owns its lists."""
    known, chunks = as_list(all.get("groundingChunks")), as_list(new.get("groundingChunks"))
    if not all or all == new or (known and chunks[: len(known)] == known):
        all |= {key: [*value] if key in _LISTS and is_array(value) else value for key, value in new.items()}
        return
    supports = [
        {**support, "groundingChunkIndices": [len(known) + index for index in _indices(support)]}
        for support in objects(new.get("groundingSupports"))
    ]
    lists = {key: as_list(new.get(key)) for key in _LISTS} | {"groundingSupports": supports}
    for key, entries in lists.items():
        if entries and is_array(mine := all.get(key)):
            mine.extend(entries)
        elif entries:
            all[key] = [*entries]
    all |= {key: value for key, value in new.items() if key not in _LISTS}


_LISTS = ("groundingChunks", "groundingSupports", "webSearchQueries", "imageSearchQueries")


def grounding_of(s: GenerateContentState) -> JsonObject:
    """Return the grounding of the answer, without repeated queries."""
    queries = {key: as_list(s.grounding.get(key)) for key in ("webSearchQueries", "imageSearchQueries")}
    once = {key: list({canonical(query): query for query in asked}.values()) for key, asked in queries.items() if asked}
    return {**s.grounding, **once}


def _indices(support: JsonObject) -> list[int]:
    return [index for index in as_list(support.get("groundingChunkIndices")) if type(index) is int]


def _span(s: GenerateContentState, segment: JsonObject) -> Span | None:
    """Return the span of a segment.

    The offsets may count from the start of all text or of one block. They must agree with the segment's own text, if it
    has one. Otherwise that text is searched for.
    """
    start, end = segment.get("startIndex") or 0, segment.get("endIndex")
    if type(start) is not int or type(end) is not int:
        return None
    stated = some_text(segment, "text")
    first = _in_all(s, start, end)
    if first is not None and (stated is None or first.holds(stated)):
        return first
    for block in _searched(s):
        place = _in(block, start, end)
        if place is not None and (stated is None or place.holds(stated)):
            return place
        first = first or place
    return _found(s, stated) or first if stated is not None else first


def _found(s: GenerateContentState, stated: str) -> Span | None:
    """Return the first occurrence of the stated text."""
    for block in _searched(s):
        at = block.text.find(stated)
        if at >= 0:
            return Span(block, at, at + len(stated), stated)
    return None


def _searched(s: GenerateContentState) -> Iterator[GeminiBlock]:
    """Yield the text blocks to search, until the search budget is used up."""
    for block in s.texts:
        s.searches_left -= _VISIT + block.size
        if s.searches_left < 0:
            return
        yield block


def _in_all(s: GenerateContentState, start: int, end: int) -> Span | None:
    """Return the span at offsets into all blocks together. It belongs to the block where it begins."""
    starts = s.text_starts
    # Only the last block grows.
    for place in range(len(starts), len(s.texts)):
        starts.append(starts[-1] + s.texts[place - 1].byte_size if place else 0)
    if not starts:
        return None
    place = max(bisect_right(starts, start) - 1, 0)
    return _in(s.texts[place], start - starts[place], end - starts[place])


def _in(block: GeminiBlock, start: int, end: int) -> Span | None:
    first, last, cited = block.characters(start, end)
    return Span(block, first, last, cited) if first < last else None


def _chunk_source(s: GenerateContentState, chunk: Any, span: Span | None, segment: str | None) -> None:
    kind = next((key for key in SOURCES if is_object(chunk) and is_object(chunk.get(key))), None)
    if kind is None:
        s.raw({"groundingChunk": chunk})
        return
    _emit_source(s, SOURCES[kind](chunk[kind]), span, segment)


def _emit_source(s: GenerateContentState, fields: JsonObject, span: Span | None, cited: str | None) -> None:
    details = without_none(fields.pop("details", {}))
    place: JsonObject = {}
    if span is not None:
        cited = span.cited
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

"""Conversion of a model's citation markers in streamed text to `source` parts."""

import re
from collections.abc import Iterable, Mapping

from sidestream.evidence.verdict import Evidence
from sidestream.jsontext import Json, JsonObject
from sidestream.parts import Source, StreamPart, TextDelta
from sidestream.results.passages import CitablePassage, finding
from sidestream.results.text_blocks import read_blocks
from sidestream.stream.markers import claim_before

_MARKER = re.compile(r'\[cite:\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)(?:\s*"([^"]{0,500})")?\s*\]')
_BEGINNING = "[cite:"
_MAX_MARKER_CHARS = 600


class CitationMarks:
    """A reader of one answer. `passages` are the passages that the conversation's tools found, by number."""

    def __init__(self, passages: Mapping[int, CitablePassage]) -> None:
        self._passages = passages
        self._blocks: dict[str, _Block] = {}

    def read(self, parts: Iterable[StreamPart]) -> list[StreamPart]:
        """Return the parts with the markers removed and a source added for each."""
        return read_blocks(parts, self._blocks, lambda text_id: _Block(text_id, self._passages))


class _Block:
    """A text block."""

    def __init__(self, text_id: str, passages: Mapping[int, CitablePassage]) -> None:
        self.annotations: list[Json] = []
        self._id = text_id
        self._passages = passages
        self._text = ""
        """Text emitted so far."""
        self._held = ""
        """Text held back because it may begin a marker, or precede one as blanks."""
        self._span = (0, 0)
        """Last cited span."""
        self._count = 0

    def feed(self, part: TextDelta) -> list[StreamPart]:
        """Return the text without markers, and the sources."""
        out: list[StreamPart] = []
        text, self._held = self._held + part.delta, ""
        while text:
            at = text.find("[")
            plain = text if at < 0 else text[:at]
            kept = plain.rstrip(" ")
            rest = text[len(plain) :]
            marker = _MARKER.match(rest)
            if marker is not None:
                out += self._emitted(kept)
                out += self._cited(marker)
                text = rest[marker.end() :]
            elif _may_begin(rest) or not rest:
                out += self._emitted(kept)
                self._held = text[len(kept) :]
                break
            else:
                out += self._emitted(plain + rest[0])
                text = rest[1:]
        return out

    def end(self) -> list[StreamPart]:
        """Return the text held back."""
        held, self._held = self._held, ""
        return self._emitted(held)

    def _emitted(self, text: str) -> list[StreamPart]:
        self._text += text
        return [TextDelta(self._id, text)] if text else []

    def _cited(self, marker: re.Match[str]) -> list[StreamPart]:
        start, end = self._spanned()
        claim = self._text[start:end]
        return [self._source(int(number), marker[2], claim, start, end) for number in marker[1].split(",")]

    def _source(self, number: int, quote: str | None, claim: str, start: int, end: int) -> Source:
        self._count += 1
        source_id = f"{self._id}:cite:{self._count}"
        passage = self._passages.get(number)
        marks: dict[str, Json] = {"sidestream": {"cite": number, **(passage.place if passage is not None else {})}}
        if passage is None:
            return Source(
                source_id,
                "document",
                title=f"passage {number}",
                start=start,
                end=end,
                cited_text=quote,
                text_id=self._id,
                evidence=Evidence("not-found", f"no passage has the number {number}"),
                provider_metadata=marks,
            )
        found = finding(passage, claim, quote)
        self.annotations.append(_annotation(passage, start, end))
        return Source(
            source_id,
            "url" if passage.url else "document",
            url=passage.url,
            file_id=passage.file_id,
            title=passage.title,
            start=start,
            end=end,
            cited_text=found.cited_text,
            text_id=self._id,
            evidence=found.evidence,
            provider_metadata=marks,
        )

    def _spanned(self) -> tuple[int, int]:
        """Return the span of the sentence before the marker, which adjacent markers share."""
        end = len(self._text)
        if self._span[1] == end and end:
            return self._span
        start, _ = claim_before(self._text, end, self._span[1])
        self._span = (start, end)
        return self._span


def _may_begin(text: str) -> bool:
    """Return whether the text may be the beginning of a marker."""
    if len(text) < len(_BEGINNING):
        return bool(text) and _BEGINNING.startswith(text)
    return text.startswith(_BEGINNING) and len(text) < _MAX_MARKER_CHARS and "]" not in text


def _annotation(passage: CitablePassage, start: int, end: int) -> JsonObject:
    """Return the citation as a Responses API annotation."""
    if passage.url:
        return {
            "type": "url_citation",
            "url": passage.url,
            "title": passage.title,
            "start_index": start,
            "end_index": end,
        }
    return {"type": "file_citation", "file_id": passage.file_id, "filename": passage.title, "index": end}

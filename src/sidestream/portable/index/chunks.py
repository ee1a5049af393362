"""A document cut into passages by its structure: sections, paragraphs, code blocks, definitions, pages. Pure."""

import re
from collections.abc import Iterator

from msgspec import Struct

from sidestream.portable.documents import Document
from sidestream.portable.documents.kinds import CODE
from sidestream.portable.index.definitions import LINE, definitions_in

TARGET_CHARS = 1000
"""What a passage grows to: about the 256 tokens that the embedded model reads."""
MAX_CHARS = 1400
"""The longest passage; a longer block is cut at the end of a line, a sentence or a word."""
MAX_CODE_CHARS = 2_000_000
"""Source code up to here is cut at its definitions. What is longer was generated, and its lines take much memory."""
MIN_CHARS = 250
"""A section that is shorter is joined with the next one."""

_MARKUP = frozenset({"text/html", "application/xhtml+xml", "text/markdown"})
_HEADING = re.compile(r"(#{1,6})[ \t]+(?=[^ \t])")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_SENTENCE = re.compile(r"[.!?…][\"')\]]*\s|[\u3002\uff01\uff1f]")


class Chunk(Struct, frozen=True):
    """A passage: a span of the document's text, and the headings above it."""

    start: int
    end: int
    heading: str = ""


class _Block(Struct, frozen=True):
    start: int
    end: int
    level: int = 0
    """Of a heading; 0 for everything else."""
    title: str = ""


def chunks_of(document: Document) -> list[Chunk]:
    """The passages, in order. Together they hold all of the text but white space between them."""
    text = document.text
    if document.mime_type.startswith(CODE) and len(text) <= MAX_CODE_CHARS:
        return [*_joined(text, _definitions(text), [])]
    has_headings = document.mime_type in _MARKUP or "wordprocessingml" in document.mime_type
    starts = document.pages or (0,)
    made: list[Chunk] = []
    path: list[tuple[int, str]] = []
    for start, end in zip(starts, (*starts[1:], len(text)), strict=True):
        made += _joined(text, _blocks(text, start, end, has_headings=has_headings), path)
    return made


def _joined(text: str, blocks: Iterator[_Block], path: list[tuple[int, str]]) -> Iterator[Chunk]:
    """Blocks joined to passages. `path` are the headings above, outermost first; it is changed."""
    start = end = -1
    heading = ""
    for block in blocks:
        is_full = start >= 0 and block.end - start > TARGET_CHARS
        begins_section = block.level > 0 and start >= 0 and end - start >= MIN_CHARS
        if is_full or begins_section:
            yield from _cut(text, start, end, heading)
            start = -1
        if block.level:
            while path and path[-1][0] >= block.level:
                path.pop()
            path.append((block.level, block.title))
        if start < 0:
            start, heading = block.start, " > ".join(title for _, title in path if title)
        end = block.end
    if start >= 0:
        yield from _cut(text, start, end, heading)


def _blocks(text: str, start: int, end: int, *, has_headings: bool) -> Iterator[_Block]:
    """Headings, fenced code, and runs of lines between blank ones."""
    opened, last = -1, -1
    fence = ""
    for found in LINE.finditer(text, start, end):
        line = found[0].rstrip("\n")
        if fence:
            last = found.start() + len(line)
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        heading = _HEADING.match(line) if has_headings else None
        if heading or not line.strip():
            if opened >= 0:
                yield _Block(opened, last)
                opened = -1
            if heading:
                title = line[heading.end() :].rstrip()
                title = title.rstrip("#").rstrip() or title
                yield _Block(found.start(), found.start() + len(line), len(heading[1]), title)
            continue
        if has_headings and (opening := _FENCE.match(line)):
            fence = opening[1]
        if opened < 0:
            opened = found.start()
        last = found.start() + len(line)
    if opened >= 0:
        yield _Block(opened, last)


def _definitions(text: str) -> Iterator[_Block]:
    """Definitions as sections, so that each begins a passage unless the one before it is short."""
    for found in definitions_in(text, MAX_CHARS):
        yield _Block(found.start, found.end, found.depth, found.name)


def _cut(text: str, start: int, end: int, heading: str) -> Iterator[Chunk]:
    """The span, in pieces if it is too long."""
    while end - start > MAX_CHARS:
        at = _break(text, start, start + MAX_CHARS)
        yield Chunk(start, _trimmed(text, start, at), heading)
        start = at
        while start < end and text[start].isspace():
            start += 1
    if text[start:end].strip():
        yield Chunk(start, _trimmed(text, start, end), heading)


def _trimmed(text: str, start: int, end: int) -> int:
    while end > start and text[end - 1].isspace():
        end -= 1
    return end


def _break(text: str, start: int, limit: int) -> int:
    """Where to cut before the limit: after a paragraph, a line, a sentence or a word, in the second half."""
    half = start + (limit - start) // 2
    for mark in ("\n\n", "\n"):
        if (at := text.rfind(mark, half, limit)) > 0:
            return at + len(mark)
    sentences = [found.end() for found in _SENTENCE.finditer(text, half, limit)]
    if sentences:
        return sentences[-1]
    at = text.rfind(" ", half, limit)
    return at + 1 if at > 0 else limit

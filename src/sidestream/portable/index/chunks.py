"""Document chunking by structure: sections, paragraphs, code blocks, definitions, pages. Pure."""

import re
from collections.abc import Iterator

from msgspec import Struct

from sidestream.portable.documents import Document
from sidestream.portable.documents.document import CODE

_MODIFIERS = (
    "export default public private protected internal static final abstract async pub unsafe const extern inline "
    "override sealed partial data open suspend local virtual"
)
_KEYWORDS = (
    "def class function fn func fun interface struct enum trait impl module namespace type object protocol extension "
    "record union"
)
_DEFINITION = re.compile(
    rf"(?:(?:{'|'.join(_MODIFIERS.split())})(?:\([^)]*\))?\s+)*"
    rf"(?:{'|'.join(_KEYWORDS.split())})\b\*?\s+(?:\([^)]*\)\s*)?(?:<[^>]*>\s*)?([\w$.:]+)"
)
_ASSIGNED = re.compile(
    r"(?:export\s+)?(?:const|let|var)\s+([\w$]+)\s*(?::[^=]+)?=\s*(?:async\s*)?(?:function\b|\(|[\w$]+\s*=>)"
)
_SQL = re.compile(r"create\s+(?:or\s+replace\s+)?(?:table|view|function|procedure|trigger)\s+([\w.\"]+)", re.IGNORECASE)
_NO_NAME = frozenset({"if", "for", "while", "switch", "catch", "else", "return", "do", "with"})
_ABOVE = re.compile(r"@\w|#\[|//|/\*|\*|#(?!include|define|if|endif|else|pragma)|--(?!-)")
_CLOSING = re.compile(r"[)\]}]|end\b|else\b|\{|\*/")
LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Definition(Struct, frozen=True):
    """A span of source code. `name` is empty for code between definitions, `depth` is 2 for a member."""

    start: int
    end: int
    name: str = ""
    depth: int = 1


class _Line(Struct, frozen=True):
    start: int
    end: int
    indent: int
    text: str


def definitions_in(text: str, max_chars: int) -> Iterator[Definition]:
    """Yield the spans of the code, without the blank lines between them.

    A span longer than `max_chars` is split at its members.
    """
    lines = [_line(found.start(), found[0]) for found in LINE.finditer(text)]
    at = 0
    while at < len(lines):
        if not lines[at].text:
            at += 1
            continue
        first, name = _opened(lines, at, 0)
        stop = _body_end(lines, first + 1) if name else _plain_end(lines, at)
        last = _last_text(lines, at, stop)
        span = Definition(lines[at].start, lines[last].end, name)
        yield from _members(lines[at : last + 1], span) if span.end - span.start > max_chars and name else [span]
        at = last + 1


def _members(lines: list[_Line], whole: Definition) -> Iterator[Definition]:
    """Yield the span from each member to the next. The first span is the definition's own."""
    first, _ = _opened(lines, 0, lines[0].indent)
    inner = [line.indent for line in lines[first + 1 :] if line.text and line.indent > lines[0].indent and _name(line)]
    indent = min(inner, default=0)
    starts: list[tuple[int, str]] = []
    at = first + 1
    while indent and at < len(lines):
        opened, name = _opened(lines, at, indent)
        if name:
            starts.append((at, name))
        at = opened + 1 if name else max(opened, at + 1)
    edges = [(0, "", 1), *((start, name, 2) for start, name in starts)]
    for (start, name, depth), (stop, *_) in zip(edges, [*edges[1:], (len(lines), "", 0)], strict=True):
        last = _last_text(lines, start, stop)
        yield Definition(lines[start].start, lines[last].end, name or whole.name, depth)


def _line(start: int, line: str) -> _Line:
    text = line.strip()
    indent = len(line) - len(line.lstrip()) if text else 0
    return _Line(start, start + len(line.rstrip()), indent, text)


def _name(line: _Line) -> str:
    """Return the name of the definition that begins on a line, or an empty string."""
    found = _DEFINITION.match(line.text) or _ASSIGNED.match(line.text) or _SQL.match(line.text)
    if found is not None:
        return "" if found[1] in _NO_NAME else found[1].strip('":')
    head, opening, rest = line.text.partition("(")
    words = head.split()
    # As in the C family, and for methods: `type name(…) {`.
    is_body = bool(opening and words) and rest.endswith("{") and not re.search(r"=|;", head + rest)
    return words[-1].strip("*&") if is_body and words[0] not in _NO_NAME else ""


def _opened(lines: list[_Line], at: int, indent: int) -> tuple[int, str]:
    """Return the line of the definition that begins here, perhaps below comments and decorators, and its name.

    Without a definition, it is the first line after the comments, so that no caller scans them again. A file may
    consist of comments only.
    """
    here = at
    while here < len(lines) and lines[here].indent == indent and _ABOVE.match(lines[here].text):
        here += 1
    if here < len(lines) and lines[here].indent == indent:
        return here, _name(lines[here])
    return here, ""


def _body_end(lines: list[_Line], at: int) -> int:
    """Return the first line after the definition."""
    while at < len(lines) and (not lines[at].text or lines[at].indent or _CLOSING.match(lines[at].text)):
        at += 1
    return at


def _plain_end(lines: list[_Line], at: int) -> int:
    """Return the end of code between definitions: a blank line, or the start of a definition."""
    at += 1
    while at < len(lines) and lines[at].text:
        after, name = _opened(lines, at, 0)
        if name:
            break
        at = max(after, at + 1)
    return at


def _last_text(lines: list[_Line], at: int, stop: int) -> int:
    """Return the last line before `stop` that is not blank."""
    last = stop - 1
    while last > at and not lines[last].text:
        last -= 1
    return last


TARGET_CHARS = 1000
"""Target length of a passage, about the 256 tokens that the embedded model reads."""
MAX_CHARS = 1400
"""Maximum length of a passage. A longer block is cut at the end of a line, a sentence or a word."""
MAX_CODE_CHARS = 2_000_000
"""Maximum length of source code that is split at its definitions. Longer code is generated, and its lines take much
memory."""
MIN_CHARS = 250
"""Minimum length of a section. A shorter one is joined with the next."""

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
    """Level of a heading. 0 means any other block."""
    title: str = ""


def chunks_of(document: Document) -> list[Chunk]:
    """Split a document into passages, in order.

    Together they hold all of the text except white space between them.
    """
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
    """Join blocks to passages. `path` holds the headings above, outermost first, and is updated."""
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
    """Yield headings, fenced code, and runs of lines between blank ones."""
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
    """Yield definitions as sections, so that each begins a passage unless the previous one is short."""
    for found in definitions_in(text, MAX_CHARS):
        yield _Block(found.start, found.end, found.depth, found.name)


def _cut(text: str, start: int, end: int, heading: str) -> Iterator[Chunk]:
    """Yield the span, in pieces if it is too long."""
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
    """Return where to cut before the limit, in the second half.

    Prefers the end of a paragraph, then of a line, a sentence or a word.
    """
    half = start + (limit - start) // 2
    for mark in ("\n\n", "\n"):
        if (at := text.rfind(mark, half, limit)) > 0:
            return at + len(mark)
    sentences = [found.end() for found in _SENTENCE.finditer(text, half, limit)]
    if sentences:
        return sentences[-1]
    at = text.rfind(" ", half, limit)
    return at + 1 if at > 0 else limit

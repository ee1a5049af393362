"""Source code cut at its definitions: a function or class is one block, a long class one for each of its members. Pure.

One rule for all languages, by lines: a definition begins with its keyword, with the comments and decorators right above
it, and ends before the next line that is not indented and closes nothing.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

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
    """A span of source code; `name` is empty for code between definitions, `depth` is 2 for a member."""

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
    """The code, span by span, without the blank lines between them. A span that is too long is cut at its members."""
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
    """The span from each member to the next; what comes first is the span's own."""
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
    """The name of the definition that a line begins; empty if it begins none."""
    found = _DEFINITION.match(line.text) or _ASSIGNED.match(line.text) or _SQL.match(line.text)
    if found is not None:
        return "" if found[1] in _NO_NAME else found[1].strip('":')
    head, opening, rest = line.text.partition("(")
    words = head.split()
    # As in C and its family, and for methods: `type name(…) {`.
    is_body = bool(opening and words) and rest.endswith("{") and not re.search(r"=|;", head + rest)
    return words[-1].strip("*&") if is_body and words[0] not in _NO_NAME else ""


def _opened(lines: list[_Line], at: int, indent: int) -> tuple[int, str]:
    """Return the line of the definition that begins here, perhaps below comments and decorators, and its name.

    Without one, it is the first line after the comments, so that no caller looks at them again: a file may consist of
    them.
    """
    here = at
    while here < len(lines) and lines[here].indent == indent and _ABOVE.match(lines[here].text):
        here += 1
    if here < len(lines) and lines[here].indent == indent:
        return here, _name(lines[here])
    return here, ""


def _body_end(lines: list[_Line], at: int) -> int:
    """The first line that does not belong to the definition."""
    while at < len(lines) and (not lines[at].text or lines[at].indent or _CLOSING.match(lines[at].text)):
        at += 1
    return at


def _plain_end(lines: list[_Line], at: int) -> int:
    """The end of a run of code between definitions: a blank line, or where a definition begins."""
    at += 1
    while at < len(lines) and lines[at].text:
        after, name = _opened(lines, at, 0)
        if name:
            break
        at = max(after, at + 1)
    return at


def _last_text(lines: list[_Line], at: int, stop: int) -> int:
    """The last line before `stop` that is not blank."""
    last = stop - 1
    while last > at and not lines[last].text:
        last -= 1
    return last

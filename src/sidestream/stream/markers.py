"""Detection of links that a model writes behind a statement to cite a page, and of the sentence before them.

Some providers report the span of the link as that of the citation: `Oslo is the capital. ([site](https://…))`.
"""

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sidestream.parts import Source, StreamPart, TextDelta

MAX_MARKER_CHARS = 2000
"""Maximum length of a span to search, in characters."""
MAX_SEARCHED = 64_000_000
"""Maximum characters of text searched in one step, counted again each time the text has grown."""
MAX_LAG_CHARS = 100
"""Characters after a link at which its source is no longer expected."""
_MAX_CLAIM_CHARS = 2000

_LINK = r"\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*\]\((?:[^()\s]|\([^()\s]*\))+(?:\s+\"[^\"\n]*\")?\)"
_MARKER = re.compile(rf"\s*(?:\(\s*{_LINK}(?:\s*[,;]?\s*{_LINK})*\s*\)|{_LINK})\s*")
_CERTAIN = re.compile(rf"\(\s*{_LINK}(?:\s*[,;]?\s*{_LINK})*\s*\)|\[\[\d+\]\]\((?:[^()\s]|\([^()\s]*\))+\)")
"""Matches a marker regardless of its context."""
_NUMBERED = re.compile(r"\s*\[\[\d+\]\]\(")
_AT_END = re.compile(r"\s*[.!?。\[(\n]")
"""Matches what follows a link that ends a sentence. A link elsewhere may be part of the sentence."""
_BETWEEN = re.compile(r"[\s,;]*")
_OPENING = re.compile(r"[(\[]")
_PIECE = (
    r"\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*"
    r"(?:\[[^\[\]\n]*|\](?:\((?:[^()\s]|\([^()\s]*\))*(?:\([^()\s]*|\s+(?:\"[^\"\n]*\"?)?|\))?)?)?"
)
"""Matches a link, or the beginning of one."""
_PENDING = re.compile(rf"(?:\(\s*(?:{_LINK}\s*[,;]?\s*)*(?:{_PIECE})?\s*\)?|{_PIECE})\Z")
_BEFORE_SENTENCE = re.compile(r"[\s,;:.)]*(?:(?:[-*•>]|#{1,6}|\d{1,3}[.)])\s+)*")


class Markers:
    """A finder of the citation markers in a run."""

    def __init__(self) -> None:
        self._step = -1
        self._last: dict[str, tuple[int, int, int]] = {}
        """End of the last marker and span of the claim before it, by text block."""
        self._new: Sequence[StreamPart] = ()
        self._read = 0
        """Number of new parts that have been read."""
        self._deltas: dict[str, list[str]] = {}
        """Deltas in the new parts, by text block."""
        self._text = ("", 0, 0, "")
        """The last text searched: its block, the length of its beginning, the number of its deltas, and the text."""
        self._left = MAX_SEARCHED

    def placed(self, source: Source, text_of: Callable[[str], str], new: Sequence[StreamPart], step: int) -> Source:
        """Return the source with its marker and its claim, if its span is a marker.

        `text_of` returns the text of a block of the step so far, without that of `new` parts, a list that grows.
        """
        if step != self._step:
            self._step, self._last, self._left = step, {}, MAX_SEARCHED
        is_checked = source.evidence.state != "unchecked"  # The run reports it again.
        if is_checked or source.start is None or source.text_id is None or self._left <= 0:
            return source
        text = self._text_with(source.text_id, text_of(source.text_id), new)
        span = marker_at(text, source.start, source.end)
        if span is None:
            return source
        start, end = span
        last = self._last.get(source.text_id)
        if last is not None and (start < last[0] or _BETWEEN.fullmatch(text, last[0], start)):
            claim = last[1:]  # Adjacent markers cite the same sentence.
        else:
            claim = claim_before(text, start, 0 if last is None else last[0])
        self._last[source.text_id] = (max(end, 0 if last is None else last[0]), *claim)
        return replace(source, marker_start=start, marker_end=end, claim_start=claim[0], claim_end=claim[1])

    def _text_with(self, block: str, beginning: str, new: Sequence[StreamPart]) -> str:
        """Return the text of a block, including that of the new parts."""
        if new is not self._new:
            self._new, self._read, self._deltas = new, 0, {}
        for part in new[self._read :]:
            if type(part) is TextDelta:
                self._deltas.setdefault(part.id, []).append(part.delta)
        self._read = len(new)
        deltas = self._deltas.get(block, [])
        key = (block, len(beginning), len(deltas))
        if self._text[:3] != key:
            self._text = (*key, "".join([beginning, *deltas]))
            self._left -= len(self._text[3])
        return self._text[3]


def marker_at(text: str, start: int | None, end: int | None) -> tuple[int, int] | None:
    """Return the span of the marker if this span of the text is a link and nothing else, or None."""
    if start is None or end is None or not 0 <= start < end <= len(text) or end - start > MAX_MARKER_CHARS:
        return None
    span = text[start:end]
    if _MARKER.fullmatch(span) is None:
        return None
    start, end = start + len(span) - len(span.lstrip()), start + len(span.rstrip())
    if text[start] == "(":
        return start, end
    if text[start - 1 : start] == "(" and text[end : end + 1] == ")":
        return start - 1, end + 1
    return (start, end) if _NUMBERED.match(span) or _AT_END.match(text, end) else None


def claim_before(text: str, at: int, since: int = 0) -> tuple[int, int]:
    """Return the span of the sentence that ends before a position."""
    since = max(since, at - _MAX_CLAIM_CHARS)
    end = since + len(text[since:at].rstrip())
    from sidestream.evidence.tokens import sentences  # Most answers cite nothing, so its word lists are loaded late.

    body = since + len(text[since:end].rstrip('.!?。"”)]*_'))
    since = max(since, text.rfind("\n", since, body) + 1)
    start = max((found.start for found in sentences(text[since:body], since)), default=since)
    return trimmed(text, start, end)


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without the blanks around its text and the list marker before it."""
    end = start + len(text[start:end].rstrip())
    begins = _BEFORE_SENTENCE.match(text, start, end)
    return (start if begins is None else begins.end()), end


def marker_beginning(text: str) -> int | None:
    """Return the position of a marker whose source may still arrive, or None if there is none.

    The text ends in the marker or shortly after it, because providers report a citation a little after its link.
    """
    for found in _OPENING.finditer(text, max(0, len(text) - MAX_MARKER_CHARS)):
        if _PENDING.match(text, found.start()):
            return found.start()
        whole = _CERTAIN.match(text, found.start())
        if whole is not None and len(text) - whole.end() <= MAX_LAG_CHARS:
            return found.start()
    return None

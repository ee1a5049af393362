"""Finder of the marks `[n]` with which a model cites the n-th entry of a list. Pure."""

import re
from collections.abc import Iterator

from msgspec import Struct

from sidestream.stream.markers import claim_before

_TOKEN = re.compile(r"```|`|\n|\[(\d{1,3})\]")
_SPECIAL = re.compile(r"[`\[\n]")
_PENDING = re.compile(r"(?:(?<!`)`{1,2}|\[\d{0,3})\Z")
"""Matches the beginning of a token at the end of the text so far."""
_LONGEST_PENDING = 4
_WINDOW_CHARS = 4000
"""Characters before a mark in which its sentence is looked for."""
_BETWEEN = " \t\n,;"


class Mark(Struct, frozen=True):
    """A mark, its span, and that of the sentence before it."""

    number: int
    start: int
    end: int
    claim_start: int
    claim_end: int


class NumberedMarks:
    """A finder of marks in text that arrives in pieces. Brackets in code are not marks."""

    def __init__(self) -> None:
        self._text = ""
        """The end of the text so far."""
        self._begin = 0
        """Position of that end in all text."""
        self._read = 0
        """Position up to which tokens have been read."""
        self._is_fenced = False
        self._is_code = False
        self._last: Mark | None = None

    @property
    def length(self) -> int:
        """Number of characters so far."""
        return self._begin + len(self._text)

    def feed(self, text: str) -> Iterator[Mark]:
        """Yield the marks that a piece completes."""
        has_rest = self._read < self.length
        self._text += text
        if len(self._text) > 2 * _WINDOW_CHARS + len(text):
            cut = len(self._text) - _WINDOW_CHARS - len(text)
            self._text, self._begin = self._text[cut:], self._begin + cut
        end = len(self._text)
        if not has_rest and _SPECIAL.search(text) is None:
            self._read = self.length
            return
        pending = _PENDING.search(self._text, max(end - _LONGEST_PENDING, 0))
        end = end if pending is None else pending.start()
        first, self._read = self._read - self._begin, self._begin + end
        for token in _TOKEN.finditer(self._text, first, end):
            if token[1] is None:
                self._switch(token[0])
            elif not (self._is_fenced or self._is_code):
                yield self._mark(int(token[1]), token.start(), token.end())

    def _switch(self, token: str) -> None:
        if token == "```":
            self._is_fenced = not self._is_fenced
        self._is_code = token == "`" and not (self._is_code or self._is_fenced)

    def _mark(self, number: int, start: int, end: int) -> Mark:
        last, begin = self._last, self._begin
        since = 0 if last is None else max(last.end - begin, 0)
        if last is not None and last.end >= begin and not self._text[since:start].strip(_BETWEEN):
            claim = last.claim_start, last.claim_end  # Adjacent marks cite the same sentence.
        else:
            first, stop = claim_before(self._text, start, since)
            claim = begin + first, begin + stop
        self._last = Mark(number, begin + start, begin + end, *claim)
        return self._last

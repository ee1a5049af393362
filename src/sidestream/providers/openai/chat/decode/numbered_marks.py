"""Finder of the marks `[n]` with which a model cites the n-th entry of a list. Pure."""

import re
from collections.abc import Iterator

from msgspec import Struct

from sidestream.stream.markers import claim_before

_TOKEN = re.compile(r"```|`|\n|\[(\d{1,3})\]")
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
        self.length: int = 0
        """Number of characters so far."""
        self._pieces: list[str] = []
        """The end of the text so far."""
        self._begin: int = 0
        """Position of that end in all text."""
        self._read: int = 0
        """Position up to which tokens have been read."""
        self._is_fenced = False
        self._is_code = False
        self._last: Mark | None = None

    def skips(self, text: str) -> bool:
        """Add a piece and return True if nothing in it can be a mark or code. If not, it must be fed."""
        if self._read != self.length or "[" in text or "`" in text or "\n" in text:
            return False
        self._pieces.append(text)
        self.length += len(text)
        self._read = self.length
        return True

    def feed(self, text: str) -> Iterator[Mark]:
        """Yield the marks that a piece completes."""
        self._pieces.append(text)
        self.length += len(text)
        known = "".join(self._pieces)
        cut = max(len(known) - _WINDOW_CHARS - len(text), 0)
        known, self._begin = known[cut:], self._begin + cut
        self._pieces = [known]
        end = len(known)
        pending = _PENDING.search(known, max(end - _LONGEST_PENDING, 0))
        end = end if pending is None else pending.start()
        first, self._read = self._read - self._begin, self._begin + end
        for token in _TOKEN.finditer(known, first, end):
            if token[1] is None:
                self._switch(token[0])
            elif not (self._is_fenced or self._is_code):
                yield self._mark(known, int(token[1]), token.start(), token.end())

    def _switch(self, token: str) -> None:
        if token == "```":
            self._is_fenced = not self._is_fenced
        self._is_code = token == "`" and not (self._is_code or self._is_fenced)

    def _mark(self, known: str, number: int, start: int, end: int) -> Mark:
        last, begin = self._last, self._begin
        since = 0 if last is None else max(last.end - begin, 0)
        if last is not None and last.end >= begin and not known[since:start].strip(_BETWEEN):
            claim = last.claim_start, last.claim_end  # Adjacent marks cite the same sentence.
        else:
            first, stop = claim_before(known, start, since)
            claim = begin + first, begin + stop
        self._last = Mark(number, begin + start, begin + end, *claim)
        return self._last

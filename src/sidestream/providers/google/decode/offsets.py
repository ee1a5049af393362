"""A text that grows, and the characters at byte offsets of it: the wire counts UTF-8 bytes, a source characters."""

from typing import NamedTuple

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_STRIDE = 1024
"""Bytes between two marks. No offset is counted from further away than that."""

MAX_CITED_BYTES = 8192
"""What a source quotes of the text that it supports; the span itself may be longer. Many sources may support all of a
long text."""


class Characters(NamedTuple):
    """A span of characters, and the text in it."""

    start: int
    end: int
    text: str
    """The beginning of it, if it is long."""


class GrowingText:
    """A text in pieces. However many offsets of it are requested, each piece is joined and encoded once."""

    __slots__ = ("_data", "_encoded", "_marks", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._data = bytearray()
        self._encoded = 0
        """How many of the pieces `_data` holds."""
        self._marks = [0]
        """The characters before each stride of `_data`."""

    @property
    def text(self) -> str:
        """All text so far."""
        if len(self.pieces) > 1:
            if self._encoded:
                self._encode()
            self.pieces = ["".join(self.pieces)]
            self._encoded = min(self._encoded, 1)
        return self.pieces[0] if self.pieces else ""

    @property
    def byte_size(self) -> int:
        """Its length in UTF-8."""
        self._encode()
        return len(self._data)

    def characters(self, start: int, end: int) -> Characters:
        """The characters from one byte offset to another; an offset inside a character is its start."""
        self._encode()
        first, last = self._boundary(start), self._boundary(end)
        quoted = last if last - first <= MAX_CITED_BYTES else self._boundary(first + MAX_CITED_BYTES)
        text = self._data[first:quoted].decode("utf-8", "surrogatepass")
        return Characters(self._character(first), self._character(last), text)

    def _encode(self) -> None:
        if self._encoded == len(self.pieces):
            return
        self._data += "".join(self.pieces[self._encoded :]).encode("utf-8", "surrogatepass")
        self._encoded = len(self.pieces)
        while len(self._marks) * _STRIDE <= len(self._data):
            end = len(self._marks) * _STRIDE
            self._marks.append(self._marks[-1] + _count(self._data[end - _STRIDE : end]))

    def _boundary(self, offset: int) -> int:
        data = self._data
        offset = max(0, min(offset, len(data)))
        while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
            offset -= 1
        return offset

    def _character(self, boundary: int) -> int:
        mark = boundary // _STRIDE
        return self._marks[mark] + _count(self._data[mark * _STRIDE : boundary])


def _count(data: bytearray) -> int:
    """The characters that begin in these bytes."""
    return len(data.translate(None, _CONTINUATION_BYTES))

"""Fast path for chunks that repeat lists of sources and all text so far, as Perplexity's do.

What the last chunk had in the same bytes is cut out before a chunk is parsed, so that it costs about as much as its new
text. A chunk in any other form is left to the tables.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sidestream import jsontext
from sidestream.messages.fold import Batch
from sidestream.parts import StreamPart, TextDelta
from sidestream.providers.openai.chat.decode.state import CompletionsState

LAST_CHUNK = "chat.completion.done"
"""`object` of Perplexity's last chunk, which in some modes has no finish reason."""
_LISTS = b'"citations":'
_MESSAGE = b'"message":{"role":"assistant","content":"'
_MESSAGE_VALUE = _MESSAGE.removeprefix(b'"message":')
_MESSAGE_END = b'"}'


class _Delta(Struct, forbid_unknown_fields=True, gc=False):
    content: str
    role: str | None = None


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    delta: _Delta
    index: int = 0
    message: Raw = Raw()
    finish_reason: None = None


class _Chunk(Struct, forbid_unknown_fields=True, gc=False):
    choices: tuple[_Choice]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    usage: Raw = Raw()
    citations: Raw = Raw()
    search_results: Raw = Raw()


_parse = msgspec.json.Decoder(_Chunk).decode


class RepeatingChunks:
    """A reader of such chunks, with the bytes that the last one had."""

    __slots__ = ("_lists", "_parsed_lists", "_said")

    def __init__(self) -> None:
        self._lists = b""
        """JSON of both lists, with their names. Empty if it is not known."""
        self._parsed_lists: tuple[Any, ...] | None = None
        self._said = b""
        """Text so far, as the server escapes it."""

    def read_deltas(self, growing: CompletionsState, events: Iterator[bytes], out: Batch) -> bytes | None:
        """Decode chunks that only add text."""
        for data in events:
            try:
                parts = self._read(growing, data)
            except RecursionError:
                return data
            if parts is None:
                return data
            out.parts += parts
        return None

    def _read(self, growing: CompletionsState, data: bytes) -> list[StreamPart] | None:
        """Return the parts of a chunk that only adds text, or None, without changing the response, for any other."""
        s = growing
        if self._parsed_lists is not s.lists:
            self._lists, self._said = b"", b""
        short = self._shortened(data)
        try:
            chunk = _parse(short)
        except (msgspec.DecodeError, UnicodeError):
            return None
        choice = chunk.choices[0]
        text = choice.delta.content
        if not text or choice.index != s.choice or s.reasoning_id is not None or "text" not in s.texts:
            return None
        if chunk.id != s.response_id or chunk.object == LAST_CHUNK or not s.has_room(len(text)):
            return None
        has_lists = bool(chunk.citations or chunk.search_results)
        if (has_lists or short is data) and not self._learns(s, data, chunk):
            return None
        message = bytes(choice.message)
        if message.startswith(_MESSAGE_VALUE) and message.endswith(_MESSAGE_END):
            self._said += message[len(_MESSAGE_VALUE) : -len(_MESSAGE_END)]
        s.wrote((text,))
        s.unread_usage = chunk.usage
        rest = s.cite(text)
        if not s.out:
            return [TextDelta(s.texts["text"], text)]
        parts, s.out = s.out, []
        return [*parts, TextDelta(s.texts["text"], rest)] if rest else parts

    def _shortened(self, data: bytes) -> bytes:
        """Return a chunk without the bytes that the last one had, or the chunk itself if it does not have them."""
        at = data.find(_LISTS)
        if not self._lists or not data.startswith(self._lists, at):
            self._said = b""
            return data
        end = at + len(self._lists)
        message = data.find(_MESSAGE, end)
        start = message + len(_MESSAGE)
        if message < 0 or not data.startswith(self._said, start):
            self._said = b""
            return data[:at] + data[end:]
        return b"".join((data[:at], data[end:start], data[start + len(self._said) :]))

    def _learns(self, s: CompletionsState, data: bytes, chunk: _Chunk) -> bool:
        """Return whether a chunk has the lists that are known, and keep their bytes."""
        lists = bytes(chunk.citations), bytes(chunk.search_results)
        if s.lists != tuple(jsontext.loads(found) if found else None for found in lists):
            return False
        both = b"".join((_LISTS, lists[0], b',"search_results":', lists[1], b","))
        self._lists = both if data.startswith(both, data.find(_LISTS)) else b""
        self._parsed_lists = s.lists
        return True

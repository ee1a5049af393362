"""Extraction of the code in a tool's input while the input's JSON still streams, and of what the code printed."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.jsontext import Json
from sidestream.parts import StreamPart, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart

ANY_FIELD = ("code", "command", "diff")
"""Fields that may hold code if the tool is unknown."""

CODE_FIELDS: dict[str, tuple[str, ...]] = {
    "code_interpreter": ("code",),
    "code_execution": ("code",),
    "bash_code_execution": ("command",),
    "text_editor_code_execution": ("file_text", "new_str"),
    "programmatic_tool_calling": ("code",),
    "shell": ("commands", "command"),
    "local_shell": ("command",),
    "apply_patch": ("diff",),
}
"""Tool, or a provider's name of it → input fields that hold code, in order of preference."""

OUTPUT_FIELDS = ("logs", "stdout", "stderr", "output", "text", "outputs", "result")
"""The fields of a result that hold what code printed."""

_LISTS = {"commands": r'"commands"\s*:\s*\[\s*"'}
"""Patterns of fields that are lists of code. The first entry is extracted as it streams."""
_LOOKBACK = 64
"""Characters of other fields to keep, so that a field name split over two deltas is found."""
_LONGEST_ESCAPE = 12
"""Length of an escaped surrogate pair, in characters. Shorter text may still become one."""
_HEX = "[0-9a-fA-F]"
_COMPLETE = re.compile(
    r'(?:[^"\\\x00-\x1f]'
    r'|\\["\\/bfnrt]'
    rf"|\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}})*"
)
"""Matches the longest prefix of a JSON string's content that can be decoded on its own."""


def code_fields(call: ToolCall) -> tuple[str, ...]:
    """Return the input fields of a call that hold code. Several tools of a provider may be one portable tool."""
    return CODE_FIELDS.get(call.provider_tool or "") or CODE_FIELDS.get(call.tool, ())


def code_in(input: Any, names: tuple[str, ...]) -> str | None:
    """Return the code in a call's input, joining a list of commands, or None if there is none."""
    fields = jsontext.as_object(input)
    for name in names:
        value = fields.get(name)
        if isinstance(value, str):
            return value
        words = [word for word in jsontext.as_list(value) if isinstance(word, str)]
        if words:
            # `commands` is a list of lines, but `command` as a list is the words of one line.
            return ("\n" if name in _LISTS else " ").join(words)
    return None


def _decoded(text: str) -> str:
    """Decode the content of a JSON string, or return it unchanged if it is invalid."""
    if not text:
        return ""
    try:
        return jsontext.loads(f'"{text}"')
    except ValueError:
        return text


_string = msgspec.json.Decoder(str).decode
_strings = msgspec.json.Decoder(list[str]).decode
_NOT_STRING = (msgspec.DecodeError, UnicodeError)


_END = re.compile(r'(?<!\\)(?:\\\\)*"')
"""Matches the quote that ends a JSON string."""


def _inside(partial: str, deltas: list[str]) -> tuple[list[str], str]:
    """Return the pieces before the one that ends the string, with escapes that are cut moved to the next piece.

    `partial` is the backslash before the first piece, if it is cut. The one after the last piece is returned.
    """
    pieces: list[str] = []
    for delta in deltas:
        piece = partial + delta
        if '"' in piece and _END.search(piece):
            break
        is_cut = piece[-1:] == "\\" and (len(piece) - len(piece.rstrip("\\"))) % 2
        partial = "\\" if is_cut else ""
        pieces.append(piece[:-1] if is_cut else piece)
    return pieces, partial


class CodeExtractor:
    """An extractor of the code in a streaming input."""

    def __init__(self, names: tuple[str, ...] = ANY_FIELD) -> None:
        self._extracted: list[str] = []
        self._field = re.compile("|".join(_LISTS.get(name, rf'"{name}"\s*:\s*"') for name in names))
        self._buffer = ""
        self._in_field = False
        self._is_over = False

    def feed(self, delta: str) -> str:
        """Add JSON text and return the code in it."""
        if self._is_over:
            return ""
        if self._in_field and not self._buffer and '"' not in delta:
            # The fast path: neither the end of the string, nor an escape that may be incomplete.
            code = None
            if "\\" not in delta:
                code = delta if delta.isprintable() else None
            elif "\\u" not in delta and delta[-1] != "\\":
                try:
                    code = _string(f'"{delta}"')
                except _NOT_STRING:
                    code = _decoded(delta)
            if code is not None:
                self._extracted.append(code)
                return code
        self._buffer += delta
        if not self._in_field:
            start = self._field.search(self._buffer)
            if start is None:
                self._buffer = self._buffer[-_LOOKBACK:]
                return ""
            self._in_field = True
            self._buffer = self._buffer[start.end() :]
        if '"' not in self._buffer and "\\u" not in self._buffer and not self._buffer.endswith("\\"):
            text = self._buffer  # No partial escape, and no end of the string.
        else:
            complete = _COMPLETE.match(self._buffer)
            text = complete[0] if complete is not None else ""
        self._buffer = self._buffer[len(text) :]
        # The string ends here, or is not valid JSON.
        self._is_over = self._buffer.startswith('"') or len(self._buffer) >= _LONGEST_ESCAPE
        code = _decoded(text)
        self._extracted.append(code)
        return code

    def feed_all(self, deltas: list[str]) -> list[str]:
        """Add pieces of JSON text and return the code in each."""
        codes = self._whole(deltas) if self._in_field and not self._is_over else []
        codes += map(self.feed, deltas[len(codes) :])
        return codes

    def _whole(self, deltas: list[str]) -> list[str]:
        """Return the code in the pieces before the string's end, decoded at once, or none if they are unusual."""
        pieces, partial = _inside(self._buffer, deltas)
        text = '["' + '","'.join(pieces) + '"]'
        if not pieces or "\\u" in text or not text.isprintable():
            return []
        try:
            codes = _strings(text)
        except _NOT_STRING:
            return []
        self._extracted += codes
        self._buffer = partial
        return codes

    @property
    def extracted(self) -> str:
        """The code returned so far."""
        return "".join(self._extracted)

    def remainder(self, code: str) -> str:
        """Return the rest of the final code, or all of it if it differs from what was extracted."""
        return code.removeprefix(self.extracted)


class CodeFold:
    """A fold of parts to the code of all tools, with calls separated by newlines."""

    def __init__(self) -> None:
        self._extractors: dict[str, CodeExtractor] = {}
        self._ended: str | None = None
        self._call: str | None = None
        self.last = ""
        """Last code that was returned, without the newline before it."""

    def feed(self, part: StreamPart) -> str:
        """Return the code that a part adds."""
        match part:
            case ToolInputStart():
                if part.name in CODE_FIELDS:
                    self._extractors[part.id] = CodeExtractor(CODE_FIELDS[part.name])
            case ToolInputEnd():
                self._ended = part.id
            case ToolCall():
                return self._rest(part) if part.tool in CODE_FIELDS else ""
            case ToolInputDelta():
                return self.delta(part)
            case _:
                pass
        return ""

    def is_code(self, call_id: str) -> bool:
        """Return whether a streaming input holds code."""
        return call_id in self._extractors

    def delta(self, part: ToolInputDelta) -> str:
        """Return the code that a delta adds."""
        extractor = self._extractors.get(part.id)
        return "" if extractor is None else self._joined(part.id, extractor.feed(part.delta))

    def continued(self, call_id: str, deltas: list[str]) -> list[str] | None:
        """Return the code of each delta of an input that flows, or None if the input holds no code."""
        extractor = self._extractors.get(call_id)
        if extractor is None:
            return None
        codes = extractor.feed_all(deltas)
        self.last = next(filter(None, reversed(codes)), self.last)
        return codes

    def is_flowing(self, call_id: str) -> bool:
        """Return whether more of an input needs no separator, because it holds no code or its code has begun."""
        return self._call == call_id or call_id not in self._extractors

    def _rest(self, call: ToolCall) -> str:
        # The final id of a call may differ from the one its input streamed under.
        streamed = call.id if call.id in self._extractors else self._ended or ""
        extractor = self._extractors.pop(streamed, CodeExtractor())
        code = code_in(call.input, code_fields(call))
        return self._joined(streamed or call.id, extractor.remainder(code)) if code else ""

    def _joined(self, call: str, code: str) -> str:
        if not code:
            return ""
        separator = "\n" if self._call not in (None, call) and not self.last.endswith("\n") else ""
        self._call, self.last = call, code
        return separator + code


def output_text(result: Json) -> str:
    """Return what a tool printed; empty if its result holds no text."""
    return "\n".join(text.rstrip("\n") for text in _texts(result))


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for entry in jsontext.as_list(value):
        if not isinstance(entry, str):
            yield from _texts(entry)
    fields = jsontext.as_object(value)
    for key in OUTPUT_FIELDS:
        if fields.get(key):
            yield from _texts(fields[key])

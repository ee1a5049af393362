"""Extracts the code from a tool's input while its JSON text is still streaming."""

import re

from sidestream import jsontext

_FIELD = re.compile(r'"(?:code|command|diff)"\s*:\s*"')
_LOOKBACK = 64
"""Characters of other fields that are kept, so that a field name split over two deltas is found."""
_HEX = "[0-9a-fA-F]"
_COMPLETE = re.compile(
    r'(?:[^"\\\x00-\x1f]'
    r'|\\["\\/bfnrt]'
    rf"|\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}})*"
)
"""The longest prefix of a JSON string's content that can be decoded on its own."""


class CodeExtractor:
    """Finds the field that holds code and returns its text as it streams."""

    def __init__(self) -> None:
        self.extracted = ""
        """The code returned so far."""
        self._buffer = ""
        self._in_field = False

    def feed(self, delta: str) -> str:
        """Takes more JSON text and returns the code that it adds."""
        self._buffer += delta
        if not self._in_field:
            start = _FIELD.search(self._buffer)
            if start is None:
                self._buffer = self._buffer[-_LOOKBACK:]
                return ""
            self._in_field = True
            self._buffer = self._buffer[start.end() :]
        complete = _COMPLETE.match(self._buffer)
        text = complete[0] if complete is not None else ""
        self._buffer = self._buffer[len(text) :]
        code = jsontext.loads(f'"{text}"') if text else ""
        self.extracted += code
        return code

    def remainder(self, code: str) -> str:
        """The part of the final code that was not returned yet; all of it if it differs from what was."""
        return code.removeprefix(self.extracted)

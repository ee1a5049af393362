"""Reads a tool's input while it is being written: the code in it, before its JSON text is complete."""

import re

from sidestream import jsontext

_FIELD = re.compile(r'"(?:code|command|diff)"\s*:\s*"')
_LOOKBACK = 64
"""How much of other fields is kept, so that the field's name is found across two pieces."""
_HEX = "[0-9a-fA-F]"
_WHOLE = re.compile(
    r'(?:[^"\\\x00-\x1f]'
    r'|\\["\\/bfnrt]'
    rf"|\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}})*"
)
"""The longest beginning of a JSON string's inside that can be read by itself."""


class CodeExtractor:
    """Finds the field that holds code and gives its text, piece by piece."""

    def __init__(self) -> None:
        self.shown = ""
        """The code given so far."""
        self._rest = ""
        self._is_inside = False

    def feed(self, delta: str) -> str:
        """More JSON text; returns the code that it adds."""
        self._rest += delta
        if not self._is_inside:
            start = _FIELD.search(self._rest)
            if start is None:
                self._rest = self._rest[-_LOOKBACK:]
                return ""
            self._is_inside = True
            self._rest = self._rest[start.end() :]
        whole = _WHOLE.match(self._rest)
        text = whole[0] if whole is not None else ""
        self._rest = self._rest[len(text) :]
        code = jsontext.loads(f'"{text}"') if text else ""
        self.shown += code
        return code

    def remainder(self, code: str) -> str:
        """What of the final code was not given yet; all of it where it differs from what was."""
        return code.removeprefix(self.shown)
